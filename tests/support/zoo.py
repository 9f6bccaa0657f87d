"""Small real models for the tests that run everything over everything: each has an example, two batches and a loss.

`ZOO[name]()` seeds torch and builds a `Sample`, the same one each time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from blocks import (
    Add,
    Cat,
    CausalAttention,
    EinsumAttention,
    First,
    Gate,
    Mean,
    RMSNorm,
    SelfAttention,
    Seq2Seq,
    SqueezeExcite,
    TiedAutoencoder,
    TokenModel,
    UNet,
    conv_norm,
    residual,
)

CLASSES = 3


class Sample(NamedTuple):
    """A model and what its methods are called with; `example` and the inputs of `data` are a tensor or a tuple."""

    model: nn.Module
    example: Any
    data: list[tuple[Any, torch.Tensor]]
    loss: Callable[[Any, torch.Tensor], torch.Tensor] = F.cross_entropy


def token_loss(logits, targets):
    """Cross-entropy at each position."""
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def classifier(model, *shape, dtype=torch.float32) -> Sample:
    """A model that gives one class per input of this shape."""
    data = [(torch.randn(4, *shape, dtype=dtype), torch.randint(CLASSES, (4,))) for _ in range(2)]
    return Sample(model, torch.randn(1, *shape, dtype=dtype), data)


def mlp():
    model = nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.LeakyReLU(), nn.Linear(8, 8), nn.GELU(), nn.Linear(8, CLASSES)
    )
    return classifier(model, 6)


def mlp_zero_gamma():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))
    nn.init.zeros_(model[1].weight)
    return classifier(model, 6)


def conv_chain():
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, stride=2),
        nn.Tanh(),
        nn.Conv2d(4, CLASSES, 2),
        Mean(2, 3),
    )
    return classifier(model, 2, 6, 6)


def vgg_like():
    features = [conv_norm(2, 4), nn.ReLU(), nn.MaxPool2d(2), conv_norm(4, 6), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*features, nn.Flatten(), nn.Dropout(0.5), nn.Linear(6 * 4, CLASSES))
    return classifier(model, 2, 8, 8)


def _residual_net():
    return nn.Sequential(
        conv_norm(2, 4),
        residual(conv_norm(4, 4), nn.ReLU(), conv_norm(4, 4)),
        nn.ReLU(),
        Add(nn.Sequential(conv_norm(4, 6, stride=2), nn.ReLU(), conv_norm(6, 6)), conv_norm(4, 6, kernel=1, stride=2)),
        nn.ReLU(inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, CLASSES),
    )


def residual_net():
    return classifier(_residual_net(), 2, 6, 6)


def zero_init_residual():
    model = _residual_net()
    for block in (model[1], model[3]):
        nn.init.zeros_(block.left[2][1].weight)
    return classifier(model, 2, 6, 6)


def densenet_like():
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        Cat(nn.Identity(), nn.Sequential(nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 3, padding=1))),
        Cat(nn.Identity(), nn.Sequential(nn.BatchNorm2d(5), nn.ReLU(), nn.Conv2d(5, 2, 1))),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(7 * 4, CLASSES),
    )
    return classifier(model, 2, 4, 4)


def grouped_depthwise():
    model = nn.Sequential(
        conv_norm(2, 4, kernel=1),
        nn.ReLU6(),
        conv_norm(4, 4, groups=4),
        nn.Hardswish(),
        conv_norm(4, 8, groups=2),
        nn.ReLU(),
        nn.Conv2d(8, 4, 1),
        Mean(2, 3),
        nn.Linear(4, CLASSES),
    )
    return classifier(model, 2, 5, 5)


def unet():
    data = [(torch.randn(2, 2, 8, 8), torch.randint(CLASSES, (2, 8, 8))) for _ in range(2)]
    return Sample(UNet(CLASSES), torch.randn(1, 2, 8, 8), data)


def conv1d():
    model = nn.Sequential(
        nn.Conv1d(2, 4, 3, dilation=2),
        nn.SiLU(),
        nn.ConvTranspose1d(4, 4, 3, groups=2),
        nn.ELU(),
        Mean(2),
        nn.Linear(4, CLASSES),
    )
    return classifier(model, 2, 9)


def conv3d():
    model = nn.Sequential(
        nn.Conv3d(1, 3, 2), nn.BatchNorm3d(3), nn.ReLU(), nn.MaxPool3d(2), nn.Flatten(), nn.Linear(3, CLASSES)
    )
    return classifier(model, 1, 3, 3, 3)


def sequence(*layers):
    """Layers over a sequence of width 4, then a class from the mean position."""
    return classifier(nn.Sequential(*layers, Mean(1), nn.Linear(4, CLASSES)), 5, 4)


def multihead_attention():
    return sequence(nn.LayerNorm(4), SelfAttention(2, 2))


def encoder_layer():
    return sequence(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True))


def transformer():
    def inputs(batch):
        return torch.randn(batch, 5, 4), torch.randn(batch, 3, 4)

    data = [(inputs(2), torch.randint(CLASSES, (2, 3))) for _ in range(2)]
    return Sample(Seq2Seq(CLASSES), inputs(1), data, token_loss)


def einsum_attention():
    return sequence(residual(nn.LayerNorm(4), EinsumAttention(2, 2)), residual(nn.LayerNorm(4), nn.Linear(4, 4)))


def causal_attention():
    return sequence(nn.Linear(4, 4), residual(CausalAttention(2, 2)))


def swiglu():
    return sequence(residual(RMSNorm(4), Gate(4, 6)), RMSNorm(4))


def squeeze_excite():
    model = nn.Sequential(conv_norm(2, 4), nn.ReLU(), SqueezeExcite(4, 2), nn.Conv2d(4, CLASSES, 1), Mean(2, 3))
    return classifier(model, 2, 5, 5)


def recurrent(kind, **options):
    layer = kind(4, 4, batch_first=True, **options)
    return classifier(nn.Sequential(First(layer), Mean(1), nn.LazyLinear(CLASSES)), 5, 4)


def tied_autoencoder():
    data = [(x, x) for x in torch.randn(2, 4, 6)]
    return Sample(TiedAutoencoder(), torch.randn(1, 6), data, F.mse_loss)


def repeated_module():
    layer = nn.Linear(5, 5)
    model = nn.Sequential(layer, nn.ReLU(), layer, nn.ReLU(), layer, nn.ReLU(), nn.Linear(5, CLASSES))
    return classifier(model, 5)


@dataclass
class Output:
    """What a model of the transformers library gives, in small."""

    logits: torch.Tensor
    hidden: tuple[torch.Tensor, ...] = ()
    loss: torch.Tensor | None = None


class TwoHeads(nn.Module):
    """Two heads on one trunk, their outputs packed by `pack`."""

    def __init__(self, pack):
        super().__init__()
        self.trunk = nn.Linear(5, 6)
        self.left, self.right = nn.Linear(6, CLASSES), nn.Linear(6, 2)
        self.pack = pack

    def forward(self, x):
        hidden = F.relu(self.trunk(x))
        return self.pack(self.left(hidden), self.right(hidden))


def _as_tuple(left, right):
    return left, [right], None, torch.arange(3)


def _as_dict(left, right):
    return {"logits": left, "aux": {"right": right}, "step": 3}


def _as_dataclass(left, right):
    return Output(left, (right,))


def packed(pack, logits):
    sample = classifier(TwoHeads(pack), 5)
    return sample._replace(loss=lambda output, targets: F.cross_entropy(logits(output), targets))


def token_model():
    data = [(torch.randint(7, (2, 5)), torch.randint(7, (2, 5))) for _ in range(2)]
    return Sample(TokenModel(), torch.randint(7, (1, 5)), data, token_loss)


def group_instance_norm():
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3),
        nn.InstanceNorm2d(4, affine=True),
        nn.Softplus(),
        Mean(2, 3),
        nn.Linear(4, CLASSES),
    )
    return classifier(model, 2, 6, 6)


def weight_norm():
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(5, 6))
    return classifier(nn.Sequential(normed, nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, CLASSES)), 5)


def bfloat16():
    features = [conv_norm(2, 4), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    model = nn.Sequential(*features, nn.Linear(16, CLASSES)).to(torch.bfloat16)
    return classifier(model, 2, 5, 5, dtype=torch.bfloat16)


def _seeded(factory) -> Callable[[], Sample]:
    def build():
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            sample = factory()
            sample.model.eval()
            # Gives lazy layers their shape; batch statistics stay as they are in eval mode.
            inputs = sample.example if isinstance(sample.example, tuple) else (sample.example,)
            with torch.no_grad():
                sample.model(*inputs)
            sample.model.train()
            return sample

    return build


ZOO: dict[str, Callable[[], Sample]] = {
    name: _seeded(factory)
    for name, factory in {
        "mlp": mlp,
        "mlp_zero_gamma": mlp_zero_gamma,
        "conv_chain": conv_chain,
        "vgg_like": vgg_like,
        "residual": residual_net,
        "zero_init_residual": zero_init_residual,
        "densenet_like": densenet_like,
        "grouped_depthwise": grouped_depthwise,
        "unet": unet,
        "conv1d": conv1d,
        "conv3d": conv3d,
        "multihead_attention": multihead_attention,
        "encoder_layer": encoder_layer,
        "transformer": transformer,
        "einsum_attention": einsum_attention,
        "causal_attention": causal_attention,
        "swiglu": swiglu,
        "squeeze_excite": squeeze_excite,
        "lstm": partial(recurrent, nn.LSTM),
        "gru": partial(recurrent, nn.GRU, bias=False),
        "rnn": partial(recurrent, nn.RNN, num_layers=2, bidirectional=True),
        "tied_autoencoder": tied_autoencoder,
        "repeated_module": repeated_module,
        "tuple_output": partial(packed, _as_tuple, lambda output: output[0]),
        "dict_output": partial(packed, _as_dict, lambda output: output["logits"]),
        "dataclass_output": partial(packed, _as_dataclass, lambda output: output.logits),
        "token_model": token_model,
        "group_instance_norm": group_instance_norm,
        "weight_norm": weight_norm,
        "bfloat16": bfloat16,
    }.items()
}
