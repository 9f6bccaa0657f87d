"""Groups of options as dataclasses: a command takes the group, the command line shows one option per field."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def with_groups(function: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter whose type is a dataclass by the fields of that dataclass.

    >>> @dataclasses.dataclass
    ... class Size:
    ...     width: int = 1
    ...     height: int = 1
    >>> @with_groups
    ... def area(size: Size):
    ...     print(size.width * size.height)
    >>> list(inspect.signature(area).parameters)
    ['width', 'height']
    >>> area(width=2, height=3)
    6
    """
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if dataclasses.is_dataclass(hint)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in groups:
            parameters += _fields_as_parameters(groups[name])
        else:
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name]))

    @functools.wraps(function)
    def command(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        function(**given, **made)

    # Typer reads the signature and the annotations.
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _fields_as_parameters(group: Any) -> list[inspect.Parameter]:
    kinds = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=kinds[field.name]
        )
        for field in dataclasses.fields(group)
    ]
