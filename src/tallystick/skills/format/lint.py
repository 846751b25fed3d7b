"""Check a skill strictly against the public specification, and against what makes it useful.

Errors are what the reference validator, or the loader of this package, refuses; warnings are the
rest. What the loader tolerates, such as a byte-order mark, is an error here: other clients may not.
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
    has_hidden,
    one_line_text,
    quote,
    split,
)
from tallystick.skills.format.manifest import KNOWN_KEYS, SPEC_KEYS, UNUSED_KEYS, manifest_of

# Limits of the public specification; those of the body are its advice.
_NAME_CHARS_MAX = 64
_DESCRIPTION_CHARS_MAX = 1_024
_COMPATIBILITY_CHARS_MAX = 500
_BODY_LINES_MAX = 500
_BODY_TOKENS_MAX = 5_000
_CHARS_PER_TOKEN = 4
_REPORTED_MAX = 20
_LETTERS_REPORTED_MAX = 5
# Unicode's tag characters: a copy of ASCII that no font shows.
_TAGS = 0xE0000
_ASCII = range(0x20, 0x7F)
# Scripts whose letters look alike. Those of East Asia are written beside Latin in ordinary words,
# and are not among them.
_ALPHABETS = frozenset({
    "ARMENIAN", "CHEROKEE", "COPTIC", "CYRILLIC", "GEORGIAN", "GREEK", "HEBREW", "LATIN", "LISU",
})  # fmt: skip
# Small letters that most fonts draw as an ASCII one: a short list, not all that Unicode knows.
_LOOK_ALIKE = {
    letter: ascii
    for ascii, letters in {
        "a": "\u0430\u03b1\u0251", "b": "\u0185", "c": "\u0441\u03f2\u1d04",
        "d": "\u0501\u13e7", "e": "\u0435\u04bd", "f": "\u0584\u03dd", "g": "\u0261\u0581\u018d",
        "h": "\u04bb\u0570\u13c2", "i": "\u0456\u03b9\u0131\u0269", "j": "\u0458\u03f3",
        "k": "\u0138\u03ba", "l": "\u04cf\u05d5\u0196\u01c0", "n": "\u0578\u057c",
        "o": "\u043e\u03bf\u0585\u05e1\u1d0f", "p": "\u0440\u03c1", "q": "\u051b\u0563\u0566",
        "r": "\u1d26", "s": "\u0455\ua731", "t": "\u03c4\u1d1b", "u": "\u057d\u03c5\u1d1c\u028b",
        "v": "\u03bd\u0475\u1d20", "w": "\u051d\u0461\u1d21", "x": "\u0445\u03c7",
        "y": "\u0443\u03b3\u04af\u1d8c", "z": "\u1d22",
    }.items()
    for letter in letters
}  # fmt: skip

# Problems of these fields are reported here, more strictly than by the loader.
_OWN = ("name.", "description.", "compatibility.long", "compatibility.type", "key.")
# Begins at the closing bracket, and is bounded: a text of many opening brackets takes linear time.
_LINK = re.compile(r"\]\(\s{0,8}<?([^()<>\s]{1,400})>?[^()]{0,200}\)")
_PATTERN = re.compile(r"[{}$*]|^[a-zA-Z][a-zA-Z0-9+.-]*:|^//")


def lint(folder: Path) -> tuple[Problem, ...]:
    """Return what is wrong with the skill in a folder, errors first; nothing for a good one.

    Of links, of files that are left out and of scripts, at most 20 each are named. Nothing is
    raised for a fault of the skill: an unreadable folder or file is a problem, too.
    """
    opened = Folder(folder)
    try:
        if not os.path.isdir(folder):
            return (_error("folder.missing", "there is no such directory"),)
        name, raw = _skill_file(opened)
    except SkillNotFound:
        return (_error("file.missing", "there is no SKILL.md in it"),)
    except TallystickError as error:
        return (_error("file.refused", one_line_text(str(error))),)
    parts = split(raw)
    found = [*_problems(parts, Path(os.path.abspath(folder)).name)]
    if name != "SKILL.md":
        found.append(_warning("file.case", f"the file is called {name}; some look for SKILL.md"))
    found += [*_body_problems(parts.body, opened), *_file_problems(opened)]
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
    yield from _key_problems(parts.keys)
    yield from _name_problems(parts, directory)
    yield from _text_problems(parts)
    yield from _hidden_text_problems(parts)
    _, loading = manifest_of(parts, directory=directory)
    for each in loading:
        if each not in parts.problems and not each.code.startswith(_OWN):
            yield each


def _key_problems(keys: tuple[str, ...]) -> Iterator[Problem]:
    for key in dict.fromkeys(keys[: _REPORTED_MAX * 5]):
        normal = key.replace("-", "_")
        if normal in SPEC_KEYS and key == normal.replace("_", "-"):
            continue
        if normal in UNUSED_KEYS:
            yield _warning("key.unused", f"{quote(key)} is not used here")
        elif normal in KNOWN_KEYS:
            why = f"{quote(key)} is read here; it is not a key of the specification"
            yield _warning("key.extra", why)
        else:
            yield _error("key.unknown", f"{quote(key)} is not a key of the specification")


def _name_problems(parts: Split, directory: str) -> Iterator[Problem]:
    given = (parts.fields or {}).get("name")
    if not isinstance(given, str) or not given.strip():
        yield _error("name.missing", "the name has to be text, and not empty")
        return
    name = unicodedata.normalize("NFKC", given.strip())
    shown = quote(name)
    if len(name) > _NAME_CHARS_MAX:
        yield _error(
            "name.long",
            f"the name has {len(name)} characters; at most {_NAME_CHARS_MAX} are allowed",
        )
    if name != name.lower():
        yield _error("name.case", f"the name {shown} has to be in lower case")
    if name[0] == "-" or name[-1] == "-":
        yield _error("name.hyphen", f"the name {shown} begins or ends with a hyphen")
    if "--" in name:
        yield _error("name.hyphen", f"the name {shown} has two hyphens in a row")
    if not all(each.isalnum() or each == "-" for each in name):
        yield _error(
            "name.characters", f"the name {shown} may have only letters, digits and hyphens"
        )
    yield from _letter_problems(name)
    if unicodedata.normalize("NFKC", directory) != name:
        yield _error("name.folder", f"the name {shown} is not the folder's, {quote(directory)}")


def _letter_problems(name: str) -> Iterator[Problem]:
    """Yield warnings of letters that look like others, or of scripts that are not written together.

    The specification allows both, so they are warnings. A reader of a list of names cannot see
    them.
    """
    alike = [each for each in dict.fromkeys(name) if each in _LOOK_ALIKE]
    read_as = "".join(_LOOK_ALIKE.get(each, each) for each in name)
    if alike and read_as.isascii():
        which = ", ".join(_letter_name(each) for each in alike[:_LETTERS_REPORTED_MAX])
        why = f"the name {quote(name)} looks like {quote(read_as)}, and is another: {which}"
        yield _warning("name.lookalike", why)
    scripts: dict[str, str] = {}
    for each in name:
        if each.isalpha() and (script := _script(each)) is not None:
            scripts.setdefault(script, each)
    if len(scripts) > 1:
        which = ", ".join(map(_letter_name, scripts.values()))
        yield _warning("name.scripts", f"the name {quote(name)} mixes scripts: {which}")


def _script(letter: str) -> str | None:
    """Return the script of a letter; None for a script that is written beside any other."""
    script = unicodedata.name(letter, "").partition(" ")[0]
    return script if script in _ALPHABETS else None


def _letter_name(letter: str) -> str:
    return f"U+{ord(letter):04X} {unicodedata.name(letter, 'without a name')}"


def _hidden_text_problems(parts: Split) -> Iterator[Problem]:
    """Yield a warning for each text that has hidden characters.

    It names the first five, and says what Unicode's tag characters among them spell.
    """
    fields = parts.fields or {}
    texts = [(key, value) for key, value in fields.items() if isinstance(value, str)]
    for where, text in [*texts, ("instructions", parts.body)]:
        unseen = [each for each in text if each not in "\n\r\t" and has_hidden(each)]
        if not unseen:
            continue
        which = ", ".join(
            f"U+{ord(each):04X}" for each in [*dict.fromkeys(unseen)][:_LETTERS_REPORTED_MAX]
        )
        count = "1 character" if len(unseen) == 1 else f"{len(unseen):,} characters"
        why = f"{where.replace('_', '-')}: {count} cannot be seen: {which}"
        spelled = "".join(chr(ord(each) - _TAGS) for each in unseen if ord(each) - _TAGS in _ASCII)
        if spelled:
            why = f"{why}; Unicode tag characters among them spell {quote(spelled)}"
        yield _warning("text.hidden", why)


def _text_problems(parts: Split) -> Iterator[Problem]:
    fields = parts.fields or {}
    description = fields.get("description")
    if not isinstance(description, str) or not description.strip():
        yield _error("description.missing", "the description has to be text, and not empty")
    elif len(description) > _DESCRIPTION_CHARS_MAX:
        count = f"the description has {len(description):,} characters"
        why = f"{count}; at most {_DESCRIPTION_CHARS_MAX:,} are allowed"
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


def _body_problems(body: str, folder: Folder) -> Iterator[Problem]:
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
    reported = 0
    for target in dict.fromkeys(_links(body)):
        if reported == _REPORTED_MAX:
            return
        if ".." in PurePosixPath(target).parts:
            yield _warning("link.outside", f"the link {quote(target)} leads out of the folder")
        elif not folder.exists(target):
            yield _warning("link.missing", f"the link {quote(target)} leads to no file")
        else:
            continue
        reported += 1


def _links(body: str) -> Iterator[str]:
    """Yield the targets of the links in a Markdown text that lead to files, outside of code blocks.

    Absolute paths, addresses with a scheme and patterns are left out.
    """
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


def _file_problems(folder: Folder) -> Iterator[Problem]:
    try:
        listing = folder.listing()
    except TallystickError as error:
        yield _error("files.refused", one_line_text(str(error)))
        return
    for path in listing.left_out[:_REPORTED_MAX]:
        yield _warning("files.left_out", f"{quote(path)} is no part of the skill: it is never read")
    scripts = [each.path for each in listing.files if each.path.startswith("scripts/")]
    others = [path for path in scripts if PurePosixPath(path).suffix in _OTHER_LANGUAGES]
    for path in others[:_REPORTED_MAX]:
        yield _warning("script.language", f"{quote(path)} is not Python, and cannot be run here")


_OTHER_LANGUAGES = frozenset({
    ".bash", ".bat", ".cjs", ".cmd", ".go", ".jar", ".js", ".jsx", ".lua", ".mjs", ".php", ".pl",
    ".ps1", ".r", ".rb", ".rs", ".sh", ".ts", ".tsx", ".zsh",
})  # fmt: skip
