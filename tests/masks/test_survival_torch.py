"""Masks hold through the rest of torch: averaging, clipping, autocast, functional calls, export, dtypes, devices."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import swa_utils
from torch.utils.checkpoint import checkpoint

from masking import Small, assert_masks_hold, assert_same, batches, random_masks, seen, small, train, zeroed
from synflow.masks.attach import attach, attached, bake, shuffle


@pytest.fixture
def network():
    """An attached model, its masks, and an optimizer that pulls at every weight."""
    model, masks = small()
    attach(model, masks)
    return model, masks, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=0.01)


IMAGES = torch.randn(3, 2, 6, 6, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("average", [None, swa_utils.get_ema_multi_avg_fn(0.9)], ids=["swa", "ema"])
def test_averaged_models(network, average):
    model, masks, optimizer = network
    averaged = swa_utils.AveragedModel(model, multi_avg_fn=average)
    data = list(batches(3))
    for batch in data:
        train(model, optimizer, [batch])
        averaged.update_parameters(model)
    swa_utils.update_bn(data, averaged)
    assert_masks_hold(averaged.module, masks)
    assert_same(attached(averaged), masks)
    output = averaged.eval()(IMAGES)
    bake(model)
    assert torch.equal(averaged(IMAGES), output), "baking the model leaves its average alone"
    bake(averaged)
    assert torch.equal(averaged(IMAGES), output)
    assert list(averaged.module.state_dict()) == list(Small().state_dict())


def test_averaged_buffers(network):
    model, masks, optimizer = network
    averaged = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9), use_buffers=True)
    for batch in batches(3):
        train(model, optimizer, [batch])
        averaged.update_parameters(model)
    assert_masks_hold(averaged.module, masks)


def test_gradient_clipping_sees_the_pruned_network(network):
    model, masks, _ = network
    twin = zeroed(small()[0], masks)
    norms = []
    for candidate in (model, twin):
        images, classes = next(batches(1))
        F.cross_entropy(candidate(images), classes).backward()
        if candidate is twin:
            for name, mask in masks.items():
                dict(twin.named_parameters())[name].grad.masked_fill_(~mask, 0)
        norms.append(nn.utils.clip_grad_norm_(candidate.parameters(), 0.1))
    assert norms[0] == norms[1]
    for left, right in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(left.grad, right.grad)


def test_gradient_accumulation(network):
    model, masks, optimizer = network
    model.eval()  # batch norm would see other statistics
    images, classes = next(batches(1, size=8))
    F.cross_entropy(model(images), classes).backward()
    whole = [parameter.grad.clone() for parameter in model.parameters()]
    optimizer.zero_grad()
    for part, labels in zip(images.chunk(4), classes.chunk(4), strict=True):
        (F.cross_entropy(model(part), labels) / 4).backward()
    for parameter, expected in zip(model.parameters(), whole, strict=True):
        torch.testing.assert_close(parameter.grad, expected, atol=1e-6, rtol=1e-4)
    optimizer.step()
    assert_masks_hold(model, masks)


def test_autocast_bfloat16(network):
    model, masks, optimizer = network
    for images, classes in batches(3):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(images).float(), classes)
        loss.backward()
        optimizer.step()
    assert_masks_hold(model, masks)
    with torch.autocast("cpu", torch.bfloat16):
        output = model.eval()(IMAGES)
        bake(model)
        assert torch.equal(model(IMAGES), output)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(network, reentrant):
    model, masks, optimizer = network
    layers = attach(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)), {"0.weight": masks["mix.weight"]})
    x = torch.randn(4, 8, requires_grad=True)
    layers(x).sum().backward()
    expected = [parameter.grad.clone() for parameter in layers.parameters()]
    layers.zero_grad()
    checkpoint(layers, x, use_reentrant=reentrant).sum().backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(layers.parameters(), expected, strict=True))
    model.mix.forward = lambda x, mix=model.mix: checkpoint(F.linear, x, mix.weight, mix.bias, use_reentrant=reentrant)
    train(model, optimizer, batches(2))
    assert_masks_hold(model, masks)


def test_functional_call_takes_dense_names_and_masks_what_it_is_given(network):
    model, masks, _ = network
    model.eval()
    other = small(seed=4)[0].eval()
    output = torch.func.functional_call(model, dict(other.named_parameters()), (IMAGES,))
    assert torch.equal(output, zeroed(other, masks)(IMAGES))
    assert_masks_hold(model, masks)
    grads = torch.func.grad(lambda p: torch.func.functional_call(model, p, (IMAGES,)).sum())(
        dict(model.named_parameters())
    )
    assert all(not grads[name][~mask].any() for name, mask in masks.items())


def test_vmap_over_an_ensemble_with_different_masks():
    models = []
    for seed in range(3):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
        models.append(attach(model, shuffle(random_masks(model), seed)))
    parameters, buffers = torch.func.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")
    x = torch.randn(5, 4)
    output = torch.vmap(lambda p, b: torch.func.functional_call(base, (p, b), (x,)))(parameters, buffers)
    for index, model in enumerate(models):
        torch.testing.assert_close(output[index], model(x))
    per_sample = torch.vmap(models[0])(x)
    torch.testing.assert_close(per_sample, models[0](x))


def test_export(network):
    model, masks, _ = network
    model.eval()
    program = torch.export.export(model, (IMAGES,))
    torch.testing.assert_close(program.module()(IMAGES), model(IMAGES))
    assert {name for name in program.state_dict if not name.endswith("_synflow_mask")} == set(Small().state_dict())
    for name, mask in masks.items():
        assert not program.state_dict[name][~mask].any()
    bake(model)
    baked = torch.export.export(model, (IMAGES,))
    torch.testing.assert_close(baked.module()(IMAGES), program.module()(IMAGES))


def test_trace(network):
    model, _, _ = network
    model.eval()
    torch.testing.assert_close(torch.jit.trace(model, IMAGES, check_trace=False)(IMAGES), model(IMAGES))


@pytest.mark.parametrize("convert", [nn.Module.half, nn.Module.double, nn.Module.bfloat16], ids=lambda f: f.__name__)
def test_dtypes(network, convert):
    model, masks, _ = network
    expected = convert(zeroed(small()[0], masks))
    assert_same(seen(convert(model)), seen(expected))
    assert {mask.dtype for mask in attached(model).values()} == {torch.bool}
    assert_masks_hold(model, masks)
    assert model.rnn(torch.zeros(1, 1, 8, dtype=model.conv.weight.dtype))[0].dtype == model.conv.weight.dtype


def test_devices(network):
    model, masks, _ = network
    model.to("meta")
    assert {buffer.device.type for buffer in model.buffers()} == {"meta"}
    assert model(IMAGES.to("meta")).device.type == "meta"
    model.to_empty(device="cpu")
    expected = attach(small()[0], masks)
    model.load_state_dict(expected.state_dict())
    assert_same(seen(model), seen(expected))  # but the meta device has untied what was tied
    assert torch.equal(model(IMAGES), expected(IMAGES))


def test_channels_last(network):
    model, masks, optimizer = network
    model.to(memory_format=torch.channels_last)
    late = attach(small()[0].to(memory_format=torch.channels_last), masks)
    for candidate in (model, late):
        mask = dict(candidate.named_buffers())["conv.weight_synflow_mask"]
        assert mask.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(mask, masks["conv.weight"])
    train(model, optimizer, batches(2))
    assert_masks_hold(model, masks)


@pytest.mark.parametrize(
    "norm", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm, nn.utils.weight_norm]
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_normed_layers_beside_masked_ones(norm):
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), norm(nn.Linear(6, 6)), nn.ReLU(), nn.Linear(6, 2))
    keys = list(model.state_dict())
    masks = {"0.weight": torch.rand(6, 4) < 0.5, "4.weight": torch.rand(2, 6) < 0.5}
    attach(model, masks)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().sum().backward()
        optimizer.step()
    assert_masks_hold(model, masks)
    bake(model)
    assert list(model.state_dict()) == keys


@pytest.mark.parametrize("norm", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm])
def test_a_bias_may_be_parametrized_beside_a_masked_weight(norm):
    layer = attach(nn.Bilinear(3, 3, 2), {"weight": torch.rand(2, 3, 3) < 0.5})
    layer.other = nn.Parameter(torch.randn(3, 3))
    norm(layer, "other")
    masks = attached(layer)
    assert_masks_hold(layer, masks)
    assert_same(bake(layer), masks)
    assert "density" not in repr(layer)
    nn.utils.parametrize.remove_parametrizations(layer, "other")
    assert type(layer) is nn.Bilinear


def test_replicas_of_data_parallel_are_masked(network):
    """What nn.DataParallel does on several devices: weights are set as plain attributes of a copy."""
    model, masks, _ = network
    replica = model.mix._replicate_for_data_parallel()
    replica.weight, replica.bias = torch.ones(8, 8) * 2, torch.zeros(8)
    assert torch.equal(replica.weight, 2.0 * masks["mix.weight"])
    rnn = model.rnn._replicate_for_data_parallel()
    for name, parameter in model.rnn._parameters.items():
        setattr(rnn, name, parameter.detach().clone())
    assert torch.equal(rnn(torch.ones(1, 2, 8))[0], model.rnn(torch.ones(1, 2, 8))[0])


def test_fast_paths_of_transformers_see_the_masks():
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2).eval()
    masks = random_masks(encoder)
    twin = zeroed(encoder, masks)
    attach(encoder, masks)
    with torch.no_grad():
        assert torch.equal(encoder(torch.ones(2, 3, 8)), twin(torch.ones(2, 3, 8)))


def test_parameters_in_lists_and_dicts():
    model = nn.ModuleDict(
        {
            "list": nn.ParameterList([torch.ones(2, 2), torch.ones(2, 2)]),
            "dict": nn.ParameterDict({"key": torch.ones(2, 2)}),
        }
    )
    masks = random_masks(model)
    attach(model, masks)
    assert torch.equal(model["list"][1], 1.0 * masks["list.1"])
    assert torch.equal(model["dict"]["key"], 1.0 * masks["dict.key"])
    assert_same(bake(model), masks)


def test_inference_mode_and_frozen_weights(network):
    model, masks, optimizer = network
    with torch.inference_mode():
        assert model.eval()(IMAGES).isfinite().all()
    model.conv.requires_grad_(False)
    before = seen(model)["conv.weight"]
    train(model, optimizer, batches(1))
    assert torch.equal(seen(model)["conv.weight"], before)
    assert_masks_hold(model, masks)
