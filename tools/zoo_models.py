"""The architectures of the zoo, built without weights: `ENTRIES` maps a name to a function giving (model, example)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from synflow.models.built_in import build
from synflow.models.torchvision_cure import cure_torchvision

Entry = Callable[[], tuple[nn.Module, Any]]

# Image sides other than the usual one here, 64 pixels: what the architecture asks for.
SIDES = {"inception_v3": 96, "inception_v4": 96, "halonet26t": 256, "efficientformer_l1": 224, "crossvit_9_240": 240}

TIMM = {
    "CNNs": """
        resnet18 resnet50 resnext50_32x4d densenet121 inception_v3 inception_v4 xception41 dla34 dpn68
        hrnet_w18_small res2net50_26w_4s regnetx_008 resnetv2_50 resnetv2_50x1_bit cspresnet50 cspdarknet53
        gernet_s repvgg_a0 nf_resnet50 selecsls42 hgnetv2_b0 rdnet_tiny convnext_atto convnext_tiny
        convnextv2_atto convmixer_768_32 inception_next_atto
    """,
    "Squeeze-excite and other gates": """
        seresnet50 regnety_008 ese_vovnet19b_dw ecaresnet26t skresnet18 resnest14d resnetrs50 gcresnext26ts
        eca_nfnet_l0 botnet26t_256 halonet26t lambda_resnet26t
    """,
    "Mobile networks": """
        mobilenetv1_100 mobilenetv2_100 mobilenetv3_large_100 mobilenetv4_conv_small mobilenetv4_hybrid_medium
        mnasnet_100 efficientnet_b0 efficientnet_lite0 tf_efficientnetv2_b0 ghostnet_100 ghostnetv2_100
        fbnetc_100 lcnet_050 tinynet_e mixnet_s rexnet_100 hardcorenas_a mobileone_s0 repghostnet_050
        repvit_m0_9 starnet_s1 edgenext_xx_small mobilevit_xxs mobilevitv2_050 fastvit_t8 efficientformer_l1
        efficientformerv2_s0 swiftformer_xs
    """,
    "Vision transformers": """
        vit_tiny_patch16_224 vit_relpos_small_patch16_224 deit_tiny_patch16_224 deit3_small_patch16_224
        eva02_tiny_patch14_224 cait_xxs24_224 xcit_nano_12_p16_224
        swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 swinv2_cr_tiny_224 pvt_v2_b0 twins_pcpvt_small
        twins_svt_small crossvit_9_240 coat_lite_tiny convit_tiny pit_ti_224 tnt_s_patch16_224 visformer_tiny
        levit_128s volo_d1_224 davit_tiny focalnet_tiny_srf gcvit_xxtiny nest_tiny maxvit_rmlp_pico_rw_256
        coatnet_nano_rw_224 nextvit_small efficientvit_b0 efficientvit_m0 tiny_vit_5m_224 hiera_tiny_224
        mvitv2_tiny
    """,
    "Mixers": """
        mixer_s16_224 resmlp_12_224 gmlp_ti16_224 poolformer_s12 caformer_s18 convformer_s18 sequencer2d_s
        mambaout_femto
    """,
}

# Small configurations of transformers models; the names of the settings differ from family to family.
_BLOCKS = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128}
_PLAIN = {"vocab_size": 99, **_BLOCKS}
_GROUPED = {**_PLAIN, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_HEADS = {**_GROUPED, "head_dim": 16}
_IMAGE = {**_BLOCKS, "image_size": 32, "patch_size": 8}
_GPT2 = {"vocab_size": 99, "n_embd": 64, "n_layer": 3, "n_head": 4}
_T5 = {"vocab_size": 99, "d_model": 64, "num_layers": 3, "num_heads": 4, "d_ff": 128, "d_kv": 16}
_BART = {
    "vocab_size": 99, "d_model": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "forced_eos_token_id": None,
    **{f"{part}_{size}": n for part in ("encoder", "decoder")
       for size, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 128))},
}  # fmt: skip
_AUDIO = {
    **_BLOCKS, "conv_dim": (32, 32), "conv_stride": (2, 2), "conv_kernel": (3, 3),
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
_WHISPER = {**_BART, "num_mel_bins": 8, "max_source_positions": 16, "suppress_tokens": None}
_DISTIL = {"vocab_size": 99, "dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 128}
_XLNET = {"vocab_size": 99, "d_model": 64, "n_layer": 3, "n_head": 4, "d_inner": 128}
_NEO = {
    "vocab_size": 99, "hidden_size": 64, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]],
}  # fmt: skip
_BLOOM = {"vocab_size": 99, "hidden_size": 64, "n_layer": 3, "n_head": 4}
_MAMBA = {"vocab_size": 99, "hidden_size": 64, "num_hidden_layers": 2, "state_size": 4}
_RWKV = {
    "vocab_size": 99, "hidden_size": 64, "num_hidden_layers": 2, "attention_hidden_size": 64, "intermediate_size": 128,
}  # fmt: skip
_XLSTM = {"vocab_size": 99, "hidden_size": 64, "num_hidden_layers": 2, "num_heads": 2, "use_cache": False}
_SEGFORMER = {
    "num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [16, 32], "patch_sizes": [3, 3],
    "strides": [2, 2], "num_attention_heads": [2, 4], "mlp_ratios": [2, 2],
}  # fmt: skip
_CLIP = {
    "text_config": {**_PLAIN, "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2},
    "vision_config": _IMAGE, "projection_dim": 32,
}  # fmt: skip


def tokens(*names: str) -> dict[str, Tensor]:
    """Eight token ids for each named argument."""
    return {name: torch.arange(3, 11)[None] for name in names}


def image(side: int = 32) -> dict[str, Tensor]:
    """One picture."""
    return {"pixel_values": torch.ones(1, 3, side, side)}


# Type, settings, example, and the class that builds it.
_TEXT, _LM, _PAIR = tokens("input_ids"), "AutoModelForCausalLM", tokens("input_ids", "decoder_input_ids")
_TRANSFORMERS: dict[str, list[tuple[str, dict[str, Any], dict[str, Tensor], str]]] = {
    "Text encoders": [
        ("bert", _PLAIN, _TEXT, "AutoModelForMaskedLM"),
        ("roberta", _PLAIN, _TEXT, "AutoModel"),
        ("albert", {**_PLAIN, "embedding_size": 32}, _TEXT, "AutoModel"),
        ("electra", {**_PLAIN, "embedding_size": 32}, _TEXT, "AutoModel"),
        ("distilbert", _DISTIL, _TEXT, "AutoModel"),
        ("deberta-v2", {**_PLAIN, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, _TEXT, "AutoModel"),
        ("mpnet", _PLAIN, _TEXT, "AutoModel"),
        ("modernbert", {**_PLAIN, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2}, _TEXT, "AutoModel"),
        ("xlnet", _XLNET, _TEXT, "AutoModel"),
        ("esm", {**_PLAIN, "pad_token_id": 1}, _TEXT, "AutoModel"),
        ("fnet", _PLAIN, _TEXT, "AutoModel"),
    ],
    "Language models": [
        ("gpt2", _GPT2, _TEXT, _LM),
        ("gpt_neo", _NEO, _TEXT, _LM),
        ("gptj", {**_GPT2, "rotary_dim": 8}, _TEXT, _LM),
        ("gpt_neox", _PLAIN, _TEXT, _LM),
        ("opt", {**_PLAIN, "ffn_dim": 128, "word_embed_proj_dim": 64}, _TEXT, _LM),
        ("bloom", _BLOOM, _TEXT, _LM),
        ("falcon", _PLAIN, _TEXT, _LM),
        *[(name, _GROUPED, _TEXT, _LM) for name in ("llama", "mistral", "qwen2", "phi", "phi3", "olmo2", "stablelm")],
        *[(name, _GROUPED, _TEXT, _LM) for name in ("granite", "cohere", "starcoder2")],
        *[(name, _HEADS, _TEXT, _LM) for name in ("qwen3", "gemma", "gemma2", "gemma3_text", "glm4")],
        ("mixtral", {**_GROUPED, "num_local_experts": 4}, _TEXT, _LM),
        ("mamba", _MAMBA, _TEXT, _LM),
        ("recurrent_gemma", {**_GROUPED, "num_key_value_heads": 1, "lru_width": 64}, _TEXT, _LM),
        ("rwkv", _RWKV, _TEXT, _LM),
        ("xlstm", _XLSTM, _TEXT, _LM),
    ],
    "Sequence to sequence": [
        ("t5", _T5, _PAIR, "AutoModelForSeq2SeqLM"),
        ("mt5", {**_T5, "feed_forward_proj": "gated-gelu"}, _PAIR, "AutoModel"),
        ("switch_transformers", {**_T5, "num_experts": 4}, _PAIR, "AutoModelForSeq2SeqLM"),
        ("bart", _BART, _PAIR, "AutoModelForSeq2SeqLM"),
        ("marian", _BART, _PAIR, "AutoModel"),
        (
            "whisper",
            _WHISPER,
            {"input_features": torch.ones(1, 8, 32), **tokens("decoder_input_ids")},
            "AutoModel",
        ),
    ],
    "Images, sound and text": [
        *[(name, _IMAGE, image(), "AutoModel") for name in ("vit", "beit", "dinov2", "siglip_vision_model")],
        ("segformer", _SEGFORMER, image(), "AutoModel"),
        ("clip", _CLIP, {**_TEXT, **image()}, "AutoModel"),
        ("wav2vec2", _AUDIO, {"input_values": torch.ones(1, 64)}, "AutoModel"),
        ("hubert", _AUDIO, {"input_values": torch.ones(1, 64)}, "AutoModel"),
    ],
}  # fmt: skip


def from_timm(name: str) -> tuple[nn.Module, Any]:
    """A timm model at a small input size, where it takes one."""
    cure_torchvision()
    import timm

    side = SIDES.get(name, 64)
    try:
        model = timm.create_model(name, pretrained=False, img_size=side)
    except TypeError:
        model = timm.create_model(name, pretrained=False)
    return model, torch.ones(1, 3, side, side)


def from_transformers(
    kind: str, settings: dict[str, Any], example: dict[str, Tensor], auto: str
) -> tuple[nn.Module, Any]:
    """A transformers model from a small configuration."""
    cure_torchvision()
    import transformers

    config = transformers.AutoConfig.for_model(kind, **settings)
    return getattr(transformers, auto).from_config(config), example


def from_papers(name: str, classes: int, *shape: int) -> tuple[nn.Module, Any]:
    """A network of the pruning papers."""
    return build(name, classes=classes, input_shape=shape), torch.ones(1, *shape)


class UNet(nn.Module):
    """Three levels down and up again, with transposed convolutions and skips joined on."""

    def __init__(self, widths: tuple[int, ...] = (32, 64, 128)) -> None:
        super().__init__()
        pairs = list(zip((3, *widths), widths, strict=False))
        self.down = nn.ModuleList(self._double(a, b) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in reversed(pairs[1:]))
        self.merge = nn.ModuleList(self._double(2 * a, a) for a, _ in reversed(pairs[1:]))
        self.head = nn.Conv2d(widths[0], 2, 1)

    @staticmethod
    def _double(inputs: int, outputs: int) -> nn.Module:
        layers: list[nn.Module] = []
        for channels in (inputs, outputs):
            layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else F.max_pool2d(x, 2))
            skips.append(x)
        skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([up(x), skips.pop()], dim=1))
        return self.head(x)


class Recurrent(nn.Module):
    """A recurrent network over embedded tokens."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(99, 64)
        self.recurrent = kind(64, 64, num_layers=2, batch_first=True, **options)
        self.head = nn.LazyLinear(99)
        self(torch.zeros(1, 1, dtype=torch.long))

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.recurrent(self.embedding(ids))[0])


def _transformer() -> tuple[nn.Module, Any]:
    model = nn.Transformer(64, 4, 2, 2, 128, batch_first=True)
    return model, (torch.ones(1, 8, 64), torch.ones(1, 6, 64))


def _recurrent(kind: type[nn.RNNBase], **options: Any) -> tuple[nn.Module, Any]:
    return Recurrent(kind, **options), torch.arange(8)[None]


_TORCH: dict[str, Entry] = {
    "VGG-16 (CIFAR-100)": partial(from_papers, "vgg16_bn", 100, 3, 32, 32),
    "ResNet-20 (CIFAR-10)": partial(from_papers, "resnet20", 10, 3, 32, 32),
    "ResNet-110 (CIFAR-10)": partial(from_papers, "resnet110", 10, 3, 32, 32),
    "WideResNet-18 (Tiny ImageNet)": partial(from_papers, "wide_resnet18", 200, 3, 64, 64),
    "ResNet-50 (ImageNet, 224)": partial(from_papers, "resnet50", 1000, 3, 224, 224),
    "U-Net": lambda: (UNet(), torch.ones(1, 3, 32, 32)),
    "nn.Transformer": _transformer,
    "LSTM, 2 layers": partial(_recurrent, nn.LSTM),
    "LSTM, bidirectional with projection": partial(_recurrent, nn.LSTM, bidirectional=True, proj_size=16),
    "GRU, bidirectional": partial(_recurrent, nn.GRU, bidirectional=True),
    "RNN": partial(_recurrent, nn.RNN),
}

ENTRIES: dict[str, dict[str, Entry]] = {
    "Plain torch": _TORCH,
    **{f"timm: {family}": {name: partial(from_timm, name) for name in names.split()} for family, names in TIMM.items()},
    **{
        f"transformers: {family}": {row[0]: partial(from_transformers, *row) for row in rows}
        for family, rows in _TRANSFORMERS.items()
    },
}
