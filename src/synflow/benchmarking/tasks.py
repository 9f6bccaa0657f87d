"""The measured tasks: training steps and inference of each variant, in the forms of torch and in other runtimes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..compaction.record.tape import tensors_in
from ..errors import need
from ..inference.folded_norms import for_inference
from ..inference.onnx import feeds, onnx_session
from ..masks.attach import bake
from ..network.private_copy import arguments, whole_copy
from ..support import memory
from ..support.memory import images_channels_last
from ..support.private_torch import pytree

Run = Callable[[], object]
# Task, batch size, and the function that prepares it: copies of models and sessions exist only while measured.
Plan = tuple[str, int, Callable[[], dict[str, Run]]]
TRAINING, INFERENCE = "training step", "inference"


def inference_tasks(
    asked: Mapping[str, bool],
    variants: Mapping[str, nn.Module],
    files: Mapping[str, Path],
    example: Any,
    compiled: bool,
) -> dict[str, Callable[[Any], dict[str, Run]]]:
    """The kinds of inference, each with the function that prepares a batch for each variant; the first always runs."""
    folded = {name: for_inference(m, example) for name, m in variants.items()} if asked["folded"] else {}
    ways: dict[str, Callable[[Any], dict[str, Run]]] = {
        INFERENCE: partial(each, inference_run, variants, compiled=compiled),
        "folded": partial(each, inference_run, folded, compiled=compiled),
        "forms": partial(_forms, variants),
        "onnxruntime": partial(each, _runtime, files),
        "openvino": partial(each, _openvino, files),
    }
    return {task: way for task, way in ways.items() if task == INFERENCE or asked[task]}


def enlarged(example: Any, size: int, channels_last: bool) -> Any:
    """The example repeated or cut to a batch of this size."""

    def fill(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.dim():
            return leaf
        times = -(-size // leaf.shape[0])
        batch = leaf.repeat(times, *[1] * (leaf.dim() - 1))[:size]
        return images_channels_last(batch) if channels_last else batch

    return pytree.tree_map(fill, example)


def mean_square(outputs: Any) -> Tensor:
    """The default loss: the mean square of each floating-point output, summed."""
    terms = [t.float().square().mean() for t in tensors_in(outputs) if t.is_floating_point()]
    return torch.stack(terms).sum()


def training_run(model: nn.Module, inputs: Any, loss: Callable[[Any], Tensor] | None, compiled: bool) -> Run:
    """A training step of a copy: forward, backward, SGD with momentum."""
    twin = whole_copy(model).train()
    optimizer = torch.optim.SGD(twin.parameters(), lr=1e-3, momentum=0.9)
    args, kwargs = arguments(inputs)
    forward: Callable[..., Any] = torch.compile(twin) if compiled else twin

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        (loss or mean_square)(forward(*args, **kwargs)).backward()
        optimizer.step()

    return step


def inference_run(model: nn.Module, inputs: Any, compiled: bool) -> Run:
    """A call of a copy in eval mode, its masks baked in."""
    twin = whole_copy(model)
    bake(twin)
    twin.eval()
    return _calls(torch.compile(twin) if compiled else twin, inputs)


def _forms(variants: Mapping[str, nn.Module], inputs: Any) -> dict[str, Run]:
    """Inference of the dense and the compact network in all forms of torch, with inputs in the same layout."""
    laid_out = images_channels_last(inputs)
    runs: dict[str, Run] = {}
    for name in ("dense", "compact"):
        plain = variants[name]
        runs[name] = inference_run(plain, inputs, False)
        last = memory.channels_last(whole_copy(plain))
        runs[f"{name}, channels last"] = inference_run(last, laid_out, False)
        runs[f"{name}, for_inference"] = inference_run(for_inference(plain, inputs), laid_out, False)
        runs[f"{name}, frozen"] = _calls(for_inference(plain, inputs, freeze=True), laid_out)
    return runs


def _calls(forward: Callable[..., Any], inputs: Any) -> Run:
    args, kwargs = arguments(inputs)

    def call() -> Any:
        with torch.inference_mode():
            return forward(*args, **kwargs)

    return call


def _runtime(path: Path, inputs: Any) -> Run:
    session = onnx_session(path, torch.get_num_threads())
    given = feeds(session, inputs)
    return lambda: session.run(None, given)


def _openvino(path: Path, inputs: Any) -> Run:
    library = need("openvino", extra="openvino")
    # Single precision, as for the other runtimes: on some processors OpenVINO would use half precision.
    options = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY"}
    options["INFERENCE_PRECISION_HINT"] = "f32"
    compiled = library.Core().compile_model(path, "CPU", options)
    flat = [t for t in pytree.tree_leaves(arguments(inputs)) if isinstance(t, Tensor)]
    given = {i: t.detach().cpu().contiguous().numpy() for i, t in enumerate(flat)}
    return lambda: [*compiled(given).values()]


def each(make: Callable[..., Run], variants: Mapping[str, Any], inputs: Any, **options: Any) -> dict[str, Run]:
    """The runs of all variants."""
    return {name: make(variant, inputs, **options) for name, variant in variants.items()}
