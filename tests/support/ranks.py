"""What the two processes of the distributed tests run; every check raises where it fails.

Not collected by pytest: `test_survival_distributed.py` starts it and reads what each rank reports.
"""

import copy
import json
import os
import sys
import traceback
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from masking import assert_masks_hold, assert_same, random_masks
from synflow.masks.attach import attach, attached, bake, load_state

FULL = StateDictOptions(full_state_dict=True)


class Tokens(nn.Module):
    """An embedding with a tied head, a recurrent and a feed-forward block."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.rnn = nn.LSTM(8, 8, batch_first=True)
        self.block = nn.Sequential(nn.Linear(8, 24), nn.GELU(), nn.Linear(24, 8))
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        x = self.rnn(self.embed(tokens))[0]
        return self.head(x + self.block(x))


def start():
    torch.manual_seed(0)
    model = Tokens()
    return model, random_masks(model)


def adamw(model):
    return torch.optim.AdamW(model.parameters(), 0.01, weight_decay=0.1)


def train(model, optimizer, part=slice(None), steps=range(3)):
    for step in steps:
        tokens = torch.randint(16, (4, 5), generator=torch.Generator().manual_seed(step))[part]
        optimizer.zero_grad()
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()


def mine():
    """The part of a batch that this rank sees."""
    return slice(2 * dist.get_rank(), 2 * dist.get_rank() + 2)


def same_everywhere(tensors):
    for name, tensor in tensors.items():
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, tensor.contiguous())
        assert torch.equal(*parts), name


def reference(steps=range(3)):
    """The same run in one process."""
    model, masks = start()
    optimizer = adamw(attach(model, masks))
    train(model, optimizer, steps=steps)
    return model, masks


def close(state, expected):
    assert list(state) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(state[name], value, atol=1e-5, rtol=1e-4)


def ddp(_):
    """Masks that differ between the ranks become those of rank 0; training equals that of one process."""
    model, masks = start()
    attach(model, masks if dist.get_rank() == 0 else random_masks(model, seed=1))
    wrapped = DistributedDataParallel(model)
    train(wrapped, adamw(wrapped), mine())
    assert_masks_hold(model, masks)
    same_everywhere(attached(wrapped))
    same_everywhere({name: weight.detach() for name, weight in model.named_parameters()})
    close(model.state_dict(), reference()[0].state_dict())
    tokens = torch.arange(10).view(2, 5)
    output = wrapped(tokens)
    assert_same(bake(wrapped), masks)
    assert torch.equal(model(tokens), output)


def shard(model, **options):
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    for part in (model.block, model.rnn, model):
        fully_shard(part, mesh=mesh, **options)
    return model


def whole(weight):
    return weight.full_tensor() if hasattr(weight, "full_tensor") else weight


def sharded_masks_hold(model, masks):
    same_everywhere(attached(model))
    assert_same(attached(model), masks)
    for name, mask in masks.items():
        path, _, attribute = name.rpartition(".")
        assert not whole(getattr(model.get_submodule(path), attribute))[~mask].any(), name


def fsdp_attach_before(_):
    """Masks attached to the whole model, then `fully_shard`: training equals that of one process."""
    model, masks = start()
    shard(attach(model, masks))
    train(model, adamw(model), mine())
    sharded_masks_hold(model, masks)
    close(get_model_state_dict(model, options=FULL), reference()[0].state_dict())


def fsdp_attach_after(_):
    """`fully_shard`, a step of training, then masks."""
    model, masks = start()
    optimizer = adamw(shard(model))
    train(model, optimizer, mine(), steps=[9])
    attach(model, masks)
    train(model, optimizer, mine())
    sharded_masks_hold(model, masks)

    twin, _ = start()
    optimizer = adamw(twin)
    train(twin, optimizer, steps=[9])
    attach(twin, masks)
    train(twin, optimizer)
    close(get_model_state_dict(model, options=FULL), twin.state_dict())


def fsdp_mixed_precision(_):
    model, masks = start()
    del model.rnn  # no bfloat16 kernel for the backward pass of an LSTM on CPU
    model.rnn = lambda x: (x,)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
    masks = {name: mask for name, mask in masks.items() if "rnn" not in name}
    attach(model, masks)
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    train(model, adamw(model), mine())
    sharded_masks_hold(model, masks)


def fsdp_checkpoint(folder):
    """DCP: save, go on; load into another sharded model, go on: the same run to the bit."""
    model, masks = start()
    optimizer = adamw(shard(attach(model, masks)))
    train(model, optimizer, mine())
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder / "dcp")
    train(model, optimizer, mine(), steps=range(3, 6))

    torch.manual_seed(5)
    resumed = Tokens()
    attach(resumed, {name: torch.ones_like(mask) for name, mask in masks.items()})
    optimizer = adamw(shard(resumed))
    weights, moments = get_state_dict(resumed, optimizer)
    state = {"model": weights, "optimizer": moments}
    dcp.load(state, checkpoint_id=folder / "dcp")
    set_state_dict(resumed, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    sharded_masks_hold(resumed, masks)
    train(resumed, optimizer, mine(), steps=range(3, 6))
    sharded_masks_hold(resumed, masks)
    assert_same(get_model_state_dict(resumed, options=FULL), get_model_state_dict(model, options=FULL))


def fsdp_bake(_):
    """Baking a sharded model leaves a plain sharded model; its full state loads into a plain one."""
    model, masks = start()
    optimizer = adamw(shard(attach(model, masks)))
    train(model, optimizer, mine())
    full = copy.deepcopy(get_model_state_dict(model, options=FULL))
    assert_same(bake(model), masks)
    assert isinstance(model.block, nn.Sequential)
    assert "density" not in repr(model)
    baked = get_model_state_dict(model, options=FULL)
    plain = Tokens()
    assert list(baked) == list(plain.state_dict())
    plain.load_state_dict(baked)
    assert all(not plain.state_dict()[name][~mask].any() for name, mask in masks.items())
    pruned = Tokens()
    load_state(pruned, full)
    assert_masks_hold(pruned, masks)
    tokens = torch.arange(10).view(2, 5)
    torch.testing.assert_close(model(tokens), plain(tokens))
    torch.testing.assert_close(pruned(tokens), plain(tokens))
    train(model, optimizer, mine())


CHECKS = [ddp, fsdp_attach_before, fsdp_attach_after, fsdp_mixed_precision, fsdp_checkpoint, fsdp_bake]


def main(rank, folder):
    """Run every check and write down how it went."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    results = {}
    for check in CHECKS:
        try:
            check(folder)
            results[check.__name__] = ""
        except Exception:
            results[check.__name__] = traceback.format_exc()
            break  # the other rank may wait in a collective: it ends at its time limit
        dist.barrier()
    (folder / f"rank{rank}.json").write_text(json.dumps(results))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
