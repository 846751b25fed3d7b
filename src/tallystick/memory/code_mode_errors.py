"""What ends a recall program, sorted as in `tallystick.core.errors`.

    Refused
    └── CodeModeError         a recall program ended early
        ├── EmptyProgram          it has no operation
        ├── Halted                it used more fuel than it had
        ├── OperationFailed       the store could not do what it asked
        ├── SandboxViolation      it reached for what is not there for it
        └── WallTimeExceeded      it took more time than it had

`partial` is what the program had gathered and `fuel_used` what it had used; a program that never
began has neither.
"""

from __future__ import annotations

from tallystick.core.errors import Refused
from tallystick.memory.bundle import Bundle

__all__ = [
    "CodeModeError",
    "EmptyProgram",
    "Halted",
    "OperationFailed",
    "SandboxViolation",
    "WallTimeExceeded",
]

_MS_PER_SECOND = 1_000


class CodeModeError(Refused):
    """A recall program ended before its end."""

    code = "refused.code_mode"

    def __init__(self, text: str, *, partial: Bundle | None = None, fuel_used: int = 0) -> None:
        super().__init__(text)
        self.partial = partial
        self.fuel_used = fuel_used


class EmptyProgram(CodeModeError):
    """A program of no operations. Nothing was charged."""

    code = "refused.code_mode.empty"

    def __init__(self) -> None:
        super().__init__("guest emitted no recall steps — refusing an empty bundle")


class Halted(CodeModeError):
    """The next operation would have used more fuel than there was. It was not begun."""

    code = "refused.code_mode.fuel"

    def __init__(self, *, budget: int, partial: Bundle | None = None, fuel_used: int = 0) -> None:
        super().__init__(
            f"guest fuel exhausted ({budget} units consumed)", partial=partial, fuel_used=fuel_used
        )
        self.budget = budget


class WallTimeExceeded(CodeModeError):
    """The program's time was over. `budget` is in milliseconds."""

    code = "refused.code_mode.wall"

    def __init__(self, *, budget: int, partial: Bundle | None = None, fuel_used: int = 0) -> None:
        super().__init__(
            f"guest exceeded wall-time budget {_duration(budget)}",
            partial=partial,
            fuel_used=fuel_used,
        )
        self.budget = budget


class SandboxViolation(CodeModeError):
    """The program reached for something that the sandbox does not have."""

    code = "refused.code_mode.sandbox"

    def __init__(
        self, *, capability: str, partial: Bundle | None = None, fuel_used: int = 0
    ) -> None:
        super().__init__(
            f"guest tried to access {capability} which is stripped from the sandbox",
            partial=partial,
            fuel_used=fuel_used,
        )
        self.capability = capability


class OperationFailed(CodeModeError):
    """The store refused an operation, or could not do it; the cause has the whole of it."""

    code = "refused.code_mode.operation"

    def __init__(
        self,
        *,
        number: int,
        operation: str,
        why: str,
        partial: Bundle | None = None,
        fuel_used: int = 0,
    ) -> None:
        super().__init__(
            f"operation {number} ({operation}): {why}", partial=partial, fuel_used=fuel_used
        )
        self.number = number
        self.operation = operation


def _duration(ms: int) -> str:
    """Milliseconds as the reference spells a duration: `0ns`, `50ms`, `2s`, `1.5s`."""
    if ms == 0:
        return "0ns"
    if ms < _MS_PER_SECOND:
        return f"{ms}ms"
    seconds, rest = divmod(ms, _MS_PER_SECOND)
    return f"{seconds}{f'.{rest:03}'.rstrip('0') if rest else ''}s"
