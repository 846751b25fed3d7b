"""Fields of a manifest: text, flags, words and tools, as they are met in practice.

Frontmatter gives text, lists, mappings and None. Each kind of field takes the forms that are met in
practice, warns about those that are not the documented one, and says what it did.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tallystick.core.canonical import canonical
from tallystick.skills.line import hidden, one_line, quoted
from tallystick.skills.problem import Problem

__all__ = ["Fields"]

_WORDS_MAX = 256
_WORD_CHARS_MAX = 256
_PAIRS_MAX = 64
_YES = frozenset({"yes", "on", "1", "y"})
_NO = frozenset({"no", "off", "0", "n"})
_WORD = re.compile(r"[^\s,]+")
_TAG = re.compile(r"namespace:[^\s:()*,]+")


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one frontmatter, and the problems that came up so far."""

    values: Mapping[str, object]
    problems: list[Problem]

    def failed(self) -> bool:
        return any(each.level == "error" for each in self.problems)

    def warn(self, code: str, message: str) -> None:
        self.problems.append(Problem(level="warning", code=code, message=message))

    def fail(self, code: str, message: str) -> None:
        self.problems.append(Problem(level="error", code=code, message=message))

    def text(self, key: str, *, chars_max: int | None = None) -> str:
        """Text; a list of texts is joined. What is no text counts as missing."""
        value = self.values.get(key)
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            self.warn(f"{_shown(key)}.type", f"{_shown(key)} is a list; it is read as one text")
            value = ", ".join(value)
        if isinstance(value, list | dict):
            self.warn(f"{_shown(key)}.type", f"{_shown(key)} is not text; it is left out")
            return ""
        text = str(value or "").strip()
        if chars_max is not None and len(text) > chars_max:
            why = f"{_shown(key)} has {len(text):,} characters; {chars_max:,} may"
            self.warn(f"{_shown(key)}.long", why)
        return text

    def hint(self, key: str) -> str:
        """Text that is often written in brackets, and so comes as a list."""
        value = self.values.get(key)
        if isinstance(value, list) and all(isinstance(each, str) for each in value):
            return f"[{', '.join(value)}]"
        return self.text(key)

    def flag(self, key: str, *, default: bool, closed: bool) -> bool:
        """True or false; `closed` is what something unreadable counts as."""
        if key not in self.values:
            return default
        value = self.values[key]
        word = value.strip().lower() if isinstance(value, str) else ""
        if word in {"true", "false"}:
            return word == "true"
        if word in _YES or word in _NO:
            self.warn(f"{_shown(key)}.flag", f"{_shown(key)} is {word}; write true or false")
            return word in _YES
        why = f"{_shown(key)} is neither true nor false; it is taken as {str(closed).lower()}"
        self.warn(f"{_shown(key)}.flag", why)
        return closed

    def words(self, key: str, *, closed: bool = False) -> tuple[str, ...]:
        """Words: a list of them, or one text with spaces or commas between. `closed`: or fail."""
        value = self.values.get(key)
        if value is None:
            return ()
        if isinstance(value, str):
            value = _WORD.findall(value)
        return self._kept(key, value, closed=closed)

    def patterns(self, key: str) -> tuple[str, ...]:
        """Globs: a list of them, or one text with commas between; braces may hold commas."""
        value = self.values.get(key)
        if value is None:
            return ()
        if isinstance(value, str):
            value = _parted(value, separators=",\n", opening="{", closing="}")
        return self._kept(key, value)

    def tools(self, key: str) -> tuple[str, ...] | None:
        """Names of tools. None if the key is absent, empty if it names nothing."""
        if key not in self.values:
            return None
        value = self.values[key]
        if value is None:
            self.warn(f"{_shown(key)}.empty", f"{_shown(key)} names no tool, so none is allowed")
            return ()
        if isinstance(value, str):
            value = _parted(value, separators=", \t\n", opening="(", closing=")")
        kept = self._kept(key, value, closed=True)
        for each in kept:
            # A colon inside brackets is a pattern for the tool before them, as in `Bash(git:*)`.
            if ":" in each.partition("(")[0] and not _TAG.fullmatch(each):
                why = f"{_shown(key)}: {quoted(each)} is no tool; write namespace:<tag>"
                self.fail(f"{_shown(key)}.colon", why)
        return kept

    def json(self, key: str) -> str:
        """Whatever it holds, as canonical JSON text."""
        value = self.values.get(key)
        return "" if value is None else canonical(value).decode("utf-8")

    def pairs(self, key: str) -> tuple[tuple[str, str], ...]:
        """Keys with texts; what is nested below them is JSON text."""
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, dict):
            self.warn(f"{_shown(key)}.type", f"{_shown(key)} is no mapping; it is left out")
            return ()
        if len(value) > _PAIRS_MAX:
            why = f"{_shown(key)} has {len(value)} keys; the first {_PAIRS_MAX} are kept"
            self.warn(f"{_shown(key)}.long", why)
        nested = [name for name, each in value.items() if isinstance(each, list | dict)]
        if nested:
            self.warn(f"{_shown(key)}.type", f"{_shown(key)}: {quoted(nested[0])} is not text")
        return tuple(
            (one_line(name), _flat(each)) for name, each in list(value.items())[:_PAIRS_MAX]
        )

    def _kept(self, key: str, value: object, *, closed: bool = False) -> tuple[str, ...]:
        tell = self.fail if closed else self.warn
        if not isinstance(value, list):
            tell(f"{_shown(key)}.type", f"{_shown(key)} is no list of names")
            return ()
        kept = []
        for each in value:
            if each is None:
                continue
            if not isinstance(each, str) or hidden(each.strip()) or len(each) > _WORD_CHARS_MAX:
                tell(f"{_shown(key)}.type", f"{_shown(key)}: {quoted(str(each))} is no name")
            elif each.strip():
                kept.append(one_line(each))
        if len(kept) > _WORDS_MAX:
            tell(f"{_shown(key)}.long", f"{_shown(key)} has {len(kept)} entries; {_WORDS_MAX} may")
        return tuple(dict.fromkeys(kept[:_WORDS_MAX]))


def _shown(key: str) -> str:
    return key.replace("_", "-") if key != "when_to_use" else key


def _flat(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else canonical(value).decode("utf-8")


def _parted(text: str, *, separators: str, opening: str, closing: str) -> list[str]:
    """Split at separators that are not inside brackets."""
    parts, part, depth = [], "", 0
    for each in text:
        depth += (each == opening) - (each == closing and depth > 0)
        if each in separators and not depth:
            parts.append(part)
            part = ""
        else:
            part += each
    return [each.strip() for each in (*parts, part) if each.strip()]
