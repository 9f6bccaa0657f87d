"""Networks for inference only: folded norms, frozen graphs, ONNX."""

from .folded_norms import for_inference
from .onnx import export_onnx

__all__ = ["export_onnx", "for_inference"]
