"""What the tests of masks share: random masks, a network of many kinds of layers, and the weights as it sees them."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from synflow.masks.attach import attached


def random_masks(model, density=0.3, seed=0):
    """A random mask for every parameter with two or more dimensions; each row keeps, each mask prunes a weight."""
    generator = torch.Generator().manual_seed(seed)
    masks = {}
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and parameter.numel() > 1:
            mask = torch.rand(parameter.shape, generator=generator) < density
            mask.flatten(1)[:, 0], mask.view(-1)[-1] = True, False
            masks[name] = mask
    return masks


def seen(model):
    """Every parameter in every place, as a forward pass reads it."""
    return {
        f"{path}.{name}".lstrip("."): getattr(module, name).detach().clone()
        for path, module in model.named_modules()
        for name, parameter in module._parameters.items()
        if parameter is not None
    }


def assert_masks_hold(model, masks):
    """As the network sees them, masked weights are zero to the bit (no -0.0), and the masks are the ones given."""
    weights = seen(model)
    for name, mask in masks.items():
        pruned = weights[name][~mask]
        assert torch.equal(pruned, torch.zeros_like(pruned)), name
        assert not torch.signbit(pruned).any(), name
    now = attached(model)
    assert list(now) == list(masks)
    assert all(torch.equal(now[name].cpu(), mask) for name, mask in masks.items())


def assert_same(left, right):
    """Two dicts of tensors, equal to the bit."""
    assert list(left) == list(right)
    for name in left:
        assert torch.equal(left[name], right[name]), name


def zeroed(model, masks):
    """The dense twin: the same network with zeros written into it."""
    twin = copy.deepcopy(model)
    parameters = dict(twin.named_parameters())
    with torch.no_grad():
        for name, mask in masks.items():
            parameters[name].masked_fill_(~mask, 0)
    return twin


class Small(nn.Module):
    """Convolution, norm, recurrence, attention, a module called twice, and a tied head, on 2 x 6 x 6 images."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 8)
        self.head.weight = self.mix.weight

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        x = self.rnn(x)[0]
        x = x + self.attention(x, x, x, need_weights=False)[0]
        x = F.gelu(self.mix(F.gelu(self.mix(x))))
        return self.head(x.mean(1))


def small(seed=0):
    """A model, and masks for it."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Small()
    return model, random_masks(model)


def batches(count=4, size=4):
    """Images and classes for `Small`, the same ones each time."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(count):
        yield torch.randn(size, 2, 6, 6, generator=generator), torch.randint(8, (size,), generator=generator)


def train(model, optimizer, data):
    """An ordinary training loop."""
    model.train()
    for inputs, targets in data:
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
