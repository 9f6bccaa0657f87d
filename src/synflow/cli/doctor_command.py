"""`synflow doctor`: installed packages, devices, and whether the laws hold on this machine."""

from __future__ import annotations

from typing import Any

import typer

from . import options


def doctor(json: options.Json = False) -> None:
    """Check this machine: versions, devices, extras, and the laws of the flow.

    Exit code 1 if a law fails, or if an installed package cannot be imported.
    """
    from .doctor_checks import diagnosis
    from .output import print_json

    found = diagnosis()
    if json:
        print_json(found)
    else:
        _show(found)
    if not found["healthy"]:
        raise typer.Exit(1)


def _show(found: dict[str, Any]) -> None:
    from .output import say, table

    table(["", ""], [[name, text] for name, text in {**found["versions"], **found["devices"]}.items()])
    say()
    table(
        ["extra", "state"],
        [[name, _state(name, extra)] for name, extra in found["extras"].items()],
    )
    say()
    table(
        ["self-test", "", "found", ("s", "right")],
        [
            [name, "ok" if check["ok"] else "FAILED", check["found"], f"{check['seconds']:.1f}"]
            for name, check in found["self-test"].items()
        ],
    )
    say("\neverything works" if found["healthy"] else "\nsomething is wrong with this installation; see above")


def _state(name: str, extra: dict[str, Any]) -> str:
    broken = [f"BROKEN: import {package} fails: {said}" for package, said in extra["broken"].items()]
    missing = [f"lacks {', '.join(extra['missing'])}: pip install 'synflow[{name}]'"] if extra["missing"] else []
    return "; ".join(broken + missing) or "installed"
