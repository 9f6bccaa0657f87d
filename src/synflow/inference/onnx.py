"""Export to ONNX, with a check in onnxruntime that the outputs are the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..compaction.record.tape import tensors_in
from ..compaction.verify import inputs_like
from ..errors import SynflowError, need
from ..masks.attach import bake
from ..network.private_copy import arguments, device_of, move, whole_copy
from ..support.atomic_files import check_path, replacing
from ..support.private_torch import pytree


def export_onnx(
    model: nn.Module, example: Any, path: str | os.PathLike[str], *, tolerance: float = 1e-4, dynamic_batch: bool = True
) -> Path:
    """Write a model in eval mode, with its masks baked in, to an ONNX file, but only if outputs agree.

    The file is run in onnxruntime on the example and on random numbers of its shape; outputs may differ from torch's by
    `tolerance` of their size. With `dynamic_batch` the first dimension of every input is free, where the model allows.
    The model is not changed. Returns the path.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        need(package, extra="onnx")
    check_path(path, "an ONNX file")
    path = Path(path)
    plain = whole_copy(model)
    bake(plain)
    plain.eval().requires_grad_(False)
    device = device_of(plain)
    alone = {t.shape[0] if t.dim() else 0 for t in tensors_in(example)} == {1}
    repeat = 2 if dynamic_batch and alone else 1  # since a size of one can't be told from a fixed one
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        _write(plain, move(inputs_like(example, None, None, repeat), device), temporary, dynamic_batch)
        for seed in (None, 0):
            _check(plain, move(inputs_like(example, seed, None), device), temporary, tolerance)
    return path


def onnx_session(path: str | os.PathLike[str], threads: int = 0) -> Any:
    """An onnxruntime session on the CPU; with `threads=0` onnxruntime chooses their number."""
    runtime = need("onnxruntime", extra="onnx")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    # Idle threads of one session must not slow down another session that is being measured.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return runtime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])


def feeds(session: Any, inputs: Any) -> dict[str, Any]:
    """The inputs of a model by the names they have in its file, as arrays."""
    args, kwargs = arguments(inputs)
    flat = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    return {slot.name: t.detach().cpu().numpy() for slot, t in zip(session.get_inputs(), flat, strict=True)}


def _write(model: nn.Module, example: Any, path: Path, dynamic_batch: bool) -> None:
    args, kwargs = arguments(example)

    def free(leaf: Any) -> Any:
        return {0: torch.export.Dim.AUTO} if isinstance(leaf, Tensor) and leaf.dim() else None

    shapes = pytree.tree_map(free, kwargs or args) if dynamic_batch else None
    with torch.no_grad():
        program = torch.onnx.export(
            model, args, kwargs=kwargs or None, dynamo=True, dynamic_shapes=shapes, verbose=False, external_data=False
        )
    assert program is not None
    program.save(os.fspath(path), external_data=False)


def _check(model: nn.Module, inputs: Any, path: Path, tolerance: float) -> None:
    args, kwargs = arguments(inputs)
    with torch.no_grad():
        expected = [t for t in tensors_in(model(*args, **kwargs)) if t.is_floating_point()]
    session = onnx_session(path)
    results = map(torch.from_numpy, session.run(None, feeds(session, inputs)))
    got = [t for t in results if t.is_floating_point()]
    if len(expected) != len(got):
        raise SynflowError(f"ONNX: the model has {len(expected)} outputs, its file {len(got)}; nothing was written")
    for place, (a, b) in enumerate(zip(expected, got, strict=True)):
        a = a.cpu()
        if a.shape != b.shape:
            raise SynflowError(
                f"ONNX: output {place} of the file has shape {tuple(b.shape)}, the model's {tuple(a.shape)}; nothing "
                "was written"
            )
        error = float((a - b).abs().max()) / max(1.0, float(a.abs().max())) if a.numel() else 0.0
        if not error <= tolerance:
            raise SynflowError(
                f"ONNX: output {place} of the file differs from the model's by {error:.1e} of its size, allowed are "
                f"{tolerance:.0e}; nothing was written. Raise tolerance= if the model works in low precision"
            )
