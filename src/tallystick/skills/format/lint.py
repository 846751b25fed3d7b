"""Lint: a skill held against the public specification, strictly, and against what makes it useful.

Errors are what the reference validator, or the loader of this package, refuses; warnings are the
rest. What the loader puts up with, such as a byte-order mark, is an error here: others will not.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from tallystick.core.errors import TallystickError
from tallystick.skills.errors import SkillNotFound
from tallystick.skills.format.folder import Folder
from tallystick.skills.format.frontmatter import (
    FILE_BYTES_MAX,
    Problem,
    Split,
    flattened,
    quoted,
    split,
)
from tallystick.skills.format.manifest import KNOWN_KEYS, SPEC_KEYS, manifest_of

_NAME_CHARS_MAX = 64
_DESCRIPTION_CHARS_MAX = 1_024
_COMPATIBILITY_CHARS_MAX = 500
_BODY_LINES_MAX = 500
_BODY_TOKENS_MAX = 5_000
_CHARS_PER_TOKEN = 4
_TOLD_MAX = 20

# What is said of these fields is said here, more strictly than by the loader.
_OWN = ("name.", "description.", "compatibility.long", "compatibility.type", "key.")
# From the bracket on, and bounded: a file of brackets is not read over and over.
_LINK = re.compile(r"\]\(\s{0,8}<?([^()<>\s]{1,400})>?[^()]{0,200}\)")
_PATTERN = re.compile(r"[{}$*]|^[a-zA-Z][a-zA-Z0-9+.-]*:|^//")


def lint(folder: Path) -> tuple[Problem, ...]:
    """Everything that is wrong with the skill in a folder, errors first. Nothing is raised."""
    opened = Folder(folder)
    try:
        if not os.path.isdir(folder):
            return (_error("folder.missing", "there is no such directory"),)
        name, raw = _skill_file(opened)
    except SkillNotFound:
        return (_error("file.missing", "there is no SKILL.md in it"),)
    except TallystickError as error:
        return (_error("file.refused", flattened(str(error))),)
    parts = split(raw)
    found = [*_problems(parts, Path(os.path.abspath(folder)).name)]
    if name != "SKILL.md":
        found.append(_warning("file.case", f"the file is called {name}; some look for SKILL.md"))
    found += [*_about_body(parts.body, opened), *_about_files(opened)]
    return tuple(sorted(dict.fromkeys(found), key=lambda each: each.level != "error"))


def _error(code: str, message: str) -> Problem:
    return Problem(level="error", code=code, message=message)


def _warning(code: str, message: str) -> Problem:
    return Problem(level="warning", code=code, message=message)


def _skill_file(folder: Folder) -> tuple[str, bytes]:
    try:
        return "SKILL.md", folder.read("SKILL.md", bytes_max=FILE_BYTES_MAX)
    except SkillNotFound:
        return "skill.md", folder.read("skill.md", bytes_max=FILE_BYTES_MAX)


def _problems(parts: Split, directory: str) -> Iterator[Problem]:
    for each in parts.problems:
        yield _error(each.code, each.message)
    yield from parts.strict
    if parts.fields is None:
        return
    yield from _about_keys(parts.keys)
    yield from _about_name(parts, directory)
    yield from _about_texts(parts)
    _, loading = manifest_of(parts, directory=directory)
    for each in loading:
        if each not in parts.problems and not each.code.startswith(_OWN):
            yield each


def _about_keys(keys: tuple[str, ...]) -> Iterator[Problem]:
    for key in dict.fromkeys(keys[: _TOLD_MAX * 5]):
        normal = key.replace("-", "_")
        if normal in SPEC_KEYS and key == normal.replace("_", "-"):
            continue
        if normal in KNOWN_KEYS:
            why = f"{quoted(key)} is read here; it is not a key of the specification"
            yield _warning("key.extra", why)
        else:
            yield _error("key.unknown", f"{quoted(key)} is not a key of the specification")


def _about_name(parts: Split, directory: str) -> Iterator[Problem]:
    given = (parts.fields or {}).get("name")
    if not isinstance(given, str) or not given.strip():
        yield _error("name.missing", "the name has to be text, and not empty")
        return
    name = unicodedata.normalize("NFKC", given.strip())
    shown = quoted(name)
    if len(name) > _NAME_CHARS_MAX:
        yield _error("name.long", f"the name has {len(name)} characters; {_NAME_CHARS_MAX} may")
    if name != name.lower():
        yield _error("name.case", f"the name {shown} has to be in lower case")
    if name[0] == "-" or name[-1] == "-":
        yield _error("name.hyphen", f"the name {shown} begins or ends with a hyphen")
    if "--" in name:
        yield _error("name.hyphen", f"the name {shown} has two hyphens in a row")
    if not all(each.isalnum() or each == "-" for each in name):
        yield _error("name.characters", f"the name {shown} has more than letters, digits, hyphens")
    if unicodedata.normalize("NFKC", directory) != name:
        yield _error("name.folder", f"the name {shown} is not the folder's, {quoted(directory)}")


def _about_texts(parts: Split) -> Iterator[Problem]:
    fields = parts.fields or {}
    description = fields.get("description")
    if not isinstance(description, str) or not description.strip():
        yield _error("description.missing", "the description has to be text, and not empty")
    elif len(description) > _DESCRIPTION_CHARS_MAX:
        why = f"the description has {len(description):,} characters; {_DESCRIPTION_CHARS_MAX:,} may"
        yield _error("description.long", why)
    if "compatibility" in fields:
        text = fields["compatibility"]
        if isinstance(text, list | dict):
            yield _error("compatibility.type", "compatibility has to be text")
        elif not text:
            yield _warning("compatibility.empty", "compatibility is empty; leave it out")
        elif len(str(text)) > _COMPATIBILITY_CHARS_MAX:
            why = f"compatibility has more than {_COMPATIBILITY_CHARS_MAX} characters"
            yield _error("compatibility.long", why)
    if isinstance(fields.get("allowed_tools"), list):
        why = "allowed-tools is a list; the specification has one text with spaces"
        yield _warning("allowed-tools.list", why)


def _about_body(body: str, folder: Folder) -> Iterator[Problem]:
    if not body.strip():
        yield _warning("body.empty", "there are no instructions below the frontmatter")
    lines = body.count("\n") + 1
    if lines > _BODY_LINES_MAX:
        why = f"the instructions have {lines:,} lines; {_BODY_LINES_MAX} are advised"
        yield _warning("body.long", f"{why}, with the rest in files beside it")
    tokens = -(-len(body) // _CHARS_PER_TOKEN)
    if tokens > _BODY_TOKENS_MAX:
        why = f"the instructions have about {tokens:,} tokens; {_BODY_TOKENS_MAX:,} are advised"
        yield _warning("body.long", why)
    told = 0
    for target in dict.fromkeys(_links(body)):
        if told == _TOLD_MAX:
            return
        if ".." in PurePosixPath(target).parts:
            yield _warning("link.outside", f"the link {quoted(target)} leads out of the folder")
        elif not folder.exists(target):
            yield _warning("link.missing", f"the link {quoted(target)} leads to no file")
        else:
            continue
        told += 1


def _links(body: str) -> Iterator[str]:
    """Where the links of a Markdown text lead, as far as that is into the folder."""
    fenced = ""
    for line in body.split("\n"):
        mark = line.lstrip()[:3]
        if mark in {"```", "~~~"} and (not fenced or fenced == mark):
            fenced = "" if fenced else mark
        elif not fenced:
            for match in _LINK.finditer(line):
                target = unquote(re.split(r"[#?]", match[1], maxsplit=1)[0])
                if target and target[0] != "/" and not _PATTERN.search(target):
                    yield target


def _about_files(folder: Folder) -> Iterator[Problem]:
    try:
        listing = folder.listing()
    except TallystickError as error:
        yield _error("files.refused", flattened(str(error)))
        return
    for path in listing.left_out[:_TOLD_MAX]:
        yield _warning(
            "files.left_out", f"{quoted(path)} is no part of the skill: it is never read"
        )
    scripts = [each.path for each in listing.files if each.path.startswith("scripts/")]
    others = [path for path in scripts if PurePosixPath(path).suffix in _OTHER_LANGUAGES]
    for path in others[:_TOLD_MAX]:
        yield _warning("script.language", f"{quoted(path)} is not Python, and cannot be run here")


_OTHER_LANGUAGES = frozenset({
    ".bash", ".bat", ".cjs", ".cmd", ".go", ".jar", ".js", ".jsx", ".lua", ".mjs", ".php", ".pl",
    ".ps1", ".r", ".rb", ".rs", ".sh", ".ts", ".tsx", ".zsh",
})  # fmt: skip
