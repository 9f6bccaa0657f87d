"""Each family of stand-ins against the same thing written out by hand, on absolute weights, in double precision."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import synflow
from blocks import CausalAttention, EinsumAttention, RMSNorm, SelfAttention
from checks import Function
from synflow.engine.pass_hooks import FastPass
from synflow.engine.thresholds import Thresholds
from synflow.flow.measure import measure
from synflow.flow.passes import WITHOUT_SHIFTS, PassOptions
from synflow.network.private_copy import open_network


def compare(model, example, stand_in, select=None, shifts=True):
    """Flow and scores are those of `stand_in(weights, input of ones)`, with weights absolute and by name."""
    network = open_network(model.double(), example, select=select)
    found = measure(network, options=PassOptions(shifts=shifts))
    weights = {name: weight.abs().requires_grad_() for name, weight in network.weights.items()}
    ones = torch.ones_like(example, dtype=torch.float64) if isinstance(example, torch.Tensor) else None
    total = stand_in(weights, ones).sum()
    gradients = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
    unit = 2.0**found.exponent
    assert found.value * unit == pytest.approx(total.item(), rel=1e-12)
    for (name, weight), gradient in zip(weights.items(), gradients, strict=True):
        expected = torch.zeros_like(weight) if gradient is None else weight.detach() * gradient
        torch.testing.assert_close(found.scores[name] * unit, expected, rtol=1e-10, atol=1e-12 * total.item())
    return found


def of(layer):
    """The absolute parameters and buffers of a layer."""
    return {name: tensor.abs() for name, tensor in layer.double().state_dict().items()}


def randomised(module):
    """Every parameter and statistic as after training; variances positive."""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.5, 2) if name.endswith("var") else nn.init.normal_(tensor)
    return module


IMAGE, VECTOR, SEQUENCE = torch.zeros(2, 4, 6, 5), torch.zeros(3, 4), torch.zeros(2, 5, 4)


# Linear layers and convolutions


@pytest.mark.parametrize(
    ("layer", "function", "shape", "options"),
    [
        (nn.Linear(4, 3), F.linear, (2, 4), {}),
        (nn.Conv1d(4, 6, 3, 2, 1, groups=2), F.conv1d, (2, 4, 7), dict(stride=2, padding=1, groups=2)),
        (nn.Conv2d(4, 6, 3, dilation=2), F.conv2d, (2, 4, 6, 5), dict(dilation=2)),
        (nn.Conv2d(4, 4, 3, padding=1, groups=4), F.conv2d, (2, 4, 6, 5), dict(padding=1, groups=4)),
        (nn.Conv3d(2, 3, 2), F.conv3d, (1, 2, 3, 3, 3), {}),
        (nn.ConvTranspose1d(4, 2, 3, 2), F.conv_transpose1d, (2, 4, 7), dict(stride=2)),
        (nn.ConvTranspose2d(4, 6, 3, 2, groups=2), F.conv_transpose2d, (1, 4, 3, 3), dict(stride=2, groups=2)),
        (nn.ConvTranspose3d(2, 2, 2), F.conv_transpose3d, (1, 2, 2, 2, 2), {}),
    ],
    ids=lambda value: str(value) if isinstance(value, nn.Module) else "",
)
def test_layers_with_biases(layer, function, shape, options):
    bias = of(layer)["bias"]
    compare(layer, torch.zeros(shape), lambda w, x: function(x, w["weight"], bias, **options))
    compare(layer, torch.zeros(shape), lambda w, x: function(x, w["weight"], None, **options), shifts=False)


def test_a_bias_that_is_huge_beside_the_flow():
    layers = [nn.Linear(3, 3, bias=False) for _ in range(6)]
    for layer in layers:
        layer.weight.data *= 2.0**-20
    model = nn.Sequential(*layers, nn.Linear(3, 2))
    bias = of(model)["6.bias"]

    def stand_in(w, x):
        for weight in w.values():
            x = x @ weight.T
        return x + bias

    compare(model, torch.zeros(1, 3), stand_in)


def test_bilinear_and_its_bias():
    model = nn.Bilinear(3, 2, 4)
    bias = of(model)["bias"]
    example = (torch.zeros(5, 3), torch.zeros(5, 2))
    compare(model, example, lambda w, _: torch.full((5, 4), 1.0).double() * w["weight"].sum((1, 2)) + bias)


def test_a_pruned_bias_carries_flow():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    compare(
        model, torch.zeros(1, 3), lambda w, x: (x @ w["0.weight"].T + w["0.bias"]) @ w["2.weight"].T + w["2.bias"],
        select=lambda *_: True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("function", "stand_in"),
    [
        (lambda w, x: x @ w, lambda w, x: x @ w),
        (lambda w, x: torch.mm(x, w), lambda w, x: x @ w),
        (lambda w, x: torch.einsum("bi,io->bo", x, w), lambda w, x: x @ w),
        (lambda w, x: torch.einsum("bi,io,bo->b", x, w, x), lambda w, x: ((x @ w) * x).sum(1)),
        (lambda w, x: torch.tensordot(x, w, 1), lambda w, x: x @ w),
        (lambda w, x: torch.addmm(x, x, w, beta=0.5, alpha=-2), lambda w, x: x / 2 + 2 * x @ w),
        (lambda w, x: torch.addmm(input=x, mat1=x, mat2=w), lambda w, x: x + x @ w),
        (lambda w, x: torch.addmm(x, x, w, beta=0), lambda w, x: x @ w),
        (lambda w, x: torch.baddbmm(x[None], batch1=x[None], batch2=w[None]), lambda w, x: x + x @ w),
        (lambda w, x: torch.bmm(x[None], w[None]), lambda w, x: x @ w),
        (lambda w, x: torch.addmv(x[0], w, x[1]), lambda w, x: x[0] + w @ x[1]),
        (lambda w, x: torch.full((4, 4), -2.0).double() @ w + x, lambda w, x: torch.full((4, 4), 2.0).double() @ w + x),
        (lambda w, x: torch.addcmul(x, x @ w, x, value=-3), lambda w, x: x + 3 * (x @ w) * x),
        (lambda w, x: torch.lerp(x, x @ w, 0.25), lambda w, x: 0.75 * x + 0.25 * (x @ w)),
        (lambda w, x: torch.outer(x[0], w[0]), lambda w, x: torch.outer(x[0], w[0])),
        (lambda w, x: torch.inner(x, w), lambda w, x: x @ w.T),
    ],
)  # fmt: skip
def test_products_of_a_weight_and_the_input(function, stand_in):
    model = Function(lambda self, x: function(self.w, x), w=torch.randn(4, 4, dtype=torch.float64))
    compare(model, torch.zeros(4, 4), lambda w, x: stand_in(w["w"], x), select="w")


# Arithmetic


@pytest.mark.parametrize(
    ("function", "stand_in"),
    [
        (lambda x: -x, lambda x: x),
        (lambda x: x - 2 * x, lambda x: 3 * x),
        (lambda x: 1 - x, lambda x: 1 + x),
        (lambda x: x - 1, lambda x: 1 + x),
        (lambda x: x + torch.tensor([1.0, -2, 3, 0]), lambda x: x + torch.tensor([1.0, 2, 3, 0])),
        (lambda x: torch.sub(x, x, alpha=3), lambda x: 4 * x),
        (lambda x: torch.add(x, 2.0, alpha=-3), lambda x: x + 6),
        (lambda x: torch.rsub(x, x, alpha=3), lambda x: 4 * x),
        (lambda x: x * -0.3, lambda x: x * 0.3),
        (lambda x: torch.tensor([1.0, -2, 3, 0]) * x, lambda x: torch.tensor([1.0, 2, 3, 0]) * x),
        (lambda x: x / 3, lambda x: x / 3),
        (lambda x: x / -0.3, lambda x: x / 0.3),
        (lambda x: x / torch.tensor([1.0, -2, 3, 7]).double(), lambda x: x / torch.tensor([1.0, 2, 3, 7]).double()),
        (lambda x: x / x.sum(1, keepdim=True), lambda x: x / x.sum(1, keepdim=True).detach()),
        (lambda x: x + 2 / x, lambda x: x + 2 / x.detach()),
        (lambda x: x * x.reciprocal(), lambda x: x / x.detach()),
        (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)), lambda x: x / rms(x).detach()),
        (lambda x: x**2, lambda x: x * x),
        (lambda x: x.square() * x, lambda x: x**3),
        (lambda x: x.pow(1.5), lambda x: x**1.5),
        (lambda x: x.pow(torch.tensor(2.0)), lambda x: x**2),
        (lambda x: x.sqrt(), lambda x: x * (x**-0.5).detach()),
        (lambda x: x * x**-3, lambda x: x * (x**-3).detach()),
        (lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True), lambda x: centred(x) / rms(x).detach()),
        (lambda x: x / torch.var_mean(x, 1)[0][:, None].sqrt(), lambda x: x / rms(x).detach()),
        (lambda x: x / torch.std_mean(x, dim=1, keepdim=True)[0], lambda x: x / rms(x).detach()),
        (lambda x: x / x.var(), lambda x: x / (x**2).mean().detach()),
        (lambda x: F.normalize(x, dim=1), lambda x: x / x.norm(dim=1, keepdim=True).detach()),
        (lambda x: x / x.norm(dim=1, keepdim=True), lambda x: x / x.norm(dim=1, keepdim=True).detach()),
        (lambda x: x * (x - 5).abs(), lambda x: x * (x + 5)),
    ],
)  # fmt: skip
def test_arithmetic(function, stand_in):
    head = nn.Linear(4, 4, bias=False)
    model = Function(lambda self, x: function(self.head(x)), head=head)
    compare(model, VECTOR, lambda w, x: stand_in(x @ w["head.weight"].T))


def rms(x, dims=-1):
    return x.pow(2).mean(dims, keepdim=True).sqrt()


def centred(x):
    return x + x.mean(1, keepdim=True)


def test_a_power_whose_exponent_is_a_tensor_has_no_rule():
    model = Function(lambda self, x: self.head(x) ** torch.arange(4.0), head=nn.Linear(4, 4))
    with pytest.raises(synflow.NoRuleError, match="'pow'"):
        synflow.score(model, VECTOR)


ACTIVATIONS = [
    F.relu, F.relu6, F.leaky_relu, F.elu, F.selu, F.celu, F.gelu, F.silu, F.mish, F.hardswish, F.hardtanh, torch.tanh,
    F.softplus, F.softsign, F.logsigmoid, F.tanhshrink, F.dropout, F.alpha_dropout, F.rrelu, torch.abs,
    torch.nan_to_num, torch.Tensor.contiguous, torch.Tensor.double, lambda x: x.to(torch.float16).type_as(x),
    lambda x: F.prelu(x, torch.tensor([0.2]).double()), lambda x: F.threshold(x, 0.1, 20), lambda x: x.clamp(0, 1),
]  # fmt: skip


@pytest.mark.parametrize("act", ACTIVATIONS, ids=lambda act: getattr(act, "__name__", ""))
def test_activations_pass_flow_unchanged(act):
    model = Function(lambda self, x: act(self.head(x)), head=nn.Linear(4, 3, bias=False))
    compare(model, VECTOR, lambda w, x: x @ w["head.weight"].T)


def test_gates_are_products_at_a_scale_of_one():
    model = Function(lambda self, x: self.a(x) * torch.sigmoid(self.b(x)), a=nn.Linear(4, 3), b=nn.Linear(4, 3))
    a, b = of(model.a)["bias"], of(model.b)["bias"]

    def stand_in(w, x):
        gate = x @ w["b.weight"].T + b
        return (x @ w["a.weight"].T + a) * gate / gate.mean().detach()

    compare(model, VECTOR, stand_in)
    model.forward = lambda x: F.glu(torch.cat([model.a(x), model.b(x)], -1))
    compare(model, VECTOR, stand_in)


# Shapes, sums, selections


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.pad(x, (1, 2)), lambda x: F.pad(x, (1, 2), mode="reflect"),
        lambda x: F.pad(x[..., None], (0, 0, 1, 1), mode="circular"),
        lambda x: torch.cat([x, x.flip(0)], 1) * 2, lambda x: torch.stack([x, x], 1).sum(1), lambda x: x.mean(),
        lambda x: x.mean(-1, dtype=torch.float64), lambda x: x.sum((1, 2)), lambda x: x.cumsum(1),
        lambda x: x.roll(1, 2), lambda x: x.permute(2, 0, 1).reshape(4, -1).T, lambda x: x[:, 1:, ::2],
        lambda x: x.unbind(1)[1], lambda x: x.chunk(2, 2)[0], lambda x: torch.split(x, [1, 3], 2)[1],
        lambda x: x.repeat(1, 2, 1), lambda x: x.repeat_interleave(2, 1), lambda x: x.expand(3, 2, 5, 4),
        lambda x: x.gather(1, torch.zeros(2, 1, 4, dtype=torch.long)), lambda x: x.tril(), lambda x: x.view_as(x),
        lambda x: F.avg_pool1d(x, 2), lambda x: F.max_pool1d(x, 2), lambda x: F.adaptive_avg_pool1d(x, 2),
        lambda x: F.adaptive_max_pool1d(x, 3), lambda x: F.avg_pool2d(x, 3, padding=1, stride=2),
        lambda x: F.max_pool2d(x, 3, padding=1, stride=2), lambda x: F.max_pool2d(x, 2, return_indices=True)[0],
        lambda x: F.adaptive_max_pool2d(x, 2), lambda x: x.amax(1), lambda x: x.max(1)[0], lambda x: x.max(),
        lambda x: torch.maximum(x, x.flip(1)), lambda x: F.unfold(x[None], 2), lambda x: x.unfold(1, 2, 1),
        lambda x: F.interpolate(x, scale_factor=2), lambda x: F.interpolate(x, 7, mode="linear", align_corners=True),
        lambda x: F.interpolate(x[None], (3, 7), mode="bilinear"), lambda x: x.index_select(1, torch.tensor([0, 0, 2])),
        lambda x: x.scatter_add(1, torch.zeros(2, 5, 4, dtype=torch.long), x), lambda x: x.diagonal(0, 1, 2),
        lambda x: F.pixel_shuffle(x.reshape(1, 4, 5, 2), 2), lambda x: torch.where(x.new_ones(5, 4) > 0, x, x * 2),
        lambda x: x.norm(dim=1), lambda x: torch.linalg.vector_norm(x, dim=2),
    ],
)  # fmt: skip
def test_operations_that_are_their_own_stand_in(function):
    head = nn.Linear(4, 4, bias=False)
    compare(
        Function(lambda self, x: function(self.head(x)), head=head),
        SEQUENCE, lambda w, x: function(x @ w["head.weight"].T),
    )  # fmt: skip


MASK = torch.tensor([True, False, False, True])


@pytest.mark.parametrize(
    ("function", "stand_in"),
    [
        (lambda x: F.pad(x, (1, 0), value=-2.0), lambda x: F.pad(x, (1, 0), value=2.0)),
        (lambda x: x.masked_fill(MASK, -3.0), lambda x: x.masked_fill(MASK, 3.0)),
        (lambda x: x.masked_fill(MASK, -torch.inf), lambda x: x.masked_fill(MASK, 0.0)),
        (lambda x: x.masked_fill(MASK, torch.finfo(x.dtype).min), lambda x: x.masked_fill(MASK, 0.0)),
        (lambda x: torch.where(MASK, x, 2.0), lambda x: torch.where(MASK, x, 2.0)),
        (lambda x: torch.where(MASK, -1e9, x), lambda x: torch.where(MASK, 0.0, x)),
        (lambda x: x.where(MASK, torch.tensor(-2.0).double()), lambda x: torch.where(MASK, x, 2.0)),
        (lambda x: x + torch.zeros(4).masked_fill(MASK, -torch.inf), lambda x: x.masked_fill(MASK, 0.0)),
        (lambda x: x + MASK * -10000.0, lambda x: x.masked_fill(MASK, 0.0)),
        (lambda x: F.interpolate(x[None, None], (9, 9), mode="bicubic"),
         lambda x: F.interpolate(x[None, None], (9, 9), mode="bilinear")),
    ],
)  # fmt: skip
def test_masks_block_and_other_constants_add(function, stand_in):
    model = Function(lambda self, x: function(self.head(x)), head=nn.Linear(4, 4, bias=False))
    compare(model, VECTOR, lambda w, x: stand_in(x @ w["head.weight"].T))


def test_a_flow_cannot_become_whole_numbers():
    model = Function(lambda self, x: self.head(x).to(torch.long), head=nn.Linear(4, 4))
    with pytest.raises(synflow.SynflowError, match=r"a flow would become torch\.int64.*Prune a part"):
        synflow.score(model, VECTOR)


def test_sampling_at_positions_of_a_flow_is_a_mean_gated_by_the_positions():
    def forward(self, x):
        return F.grid_sample(self.image(x), self.grid(x).permute(0, 2, 3, 1), align_corners=False)

    def stand_in(w, x):
        seen = F.conv2d(x, w["image.weight"]).mean((2, 3), keepdim=True)
        places = F.conv2d(x, w["grid.weight"]).sum(1, keepdim=True)
        return seen * places / places.detach()

    layers = {"image": nn.Conv2d(4, 3, 2, bias=False), "grid": nn.Conv2d(4, 2, 3, bias=False)}
    compare(Function(forward, **layers), IMAGE, stand_in)


# Norms


@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm(affine):
    norm = randomised(nn.BatchNorm2d(3, affine=affine)).double()
    gamma, beta = (norm.weight, norm.bias) if affine else (torch.tensor(1.0), torch.tensor(0.0))
    sigma = (norm.running_var + norm.eps).sqrt()
    gain, constant = (gamma / sigma).abs().detach(), (beta - gamma * norm.running_mean / sigma).abs().detach()
    model = nn.Sequential(nn.Conv2d(4, 3, 2, bias=False), norm)

    def stand_in(w, x):
        return F.conv2d(x, w["0.weight"]) * gain.reshape(-1, 1, 1) + constant.reshape(-1, 1, 1)

    compare(model, IMAGE, stand_in)
    compare(model, IMAGE, lambda w, x: F.conv2d(x, w["0.weight"]) * gain.reshape(-1, 1, 1), shifts=False)


def test_a_gain_that_is_zero_everywhere_counts_as_one_and_is_noted():
    norm = nn.BatchNorm1d(3)
    nn.init.zeros_(norm.weight)
    model = nn.Sequential(nn.Linear(4, 3, bias=False), norm)
    found = compare(model, VECTOR, lambda w, x: x @ w["0.weight"].T / math.sqrt(1 + norm.eps))
    assert found.notes == ("module '1' (BatchNorm1d): a gain that is zero everywhere counts as one",)
    norm.weight.data[1] = 0.5
    gain = norm.weight.detach() / math.sqrt(1 + norm.eps)
    found = compare(model, VECTOR, lambda w, x: x @ w["0.weight"].T * gain)
    assert found.notes == ()


def test_a_layer_scale_that_is_zero_counts_as_one_but_a_zero_buffer_blocks():
    model = Function(lambda self, x: x + self.scale * self.head(x), head=nn.Linear(4, 4), scale=torch.zeros(4))
    bias = of(model.head)["bias"]
    found = compare(model, VECTOR, lambda w, x: x + x @ w["head.weight"].T + bias)
    assert "zero everywhere counts as one" in found.notes[0]
    model.scale.data.fill_(1e-6)
    found = compare(model, VECTOR, lambda w, x: x + x @ w["head.weight"].T + bias)
    assert "tiny everywhere counts as one" in found.notes[0]
    del model.scale
    model.register_buffer("scale", torch.zeros(4).double())
    compare(model, VECTOR, lambda w, x: x + 0 * w["head.weight"].sum())


def test_a_weight_that_is_zero_everywhere_counts_as_ones_and_is_noted():
    model = nn.Sequential(nn.Linear(4, 3, bias=False), nn.Linear(3, 2, bias=False)).double()
    nn.init.zeros_(model[1].weight)
    found = measure(open_network(model, VECTOR))
    assert found.notes == ("1.weight: zero everywhere, counts as ones",)
    assert found.value == pytest.approx(3 * 2 * model[0].weight.abs().sum().item())


@pytest.mark.parametrize(
    ("norm", "dims"),
    [
        (nn.LayerNorm(4), (-1,)),
        (nn.LayerNorm((5, 4)), (-2, -1)),
        (nn.LayerNorm(4, elementwise_affine=False), (-1,)),
        (nn.RMSNorm(4), (-1,)),
        (nn.GroupNorm(1, 5), (-2, -1)),
        (nn.GroupNorm(5, 5), (-1,)),
        (nn.InstanceNorm1d(5, affine=True), (-1,)),
        (nn.InstanceNorm1d(5), (-1,)),
        (nn.BatchNorm1d(5, track_running_stats=False), (0, -1)),
        (RMSNorm(4), (-1,)),
    ],
    ids=str,
)
def test_norms_divide_by_the_root_mean_square_without_a_gradient(norm, dims):
    randomised(norm).double()
    channels = norm.weight is not None and isinstance(norm, nn.GroupNorm | nn.InstanceNorm1d | nn.BatchNorm1d)
    gain = 1.0 if norm.weight is None else norm.weight.detach().abs()
    shift = 0.0 if getattr(norm, "bias", None) is None else norm.bias.detach().abs()
    if channels:
        gain, shift = gain[:, None], shift[:, None]

    def stand_in(w, x):
        x = x @ w["head.weight"].T
        return x / rms(x, dims).detach() * gain + shift

    head = nn.Linear(4, 4, bias=False)
    model = Function(lambda self, x: self.norm(self.head(x)), head=head, norm=norm)
    network = open_network(model.double(), SEQUENCE, select="head")
    if isinstance(norm, RMSNorm):  # its epsilon is an ordinary shift
        expected = stand_in({"head.weight": head.weight.abs()}, torch.ones_like(SEQUENCE).double()).sum()
        assert measure(network, options=WITHOUT_SHIFTS).log2 == pytest.approx(math.log2(expected), abs=1e-5)
    else:
        compare(model, SEQUENCE, stand_in, select="head")


def test_instance_norm_with_running_statistics_is_a_batch_norm():
    norm = randomised(nn.InstanceNorm2d(4, affine=True, track_running_stats=True))
    twin = nn.BatchNorm2d(4)
    twin.load_state_dict(norm.state_dict())
    head = nn.Conv2d(4, 4, 1)
    found = [measure(open_network(nn.Sequential(head, layer), IMAGE)) for layer in (norm, twin)]
    assert found[0].log2 == found[1].log2
    assert torch.equal(found[0].scores["0.weight"], found[1].scores["0.weight"])


def test_local_norms_of_rows_of_any_size():
    """A row 2**-60 of the largest is normalised as well, without underflow of its squares."""
    scale = torch.tensor([[1.0], [2.0**-30], [2.0**-60]])
    model = Function(lambda self, x: F.layer_norm(self.head(x) * scale, (3,)), head=nn.Linear(4, 3, bias=False))
    found = measure(open_network(model, VECTOR))
    equal = measure(open_network(Function(lambda self, x: F.layer_norm(self.head(x), (3,)), head=model.head), VECTOR))
    assert found.log2 == pytest.approx(equal.log2, abs=1e-6)
    torch.testing.assert_close(found.scores["head.weight"], equal.scores["head.weight"])


# Attention


def attended(q, k, v, blocked=None):
    """softmax(q k') v on positive flows: rows of logits over their detached sum."""
    logits = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    if blocked is not None:
        logits = logits.masked_fill(blocked, 0.0)
    return logits / logits.sum(-1, keepdim=True).detach() @ v


CAUSAL = torch.ones(5, 5, dtype=torch.bool).triu(1)


@pytest.mark.parametrize(
    ("options", "blocked"),
    [
        ({}, None),
        (dict(is_causal=True), CAUSAL),
        (dict(attn_mask=~CAUSAL), CAUSAL),
        (dict(attn_mask=torch.zeros(5, 5).double().masked_fill(CAUSAL, -torch.inf)), CAUSAL),
        (dict(scale=-0.5), None),
    ],
    ids=["plain", "causal", "boolean", "additive", "scale"],
)
def test_scaled_dot_product_attention(options, blocked):
    model = Function(
        lambda self, x: F.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x), **options),
        q=nn.Linear(4, 4, bias=False), k=nn.Linear(4, 4, bias=False), v=nn.Linear(4, 4, bias=False),
    )  # fmt: skip
    compare(
        model, SEQUENCE,
        lambda w, x: attended(x @ w["q.weight"].T, x @ w["k.weight"].T, x @ w["v.weight"].T, blocked),
    )  # fmt: skip


def test_a_position_bias_adds_to_the_logits():
    bias = torch.randn(5, 5).double()
    model = Function(
        lambda self, x: F.scaled_dot_product_attention(self.q(x), x, x, attn_mask=bias), q=nn.Linear(4, 4, bias=False)
    )

    def stand_in(w, x):
        logits = x @ w["q.weight"].T @ x.transpose(-2, -1) / 2 + bias.abs()
        return logits / logits.sum(-1, keepdim=True).detach() @ x

    compare(model, SEQUENCE, stand_in)


def test_grouped_queries_are_repeated_keys():
    def forward(self, x):
        weights = (self.q.weight, self.k.weight, self.v.weight)
        q, k, v = (F.linear(x, w).unflatten(-1, (-1, 2)).transpose(1, 2) for w in weights)
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    model = Function(forward, q=nn.Linear(4, 8), k=nn.Linear(4, 4), v=nn.Linear(4, 4))

    def stand_in(w, x):
        q, k, v = ((x @ each.T).unflatten(-1, (-1, 2)).transpose(1, 2) for each in w.values())
        return attended(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))

    compare(model, SEQUENCE, stand_in)


def randomise_biases(model):
    for name, parameter in model.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize("bias", [True, False])
def test_multihead_attention_scores_as_attention_written_by_hand(bias):
    theirs, ours = randomise_biases(SelfAttention(2, 3, bias)), EinsumAttention(2, 3, bias)
    inner = theirs.attention
    ours.qkv.weight.data, ours.out.weight.data = inner.in_proj_weight.data, inner.out_proj.weight.data
    if bias:
        ours.qkv.bias.data, ours.out.bias.data = inner.in_proj_bias.data, inner.out_proj.bias.data
    example = torch.zeros(2, 5, 6)
    found = [measure(open_network(model.double(), example)) for model in (theirs, ours)]
    # MultiheadAttention also returns its attention weights; the block drops them.
    assert found[0].log2 == pytest.approx(found[1].log2, abs=1e-12)
    for left, right in zip(found[0].scores.values(), found[1].scores.values(), strict=True):
        torch.testing.assert_close(left * 2.0 ** (found[0].exponent - found[1].exponent), right)


class Attention(nn.Module):
    """nn.MultiheadAttention with its options, on inputs of its own."""

    def __init__(self, call, **options):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, **options)
        self.call = call

    def forward(self, x):
        return self.call(self.attention, x)[0]


def heads(x):
    return x.unflatten(-1, (2, 2)).transpose(1, 2)


def by_hand(w, x, bias, blocked=None, extra=None):
    q, k, v = ((x @ part.T + b) for part, b in zip(w["attention.in_proj_weight"].chunk(3), bias.chunk(3), strict=True))
    if extra is not None:
        k, v = torch.cat([k, extra[0].expand(2, 1, 4)], 1), torch.cat([v, extra[1].expand(2, 1, 4)], 1)
    mixed = attended(heads(q), heads(k), heads(v), blocked).transpose(1, 2).flatten(2)
    return mixed @ w["attention.out_proj.weight"].T


PADDING = torch.tensor([[False] * 5, [False, False, False, True, True]])
POSITIONS = torch.arange(1.0, 6.0, dtype=torch.float64)[:, None]


@pytest.mark.parametrize(
    ("call", "options", "blocked"),
    [
        (lambda a, x: a(x, x, x, need_weights=False), {}, None),
        (lambda a, x: a(x, x, x, attn_mask=CAUSAL), {}, CAUSAL),
        (lambda a, x: a(x, x, x, attn_mask=CAUSAL * -1e9), {}, CAUSAL),
        (lambda a, x: a(x, x, x, attn_mask=CAUSAL.expand(4, 5, 5)), {}, CAUSAL),
        (lambda a, x: a(x, x, x, key_padding_mask=PADDING), {}, PADDING[:, None, None]),
        (lambda a, x: a(x, x, x, attn_mask=CAUSAL), dict(add_bias_kv=True), F.pad(CAUSAL, (0, 1))),
    ],
    ids=["plain", "causal", "additive", "per head", "padding", "bias_kv"],
)  # fmt: skip
def test_options_of_multihead_attention(call, options, blocked):
    model = randomise_biases(Attention(call, batch_first=True, **options)).double()
    bias, out = model.attention.in_proj_bias.detach().abs(), model.attention.out_proj.bias.detach().abs()
    model.call = lambda attention, x: call(attention, x * POSITIONS)  # positions that differ: a mask tells them apart
    extra = None
    if options:
        extra = [model.attention.bias_k.detach().abs(), model.attention.bias_v.detach().abs()]
    compare(model, SEQUENCE, lambda w, x: by_hand(w, x * POSITIONS, bias, blocked, extra) + out)


def test_a_bias_added_to_the_logits_of_multihead_attention_counts():
    """A floating mask that does not block is a shift of the logits, as it is for the fused function."""
    added = torch.rand(5, 5).double()
    model = Attention(lambda a, x: a(x, x, x, attn_mask=added), batch_first=True, bias=False)

    def stand_in(w, x):
        q, k, v = (heads(x @ part.T) for part in w["attention.in_proj_weight"].chunk(3))
        logits = q @ k.transpose(-2, -1) / math.sqrt(2) + added
        mixed = (logits / logits.sum(-1, keepdim=True).detach() @ v).transpose(1, 2).flatten(2)
        return mixed @ w["attention.out_proj.weight"].T

    compare(model, SEQUENCE, stand_in)


def test_multihead_attention_of_one_sequence_to_another():
    model = Attention(lambda a, x: a(x, x[:, :3], x[:, 1:4]), batch_first=True, bias=False)

    def stand_in(w, x):
        parts = zip((x, x[:, :3], x[:, 1:4]), w["attention.in_proj_weight"].chunk(3), strict=True)
        mixed = attended(*(heads(part @ weight.T) for part, weight in parts))
        return mixed.transpose(1, 2).flatten(2) @ w["attention.out_proj.weight"].T

    compare(model, SEQUENCE, stand_in)


@pytest.mark.parametrize("bias", [True, False])
def test_self_attention_is_one_layer_whose_gradient_stays_thin(bias):
    """Left as factors, which multiplied out are the scores."""
    model, example = randomise_biases(SelfAttention(2, 16, bias)).double(), torch.zeros(1, 3, 32)
    network = open_network(model, example)
    hooks = FastPass(Thresholds())
    held, _ = measure(network), measure(network, hooks=hooks)
    found = hooks.gradients["attention.in_proj_weight"]
    assert found.dense is None
    ((left, right),) = found.factors()
    weight = network.weights["attention.in_proj_weight"].abs()
    torch.testing.assert_close((left @ right) * weight, held.scores["attention.in_proj_weight"])


def test_multihead_attention_with_its_own_projections_and_without_a_batch():
    model = Attention(lambda a, x: a(x, x[..., :3], x[..., :3]), kdim=3, vdim=3, bias=False)

    def stand_in(w, x):
        q, k, v = (
            heads((part @ w[f"attention.{name}_proj_weight"].T)[None])
            for name, part in (("q", x), ("k", x[..., :3]), ("v", x[..., :3]))
        )
        return attended(q, k, v).transpose(1, 2).flatten(2)[0] @ w["attention.out_proj.weight"].T

    compare(model, torch.zeros(5, 4), stand_in)


def test_a_position_that_sees_nothing_has_no_flow():
    """Causal attention lets the first position see itself alone; blocked positions send nothing."""
    block = CausalAttention(1, 2)
    model = Function(lambda self, x: self.block(x)[:, :1], block=block)
    found = measure(open_network(model, torch.zeros(1, 3, 2)))
    model = Function(lambda self, x: self.block(x)[:, :1], block=block)
    alone = measure(open_network(model, torch.zeros(1, 1, 2)))
    assert found.log2 == alone.log2


# Embeddings and recurrent layers


def test_an_embedding_is_a_source():
    ids = torch.tensor([[1, 2, 1]])
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 2, bias=False))
    table = of(model[0])["weight"]
    compare(model, ids, lambda w, _: table[ids] @ w["1.weight"].T)
    compare(model, ids, lambda w, _: w["0.weight"][ids] @ w["1.weight"].T, select=["0.weight", "1.weight"])
    bag = nn.Sequential(nn.EmbeddingBag(5, 4, mode="sum"), nn.Linear(4, 2, bias=False))
    rows = of(bag[0])["weight"]
    compare(bag, ids, lambda w, _: rows[ids].sum(1) @ w["1.weight"].T)
    compare(bag, ids, lambda w, _: w["0.weight"][ids].sum(1) @ w["1.weight"].T, select=["0.weight", "1.weight"])


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_recurrent_layer_is_its_cell_over_time(kind, bias):
    layer = getattr(nn, kind)(3, 4, bias=bias, batch_first=True).double()
    cell = getattr(nn, f"{kind}Cell")(3, 4, bias).double()
    for name, parameter in cell.named_parameters():
        parameter.data = getattr(layer, f"{name}_l0").data

    def unrolled(self, x):
        state, outputs = None, []
        for step in x.unbind(1):
            state = self.cell(step, state)
            outputs.append(state[0] if kind == "LSTM" else state)
        return torch.stack(outputs, 1)

    example = torch.zeros(2, 5, 3)
    whole = measure(open_network(Function(lambda self, x: self.layer(x)[0], layer=layer), example))
    steps = measure(open_network(Function(unrolled, cell=cell), example))
    assert whole.log2 == pytest.approx(steps.log2, abs=1e-12)
    for left, right in zip(whole.scores.values(), steps.scores.values(), strict=True):
        assert left.sum() > 0
        torch.testing.assert_close(left * 2.0 ** (whole.exponent - steps.exponent), right)


def test_a_plain_recurrent_network_by_hand():
    model = nn.RNN(3, 4, num_layers=2, bidirectional=True, bias=False)

    def layer(w, steps, suffix):
        h, outputs = torch.zeros(2, 4).double(), []
        for x in steps:
            h = x @ w[f"weight_ih_{suffix}"].T + h @ w[f"weight_hh_{suffix}"].T
            outputs.append(h)
        return outputs

    def stand_in(w, x):
        steps, last = list(x.unbind(0)), []
        for depth in ("l0", "l1"):
            forth, back = layer(w, steps, depth), layer(w, steps[::-1], f"{depth}_reverse")
            last += [forth[-1], back[-1]]
            steps = [torch.cat(pair, -1) for pair in zip(forth, back[::-1], strict=True)]
        return torch.stack(steps).sum() + torch.stack(last).sum()

    compare(model, torch.zeros(3, 2, 3), stand_in)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_gates_of_recurrent_layers_are_one_with_flow_to_their_weights(kind):
    """After one step from a zero state, with every gate at one, c = g (LSTM) and h = n (GRU); gates score the same."""
    model = Function(lambda self, x: self.layer(x)[0], layer=kind(3, 4, bias=False).double())
    found = measure(open_network(model, torch.zeros(1, 2, 3)))
    gates = 4 if kind is nn.LSTM else 3
    candidate = model.layer.weight_ih_l0.detach().abs().chunk(gates)[2]
    assert found.value * 2.0**found.exponent == pytest.approx(2 * candidate.sum().item())
    parts = [part.sum().item() * 2.0**found.exponent for part in found.scores["layer.weight_ih_l0"].chunk(gates)]
    used = [0, 2, 3] if kind is nn.LSTM else [1, 2]
    assert parts == pytest.approx([2 * candidate.sum().item() if i in used else 0.0 for i in range(gates)])
    assert found.scores["layer.weight_hh_l0"].abs().sum() == 0


@pytest.mark.parametrize(
    ("layer", "loose"), [(nn.LSTM(3, 4, proj_size=2), True), (nn.GRU(3, 4), True), (nn.RNN(3, 4), False)]
)
def test_gates_that_read_the_state_loosen_the_bound(layer, loose):
    found = measure(open_network(Function(lambda self, x: self.layer(x)[0], layer=layer), torch.zeros(3, 2, 3)))
    assert found.loose == loose
    assert all(score.sum() > 0 for score in found.scores.values())


def test_packed_sequences_are_refused():
    packed = nn.utils.rnn.pack_padded_sequence(torch.zeros(3, 2, 3), torch.tensor([3, 2]))
    with pytest.raises(synflow.SynflowError, match="packed sequences have no rule; give the example as a padded"):
        synflow.score(Function(lambda self, x: self.layer(x)[0].data, layer=nn.LSTM(3, 4)), (packed,))


# Fourier transforms


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize(
    ("name", "options", "dims"),
    [("fft", {}, [2]), ("fft2", {}, [1, 2]), ("ifftn", {"dim": (0, 2)}, [0, 2]), ("fftn", {}, [0, 1, 2])],
)
def test_a_fourier_transform_is_the_sum_of_absolute_coefficients(name, options, dims, norm):
    """The stand-in of a linear map is its matrix of absolute values: here read off from torch, column by column."""
    function, layer, shape = getattr(torch.fft, name), nn.Linear(4, 4, bias=False), (2, 3, 4)
    model = Function(lambda self, x: function(self.layer(x), norm=norm, **options).real, layer=layer)
    unit = torch.eye(24, dtype=torch.complex128).reshape(24, *shape)
    whole = torch.fft.ifftn if name.startswith("i") else torch.fft.fftn
    matrix = whole(unit, dim=[d + 1 for d in dims], norm=norm).abs().reshape(24, 24)

    def stand_in(weights, ones):
        return F.linear(ones, weights["layer.weight"]).reshape(-1) @ matrix

    compare(model, torch.zeros(shape), stand_in)


@pytest.mark.parametrize("length", [6, 7])
def test_half_spectra_and_back(length):
    """rfft and irfft keep the shape, pass all there is, and scale as torch does."""
    layer = nn.Linear(4, length, bias=False)
    model = Function(lambda self, x: torch.fft.irfft(torch.fft.rfft(self.layer(x)), n=length), layer=layer)

    def stand_in(weights, ones):
        total = F.linear(ones, weights["layer.weight"]).sum(-1, keepdim=True)
        return (total * (length // 2 + 1) / length).expand(-1, length)

    compare(model, torch.zeros(2, 4), stand_in)


def test_a_transform_of_another_length_is_refused():
    layer = nn.Linear(4, 6, bias=False)
    model = Function(lambda self, x: torch.fft.fft(self.layer(x), n=4).real, layer=layer)
    with pytest.raises(synflow.SynflowError, match="fewer or more points"):
        synflow.score(model, torch.zeros(2, 4))


def test_a_flow_that_is_zero_everywhere_is_not_scaled_up_to_what_it_is_added_to():
    """It has the exponent of what was pruned away: to scale by it would give its gradient an infinite factor."""
    torch.manual_seed(0)
    model = Function(
        lambda self, x: self.first(x) + self.branch(x * 2.0**100 * 2.0**100),
        first=nn.Linear(3, 2),
        branch=nn.Linear(3, 2),
    )
    network = open_network(model, torch.ones(1, 3))
    masks = {
        name: torch.full_like(weight, name == "first.weight", dtype=torch.bool)
        for name, weight in network.weights.items()
    }
    found = measure(network, masks, options=WITHOUT_SHIFTS)
    assert found.log2 == pytest.approx(math.log2(float(model.first.weight.detach().abs().sum())), abs=1e-5)
    assert not found.scores["branch.weight"].any()


def test_a_mask_blocks_on_either_side_of_a_sum():
    first, mask = nn.Linear(3, 2), torch.tensor([0.0, -math.inf])
    for forward in (lambda self, x: self.first(x) + mask, lambda self, x: mask + self.first(x)):
        found = measure(open_network(Function(forward, first=first), torch.ones(1, 3)))
        assert bool(found.scores["first.weight"][0].all())
        assert not found.scores["first.weight"][1].any()
