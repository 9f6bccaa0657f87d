"""Training and evaluation of any model on a data set in memory, epoch by epoch, so that a run can stop and go on."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from synflow.errors import SynflowError

from .data import Dataset, batches, normalise
from .fast.memory import keep_freed_memory
from .recipes import Recipe, optimizer, rate

__all__ = ["Epoch", "evaluate", "fast_form", "pick_device", "train", "train_epochs"]

EVALUATION_BATCH = 512


@dataclass(frozen=True)
class Epoch:
    """What an epoch did; `epoch` counts those finished, and test figures are None where it was not evaluated."""

    epoch: int
    train_loss: float
    test_loss: float | None
    top1: float | None
    top5: float | None
    lr: float
    seconds: float


def pick_device(name: str = "auto") -> torch.device:
    """The named device; `auto` is an accelerator if there is one."""
    if name != "auto":
        return torch.device(name)
    return torch.accelerator.current_accelerator() or torch.device("cpu")


def train(model: nn.Module, data: Dataset, recipe: Recipe, *, seed: int = 0, device: str = "cpu") -> list[Epoch]:
    """Train a model in place, masked or compact or plain, and return a record of each epoch.

    >>> from synflow.experiments import data, models
    >>> history = train(models.build("fc", input_shape=(1, 8, 8)), data.load("digits"), Recipe(epochs=2, lr=0.05))
    >>> history[-1].top1 > 50
    True
    """
    return [epoch for epoch, _ in train_epochs(model, data, recipe, seed=seed, device=device)]


def train_epochs(
    model: nn.Module,
    data: Dataset,
    recipe: Recipe,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    compile: bool = False,
    fast: bool = True,
    state: Mapping[str, Any] | None = None,
) -> Iterator[tuple[Epoch, Callable[[], dict[str, Any]]]]:
    """Each epoch with a function that returns all of the state; given back as `state` training goes on from there.

    Epochs depend on seed and number alone, so a resumed run equals an undisturbed one to the bit. With `fast` networks
    that `fast_form` knows are trained by sparse loops: the same training up to rounding.
    """
    target = torch.device(device)
    layout = _layout(model, recipe)
    model.to(target, memory_format=layout)  # type: ignore[call-overload]
    optimiser = optimizer(model, recipe)
    scaler = torch.amp.GradScaler(target.type, enabled=recipe.precision == "float16")
    done = 0
    if state is not None:
        model.load_state_dict(state["model"])
        optimiser.load_state_dict(state["optimizer"])
        scaler.load_state_dict(state["scaler"])
        done = int(state["epoch"])
    quick = fast_form(model, data.shape) if fast and not compile and recipe.precision == "float32" else None
    runner: Any = torch.compile(model) if compile else quick or model
    for epoch in range(done, recipe.epochs):
        start = time.perf_counter()
        with _own_randomness(seed, epoch, target):
            loss = _one_epoch(model, runner, data, recipe, optimiser, scaler, seed, epoch, target)
        finished = epoch + 1
        tested: dict[str, float | None] = {"test_loss": None, "top1": None, "top5": None}
        if finished % recipe.evaluate_every == 0 or finished == recipe.epochs:
            tested = dict(evaluate(runner, data, device=target, precision=recipe.precision, layout=layout))
        lr = rate(recipe, epoch)
        record = Epoch(finished, loss, **tested, lr=lr, seconds=time.perf_counter() - start)

        def snapshot(finished: int = finished) -> dict[str, Any]:
            return {
                "epoch": finished, "model": model.state_dict(), "optimizer": optimiser.state_dict(),
                "scaler": scaler.state_dict(),
            }  # fmt: skip

        yield record, snapshot


def fast_form(model: nn.Module, image: tuple[int, int, int]) -> nn.Module | None:
    """The model as sparse loops over groups of images, where that is faster; None where it is not, or without numba.

    Both share all parameters and buffers. From now on the process keeps the memory that it frees.
    """
    try:
        from .fast.grouped import grouped
    except ImportError:  # numba comes with the extra `fast`
        return None
    found = grouped(model, image)
    if found is not None:
        keep_freed_memory()
    return found


def _one_epoch(
    model: nn.Module, runner: Any, data: Dataset, recipe: Recipe, optimiser: torch.optim.Optimizer,
    scaler: Any, seed: int, epoch: int, device: torch.device,
) -> float:  # fmt: skip
    model.train()
    steps = max(1, math.ceil(len(data.train_labels) / recipe.batch_size))
    total = torch.zeros((), device=device)
    for step, (images, labels) in enumerate(
        batches(data, recipe.batch_size, seed, epoch, augmented=recipe.augment, device=device)
    ):
        for group in optimiser.param_groups:
            group["lr"] = rate(recipe, epoch + step / steps)
        optimiser.zero_grad(set_to_none=True)
        images = images.contiguous(memory_format=_layout(model, recipe))
        with autocast(device, recipe.precision):
            loss = F.cross_entropy(runner(images), labels, label_smoothing=recipe.label_smoothing)
        # A network without a path has outputs that no weight can change.
        if loss.requires_grad:
            scaler.scale(loss).backward()
            scaler.step(optimiser)
            scaler.update()
        total += loss.detach() * len(labels)
    mean = float(total) / len(data.train_labels)
    if not math.isfinite(mean):
        raise SynflowError(
            f"the training loss is {mean} in epoch {epoch + 1} at learning rate {rate(recipe, epoch):g}; "
            "lower lr or lr_factor, or add warmup"
        )
    return mean


def _layout(model: nn.Module, recipe: Recipe) -> torch.memory_format:
    """How images lie in memory: narrow layers crash the backward kernels for channels last (seen in torch 2.13)."""
    widths = [module.out_channels for module in model.modules() if isinstance(module, nn.Conv2d)]
    even = all(width % 8 == 0 for width in widths)
    return torch.channels_last if recipe.channels_last and even else torch.contiguous_format


def evaluate(
    model: nn.Module,
    data: Dataset,
    *,
    device: torch.device | str = "cpu",
    precision: str = "float32",
    layout: torch.memory_format = torch.contiguous_format,
) -> dict[str, float]:
    """Test loss, top-1 and top-5 accuracy in percent."""
    target, training = torch.device(device), getattr(model, "training", False)
    model.eval()
    loss, top1, top5 = 0.0, 0, 0
    most = min(5, data.classes)
    with torch.no_grad(), autocast(target, precision):
        for images, labels in zip(
            data.test_images.split(EVALUATION_BATCH), data.test_labels.split(EVALUATION_BATCH), strict=True
        ):
            labels = labels.to(target)
            outputs = model(normalise(images, data, target).contiguous(memory_format=layout)).float()
            loss += float(F.cross_entropy(outputs, labels, reduction="sum"))
            best = outputs.topk(most).indices == labels.unsqueeze(1)
            top1 += int(best[:, 0].sum())
            top5 += int(best.any(1).sum())
    model.train(training)
    number = len(data.test_labels)
    return {"test_loss": loss / number, "top1": 100 * top1 / number, "top5": 100 * top5 / number}


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[Any]:
    """Mixed precision, or nothing for float32."""
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, precision))


@contextlib.contextmanager
def _own_randomness(seed: int, epoch: int, device: torch.device) -> Iterator[None]:
    """Random numbers (dropout) from seed and epoch; the caller's generators are put back."""
    devices = [torch.accelerator.current_device_index()] if device.type != "cpu" else []
    with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"):
        torch.manual_seed(seed * 1_000_003 + epoch)
        yield
