"""Comparisons, selections, exponentials, losses, checkpoints: against stand-ins written out, and in both engines."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import synflow
from blocks import Gate
from checks import Function
from synflow.flow.measure import measure
from synflow.network.private_copy import open_network

X = torch.zeros(3, 4)


def scores(model, example=X, select=None):
    """Flow and scores in float64, in units of one."""
    found = measure(open_network(model.double(), example, select=select))
    return found.value * 2.0**found.exponent, {n: s * 2.0**found.exponent for n, s in found.scores.items()}


def between(function):
    """A function of what a layer sends, before another layer."""
    torch.manual_seed(0)
    first, last = nn.Linear(4, 6, bias=False), nn.Linear(6, 2, bias=False)
    return Function(lambda self, x: self.last(function(self.first(x))), first=first, last=last)


def one(h):
    return h / h.detach()


BOOLEAN = torch.tensor([True, False, True, True, False, True])
# Multiples of 0.618 modulo one are 0, .62, .24, .85, .47, .09; their order, and one further on in each row.
SORTED = (torch.tensor([0, 5, 2, 4, 1, 3]) + torch.arange(3)[:, None]) % 6
DOWN = (torch.tensor([0, 2, 1])[:, None] + torch.arange(6)) % 3
ROWS = torch.arange(6).reshape(3, 2)  # two positions of six for each of three rows, in turn


@pytest.mark.parametrize(
    ("function", "stand_in"),
    [
        (lambda h: h * BOOLEAN, lambda h: h * BOOLEAN),
        (lambda h: h.mul_(BOOLEAN), lambda h: h * BOOLEAN),
        (lambda h: torch.where(h > 0.5, h, 0.1 * h), lambda h: 1.1 * h),
        (lambda h: h.where(h > 0.5, torch.zeros(6).double()), lambda h: h),
        (lambda h: torch.where(h > 6, 6.0, h), lambda h: h + 6),
        (lambda h: torch.where((h > 0) & BOOLEAN, h, -torch.inf), lambda h: h * BOOLEAN),
        (lambda h: torch.where(~(h > 0), 1.0, -1.0), one),
        (lambda h: h.masked_fill(h < 0, 0.0), lambda h: h),
        (lambda h: h.masked_fill_((h < 0) | (h > 7), -1e9), lambda h: h),
        (lambda h: h * (h > 0), lambda h: h * one(h)),
        (lambda h: (h > 0).float(), one),
        (lambda h: (h > 0)[:, None].expand(-1, 2, -1).sum(1), lambda h: 2 * one(h)),
        (lambda h: h[h > 0].reshape(3, 6), lambda h: h),
        (lambda h: torch.where(torch.isnan(h), 0.0, h), lambda h: h),
        (lambda h: h if not torch.isnan(h).any() else h * 0, lambda h: h),
        (lambda h: F.pad(h.topk(2, -1).values, (0, 4)), lambda h: F.pad(h.gather(1, ROWS), (0, 4))),
        (lambda h: torch.zeros_like(h).scatter_(1, h.topk(2).indices, h.topk(2).values),
         lambda h: torch.zeros_like(h).scatter(1, ROWS, h.gather(1, ROWS))),
        (lambda h: h.sort(-1, descending=True).values, lambda h: h.gather(1, SORTED)),
        (lambda h: h.gather(1, h.argsort(1)), lambda h: h.gather(1, SORTED)),
        (lambda h: h.gather(0, h.argsort(0)), lambda h: h.gather(0, DOWN)),
        (lambda h: h + F.one_hot(h.argmax(-1), 6), lambda h: h + F.one_hot(torch.arange(3), 6)),
        (lambda h: h * h.median(-1, keepdim=True).values, lambda h: h * h.mean(-1, keepdim=True)),
        (lambda h: h + h.amin(-1, keepdim=True), lambda h: h + h.amax(-1, keepdim=True)),
        (lambda h: torch.minimum(h, 2 * h), lambda h: torch.maximum(h, 2 * h)),
        (lambda h: h.scatter_reduce(1, torch.zeros(3, 6).long(), h, "amin"),
         lambda h: h.scatter_reduce(1, torch.zeros(3, 6).long(), h, "amax")),
        (lambda h: h.exp(), one),
        (lambda h: h.exp() / h.exp().sum(-1, keepdim=True), lambda h: one(h) / 6),
        (lambda h: h.cumprod(-1), lambda h: one(h.cumsum(-1))),
        (lambda h: h.round() + torch.log1p(h), lambda h: 2 * h),
        (lambda h: torch.cos(h), lambda h: h / h.detach().mean()),
        (lambda h: torch.fake_quantize_per_channel_affine(h, torch.ones(6), torch.zeros(6).int(), 1, 0, 9),
         lambda h: h),
        (lambda h: torch.cross(h[:, :3], h[:, 3:], dim=-1).repeat(1, 2),
         lambda h: torch.stack([h[:, i] * h[:, 3 + j] + h[:, j] * h[:, 3 + i] for i, j in ((1, 2), (2, 0), (0, 1))], 1)
         .repeat(1, 2)),
        (lambda h: torch.cdist(h, h) @ torch.ones(3, 6).double(),
         lambda h: (h[:, None] + h[None]).norm(dim=-1) @ torch.ones(3, 6).double()),
        (lambda h: F.pad(h.diff(), (0, 1)),
         lambda h: F.pad(h[:, 1:] + h[:, :-1], (0, 1))),
        (lambda h: torch.view_as_real(torch.view_as_complex(h.reshape(3, 3, 2)) * 1j).flatten(1),
         lambda h: h.reshape(3, 3, 2).sum(-1, keepdim=True).expand(-1, -1, 2).flatten(1)),
        (lambda h: checkpoint(torch.relu, h, use_reentrant=False), lambda h: h),
        (lambda h: checkpoint(torch.relu, h, use_reentrant=True), lambda h: h),
        (lambda h: Odd.apply(h), lambda h: 3 * h),
    ],
)  # fmt: skip
def test_stand_ins(function, stand_in):
    model = between(function)
    value, found = scores(model)
    weights = {name: weight.detach().abs().requires_grad_() for name, weight in model.named_parameters()}
    total = (stand_in(torch.ones(3, 4).double() @ weights["first.weight"].T) @ weights["last.weight"].T).sum()
    gradients = torch.autograd.grad(total, list(weights.values()))
    assert value == pytest.approx(total.item(), rel=1e-12)
    for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
        torch.testing.assert_close(found[name], weight.detach() * gradient, rtol=1e-10, atol=1e-12)


class Odd(torch.autograd.Function):
    """Its backward, made for training, is not the gradient of its forward."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 3 * x.clamp(min=0)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * -100


def test_custom_functions_work_as_before_after_a_pass():
    synflow.score(between(Odd.apply), X)
    x = torch.ones(2, requires_grad=True)
    Odd.apply(x).sum().backward()
    assert torch.equal(x.grad, torch.full((2,), -100.0))


def test_checkpointed_blocks_are_pruned_as_plain_ones():
    torch.manual_seed(0)
    blocks = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.BatchNorm1d(16), nn.Linear(16, 8))
    head = nn.Linear(8, 3)
    for reentrant in (True, False):
        plain = Function(lambda self, x: self.head(self.blocks(x)), blocks=blocks, head=head)
        kept = Function(
            lambda self, x, how=reentrant: self.head(checkpoint(self.blocks, x, use_reentrant=how)),
            blocks=blocks, head=head,
        )  # fmt: skip
        for engine in ("fast", "plain"):
            first, second = (
                synflow.prune(m, torch.ones(1, 8), density=0.2, steps=10, engine=engine) for m in (plain, kept)
            )
            assert all(torch.equal(first[name], second[name]) for name in first)


@torch.library.custom_op("synflow_tests::nms", mutates_args=())
def nms(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG001
    """Boxes that do not overlap, best first; torchvision's needs a compiled library."""
    return scores.argsort(descending=True)


@pytest.mark.parametrize(
    "best",
    [
        lambda scores: scores.topk(24)[1],
        lambda scores: scores.sort(descending=True)[1][:24],
        lambda scores: scores.argsort(descending=True)[:24],
        lambda scores: torch.ops.synflow_tests.nms(scores[:, None].expand(-1, 4), scores)[:24],
    ],
)
def test_the_best_of_many_anchors_come_from_every_feature_map(best):
    class Detector(nn.Module):
        def __init__(self):
            super().__init__()
            self.stages = nn.ModuleList(nn.Conv2d(2, 2, 3, stride=2, padding=1) for _ in range(4))
            self.heads = nn.ModuleList(nn.Conv2d(2, 1, 1) for _ in range(4))

        def forward(self, x):
            found = []
            for stage, head in zip(self.stages, self.heads, strict=True):
                x = stage(x).relu()
                found.append(head(x).flatten(1))
            scores = torch.cat(found, 1)[0]
            positions = best(scores)
            return {"scores": scores[positions], "labels": positions}

    model = Detector()
    scores = synflow.score(model, torch.ones(1, 2, 16, 16))
    assert all(bool(score.gt(0).any()) for score in scores.values())
    masks = synflow.prune(model, torch.ones(1, 2, 16, 16), compression=4, steps=10, score="balanced")
    assert synflow.certify(model, masks, torch.ones(1, 2, 16, 16)).dead_layers == ()


@pytest.mark.parametrize("score", ["synflow", "balanced"])
def test_every_expert_behind_a_router_keeps_its_flow(score):
    def forward(self, x):
        weight, index = F.softmax(self.router(x), -1).topk(2, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            row, place = torch.where(index == number)
            out.index_add_(0, row, expert(x[row]) * (weight / weight.sum(-1, keepdim=True))[row, place, None])
        return self.head(out)

    experts = nn.ModuleList(Gate(8, 16) for _ in range(4))
    model = Function(forward, router=nn.Linear(8, 4), experts=experts, head=nn.Linear(8, 3)).double()
    example = torch.ones(6, 8).double()
    assert all(bool((score.sum(1) > 0).all()) for score in synflow.score(model, example).values())
    fast, plain = (
        synflow.prune(model, example, compression=10, steps=6, score=score, engine=engine)
        for engine in ("fast", "plain")
    )
    assert all(torch.equal(fast[name], plain[name]) for name in fast)
    certificate = synflow.certify(model, fast, example)
    assert certificate.connected
    assert score == "synflow" or not certificate.empty_layers


def test_a_selective_scan_keeps_its_scale_and_every_layer():
    """Mamba in small: the state decays by an exponential of the input at each of 60 steps of time."""

    def forward(self, x):
        step, inputs, outputs = F.softplus(self.step(x)), self.inputs(x), self.outputs(x)
        decay = torch.exp(-step[..., None] * torch.exp(self.rates))
        state, seen = torch.zeros(x.shape[0], 6, 3, dtype=x.dtype), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + (step * x)[:, t, :, None] * inputs[:, t, None]
            seen.append((state * outputs[:, t, None]).sum(-1))
        return self.head(torch.stack(seen, 1))

    layers = {"step": nn.Linear(6, 6), "inputs": nn.Linear(6, 3), "outputs": nn.Linear(6, 3), "head": nn.Linear(6, 2)}
    model = Function(forward, rates=torch.randn(6, 3), **layers).double()
    example = torch.ones(1, 60, 6).double()
    found = scores(model, example)[1]
    assert all(bool((score > 0).all()) for score in found.values())
    by_unit = found["step.weight"].sum(1)
    assert float(by_unit.max() / by_unit.min()) < 1e3  # 60 factors that differ by a tenth would differ by 300
    how = {"compression": 4, "steps": 6, "score": "balanced"}
    fast, plain = (synflow.prune(model, example, **how, engine=engine) for engine in ("fast", "plain"))
    assert all(torch.equal(fast[name], plain[name]) for name in fast)
    assert not fast.about.get("fallbacks")


@pytest.mark.parametrize(
    "pack", [lambda loss, logits: (loss, logits), lambda loss, logits: {"loss": loss, "logits": logits}]
)
def test_a_loss_beside_other_outputs_changes_nothing(pack):
    torch.manual_seed(0)

    def forward(self, x, labels=None):
        logits = self.last(torch.relu(self.first(x)))
        return logits if labels is None else pack(F.cross_entropy(logits, labels), logits)

    model = Function(forward, first=nn.Linear(4, 6), last=nn.Linear(6, 3))
    without = synflow.score(model, {"x": X})
    found = synflow.score(model, {"x": X, "labels": torch.tensor([0, 1, 2])})
    assert all(torch.equal(found[name], without[name]) for name in without)


def test_a_model_that_returns_its_loss_alone_is_pruned():
    model = Function(
        lambda self, x: F.mse_loss(self.last(self.first(x)), x), first=nn.Linear(4, 6), last=nn.Linear(6, 4)
    )
    assert all(bool((score > 0).all()) for score in synflow.score(model, X).values())
