"""For the reference: examples in docstrings become code blocks, so that brackets in their results are no links;
functions that take the settings of a pruning run show each of them, as `help` does."""

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

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """The signatures of `with_settings` functions, which a reader of the source alone cannot see."""
        if pkg.path != "synflow":
            return
        settings = pkg["pruning.settings.checked_run"]
        for function in pkg["pruning.loop"].functions.values():
            if any("with_settings" in str(decorator.value) for decorator in function.decorators):
                function.parameters = settings.parameters
