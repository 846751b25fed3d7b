"""Define what the commands of memory share: opening a memory, filters, and showing notes."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click
import msgspec

from tallystick.cli.parts import echo_line, stack_options
from tallystick.cli.show import plain, safe
from tallystick.core.chain import Head
from tallystick.core.errors import InvalidLimit, UsageError, system_errors
from tallystick.core.ids import moment_ms, moment_text
from tallystick.memory.errors import NoteInvalid
from tallystick.memory.memory import AGENT, Memory
from tallystick.memory.note import CONTENT_BYTES_MAX, MemoryType, Note
from tallystick.memory.recall.minilm import missing
from tallystick.memory.recall.selection import Filters
from tallystick.settings.files import config_directory
from tallystick.settings.schema import one_line
from tallystick.settings.settings import load_settings
from tallystick.storage.private_file import whole_file

if TYPE_CHECKING:
    from tallystick.settings.signing import SigningKey

_DEFAULT = "default"
# The width of lines if the output is not a terminal and COLUMNS is not set.
_COLUMNS = 160
_CONTENT_CHARS_MIN = 18
_REMARK_CHARS_MAX = 300
# Remarks about these lanes are shown only with --explain: most memories have nothing for them.
_QUIET = frozenset({"author", "before", "related", "session", "token", "when"})
_NO_EMBEDDER = "there is no embedder"
_AGE = re.compile(r"(0|[1-9][0-9]{0,7})([smhdw]?)")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
TYPES = tuple(each.value for each in MemoryType)


def utf8_text(value: str) -> str:
    """Check an argument: raise `BadParameter` if it is not UTF-8.

    Python turns bytes of the command line that are not UTF-8 into lone surrogates.
    """
    if any("\ud800" <= each <= "\udfff" for each in value):
        raise click.BadParameter("this is not UTF-8.")
    return value


IN_MEMORY = click.option(
    "--memory", "tenant", metavar="NAME",
    help="Use this memory.  [default: the setting memory, or `default`]",
)  # fmt: skip
_AGENT = click.option(
    "--agent",
    metavar="NAME",
    help="Act as this agent, with its notes and those that it may see.  [default: the owner, with "
    "all notes]",
)


# The options that choose a memory, and the agent to act as.
with_reader = stack_options(IN_MEMORY, _AGENT)


@contextmanager
def open_memory(
    tenant: str | None, agent: str | None = None, *, create: bool = False
) -> Iterator[Memory]:
    """Open a memory, as its owner or as an agent; it is closed at the end.

    `tenant` is its name; with None, the setting counts, or else the name is `default`. `create`
    makes the memory if there is none; otherwise raise `UsageError`. Raise what `load_settings` and
    `Memory.open` raise.
    """
    name = load_settings(flags={"memory": tenant}).memory or _DEFAULT
    with Memory.open(
        name,
        agent_id=AGENT if agent is None else agent,
        owner=agent is None,
        create=create,
    ) as memory:
        yield memory


# -- keys and heads ------------------------------------------------------------------------------


_HEAD = re.compile(r"(0|[1-9][0-9]{0,17}):([0-9a-f]{64})")


def head_from(text: str) -> Head:
    """Return a head, written as `tally memory verify` prints it: COUNT:HASH.

    Raise `UsageError` for any other text.
    """
    found = _HEAD.fullmatch(text)
    if found is None:
        raise UsageError("--head is COUNT:HASH, as tally memory verify prints it")
    return Head(count=int(found[1]), hash=found[2])


def signing_key(memory: Path) -> SigningKey:
    """Return the user's key for signatures. It is made on first use, and then named on stderr.

    Raise `UsageError` if the extra is missing, or if the key would be beside the file `memory`.
    Raise `StoreError` if the key cannot be used.
    """
    from tallystick.settings.signing import open_signing_key

    key = open_signing_key(config_directory(os.environ), ledger=memory)
    if key.made:
        said = one_line(str(key.public_path))
        click.echo(f"made key {key.id}; give {said} to those who check your receipts", err=True)
    return key


# -- filters -----------------------------------------------------------------------------------


# The options that choose notes.
with_filters = stack_options(
    click.option("--tag", "tags", multiple=True, type=utf8_text, metavar="TAG",
                 help="Take notes with this tag. If repeated, with one of them."),
    click.option("--type", "types", multiple=True, type=click.Choice(TYPES),
                 help="Take notes of this type. If repeated, of one of them."),
    click.option("--author", type=utf8_text, metavar="NAME", help="Take notes by this author."),
    click.option("--thread", type=utf8_text, metavar="NAME",
                 help="Take notes of this conversation."),
    click.option("--after", metavar="TIME",
                 help="Take notes from this time on, such as 2026-03-01T09:30:00Z."),
    click.option("--before", metavar="TIME", help="Take notes from before this time."),
    click.option("--min-importance", type=float, metavar="I",
                 help="Take notes of at least this importance, 0 to 1."),
)  # fmt: skip


def filters_from(given: Mapping[str, Any], *, everything: bool = False) -> Filters:
    """Return the filters that the options say.

    With `everything`, they also let through notes that no recall returns: quarantined, archived,
    deleted, expired, and no longer valid ones. Raise `UsageError` for a text that is no time.
    """
    after, before = given["after"], given["before"]
    return Filters(
        tags=frozenset(given["tags"]),
        memory_types=frozenset(map(MemoryType, given["types"])),
        author=given["author"],
        thread_id=given["thread"],
        after=None if after is None else moment_ms(after),
        before=None if before is None else moment_ms(before),
        min_importance=given["min_importance"],
        current=not everything,
        quarantined=everything,
        archived=everything,
        deleted=everything,
        expired=everything,
    )


def age(text: str, *, field: str, unit: str = "") -> int:
    """Read a length of time, such as 90s, 15m, 12h, 30d or 2w, and return it in milliseconds.

    A number alone is in `unit`. Raise `InvalidLimit`, which names `field`, for anything else.
    """
    found = _AGE.fullmatch(text)
    word = "" if found is None else found[2] or unit
    if found is None or not word:
        raise InvalidLimit(field=field, given=text[:80], why="a time such as 15m, 12h, 30d or 2w")
    return int(found[1]) * _UNIT_MS[word]


# -- notes, as they are shown ------------------------------------------------------------------


def note_fields(note: Note) -> dict[str, Any]:
    """Return a note as JSON fields: always the same ones, times as text."""
    fields: dict[str, Any] = msgspec.structs.asdict(note)
    for name in ("created_at", "valid_from", "valid_to", "expires_at"):
        fields[name] = shown_time(fields[name])
    return fields


def shown_time(at: int | None) -> str | None:
    """Write a time in milliseconds since 1970 as text; as a number if the calendar ends before it.

    None stays None.
    """
    if at is None:
        return None
    try:
        return moment_text(at)
    except (ValueError, OverflowError, OSError):
        return f"{at} ms"


def content_line(text: str, *, taken: int) -> str:
    """Cut the text of a note to the rest of a line of which `taken` columns are used.

    At least 18 characters stay. Without a terminal or COLUMNS, the line has 160.
    """
    width = shutil.get_terminal_size((_COLUMNS, 0)).columns if _has_width() else _COLUMNS
    return plain(text, chars_max=max(_CONTENT_CHARS_MIN, width - taken))


def _has_width() -> bool:
    return "COLUMNS" in os.environ or sys.stdout.isatty()


def readable(text: str) -> str:
    """Return a text of many lines with `?` for what a terminal would act on."""
    return "\n".join(safe(line.replace("\t", "    ")) for line in text.split("\n"))


def tell_remarks(remarks: Iterable[str], *, everything: bool) -> None:
    """Print on stderr what a recall could not use; with `everything`, the common cases too."""
    for each in remarks:
        lane = each.partition(":")[0]
        if everything or lane not in _QUIET:
            said = plain(each, chars_max=_REMARK_CHARS_MAX)
            why = missing() if _NO_EMBEDDER in each else ""
            echo_line(f"note: {said}{f'; {why}' if why else ''}", indent=6, err=True)


def content_of(words: tuple[str, ...]) -> str:
    """Return the text to remember, from the arguments or from standard input.

    One line end at the end of standard input is dropped. Raise `UsageError` if there is no text or
    it is not UTF-8, and `NoteInvalid` if it is too long.
    """
    if words == ("-",):
        with source("-") as file:
            raw = file.read(CONTENT_BYTES_MAX + 2)
        if len(raw.removesuffix(b"\n")) > CONTENT_BYTES_MAX:
            why = f"more than {CONTENT_BYTES_MAX:,} bytes: keep it as an attachment"
            raise NoteInvalid(field="content", why=why)
        try:
            return raw.decode("utf-8").removesuffix("\n")
        except UnicodeDecodeError as error:
            raise UsageError(f"standard input: byte {error.start + 1:,} is not UTF-8") from None
    if not words:
        raise UsageError("there is no text; write it after the command, or - for standard input")
    return " ".join(words)


# -- files -------------------------------------------------------------------------------------


@contextmanager
def source(name: str) -> Iterator[BinaryIO]:
    """Open a file to read, or standard input for `-`. Raise `UsageError` if it cannot be opened."""
    if name == "-":
        yield sys.stdin.buffer
        return
    with system_errors(one_line(name), UsageError):
        file = open(name, "rb")  # noqa: SIM115 (closed below; the error is of opening alone)
    with file:
        yield file


def write_file(path: Path, parts: Iterator[bytes]) -> int:
    """Write a file, whole or not at all, and return its size in bytes.

    A file of this name is replaced. Raise `UsageError` if it cannot be written, and what `parts`
    raises; the old file stays then.
    """
    size = 0
    with system_errors(one_line(str(path)), UsageError), whole_file(path) as file:
        for part in parts:
            size += file.write(part)
    return size
