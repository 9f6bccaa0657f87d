"""Dense, masked and compact side by side: time, memory, operations and size, in turns so that noise affects all alike.

Training steps run with the masks attached, inference with the masks baked in, as in practice.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from ..compaction import compact
from ..compaction.files import packed
from ..compaction.record.tape import tensors_in
from ..errors import SynflowError, brief, check_flag, check_function, need
from ..inference.onnx import export_onnx
from ..masks.attach import attach, bake
from ..network.flops import flops
from ..network.private_copy import arguments, device_of, move, whole_copy
from ..pruning.checks import is_whole
from ..support import memory
from ..support.memory import peak_memory
from ..support.torch_modes import with_gradients
from .results import Benchmark, Size, Timing
from .tasks import INFERENCE, TRAINING, Plan, Run, each, enlarged, inference_tasks, mean_square, training_run

SHORTEST = 0.05  # the least seconds of a turn: the first call after another network finds cold caches
MOST_RUNS = 100_000  # the most repeats, warm-up rounds or threads of a call: more is a typing error


@with_gradients
def bench(
    model: nn.Module,
    masks: Mapping[str, Tensor],
    example: Any,
    *,
    train_batches: Sequence[int] = (128,),
    inference_batches: Sequence[int] = (1, 64),
    repeats: int = 15,
    warmup: int = 2,
    loss: Callable[[Any], Tensor] | None = None,
    channels_last: bool = False,
    threads: int | None = None,
    compile: bool = False,
    folded: bool = False,
    forms: bool = False,
    onnx: bool = False,
    openvino: bool = False,
    small: nn.Module | None = None,
    progress: bool = True,
) -> Benchmark:
    """Measure a model dense, masked and compact, in training steps and inference, at several batch sizes.

    Each measurement is repeated, with the variants in turns, and reported as median and quartiles. Batches repeat the
    example, whose tensors must all have the batch as first dimension. `loss` maps the model's outputs to a number
    (mean square by default); the optimizer is SGD with momentum. `threads` applies to torch, onnxruntime and OpenVINO.
    `folded` adds inference in the form of `for_inference`, `onnx` and `openvino` add inference from exported files.
    `forms` compares the forms of inference with the unprepared dense network: channels last, the form of
    `for_inference`, and the same frozen, each for dense and compact. Pass `small` if you have the compact model.
    """
    _check_counts(repeats, warmup, 1 if threads is None else threads, train_batches, inference_batches)
    check_flag("progress", progress)
    if loss is not None:
        check_function("loss", loss, "(outputs) -> tensor")
    if openvino:
        need("openvino", extra="openvino")  # before anything is measured
    with _threads(threads):
        variants = _variants(model, masks, example, small, channels_last)
        device = device_of(model)
        for name, variant in variants.items():
            _check_runs(name, variant, move(example, device), loss or mean_square)
        inputs = {n: enlarged(move(example, device), n, channels_last) for n in {*train_batches, *inference_batches}}
        with tempfile.TemporaryDirectory() as folder:
            files = {}
            if onnx or openvino:
                files = {name: export_onnx(m, example, Path(folder, f"{name}.onnx")) for name, m in variants.items()}
            asked = {"folded": folded, "forms": forms, "onnxruntime": onnx, "openvino": openvino}
            training = partial(each, training_run, variants, loss=loss, compiled=compile)
            plans: list[Plan] = [(TRAINING, size, partial(training, inputs[size])) for size in train_batches]
            for task, run in inference_tasks(asked, variants, files, example, compile).items():
                plans += [(task, size, partial(run, inputs[size])) for size in inference_batches]
            timings = list(_measure(plans, repeats, warmup, progress))
            peaks = _peaks(plans, device)
            sizes = {name: _size(name, m, example, files.get(name)) for name, m in variants.items()}
        settings = {
            "threads": torch.get_num_threads(), "device": str(device), "channels_last": channels_last,
            "compile": compile, "repeats": repeats, "torch": str(torch.__version__),
        }  # fmt: skip
    return Benchmark(tuple(timings), tuple(sizes.values()), peaks, settings)


def _check_counts(repeats: Any, warmup: Any, threads: Any, *batches: Any) -> None:
    for name, count, least in (("repeats", repeats, 1), ("warmup", warmup, 0), ("threads", threads, 1)):
        if not is_whole(count) or not least <= count <= MOST_RUNS:
            raise SynflowError(f"{name} must be at least {least}, a whole number up to {MOST_RUNS}, got {brief(count)}")
    for sizes in batches:
        if not isinstance(sizes, Sequence) or not all(is_whole(size) and size >= 1 for size in sizes):
            raise SynflowError(f"batch sizes must be a list of whole numbers of at least 1, got {brief(sizes)}")


def _check_runs(name: str, model: nn.Module, example: Any, loss: Callable[[Any], Any]) -> None:
    """Refuse an example, a network or a loss that fails in a trial run."""
    shapes = [tuple(tensor.shape) for tensor in tensors_in(example)]
    empty = [shape for shape in shapes if shape and not shape[0]]
    if empty:
        raise SynflowError(f"the example has a tensor of shape {empty[0]}, which holds nothing; give a batch of one")
    try:
        args, kwargs = arguments(example)
        with torch.no_grad():
            value = loss(whole_copy(model).eval()(*args, **kwargs))
    except Exception as cause:
        raise SynflowError(
            f"the {name} network, or the loss of its outputs, fails on an example of shape "
            f"{', '.join(map(str, shapes)) or 'none'}: {type(cause).__name__}: {cause}; "
            "pass an example that the model takes"
        ) from cause
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise SynflowError(f"loss must return a tensor with one element, got {brief(value)}")


def _variants(
    model: nn.Module, masks: Mapping[str, Tensor], example: Any, small: nn.Module | None, channels_last: bool
) -> dict[str, nn.Module]:
    dense = whole_copy(model)
    bake(dense)
    masked = attach(whole_copy(dense), masks)
    tiny = compact(dense, example, masks) if small is None else whole_copy(small)
    variants: dict[str, nn.Module] = {"dense": dense, "masked": masked, "compact": tiny}
    if channels_last:
        for variant in variants.values():
            memory.channels_last(variant)
    return variants


def _measure(plans: list[Plan], repeats: int, warmup: int, progress: bool) -> Iterator[Timing]:
    with tqdm(total=repeats * len(plans), desc="bench", disable=not progress, leave=False) as bar:
        for task, size, get_ready in plans:
            bar.set_postfix_str(f"{task}, batch {size}")
            runs = get_ready()
            loops = {}
            for name, run in runs.items():
                for _ in range(warmup):
                    run()
                loops[name] = max(1, round(SHORTEST / max(clocked(run, 1), 1e-9)))
            seconds: dict[str, list[float]] = {name: [] for name in runs}
            for turn in range(repeats):
                try:
                    for name, run in runs.items():
                        seconds[name].append(clocked(run, loops[name]))
                except KeyboardInterrupt as stop:
                    raise KeyboardInterrupt(f"after {turn} of {repeats} rounds of {task}, batch {size}") from stop
                bar.update()
            quartiles = {name: np.quantile(values, (0.25, 0.5, 0.75)).tolist() for name, values in seconds.items()}
            for name, (low, middle, high) in quartiles.items():
                yield Timing(task, size, name, middle, low, high, quartiles["dense"][1] / middle)


def clocked(run: Run, loops: int) -> float:
    """Seconds per call, averaged over several calls."""
    _wait()
    start = time.perf_counter()
    for _ in range(loops):
        run()
    _wait()
    return (time.perf_counter() - start) / loops


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _peaks(plans: list[Plan], device: torch.device) -> dict[str, dict[str, int]]:
    """Peak memory in bytes, on top of the weights, at the largest batch of each task that torch runs."""
    peaks: dict[str, dict[str, int]] = {}
    for task in (TRAINING, INFERENCE):
        largest = max((plan for plan in plans if plan[0] == task), key=lambda plan: plan[1], default=None)
        if largest is not None:
            peaks[task] = {}
            for name, run in largest[2]().items():
                run()  # the first step of an optimizer creates its state
                peaks[task][name] = peak_memory(run, device)
    return peaks


def _size(name: str, model: nn.Module, example: Any, file: Path | None) -> Size:
    plain = whole_copy(model)
    bake(plain)
    one = move(enlarged(example, 1, False), device_of(plain))
    return Size(
        name,
        parameters=sum(p.numel() for p in plain.parameters()),
        nonzero=sum(int(p.count_nonzero()) for p in plain.parameters()),
        flops=flops(plain, one),
        file_bytes=len(packed(plain)),
        onnx_bytes=None if file is None else file.stat().st_size,
    )


@contextlib.contextmanager
def _threads(count: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    try:
        if count is not None:
            torch.set_num_threads(count)
        yield
    finally:
        torch.set_num_threads(before)
