"""A masked network and its compact twin, trained side by side."""

import copy

import torch

from synflow.compaction import compact
from synflow.compaction.cut.surgery import cut
from synflow.compaction.record.tape import tensors, tensors_in
from synflow.compaction.verify import double, inputs_like, run
from synflow.masks.attach import attach, bake

OPTIMIZERS = {
    "sgd": lambda weights: torch.optim.SGD(weights, 0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
    # With the usual eps of 1e-8 a gradient that is zero but for rounding, 1e-13, would move a weight by 1e-7.
    "adamw": lambda weights: torch.optim.AdamW(weights, 0.01, weight_decay=0.1, eps=1e-4),
}


def random_masks(model, density=0.3, units=1.0, seed=0):
    """Random masks on the matrices and kernels; `units` is the share of rows and of columns that are not cut whole."""
    generator = torch.Generator().manual_seed(seed)
    masks = {}
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            mask = torch.rand(weight.shape, generator=generator) < density
            for dim in (0, 1):
                alive = torch.rand(weight.shape[dim], generator=generator) < units
                mask &= alive.reshape([-1 if d == dim else 1 for d in range(weight.dim())])
            masks[name] = mask
    return masks


def without(model, name, dim, indices):
    """A mask that cuts these indices of one dimension of one weight."""
    mask = torch.ones_like(dict(model.named_parameters())[name], dtype=torch.bool)
    mask.index_fill_(dim, torch.tensor(list(indices)), False)
    return mask


def sizes(small):
    """Shapes of the matrices and kernels, in order."""
    return [tuple(weight.shape) for weight in small.parameters() if weight.dim() > 1]


def squared(outputs, targets):
    """A loss for outputs of any form, so that each element of them counts differently."""
    return sum(((o - t) ** 2).mean() for o, t in zip(outputs, targets, strict=True))


def _all(result):
    return [t for t in tensors_in(result) if t.is_floating_point()]


def train_twins(model, small, masks, example, steps=3, optimizer="sgd", tolerance=1e-9):
    """Train both on the same random data in double precision; losses and surviving weights must stay the same."""
    masked = copy.deepcopy(model)
    bake(masked)
    attach(masked, masks)
    twins = [double(masked), double(copy.deepcopy(small))]
    optimizers = [OPTIMIZERS[optimizer](twin.parameters()) for twin in twins]
    repeat = 1 if "train" in small.compaction.modes else None
    for step in range(steps):
        inputs = inputs_like(example, step + 10, repeat=repeat or 1)
        losses = []
        for twin, optimizer_ in zip(twins, optimizers, strict=True):
            optimizer_.zero_grad()
            outputs = _all(run(twin, inputs, training=repeat is not None, seed=step))
            generator = torch.Generator().manual_seed(step)
            targets = [torch.randn(o.shape, generator=generator, dtype=torch.float64) for o in outputs]
            loss = squared(outputs, targets)
            loss.backward()
            optimizer_.step()
            losses.append(loss.item())
        assert abs(losses[0] - losses[1]) <= tolerance * max(1, abs(losses[0])), (step, losses)
    for twin in twins:
        bake(twin)
    whole, part = tensors(twins[0]), tensors(twins[1])
    for name, tensor in whole.items():
        survived = cut(tensor, small.compaction.kept.get(name, {})).double()
        torch.testing.assert_close(part[name].double(), survived, rtol=tolerance * 100, atol=tolerance * 100, msg=name)
    return twins


def outputs_equal(model, small, masks, example, training=False):
    """Largest difference of outputs in double precision on random inputs."""
    masked = copy.deepcopy(model)
    bake(masked)
    attach(masked, masks)
    twins = [double(masked), double(copy.deepcopy(small))]
    with torch.no_grad():
        pairs = zip(*(_all(run(twin, inputs_like(example, 77), training)) for twin in twins), strict=True)
        return max(float((a - b).abs().max()) for a, b in pairs)


def width(small, layer="0"):
    """How many units a layer has."""
    return small.get_submodule(layer).weight.shape[0]


def check(model, masks, example):
    """Compact, by proof alone; outputs and five steps of training must be the same."""
    small = compact(model, example, masks)
    assert not small.compaction.notes  # the proof was enough: nothing was left to the check to find
    for training in (False, True):
        assert outputs_equal(model, small, masks, example, training) <= 1e-10
    for optimizer in ("sgd", "adamw"):
        train_twins(model, small, masks, example, steps=5, optimizer=optimizer)
    return small
