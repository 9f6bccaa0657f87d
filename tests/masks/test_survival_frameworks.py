"""Masks hold in Lightning, Hugging Face and accelerate trainers, with no callback or hook of ours."""

import logging

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch.utils.data import DataLoader, TensorDataset

from masking import Small, assert_masks_hold, assert_same, batches, random_masks, seen, small
from synflow.masks.attach import attach, attached, bake, load_state

pytestmark = pytest.mark.filterwarnings("ignore")


def loader():
    images, classes = next(batches(1, size=12))
    return DataLoader(TensorDataset(images, classes), batch_size=4)


def moved(before, model, masks):
    """Each kept weight of the masked parameters has changed."""
    after = seen(model)
    return all((after[name] != before[name])[mask].all() for name, mask in masks.items())


def lightning_module(network):
    import lightning

    class Task(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = network

        def training_step(self, batch, _):
            return F.cross_entropy(self.network(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.05, momentum=0.9, weight_decay=0.01)

    return Task()


def lightning_trainer(folder, epochs):
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    return lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", logger=False, default_root_dir=folder, enable_progress_bar=False,
        enable_model_summary=False, gradient_clip_val=1.0,
    )  # fmt: skip


def test_lightning(tmp_path):
    model, masks = small()
    before = seen(attach(model, masks))
    trainer = lightning_trainer(tmp_path, epochs=2)
    trainer.fit(lightning_module(model), loader())
    assert_masks_hold(model, masks)
    assert moved(before, model, masks)
    checkpoint = trainer.checkpoint_callback.best_model_path

    trainer.fit_loop.max_epochs = 3
    trainer.fit(lightning_module(model), loader(), ckpt_path=checkpoint)

    resumed = attach(Small(), {name: torch.ones_like(mask) for name, mask in masks.items()})
    lightning_trainer(tmp_path / "again", epochs=3).fit(lightning_module(resumed), loader(), ckpt_path=checkpoint)
    assert_masks_hold(resumed, masks)
    assert_same(seen(resumed), seen(model))
    bake(resumed)
    assert list(resumed.state_dict()) == list(Small().state_dict())


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return GPT2LMHeadModel(config)


def hf_trainer(model, folder, steps):
    from transformers import Trainer, TrainingArguments

    tokens = torch.randint(32, (16, 8), generator=torch.Generator().manual_seed(0))
    arguments = TrainingArguments(
        output_dir=str(folder), max_steps=steps, per_device_train_batch_size=4, learning_rate=1e-2, weight_decay=0.1,
        lr_scheduler_type="constant", save_steps=3, logging_steps=100, report_to="none", use_cpu=True,
        disable_tqdm=True, dataloader_num_workers=0, seed=0,
    )  # fmt: skip
    return Trainer(model=model, args=arguments, train_dataset=[{"input_ids": row, "labels": row} for row in tokens])


def test_hugging_face_trainer(tmp_path):
    from transformers import GPT2LMHeadModel

    model = gpt2()
    masks = random_masks(model)
    assert {"transformer.wte.weight", "transformer.h.0.attn.c_attn.weight"} <= set(masks), "embedding and head are tied"
    before = seen(attach(model, masks))
    assert "density" in repr(model.transformer.h[0].attn.c_attn)
    hf_trainer(model, tmp_path, steps=6).train()
    assert_masks_hold(model, masks)
    del before["transformer.wpe.weight"]  # positions beyond the texts have no gradient
    assert moved(before, model, {name: mask for name, mask in masks.items() if name in before and "wte" not in name})
    assert torch.equal(model.lm_head.weight, model.transformer.wte.weight)

    resumed = attach(gpt2(), {name: torch.ones_like(mask) for name, mask in masks.items()})
    hf_trainer(resumed, tmp_path / "again", steps=6).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert_masks_hold(resumed, masks)
    assert_same(seen(resumed), seen(model))

    model.save_pretrained(tmp_path / "attached")
    dense = GPT2LMHeadModel.from_pretrained(tmp_path / "attached")
    assert_same(seen(dense), seen(model))
    bake(model)
    model.save_pretrained(tmp_path / "baked")
    assert_same(seen(GPT2LMHeadModel.from_pretrained(tmp_path / "baked")), seen(model))


def accelerated(model, accelerator):
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, weight_decay=0.1)
    return accelerator.prepare(model, optimizer, loader())


def run(accelerator, model, optimizer, data):
    for images, classes in data:
        with accelerator.accumulate(model):
            accelerator.backward(F.cross_entropy(model(images), classes))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()


def test_accelerate(tmp_path):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=1)
    model, masks = small()
    before = seen(attach(model, masks))
    prepared, optimizer, data = accelerated(model, accelerator)
    run(accelerator, prepared, optimizer, data)
    accelerator.save_state(tmp_path / "state")
    run(accelerator, prepared, optimizer, data)
    plain = accelerator.unwrap_model(prepared)
    assert_masks_hold(plain, masks)
    assert moved(before, plain, masks)
    accelerator.free_memory()

    other = attach(Small(), {name: torch.ones_like(mask) for name, mask in masks.items()})
    prepared, optimizer, data = accelerated(other, accelerator)
    accelerator.load_state(tmp_path / "state")
    run(accelerator, prepared, optimizer, data)
    assert_same(seen(other), seen(plain))
    assert_masks_hold(other, masks)
    accelerator.save_model(prepared, tmp_path / "model")
    state = load_file(tmp_path / "model" / "model.safetensors")
    state.setdefault("head.weight", state.get("mix.weight"))  # safetensors keeps one of two tied weights
    state.setdefault("mix.weight", state["head.weight"])
    fresh = Small()
    load_state(fresh, state)
    assert_same(attached(fresh), masks)
    assert_same(seen(fresh), seen(other))
