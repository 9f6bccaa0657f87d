"""Train a pruned network over several processes with FSDP2: torchrun --nproc-per-node 2 train_fsdp2.py

Runs on CPUs (gloo) as it stands. On GPUs, use the nccl backend and a "cuda" mesh.
"""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import synflow


def build() -> nn.Module:
    """The same network on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    model = build()

    # Pruning is a function of the model, so every rank finds the same masks (or: load_masks on every rank).
    masks = synflow.prune(model, torch.ones(1, 16), compression=20)
    synflow.attach(model, masks)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)

    for _ in range(20):
        inputs = torch.randn(32, 16)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs), inputs[:, :4].argmax(1)).backward()
        optimizer.step()

    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder[0])  # the masks are in it

    # A plain network for use elsewhere: gather, load, take the masks off.
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        plain = build()
        synflow.load_state(plain, whole)
        kept = synflow.density(synflow.bake(plain))
        zeros = sum(int((plain.state_dict()[name] == 0).sum()) for name in masks)
        print(f"kept {kept:.4f} of the weights, {zeros} are exactly zero")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
