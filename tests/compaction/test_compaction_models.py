"""Models of timm and transformers as they are: never refused, always verified, heads and hidden units really gone."""

import re

import pytest
import torch

from compact_twins import random_masks, train_twins
from synflow.compaction import compact
from synflow.inference.folded_norms import for_inference

timm = pytest.importorskip("timm")
transformers = pytest.importorskip("transformers")

TOKENS = {"input_ids": torch.arange(14).reshape(2, 7)}
SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}


def bert():
    return transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=50, **SHAPE)), TOKENS


def gpt2():
    config = transformers.GPT2Config(vocab_size=50, n_embd=32, n_layer=2, n_head=4, use_cache=False,
                                     bos_token_id=0, eos_token_id=0)  # fmt: skip
    return transformers.GPT2LMHeadModel(config), TOKENS


def llama():
    config = transformers.LlamaConfig(vocab_size=50, num_key_value_heads=2, use_cache=False, **SHAPE)
    return transformers.LlamaForCausalLM(config), TOKENS


def t5():
    config = transformers.T5Config(
        vocab_size=50, d_model=32, d_kv=8, num_layers=2, num_heads=4, d_ff=48, use_cache=False
    )
    return transformers.T5ForConditionalGeneration(config), TOKENS | {"decoder_input_ids": TOKENS["input_ids"]}


def vit():
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4,
                              num_classes=5)  # fmt: skip
    return model, torch.randn(2, 3, 32, 32)


def swin():
    model = timm.create_model("swin_tiny_patch4_window7_224", img_size=32, patch_size=2, window_size=4, embed_dim=16,
                              depths=(2, 2), num_heads=(4, 4), num_classes=5)  # fmt: skip
    return model, torch.randn(2, 3, 32, 32)


# The projection that reads the heads, the dimension along which it does, and the size of a head or of what is tied.
HEADS = {
    bert: (r"attention\.output\.dense\.weight", 1, 8),
    gpt2: (r"attn\.c_proj\.weight", 0, 8),
    llama: (r"o_proj\.weight", 1, 16),  # two heads share keys and values
    t5: (r"Attention\.o\.weight", 1, 8),
    vit: (r"attn\.proj\.weight", 1, 8),
    swin: (r"layers\.0\..*attn\.proj\.weight", 1, 4),
}


@pytest.mark.parametrize("build", HEADS, ids=lambda build: build.__name__)
def test_heads_that_nobody_reads_go(build):
    model, example = build()
    pattern, dim, size = HEADS[build]
    masks = {}
    for name, weight in model.named_parameters():
        if re.search(pattern, name):
            masks[name] = torch.ones_like(weight, dtype=torch.bool)
            masks[name].narrow(dim, 0, size).fill_(False)
    small = compact(model, example, masks)
    assert masks
    assert not small.compaction.notes
    for name in masks:
        assert dict(small.named_parameters())[name].shape[dim] == model.get_parameter(name).shape[dim] - size
    train_twins(model, small, masks, example, steps=2, optimizer="adamw", tolerance=1e-8)


@pytest.mark.parametrize("build", [bert, gpt2, llama, vit], ids=lambda build: build.__name__)
def test_hidden_units_go_under_random_masks(build):
    model, example = build()
    masks = random_masks(model, density=0.9, units=0.7)
    small = compact(model, example, masks)
    assert small.compaction.parameters[1] < small.compaction.parameters[0]
    train_twins(model, small, masks, example, steps=2, tolerance=1e-8)


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_convnext", "test_byobnet", "test_vit"])
def test_small_timm_models(name):
    model = timm.create_model(name, num_classes=5)
    example = torch.randn(2, 3, *([160, 160] if "vit" in name else [64, 64]))
    small = compact(model, example, random_masks(model, density=0.8, units=0.7))
    assert small.compaction.difference <= 1e-10
    assert small.compaction.parameters[1] < small.compaction.parameters[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["resnet18", "vgg11_bn", "densenet121", "mobilenetv3_small_100", "efficientnet_b0", "convnext_atto", "levit_128s",
     "regnety_002", "resnext50_32x4d", "ghostnet_100", "hrnet_w18_small", "repvgg_a0", "poolformer_s12", "inception_v3",
     "mobilevit_xxs", "edgenext_xx_small", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "mixer_s32_224"],
)  # fmt: skip
def test_timm_models(name):
    model = timm.create_model(name, num_classes=10)
    sides = {"inception_v3": 128} | dict.fromkeys(
        ["mixer_s32_224", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "levit_128s"], 224
    )
    side = sides.get(name, 64)
    small = compact(model, torch.randn(2, 3, side, side), random_masks(model, density=1.0, units=0.6))
    assert small.compaction.difference <= 1e-10
    assert small.compaction.parameters[1] < small.compaction.parameters[0]


def test_norms_of_timm_that_have_an_activation_inside_are_folded():
    model = timm.create_model("mobilenetv3_small_050", num_classes=3).eval()
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)]
    assert any(type(norm).__name__ == "BatchNormAct2d" for norm in norms)
    for norm in norms:
        torch.nn.init.uniform_(norm.running_mean, -0.2, 0.2)
    images = torch.randn(2, 3, 32, 32)
    ready = for_inference(model, images)
    assert not any(isinstance(m, torch.nn.BatchNorm2d) for m in ready.modules())
    with torch.no_grad():
        torch.testing.assert_close(ready(images), model(images), rtol=1e-4, atol=1e-5)
