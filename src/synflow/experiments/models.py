"""The networks of the paper by name; they live in `synflow.models.built_in`."""

from ..models.built_in import MODELS, Residual, build

__all__ = ["MODELS", "Residual", "build"]
