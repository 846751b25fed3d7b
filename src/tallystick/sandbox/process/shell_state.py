"""Where a program or command starts: its directory, and what it finds in its environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

import msgspec

from tallystick.core.errors import UsageError
from tallystick.sandbox.process.inside.places import WORK
from tallystick.sandbox.process.proxy import PROXY_PORT

__all__ = ["ENVIRONMENT", "PROXIED", "ShellState", "inside"]

# What there is in every environment unless a context says otherwise.
ENVIRONMENT = {
    "HOME": WORK,
    "LANG": "C.UTF-8",
    "LOGNAME": "user",
    "MALLOC_ARENA_MAX": "2",
    "SHELL": "/bin/bash",
    "TMPDIR": "/tmp",
    "USER": "user",
}
_PROXY = f"http://127.0.0.1:{PROXY_PORT}"
# What programs look for to find a proxy, in the spellings that they look for.
PROXIED = {
    **{name: _PROXY for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")},
    "no_proxy": "localhost,127.0.0.1,::1",
}
_SHELLS_OWN = frozenset({"PWD", "OLDPWD", "SHLVL", "_"})


class ShellState(msgspec.Struct, frozen=True, kw_only=True):
    """What one command leaves for the next."""

    where: str = WORK
    exported: Mapping[str, str] = {}

    def after(
        self,
        left: tuple[str, Mapping[str, str]] | None,
        *,
        given: Mapping[str, str],
        base: Mapping[str, str],
    ) -> ShellState:
        """The state after a command that left this; the same if it did not say.

        `given` was for the command alone: what it has not changed of it goes back to what it was.
        `base` is what every command finds anyway.
        """
        if left is None:
            return self
        where, variables = left
        exported = {
            name: value
            for name, value in variables.items()
            if name not in _SHELLS_OWN and base.get(name) != value
        }
        for name in given:
            if name in self.exported and name not in exported:
                exported[name] = self.exported[name]
        return ShellState(where=where, exported=exported)


def inside(working_dir: str) -> str:
    """A directory of the session by its name from the working directory."""
    path = PurePosixPath(working_dir)
    if path.is_absolute() or ".." in path.parts or "\0" in working_dir:
        raise UsageError(
            f"working_dir {working_dir[:80]!r}: a path from the session's working directory is "
            "needed, without '..'"
        )
    return str(PurePosixPath(WORK) / path)
