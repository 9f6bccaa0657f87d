"""Fallbacks: a part of the engine that cannot serve is switched off, and the result says which and why."""

from __future__ import annotations

import logging

from ..errors import is_strict

log = logging.getLogger("synflow")


class FallbackError(RuntimeError):
    """A part of the fast engine failed in a way nobody expected; raised in strict mode only."""


class CannotServeError(Exception):
    """A known reason why a part of the engine cannot serve a network: no bug, in strict mode either."""


class Fallbacks:
    """The parts of an engine that were switched off, with the reason."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def add(self, part: str, cause: Exception) -> None:
        """Note that a part is switched off; in strict mode anything but a known reason is raised."""
        if is_strict() and not isinstance(cause, CannotServeError):
            raise FallbackError(f"{part}: {type(cause).__name__}: {cause}") from cause
        reason = str(cause) if isinstance(cause, CannotServeError) else f"{type(cause).__name__}: {cause}"
        self.reasons[part] = reason
        log.info("%s is switched off: %s", part, reason)
