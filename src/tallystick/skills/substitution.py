"""Substitution: arguments and variables put into a skill's instructions.

`$ARGUMENTS` is all arguments joined by spaces, `$1` the first, `$12` the twelfth, `${NAME}` a
variable, `$$` a dollar. What has no value stays as it is written: `$0`, `$3` of two arguments, an
unknown `${NAME}`, an unclosed `${`, a lone `$`. The text is read once from left to right and what
is put in is not read again, so an argument cannot bring in a variable. Variables come from the
caller alone; the environment of the process has no part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["substituted"]

_ALL = "ARGUMENTS"
_DIGITS = frozenset("0123456789")
# A longer number is the place of no argument, and need not be computed.
_DIGITS_MAX = 9


def substituted(body: str, arguments: Sequence[str], *, variables: Mapping[str, str]) -> str:
    """Put arguments and variables into a text, in time linear in its length."""
    pieces: list[str] = []
    copied = 0
    at = body.find("$")
    # Past the last closing brace no `${` is closed; asking each time would be quadratic.
    last_close = body.rfind("}")
    while at >= 0:
        end, value = _placeholder(
            body, at, arguments=arguments, variables=variables, last_close=last_close
        )
        if value is not None:
            pieces += (body[copied:at], value)
            copied = end
        at = body.find("$", end)
    pieces.append(body[copied:])
    return "".join(pieces)


def _placeholder(
    body: str,
    at: int,
    *,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    last_close: int,
) -> tuple[int, str | None]:
    """Where the placeholder at a dollar ends, and its value; None leaves it as it is."""
    after = at + 1
    if body.startswith("$", after):
        return after + 1, "$"
    if body.startswith("{", after):
        if last_close < after:
            return after, None
        close = body.index("}", after)
        return close + 1, variables.get(body[after + 1 : close])
    if body.startswith(_ALL, after):
        return after + len(_ALL), " ".join(arguments)
    end = after
    while end < len(body) and body[end] in _DIGITS:
        end += 1
    return end, _argument(body[after:end], arguments)


def _argument(digits: str, arguments: Sequence[str]) -> str | None:
    significant = digits.lstrip("0")
    if not significant or len(significant) > _DIGITS_MAX:
        return None
    place = int(significant)
    return arguments[place - 1] if place <= len(arguments) else None
