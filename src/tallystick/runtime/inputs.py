"""What a run is given to read: files, directories and patterns, as texts a program finds.

One file is `context`; several are a dictionary of texts under their names. Up to 4 MB in all they
are real `str`, beyond that they stay on the host. Nothing outside what was named is read: links
that lead out of a directory are refused.
"""

from __future__ import annotations

import glob
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tallystick.core.errors import UsageError
from tallystick.core.records import ContextRef
from tallystick.sandbox.text import HostText

__all__ = [
    "CONTEXT",
    "STR_BYTES_MAX",
    "Input",
    "given_text",
    "read_inputs",
    "refs_of",
    "values_and_texts",
]

CONTEXT = "context"
STR_BYTES_MAX = 4_000_000
_FILES_MAX = 10_000
_SAMPLE_CHARS = 300
_WHOLE_CHARS_MAX = 1_500
_HASH_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One text and the name it came under."""

    name: str
    text: HostText


def given_text(text: str, *, name: str = CONTEXT) -> Input:
    """A text that is there already."""
    return Input(name=name, text=HostText.of(text))


def read_inputs(named: Sequence[str], *, stdin: bytes | None = None) -> list[Input]:
    """Open everything that was named. The same file is taken once."""
    inputs: list[Input] = []
    seen: set[str] = set()
    for each in named:
        if each == "-":
            inputs.append(Input(name="stdin", text=_checked(HostText(stdin or b""), "stdin")))
            continue
        for path in _expanded(each):
            real = os.path.realpath(path)
            if real not in seen:
                seen.add(real)
                inputs.append(Input(name=str(path), text=_opened(path)))
        if len(inputs) > _FILES_MAX:
            raise UsageError(f"{each}: more than {_FILES_MAX:,} files")
    return inputs


def _expanded(named: str) -> Iterator[Path]:
    path = Path(named)
    if path.is_dir():
        found = list(_files_below(path))
        if not found:
            raise UsageError(f"{named}: no files in this directory")
        yield from found
    elif path.exists() or path.is_symlink():
        yield path
    elif glob.has_magic(named):
        matches = sorted(Path(match) for match in glob.glob(named, recursive=True))
        files = [match for match in matches if match.is_file()]
        if not files:
            raise UsageError(f"{named}: no file matches")
        yield from files
    else:
        raise UsageError(f"{named}: no such file")


def _files_below(folder: Path) -> Iterator[Path]:
    """Files below a folder, in order. Hidden ones are passed over, links that lead out refused."""
    root = os.path.realpath(folder)
    for where, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(where) / name
            if name.startswith("."):
                continue
            if path.is_symlink() and not os.path.realpath(path).startswith(root + os.sep):
                raise UsageError(f"{path}: a link that leads out of {folder}; name the file itself")
            if path.is_file():
                yield path


def _opened(path: Path) -> HostText:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise UsageError(f"{path}: not a regular file")
        return _checked(HostText.open(path), str(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error


def _checked(text: HostText, name: str) -> HostText:
    if len(text) == 0:
        raise UsageError(f"{name}: empty; there is nothing to read in it")
    if b"\0" in text.read_raw(0, 8_192):
        raise UsageError(f"{name}: not a text file; only text can be read")
    return text


def refs_of(inputs: Sequence[Input]) -> tuple[ContextRef, ...]:
    """What the run records of its texts, and what the model is shown of them."""
    if len(inputs) > 1:
        names = ", ".join(repr(each.name) for each in inputs[:20])
        more = f" and {len(inputs) - 20:,} more" if len(inputs) > 20 else ""
        first = inputs[0]
        sample = (
            f"`{CONTEXT}` is a dict of {'texts' if _long(inputs) else 'str'} by file name: "
            f"{names}{more}.\nOf {first.name!r}:\n{_sample(first.text)}"
        )
        sizes = sum(len(each.text) for each in inputs)
        digest = hashlib.sha256()
        for each in inputs:
            digest.update(_sha256(each.text).encode() + each.name.encode("utf-8", "replace"))
        ref = ContextRef(
            name=CONTEXT, sha256=digest.hexdigest(), bytes=sizes, chars=-1, sample=sample
        )
        return (ref,)
    return tuple(
        ContextRef(
            name=CONTEXT,
            sha256=_sha256(each.text),
            bytes=len(each.text),
            chars=each.text.length(),
            sample=_sample(each.text),
        )
        for each in inputs
    )


def _long(inputs: Sequence[Input]) -> bool:
    return sum(len(each.text) for each in inputs) > STR_BYTES_MAX


def values_and_texts(
    inputs: Sequence[Input],
) -> tuple[dict[str, object], dict[str, HostText | dict[str, HostText]]]:
    """How the texts are bound: as values in the guest, or as texts on the host."""
    if not inputs:
        return {}, {}
    if _long(inputs):
        held = {each.name: each.text for each in inputs}
        return {}, {CONTEXT: inputs[0].text if len(inputs) == 1 else held}
    whole = {each.name: each.text.slice(0, each.text.length()) for each in inputs}
    return {CONTEXT: whole[inputs[0].name] if len(inputs) == 1 else whole}, {}


def _sha256(text: HostText) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(text), _HASH_BYTES):
        digest.update(text.read_raw(start, start + _HASH_BYTES))
    return digest.hexdigest()


def _sample(text: HostText) -> str:
    """The whole of a short text; head, middle and tail of a long one."""
    chars = text.length()
    if chars <= _WHOLE_CHARS_MAX:
        return text.slice(0, chars)
    middle = chars // 2
    parts = [
        text.slice(0, _SAMPLE_CHARS),
        text.slice(middle, middle + _SAMPLE_CHARS),
        text.slice(chars - _SAMPLE_CHARS, chars),
    ]
    return "\n[...]\n".join(parts)
