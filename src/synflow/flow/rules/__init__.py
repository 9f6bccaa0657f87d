"""The rows of the table of stand-ins, by family; `identity`, `homogeneous` and `product` serve user rules as well."""

from ..dispatch import RULES
from . import arithmetic, attention, choices, composed, norms, recurrent, shapes
from .basic import homogeneous, identity, product

__all__ = ["homogeneous", "identity", "product"]

for family in (shapes, arithmetic, norms, attention, recurrent, choices, composed):
    RULES.update(family.TABLE)
