"""Make a CUDA-linked torchvision importable beside a CPU build of torch."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import torch

# When a Library object is collected its schemas are removed, so it is held here.
_DECLARED: list[Any] = []


def cure_torchvision() -> None:
    """Declare the two operators whose absence breaks `import torchvision`; call it before the first such import.

    Some registries offer only the CUDA build of torchvision. With a CPU build of torch its binary does not load, and
    the import fails at schemas that the binary would have declared; timm and transformers then fail too. No model uses
    the two operators. If torchvision is intact, this does nothing. It may be called repeatedly.
    """
    if torch.version.cuda is not None or "+cu" not in _torchvision_version():
        return
    library_of: Any = torch.library.Library
    library = library_of("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, operator):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _DECLARED.append(library)


def _torchvision_version() -> str:
    """The version with its build tag, from its file: package metadata may lack the tag, and importing fails."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return ""
    file = Path(spec.origin).with_name("version.py")
    found = re.search(r"__version__ = '([^']*)'", file.read_text()) if file.is_file() else None
    return found.group(1) if found else ""
