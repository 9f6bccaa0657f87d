"""For the reference: examples in docstrings become code blocks, so that brackets in their results are no links."""

from __future__ import annotations

import re
from typing import Any

import griffe

# From the first prompt of an example to the next empty line.
EXAMPLE = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.MULTILINE | re.DOTALL)


class Doctests(griffe.Extension):
    """Fences the examples of every docstring."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Each object, once it is read."""
        if obj.docstring is not None and "```" not in obj.docstring.value:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found.group(0)}\n```", obj.docstring.value)
