"""Small network parts from which the zoo and the random networks are put together."""

import torch
import torch.nn.functional as F
from torch import nn


class Add(nn.Module):
    """The sum of two branches."""

    def __init__(self, left, right):
        super().__init__()
        self.left, self.right = left, right

    def forward(self, x):
        return self.left(x) + self.right(x)


class Cat(nn.Module):
    """Branches side by side along a dimension."""

    def __init__(self, *branches, dim=1):
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.dim = dim

    def forward(self, x):
        return torch.cat([branch(x) for branch in self.branches], dim=self.dim)


class Gate(nn.Module):
    """down(silu(gate(x)) * up(x)), the gated MLP of Llama."""

    def __init__(self, width, hidden, bias=False):
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias)
        self.up = nn.Linear(width, hidden, bias)
        self.down = nn.Linear(hidden, width, bias)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


class SqueezeExcite(nn.Module):
    """Channels weighted by what a small network makes of their means."""

    def __init__(self, channels, hidden):
        super().__init__()
        self.squeeze = nn.Conv2d(channels, hidden, 1)
        self.excite = nn.Conv2d(hidden, channels, 1)

    def forward(self, x):
        return x * torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))


class EinsumAttention(nn.Module):
    """Attention written out with einsum and softmax."""

    def __init__(self, heads, size, bias=False):
        super().__init__()
        self.heads, self.size = heads, size
        self.qkv = nn.Linear(heads * size, 3 * heads * size, bias)
        self.out = nn.Linear(heads * size, heads * size, bias)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, self.size)).unbind(2)
        weights = (torch.einsum("bqhd,bkhd->bhqk", q, k) / self.size**0.5).softmax(-1)
        return self.out(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))


class CausalAttention(nn.Module):
    """Attention through the fused function, each position seeing those before it."""

    def __init__(self, heads, size, bias=False):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(heads * size, heads * size, bias) for _ in range(4))

    def forward(self, x):
        q, k, v = (each(x).view(*x.shape[:2], self.heads, -1).transpose(1, 2) for each in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class SelfAttention(nn.Module):
    """nn.MultiheadAttention on one sequence."""

    def __init__(self, heads, size, bias=True):
        super().__init__()
        self.attention = nn.MultiheadAttention(heads * size, heads, bias=bias, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


class RMSNorm(nn.Module):
    """A root-mean-square norm written by hand, as transformers models have it."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class First(nn.Module):
    """The first of a module's outputs: the sequence a recurrent layer gives beside its state."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        return self.module(x)[0]


class Mean(nn.Module):
    """The mean over some dimensions."""

    def __init__(self, *dims):
        super().__init__()
        self.dims = dims

    def forward(self, x):
        return x.mean(self.dims)


class UNet(nn.Module):
    """Down, up by a transposed convolution and by interpolation, with a skip joined on at each level."""

    def __init__(self, classes):
        super().__init__()
        self.down1, self.down2 = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 6, 3, padding=1)
        self.bottom = nn.Conv2d(6, 6, 3, padding=1)
        self.up2 = nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.merge2 = nn.Conv2d(10, 4, 3, padding=1)
        self.merge1 = nn.Conv2d(8, classes, 1)

    def forward(self, x):
        fine = F.relu(self.down1(x))
        coarse = F.relu(self.down2(F.max_pool2d(fine, 2)))
        y = self.up2(F.relu(self.bottom(F.max_pool2d(coarse, 2))))
        y = F.relu(self.merge2(torch.cat([y, coarse], 1)))
        y = F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)
        return self.merge1(torch.cat([y, fine], 1))


class Seq2Seq(nn.Module):
    """nn.Transformer between two projections."""

    def __init__(self, classes):
        super().__init__()
        self.transformer = nn.Transformer(4, 2, 1, 1, 8, batch_first=True)
        self.head = nn.Linear(4, classes)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.head(self.transformer(source, target, tgt_mask=mask))


class TiedAutoencoder(nn.Module):
    """The decoder is the encoder's weight transposed."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(6, 4)
        self.shift = nn.Parameter(torch.zeros(6))

    def forward(self, x):
        return F.linear(F.relu(self.encoder(x)), self.encoder.weight.T, self.shift)


class TokenModel(nn.Module):
    """A language model of one block whose head is the token embedding."""

    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(7, 4), nn.Embedding(6, 4)
        self.attention, self.norm = CausalAttention(2, 2), nn.LayerNorm(4)
        self.mlp = Gate(4, 6)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        x = x + self.attention(self.norm(x))
        return self.head(x + self.mlp(x))


def residual(*layers):
    """x + layers(x)."""
    return Add(nn.Sequential(*layers), nn.Identity())


def conv_norm(inputs, outputs, kernel=3, stride=1, **options):
    """A convolution without bias and its batch norm."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False, **options), nn.BatchNorm2d(outputs)
    )
