"""Language models that write in their forward pass: states, their own weights, the type of a router."""

import pytest
import torch

import synflow
from synflow.models.torchvision_cure import cure_torchvision

pytestmark = pytest.mark.integration

SMALL = {"vocab_size": 19, "hidden_size": 16, "num_hidden_layers": 1}
SWITCH = {"vocab_size": 19, "d_model": 16, "num_layers": 1, "num_heads": 2, "d_ff": 16, "d_kv": 8, "num_experts": 2}
GEMMA = {
    **SMALL, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 32, "lru_width": 16,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MODELS = {
    "recurrent_gemma": (GEMMA, "AutoModelForCausalLM"),  # writes into a tensor whose dimensions are permuted
    "rwkv": ({**SMALL, "num_hidden_layers": 2, "attention_hidden_size": 16, "intermediate_size": 16,
              "rescale_every": 1}, "AutoModelForCausalLM"),  # rescales its weights once, keeps states of all layers
    "switch_transformers": (SWITCH, "AutoModelForSeq2SeqLM"),  # moves its router
    "xlstm": ({**SMALL, "num_heads": 2, "use_cache": False}, "AutoModelForCausalLM"),
}  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_no_layer_dies_and_the_model_stays(kind):
    transformers = pytest.importorskip("transformers")
    cure_torchvision()
    torch.manual_seed(0)
    settings, auto = MODELS[kind]
    model = getattr(transformers, auto).from_config(transformers.AutoConfig.for_model(kind, **settings)).eval()
    ids = torch.arange(3, 9)[None]
    example = {"input_ids": ids} | ({"decoder_input_ids": ids} if "Seq2Seq" in auto else {})
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    masks = synflow.prune(model, example, compression=5, score="balanced", steps=4)
    certificate = synflow.certify(model, masks, example)
    assert certificate.kept == round(certificate.total / 5)
    assert certificate.connected
    assert not certificate.dead_layers
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
