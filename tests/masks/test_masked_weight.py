"""Writes into a masked weight reach the parameter or raise; reading it is like reading any tensor."""

import contextlib
import copy
import pickle

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import synflow
from synflow import SynflowError
from synflow.masks.masked_weight import WRITES

MASK = torch.arange(16).reshape(4, 4) % 3 > 0


def masked():
    torch.manual_seed(0)
    return synflow.attach(nn.Linear(4, 4), {"weight": MASK})


def test_the_list_of_writing_methods_is_torchs_own():
    assert {"add_", "clip_", "lerp_", "masked_fill_", "addmm_", "renorm_", "set_", "copysign_", "__iadd__"} <= set(
        WRITES
    )
    assert not {"__iter__", "__invert__", "__index__", "__int__", "__len__", "add"} & set(WRITES)


# Arguments for methods that write; of the first that a method takes.
ONES = torch.ones(4, 4)
ARGUMENTS = [
    (), (ONES,), (1,), (1, 1), (0, 1), (0, torch.tensor([1]), 1.0), (0, torch.tensor([1]), torch.ones(4, 1)),
    (ONES.bool(), 1.0), (ONES.bool(), ONES), (ONES, ONES), (ONES, 0.5), (ONES[0], ONES[0]), (ONES.long(), 1.0),
    (0, ONES.long(), ONES, "sum"), (0, torch.tensor([1]), torch.ones(1, 4), "amax"), ((4, 4),), ((4, 4), (4, 1)),
    (2, 0, 1.0), ((torch.tensor([1]),), torch.ones(1)), (torch.tensor([1]), torch.ones(1)), (["a", "b"],), ("a", "b"),
    (0, torch.tensor([1]), torch.ones(1, 4)), (ONES, ONES[0]), (0.5,), (ONES, max), (ONES, ONES, max), (abs,),
    (0, ONES.long(), 1.0), (0, ONES.long(), ONES),
]  # fmt: skip
OF_OTHER_TENSORS = """
    __iand__ __ilshift__ __ior__ __irshift__ __ixor__ bitwise_and_ bitwise_left_shift_ bitwise_not_ bitwise_or_
    bitwise_right_shift_ bitwise_xor_ gcd_ lcm_ _coalesced_ resize_as_sparse_ sparse_resize_ sparse_resize_and_clear_
    _philox_normal_ _philox_uniform_ float_power_ addbmm_ addmv_ baddbmm_
"""  # of integers, of sparse tensors, on other devices, of doubles, of one dimension or three


def takes(name, arguments):
    try:
        with torch.no_grad():
            return getattr(torch.ones(4, 4), name)(*arguments) is not NotImplemented
    except (TypeError, RuntimeError, IndexError):
        return False


@pytest.mark.parametrize("data", [False, True])
@pytest.mark.parametrize("name", WRITES)
def test_every_writing_method_of_a_tensor_is_refused(name, data):
    layer = masked()
    before = layer.weight.clone()
    weight = layer.weight.data if data else layer.weight
    if data and name == "requires_grad_":
        return  # a view may have a gradient of its own
    found = [arguments for arguments in ARGUMENTS if takes(name, arguments)]
    assert found or name in OF_OTHER_TENSORS.split()
    for arguments in found:
        with torch.no_grad(), pytest.raises(SynflowError, match=r"would be lost.*synflow\.unmasked"):
            getattr(weight, name)(*arguments)
    assert torch.equal(layer.weight, before)


def iadd(layer):
    layer.weight.data += torch.ones(4, 4)


def plain_iadd(layer):
    layer.weight += 1


def assign_data(layer):
    layer.weight.data = torch.ones(4, 4)


def item(layer):
    layer.weight[0] = 5


def item_of_data(layer):
    layer.weight.data[0, 1:] = 5


def row(layer):
    layer.weight[0].zero_()


def rows(layer):
    for part in layer.weight.detach().t().chunk(2):
        part.mul_(2)


def requires_grad(layer):
    layer.weight.requires_grad = False


def gradient(layer):
    layer.weight.grad = torch.ones(4, 4)


@pytest.mark.parametrize(
    "write",
    [
        iadd, plain_iadd, assign_data, item, item_of_data, row, rows, requires_grad, gradient,
        lambda layer: nn.init.eye_(layer.weight),
        lambda layer: nn.init.dirac_(layer.weight.view(4, 4, 1)),
        lambda layer: torch.add(torch.ones(4, 4), 1, out=layer.weight),
        lambda layer: torch.relu_(layer.weight),
        lambda layer: F.relu(layer.weight, inplace=True),
        lambda layer: torch._foreach_mul_([layer.weight, torch.ones(2)], 2.0),
        lambda layer: layer.weight.view(-1).clamp_(0, 1),
        lambda layer: layer.weight.T.copy_(torch.ones(4, 4)),
    ],
)  # fmt: skip
def test_other_ways_to_write_are_refused(write):
    layer = masked()
    before = layer.weight.clone()
    with torch.no_grad(), pytest.raises(SynflowError, match="would be lost"):
        write(layer)
    assert torch.equal(layer.weight, before)


@pytest.mark.parametrize("read", [lambda w: w, lambda w: w.data, lambda w: w[0], lambda w: w.detach().t()])
def test_a_parameter_is_made_of_a_copy_only(read):
    weight = read(masked().weight)
    with pytest.raises(SynflowError, match=r"make it of a copy: nn\.Parameter\(layer\.weight\.detach\(\)\.clone"):
        nn.Parameter(weight)
    own = nn.Parameter(weight.detach().clone())
    with torch.no_grad():
        own += 1
    assert type(own) is nn.Parameter
    assert torch.equal(own, weight + 1)


def test_an_array_of_the_weight_cannot_be_written_to():
    array = masked().weight.detach().numpy()
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    assert np.asarray(masked().weight.detach().clone()).flags.writeable


def test_writing_elsewhere_with_a_masked_weight_is_fine():
    layer, other = masked(), torch.zeros(4, 4)
    with torch.no_grad():
        other.add_(layer.weight)
        torch.mul(layer.weight, 2, out=other)
        other[:] = layer.weight
        other += layer.weight
    assert torch.equal(other, 2 * layer.weight)
    copied = layer.weight.detach().clone()
    copied[0] = 5
    assert (copied[0] == 5).all()


def test_a_masked_weight_reads_like_a_tensor():
    layer = masked()
    weight = layer.weight
    assert repr(weight).startswith("tensor([[")
    assert f"{weight[0, 0]:.1f}" == "0.0"
    assert type(weight * 2) is type(weight.sum()) is type(F.linear(torch.ones(1, 4), weight)) is torch.Tensor
    with torch.no_grad():
        assert type(copy.deepcopy(layer.weight)) is torch.Tensor
        assert type(pickle.loads(pickle.dumps(layer.weight))) is torch.Tensor
    layer.weight.square().sum().backward()
    assert torch.equal(dict(layer.named_parameters())["weight"].grad, 2 * layer.weight)
    assert torch.equal(torch.vmap(lambda x: layer.weight @ x)(torch.eye(4)), layer.weight.t())


def test_unmasked_is_the_way_to_write_as_a_lora_merge_does():
    model = nn.Sequential(masked(), nn.LSTM(4, 4))
    synflow.attach(model, {"1.weight_hh_l0": torch.eye(4).repeat(4, 1).bool()})
    a, b = torch.randn(2, 4), torch.randn(4, 2)
    merged = (model[0].weight + b @ a) * MASK
    with synflow.unmasked(model):
        model[0].weight.data += b @ a
        nn.init.ones_(model[1].weight_hh_l0)
    assert torch.equal(model[0].weight, merged)
    parameters = dict(model.named_parameters())
    assert not parameters["0.weight"][~MASK].any()
    assert torch.equal(parameters["1.weight_hh_l0"], torch.eye(4).repeat(4, 1))
    with contextlib.suppress(KeyError), synflow.unmasked(model):
        model[0].weight.data.fill_(3.0)
        raise KeyError
    assert torch.equal(model[0].weight, 3.0 * MASK)


def test_unmasked_says_when_masks_cannot_be_put_on_again():
    layer = masked()
    with pytest.raises(SynflowError, match="parametrize first"), synflow.unmasked(layer):
        nn.utils.parametrizations.spectral_norm(layer)


def test_a_view_of_a_masked_weight_may_have_a_gradient_of_its_own():
    values = masked().weight.detach().requires_grad_()
    (values**2).sum().backward()
    assert torch.equal(values.grad, 2 * values)


def test_quantization_refuses_masked_layers_and_takes_baked_ones():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    masks = synflow.prune(model, torch.ones(1, 8), compression=2)
    synflow.attach(model, masks)
    for network in (model, synflow.compact(model, torch.ones(1, 8))):
        with pytest.raises(SynflowError, match=r"skip this masked Linear.*synflow\.bake"):
            torch.ao.quantization.quantize_dynamic(network, {nn.Linear})
        network.qat = torch.ao.quantization.get_default_qat_qconfig("x86")
        plain = copy.deepcopy(network)
        synflow.bake(plain)
        quantized = torch.ao.quantization.quantize_dynamic(plain, {nn.Linear})
        assert "Dynamic" in type(quantized[0]).__module__ + type(quantized[0]).__qualname__ + repr(quantized)
    assert not hasattr(model[0], "qconfig")


@pytest.mark.parametrize("other", ["plain", "parameter", "masked", "row"])
@pytest.mark.parametrize("turned", [False, True])
def test_swapping_tensors_is_refused_before_anything_is_changed(other, turned):
    layer = masked()
    weight = layer.weight
    one = weight[0] if other == "row" else weight
    two = {"plain": torch.ones(4, 4), "parameter": nn.Parameter(ONES.clone()), "masked": masked().weight}.get(
        other, torch.ones(4)
    )
    kinds = type(one), type(two)
    with pytest.raises((SynflowError, RuntimeError), match=r"Cannot swap t1 and t2|writes into a masked weight"):
        torch.utils.swap_tensors(*((two, one) if turned else (one, two)))
    assert (type(one), type(two)) == kinds
    assert torch.equal(layer.weight, weight)
