"""What many tests ask: is the model as it was, are masks exact and nested, what does a plain pass compute."""

import copy
from contextlib import contextmanager
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn


def snapshot(model):
    """Everything pruning must leave alone, cloned: tensors, gradients, flags, and the global generator."""
    return {
        "parameters": {n: p.detach().clone() for n, p in model.named_parameters()},
        "identity": {n: id(p) for n, p in model.named_parameters()},
        "buffers": {n: b.clone() for n, b in model.named_buffers()},
        "gradients": {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()},
        "requires_grad": {n: p.requires_grad for n, p in model.named_parameters()},
        "training": {n: m.training for n, m in model.named_modules()},
        "hooks": {n: (len(m._forward_hooks), len(m._forward_pre_hooks)) for n, m in model.named_modules()},
        "generator": {"cpu": torch.random.get_rng_state()},
        "modes": {
            "grad": torch.is_grad_enabled(),
            "inference": torch.is_inference_mode_enabled(),
            "autocast": torch.is_autocast_enabled("cpu"),
        },
    }


def assert_unchanged(model, before):
    """The model is, bit for bit, what the snapshot says."""
    now = snapshot(model)
    for kind, old in before.items():
        assert now[kind].keys() == old.keys(), kind
        for name, value in old.items():
            same = torch.equal(now[kind][name], value) if isinstance(value, torch.Tensor) else now[kind][name] == value
            assert same, f"{kind} of {name or 'the model'} changed"


@contextmanager
def untouched(model):
    """Whatever happens inside, errors included, leaves the model alone."""
    before = snapshot(model)
    try:
        yield
    finally:
        assert_unchanged(model, before)


def kept(masks):
    """How many weights masks keep."""
    return sum(int(mask.sum()) for mask in masks.values())


def nested(inner, outer):
    """Whether what the inner masks keep the outer ones keep too."""
    return inner.keys() == outer.keys() and all(bool((inner[n] <= outer[n]).all()) for n in inner)


def same(left, right):
    """Whether two dicts of tensors are equal to the bit."""
    return left.keys() == right.keys() and all(torch.equal(left[n], right[n]) for n in left)


def plain_scores(model, example):
    """The published code: absolute weights, inputs of one, |w| times the gradient, in plain arithmetic."""
    model = copy.deepcopy(model).eval()
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.abs_()
    weights = [n for n, p in model.named_parameters() if p.dim() > 1]
    total = model(torch.ones_like(example)).sum()
    gradients = torch.autograd.grad(total, [model.get_parameter(n) for n in weights])
    found = {n: (model.get_parameter(n) * g).detach() for n, g in zip(weights, gradients, strict=True)}
    return float(total.detach()), found


def mlp(*widths, bias=False, dtype=torch.float32, act=nn.ReLU):
    """A chain of linear layers with an activation between them."""
    layers = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs, bias), act()]
    return nn.Sequential(*layers[:-1]).to(dtype)


class Function(nn.Module):
    """A function as a model, with parameters if it needs some."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, torch.Tensor) else part)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


def arrays(tensors):
    """A dict of tensors as arrays in double precision."""
    return {name: tensor.detach().double().numpy().copy() for name, tensor in tensors.items()}


def busy_model():
    """Batch norm with statistics, dropout, gradients, mixed flags: everything that could be disturbed."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(6, 6, 3),
        nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 3),
    )  # fmt: skip
    data = [(torch.randn(4, 2, 6, 6), torch.randint(3, (4,))) for _ in range(2)]
    F.cross_entropy(model(data[0][0]), data[0][1]).backward()
    model[1].eval()
    model[4].weight.requires_grad_(False)
    model[8].bias.grad = None
    return model, data


def lived_in(model):
    """As after some training: statistics, gains and shifts that are not what they were at the start."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(module.running_mean, -1, 1)
            nn.init.uniform_(module.running_var, 0.5, 2)
            if module.affine:
                nn.init.uniform_(module.weight, -1, 1)
                nn.init.uniform_(module.bias, -1, 1)
    return model


def timeless(value):
    """A result without the times it took."""
    if isinstance(value, dict):
        return {key: timeless(inner) for key, inner in value.items() if "seconds" not in key and key != "checksum"}
    return [timeless(inner) for inner in value] if isinstance(value, list) else value
