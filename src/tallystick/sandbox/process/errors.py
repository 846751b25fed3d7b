"""Errors of the process sandbox."""

from __future__ import annotations

from collections.abc import Mapping

from tallystick.core.errors import Refused

__all__ = ["IsolationMissing"]


class IsolationMissing(Refused):
    """This host lacks a layer of isolation, and nobody has said to go on without it."""

    code = "refused.isolation"

    def __init__(self, *, missing: Mapping[str, str]) -> None:
        named = "; ".join(f"{layer} ({why})" for layer, why in missing.items())
        super().__init__(
            f"the process sandbox needs what this host lacks: {named}. A layer that may be done "
            "without has to be named in accept_without"
        )
        self.missing = dict(missing)
