"""The scores of other papers against twins written from their formulas, in double precision."""

import numpy as np
import pytest
import torch
from torch import nn

import family_reference as twins
import synflow
from checks import arrays, kept, mlp
from synflow.models.built_in import build
from synflow.network.private_copy import open_network
from synflow.pruning.random_walks import visit_rates
from synflow.pruning.scores import ntk_sap, prospr
from zoo import ZOO

EXAMPLE = torch.zeros(1, 4, dtype=torch.float64)


def chain(*widths, act=nn.ReLU):
    model = mlp(*widths, dtype=torch.float64, act=act)
    return model, arrays(dict(model.named_parameters()))


def some_masks(weights, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(weight.shape, generator=generator) > 0.3 for name, weight in weights.items()}


def numbers(masks):
    return {name: mask.double().numpy() for name, mask in masks.items()}


def close(found, expected, rtol=1e-8):
    assert list(found) == list(expected)
    scale = max(np.abs(each).max() for each in expected.values())
    for name, score in found.items():
        np.testing.assert_allclose(score.numpy(), expected[name], rtol=rtol, atol=rtol * scale)


def test_lamp_against_its_formula():
    model, weights = chain(4, 6, 3)
    close(synflow.score(model, EXAMPLE, "lamp"), twins.lamp(weights))
    masks = some_masks(weights)
    masked = {name: weight * masks[name].numpy() for name, weight in weights.items()}
    close(synflow.score(model, EXAMPLE, "lamp", masks=masks), twins.lamp(masked))


def test_lamp_keeps_the_largest_weight_of_each_layer_and_ranks_a_layer_by_magnitude():
    model, _ = chain(4, 6, 3)
    with torch.no_grad():
        model[0].weight[1:3] = 0.5  # ties go by position
    found = synflow.score(model, EXAMPLE, "lamp")
    for name, score in found.items():
        assert score.max() == 1
        order = torch.argsort(model.get_parameter(name).abs().flatten(), descending=True, stable=True)
        assert (score.flatten()[order].diff() < 0).all()


def test_lamp_of_a_layer_that_is_zero_keeps_a_weight_of_it():
    model, _ = chain(4, 6, 3)
    nn.init.zeros_(model[2].weight)
    found = synflow.score(model, EXAMPLE, "lamp")["2.weight"].flatten()
    torch.testing.assert_close(found, 1 / torch.arange(1, 19, dtype=torch.float64))


def test_rates_of_walks_are_sums_over_all_paths():
    model, weights = chain(3, 5, 4, 2)
    found = visit_rates(open_network(model, torch.zeros(1, 3)), None)
    close(found, twins.walk_rates(weights))


def test_rates_of_walks_in_convolutions():
    """Units are channels: in each input channel the kernel's weights share the walks; groups have their own."""
    model = nn.Sequential(nn.Conv2d(4, 6, 1, groups=2, bias=False), nn.Conv2d(6, 2, 1, bias=False)).double()
    found = visit_rates(open_network(model, torch.zeros(1, 4, 3, 3)), None)
    first = torch.zeros(6, 4, dtype=torch.float64)
    first[:3, :2], first[3:, 2:] = model[0].weight[:3, :, 0, 0], model[0].weight[3:, :, 0, 0]
    dense = arrays({"0.weight": first, "1.weight": model[1].weight[:, :, 0, 0]})
    expected = twins.walk_rates(dense)
    blocks = np.concatenate([expected["0.weight"][:3, :2], expected["0.weight"][3:, 2:]])
    np.testing.assert_allclose(found["0.weight"][:, :, 0, 0].numpy(), blocks, rtol=1e-8)
    np.testing.assert_allclose(found["1.weight"][:, :, 0, 0].numpy(), expected["1.weight"], rtol=1e-8)
    padded = nn.Conv2d(3, 5, 3, padding=1, bias=False).double()
    rates = visit_rates(open_network(padded, torch.zeros(1, 3, 64, 64)), None)["weight"]
    size = padded.weight.detach().abs()
    expected = size / size.sum((0, 2, 3), keepdim=True) / 3 + size / size.sum((1, 2, 3), keepdim=True) / 5
    torch.testing.assert_close(rates, expected / 2, rtol=0.03, atol=0)


def test_phew_keeps_what_walks_pass():
    """Frequencies of kept weights, over many seeds, against walks that are really walked."""
    model, weights = chain(5, 6, 6, 3)
    keep, runs = 30, 24
    found = [synflow.prune(model, torch.zeros(1, 5), density=keep / 84, score="phew", seed=s) for s in range(runs)]
    walked = [twins.phew_masks(weights, keep, seed) for seed in range(200)]
    ours = {name: np.mean([masks[name].numpy() for masks in found], 0) for name in weights}
    theirs = {name: np.mean([masks[name] for masks in walked], 0) for name in weights}
    for name in weights:
        assert ours[name].sum() == pytest.approx(theirs[name].sum(), rel=0.15)
        assert np.corrcoef(ours[name].ravel(), theirs[name].ravel())[0, 1] > 0.8


@pytest.mark.parametrize("name", ["residual", "unet", "transformer"])
def test_what_phew_keeps_lies_on_paths(name):
    sample = ZOO[name]()
    masks = synflow.prune(sample.model, sample.example, compression=3, score="phew")
    certificate = synflow.certify(sample.model, masks, sample.example)
    assert certificate.connected
    assert certificate.as_dict()["effective_compression"] < 1.1 * 3


@pytest.mark.parametrize("masked", [False, True])
def test_ntk_sap_against_its_formula(masked):
    model, weights = chain(4, 5, 3, act=nn.Tanh)
    masks = some_masks(weights) if masked else {n: torch.ones(w.shape, dtype=torch.bool) for n, w in weights.items()}
    example = torch.zeros(3, 4, dtype=torch.float64)
    found = ntk_sap(open_network(model, example, seed=5), masks, draws=2)
    generator, draws = torch.Generator().manual_seed(5 + kept(masks)), []  # each step of a run draws anew
    for _ in range(2):  # in the order of the draws: weights, inputs, moves
        drawn = {}
        for name, weight in weights.items():
            chosen = torch.randint(weight.size, weight.shape, generator=generator).numpy()
            drawn[name] = weight.ravel()[chosen]
        x = torch.randn(3, 4, generator=generator, dtype=torch.float64).numpy()
        moves = {n: torch.randn(w.shape, generator=generator, dtype=torch.float64).numpy() for n, w in weights.items()}
        draws.append((drawn, x, {name: 0.01 * move for name, move in moves.items()}))

    def outputs(x, given):
        return np.tanh(x @ given["0.weight"].T) @ given["2.weight"].T

    close(found, twins.ntk_sap(outputs, numbers(masks), draws), rtol=1e-5)


def test_ntk_sap_leaves_statistics_as_they_were_and_needs_several_inputs_only_itself():
    sample = ZOO["mlp_zero_gamma"]()
    network = open_network(sample.model, sample.example[:1])
    norm = next(m for m in network.model.modules() if isinstance(m, nn.BatchNorm1d))
    before = norm.running_var.clone()
    first, again = ntk_sap(network), ntk_sap(network)
    assert torch.equal(norm.running_var, before)
    assert norm.momentum == 0.1
    assert all(torch.equal(first[name], again[name]) for name in first)
    model = nn.Sequential(nn.Flatten(0), nn.Linear(4, 3))
    with pytest.raises(synflow.SynflowError, match="ntk_sap: Sequential fails .* whose first dimension is the batch"):
        synflow.score(model, torch.zeros(1, 4), "ntk_sap")


def test_settings_without_meaning_are_refused():
    model, _ = chain(4, 3)
    network = open_network(model, EXAMPLE, data=[(torch.randn(2, 4).double(), torch.tensor([0, 1]))])
    with pytest.raises(synflow.SynflowError, match="ntk_sap: draws must be at least 1 and deviation above 0, got 0"):
        ntk_sap(network, draws=0)
    with pytest.raises(synflow.SynflowError, match="prospr: steps of training must be at least 1, got 0"):
        prospr(network, steps=0)


@pytest.mark.parametrize("masked", [False, True])
def test_px_against_its_formula(masked):
    model, weights = chain(4, 5, 4, 3)
    masks = some_masks(weights) if masked else None
    data = [(torch.randn(n, 4).double(), torch.zeros(n, dtype=torch.long)) for n in (3, 2)]
    found = synflow.score(model, EXAMPLE, "px", data, masks=masks)
    given = {n: w * masks[n].numpy() for n, w in weights.items()} if masked else weights
    expected = twins.px(given, np.concatenate([x.numpy() for x, _ in data]))
    unit = sum(e.sum() for e in expected.values()) / float(sum(s.sum() for s in found.values()))
    assert np.log2(unit) == pytest.approx(round(np.log2(unit)), abs=1e-9)  # flows are in units of a power of two
    close({name: score * unit for name, score in found.items()}, expected)


def test_px_refuses_data_of_another_size_than_the_example():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())
    data = [(torch.randn(2, 1, 6, 6), torch.zeros(2))]
    with pytest.raises(
        synflow.SynflowError, match=r"px: an output on the example has shape \(2, 3, 3\) .* \(2, 4, 4\)"
    ):
        synflow.score(model, torch.zeros(1, 1, 5, 5), "px", data)


@pytest.mark.parametrize("masked", [False, True])
def test_prospr_against_training_with_each_weight_a_little_larger(masked):
    model, weights = chain(4, 5, 3, act=nn.Tanh)
    masks = some_masks(weights) if masked else {n: torch.ones(w.shape, dtype=torch.bool) for n, w in weights.items()}
    data = [(torch.randn(6, 4).double(), torch.randint(3, (6,))) for _ in range(3)]

    def loss(own, batch):
        outputs = torch.tanh(batch[0] @ own["0.weight"].T) @ own["2.weight"].T
        return nn.functional.cross_entropy(outputs, batch[1])

    found = prospr(open_network(model, EXAMPLE, data=data), masks)
    close(found, twins.prospr(loss, weights, numbers(masks), data), rtol=1e-6)


@pytest.mark.parametrize("score", sorted(synflow.SCORES))
@pytest.mark.parametrize("scope", ["global", "smart"])
def test_a_guard_for_every_score_and_any_densities(score, scope):
    """No layer dies, whatever the score and the densities; exact counts."""
    sample = ZOO["residual"]()
    masks = synflow.prune(
        sample.model, sample.example, compression=12, score=score, scope=scope, data=sample.data, steps=2, guard=True
    )
    size = sum(weight.numel() for weight in synflow.prunable(sample.model).values())
    assert kept(masks) == round(size / 12)
    certificate = synflow.certify(sample.model, masks, sample.example)
    assert certificate.connected
    if not score.startswith("synflow"):
        assert all(mask.any() for mask in masks.values()), masks.about


def test_iterative_snip_is_snip_with_steps():
    """IterSNIP (de Jorge et al. 2021) has no row of its own: SNIP on what is left, weights do not come back."""
    sample = ZOO["mlp"]()
    steps = list(synflow.iterate(sample.model, sample.example, compression=4, score="snip", data=sample.data, steps=3))
    before = None
    for step in steps:
        scores = synflow.score(sample.model, sample.example, "snip", sample.data, masks=before)
        ones = {name: torch.ones_like(score, dtype=torch.bool) for name, score in scores.items()}
        before = synflow.SCOPES["global"](scores, before or ones, step.kept)
        assert all(torch.equal(before[name], step.masks[name]) for name in before)


# Weights per layer of ResNet-20 at 98% sparsity, three seeds, published with Cunegatti et al. (TMLR 2024): least, most.
# What is called ER there has the formula of ERK, on average 5,307 weights, not 5,418; uniform is our "layer".
PUBLISHED = {
    "er": [
        (72, 91), (111, 140), (121, 130), (123, 134), (107, 125), (128, 137), (113, 126), (171, 185), (207,
        237), (151, 162), (217, 221), (223, 239), (215, 247), (195, 211), (318, 364), (429, 445), (296, 319),
        (421, 455), (407, 458), (424, 451), (416, 436), (213, 246),
    ],
    "erk": [
        (74, 91), (112, 142), (125, 133), (124, 136), (108, 128), (131, 139), (117, 129), (172, 193), (210, 247),
        (155, 165), (222, 228), (226, 245), (221, 250), (199, 216), (326, 373), (437, 455), (303, 331), (429, 460),
        (418, 466), (436, 460), (426, 447), (220, 251),
    ],
    "layer": [
        (5, 9), (38, 65), (39, 43), (40, 51), (41, 45), (36, 49), (38, 52), (82, 104), (184, 196), (6, 12), (167, 194),
        (188, 206), (177, 188), (178, 204), (333, 393), (749, 769), (42, 47), (724, 747), (713, 753), (727, 750),
        (701, 725), (11, 13),
    ],
    "synflow": [
        (215, 232), (286, 291), (250, 272), (282, 293), (269, 277), (247, 277), (247, 262), (271, 298), (271, 291),
        (1, 4), (277, 291), (284, 297), (260, 284), (270, 280), (274, 291), (283, 300), (0, 3), (255, 278), (255, 294),
        (238, 255), (282, 328), (194, 203),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_layer_counts_agree_with_published_ones(name):
    """Within the published range, widened by three times the spread that three draws of a count leave open."""
    torch.manual_seed(0)
    model = build("resnet20")
    scope = {"er": "erk", "synflow": "global"}.get(name, name)
    keep = 5307 if name == "er" else 5418
    score = "synflow" if name == "synflow" else "random"
    masks = synflow.prune(model, torch.zeros(1, 3, 32, 32), density=keep / 270_896, score=score, scope=scope)
    assert kept(masks) == keep
    assert [mask.numel() for mask in masks.values()] == [
        432, *[2304] * 6, 4608, 9216, 512, *[9216] * 4, 18432, 36864, 2048, *[36864] * 4, 640,
    ]  # fmt: skip
    for mask, (least, most) in zip(masks.values(), PUBLISHED[name], strict=True):
        spread = 3 * max(least, 1) ** 0.5
        assert least - spread <= int(mask.sum()) <= most + spread
