"""The built-in rules `identity`, `homogeneous` and `product`, for rules of one's own (`synflow.register_rule`)."""

from ..flow.rules import homogeneous, identity, product

__all__ = ["homogeneous", "identity", "product"]
