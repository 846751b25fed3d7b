"""Write the generated parts of docs/reference from the code.

Run it as `make reference`, or `python -m tools.reference`. A page there is text with regions:

    <!-- generated: commands -->
    …
    <!-- end of generated: commands -->

Only what stands in a region is replaced, and the first use of each term is linked to the glossary.
`tests/docs/test_reference.py` fails if a page differs from what this module would write.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import click
import msgspec
from msgspec import inspect as types

import tallystick
from tallystick.cli import exit_codes, main
from tallystick.cli.errors import exit_code_of
from tallystick.core.errors import Cancelled, ReplayStopped, TallystickError
from tallystick.core.records import Record, StopReason
from tallystick.interop import trajectory_events
from tallystick.ledger.port import Ledger, TransferLedger
from tallystick.memory.receipts import receipt
from tallystick.memory.store.records import EVENT_TYPES, MemoryRecord
from tallystick.model import scripted
from tallystick.model.port import Model
from tallystick.sandbox.port import Sandbox
from tallystick.sessions.values import ExportedValues
from tallystick.settings.schema import PROVIDER_KEYS, SETTINGS, ProviderValues, Value
from tools.check_docs import DOCS, link_terms
from tools.public import public_modules, public_names
from tools.surfaces import SURFACES, Surface

PAGES = DOCS / "reference"
_REGION = re.compile(
    r"(?P<begin><!-- generated: (?P<name>[a-z-]+) -->\n).*?"
    r"(?P<end><!-- end of generated: (?P=name) -->)",
    re.S,
)


# -- Markdown --------------------------------------------------------------------------------------


def cell(text: str) -> str:
    """Return text that can stand in a cell of a table: on one line, without a bare `|`."""
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table, or nothing if it has no rows."""
    lines = [f"| {' | '.join(map(cell, row))} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}", *lines, ""])


def fenced(text: str) -> str:
    """Return a block of text that is shown as it is."""
    return f"```text\n{text.strip(chr(10))}\n```\n"


def described(docstring: str | None) -> str:
    """Return a docstring as Markdown: its indented parts become blocks."""
    parts = []
    for part in re.split(r"\n\n+(?! )", inspect.cleandoc(docstring or "")):
        first, *rest = part.split("\n\n", maxsplit=1)
        parts.append(first)
        parts += [fenced(inspect.cleandoc("\n" + each)) for each in rest]
    return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"


def summary(docstring: str | None) -> str:
    """Return the first paragraph of a docstring, on one line."""
    return " ".join(inspect.cleandoc(docstring or "").partition("\n\n")[0].split())


def number(value: object) -> str:
    """Return a value as readers write it."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.15g}"
        case None | () | "":
            return "none"
        case tuple():
            return ", ".join(map(str, value))
        case _:
            return str(value)


# -- commands --------------------------------------------------------------------------------------


def commands() -> str:
    """Describe every command, in the groups of `tally --help`."""
    root = click.Context(main.cli, info_name="tally")
    parts = []
    for group, names in main._GROUPS.items():
        parts.append(f"## {group}\n")
        for name in names:
            command = main.cli.get_command(root, name)
            assert command is not None, name
            parts += _command(command, root, name, level=3)
    return "\n".join(parts)


def _command(
    command: click.Command, above: click.Context, name: str, *, level: int
) -> Iterator[str]:
    context = click.Context(command, info_name=name, parent=above)
    yield f"{'#' * level} {context.command_path}\n"
    pieces = " ".join(command.collect_usage_pieces(context))
    yield fenced(f"{context.command_path} {pieces}")
    yield _help(command.help or "")
    options = [each for each in command.params if isinstance(each, click.Option)]
    rows = [_option(each) for each in options if not each.hidden]
    yield table(("option", "meaning", "default"), rows)
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            assert below is not None
            yield from _command(below, context, each, level=level + 1)


def _help(text: str) -> str:
    parts = []
    for part in inspect.cleandoc(text).split("\n\n"):
        lines = part.removeprefix("\b\n")
        title, _, rest = lines.partition("\n")
        if title.strip() in ("Example:", "Examples:"):
            parts.append(fenced(inspect.cleandoc("\n" + rest)))
        elif lines.startswith("Exit codes: "):
            codes = re.split(r",\s+(?=\d+ )", lines.removeprefix("Exit codes: ").rstrip("."))
            parts.append("Exit codes:\n")
            parts.append("\n".join(f"- {each}" for each in codes) + "\n")
        elif part.startswith("\b\n"):
            parts.append(fenced(lines))
        else:
            parts.append(lines + "\n")
    return "\n".join(parts)


def _option(option: click.Option) -> tuple[str, str, str]:
    metavar = option.metavar or ""
    if isinstance(option.type, click.Choice):
        metavar = option.metavar or "|".join(map(str, option.type.choices))
    elif not option.is_flag and not option.metavar:
        metavar = option.type.name.upper()
    names = [*option.opts, *option.secondary_opts]
    shown = ", ".join(f"`{each}`" for each in names[:-1])
    last = f"`{names[-1]} {metavar}`" if metavar else f"`{names[-1]}`"
    if "|" in metavar:
        # In code inside a table, readers of Markdown do not agree on what `\|` is.
        last = f"`{names[-1]}` <code>{metavar.replace('|', '&#124;')}</code>"
    text = " ".join((option.help or "").split())
    found = re.search(r"\s*\[(?:default|vocabulary): ([^\]]*)\]", text)
    default = found[1] if found else ""
    text = text.replace(found[0], "") if found else text
    if not found and option.show_default and option.default not in (None, ()):
        default = number(option.default)
    if option.multiple and "May be repeated" not in text:
        text += " May be repeated."
    return f"{shown}, {last}" if shown else last, text, default.replace(": ", " ")


# -- settings --------------------------------------------------------------------------------------


MEANINGS = {
    "model": "The [model](#models) that is asked.",
    "max_turns": "Stop after this many replies of the model.",
    "max_tokens": "Tokens of one run, input and output together.",
    "max_usd": "The most that one run may cost, in US dollars.",
    "total_usd": "The most that all runs of the ledger may cost together, in all processes. "
    "The first value is recorded in the ledger's file and binds every process.",
    "allow_unpriced": "With a limit in dollars, let calls through whose price is unknown.",
    "tokenizer": "The path of the model's own `tokenizer.json`. Prompts are then counted; without "
    "it they are bounded by their bytes. Needs `pip install 'tallystick[tokens]'`.",
    "timeout": "Seconds that one run may take.",
    "max_host_calls": "How often the programs of one run may call the host.",
    "reply_tokens": "Tokens of one reply.",
    "retries": "How often a failed model call is repeated in one turn.",
    "temperature": "How much chance the model's choices have; without it, the server decides.",
    "strategy": "How a question is answered: [long texts](../guides/long-texts.md). "
    "Without it: `code`, or `direct` where there is nothing to read.",
    "compact_at": "Shorten old turns when a prompt has more tokens than this; 0 is never. "
    "Without it: 12,000, or less in a small window.",
    "clock": "Where the clock of programs starts: `now`, `fixed` (2026-01-01T00:00:00Z), or a "
    "time such as `2026-03-01T09:30`.",
    "timezone": "The zone in which the model is told the time, such as `Europe/Berlin`. The zone "
    "of the machine is never read.",
    "grants": "Capabilities that runs are given.",
    "skills_paths": "Directories with [skills](../guides/skills.md), besides the usual places.",
    "skills_require_signature": "Use only skills that a trusted signer signed.",
    "skills_budget": "Characters of the list of skills that the model is shown.",
    "memory": "The [memory](../guides/memory.md) that programs recall from.",
    "session_mb": "MiB that all [sessions](../guides/sessions.md) together may keep on the disk. "
    "Above it no session and no snapshot is made.",
}
PROVIDER_MEANINGS = {
    "dialect": "The wire format: chat completions (`openai`) or messages (`anthropic`).",
    "base_url": "Where the server is.",
    "key_env": "The variable that holds the key.",
    "concurrency": "Requests at once.",
    "connect_seconds": "Time until there is a connection.",
    "silence_seconds": "Time in which no byte comes.",
    "total_seconds": "Time for one attempt.",
    "stream": "False asks for a reply in one piece.",
    "cache": "True has the provider keep the beginning of prompts, which costs less to read again.",
    "headers": "A table of headers for each request. A value `$NAME` is that of a variable.",
    "query": "A table of texts for the query of each address, such as `api-version`.",
    "body": "A table of fields for each request, except those that a run sets or pays for.",
    "allow_plain_http": "True sends the key over http to an address outside private networks.",
}


def _flags() -> set[str]:
    command = main.cli.get_command(click.Context(main.cli), "run")
    assert command is not None
    return {name for each in command.params for name in each.opts}


def _default(value: Value | None) -> str:
    return number(value) if isinstance(value, bool | int | float) or not value else f"`{value}`"


def settings() -> str:
    """List the settings, with what each may hold."""
    flags = _flags()
    rows = [
        (
            f"`{each.name}`",
            MEANINGS[each.name],
            _default(each.default),
            each.kind.what,
            f"`{each.variable}`" if each.variable else "",
            f"`{each.flag}`" if each.flag in flags else "",
        )
        for each in SETTINGS.values()
    ]
    head = ("setting", "meaning", "default", "allowed", "variable", "option of `tally run`")
    return table(head, rows)


def providers() -> str:
    """List the keys of a provider's table."""
    values = ProviderValues()
    rows = [
        (f"`{name}`", PROVIDER_MEANINGS[name], _default(getattr(values, name)), kind.what)
        for name, kind in PROVIDER_KEYS.items()
    ]
    return table(("key", "meaning", "default", "allowed"), rows)


# -- records and events ----------------------------------------------------------------------------


class _Shapes:
    """Describe structs as tables, and remember which others they refer to."""

    def __init__(self, *, described: Iterable[type]) -> None:
        self._described = list(described)
        self._wanted: list[type] = []

    def fields(self, struct: type, *, without: frozenset[str] = frozenset()) -> str:
        """Return the table of a struct's fields, as they are in JSON."""
        info = types.type_info(struct)
        assert isinstance(info, types.StructType)
        rows = []
        for field in info.fields:
            if field.name in without:
                continue
            shown = self._shown(field.type)
            default = "required" if field.required else self._default(field)
            rows.append((f"`{field.encode_name}`", shown, default))
        return table(("field", "holds", "default"), rows)

    def others(self, *, level: int) -> str:
        """Describe the structs that the others refer to, until all are."""
        parts, done = [], list(self._described)
        while self._wanted:
            for each in sorted(self._wanted, key=lambda struct: struct.__name__):
                self._wanted.remove(each)
                if each not in done:
                    done.append(each)
                    parts.append((each.__name__, self._part(each, level=level)))
        return "\n".join(text for _, text in sorted(parts))

    def _part(self, struct: type, *, level: int) -> str:
        return (
            f"{'#' * level} {struct.__name__}\n\n{described(struct.__doc__)}\n{self.fields(struct)}"
        )

    @staticmethod
    def _default(field: types.Field) -> str:
        if field.default is msgspec.NODEFAULT:
            return "empty"
        if field.default is msgspec.UNSET:
            return "absent"
        if field.default is None:
            return "null"
        return "empty" if field.default in ((), {}, "") else f"`{number(field.default)}`"

    def _shown(self, of: types.Type) -> str:
        match of:
            case types.StructType():
                return self._linked(of.cls)
            case types.UnionType():
                return " or ".join(self._shown(each) for each in of.types)
            case types.LiteralType():
                return " or ".join(f"`{each}`" if each else "empty" for each in of.values)
            case types.VarTupleType() | types.ListType():
                return f"list of {self._shown(of.item_type)}"
            case types.TupleType():
                return f"list of {len(of.item_types)}: {', '.join(map(self._shown, of.item_types))}"
            case types.DictType():
                return f"object: name to {self._shown(of.value_type)}"
        plain = {
            "StrType": "text",
            "IntType": "whole number",
            "FloatType": "number",
            "BoolType": "true or false",
            "BytesType": "bytes in base64",
            "NoneType": "null",
            "AnyType": "any JSON",
            "RawType": "any JSON",
        }
        return plain.get(type(of).__name__, "any JSON")

    def _linked(self, struct: type) -> str:
        if struct in self._described:
            return f"`{struct.__name__}`"
        self._wanted.append(struct)
        return f"[{struct.__name__}](#{struct.__name__.lower()})"


def records() -> str:
    """Describe every record of the ledger by its tag."""
    every: tuple[type, ...] = get_args(Record)
    shapes = _Shapes(described=every)
    parts = []
    for each in every:
        parts.append(f"## {_tag(each)}\n\n`{each.__name__}`. {described(each.__doc__)}")
        parts.append(shapes.fields(each))
    parts.append("## Values inside records\n")
    parts.append(shapes.others(level=3))
    return "\n".join(parts)


def events() -> str:
    """Describe every trajectory event."""
    every: tuple[type, ...] = get_args(trajectory_events.TrajectoryEvent)
    shapes = _Shapes(described=every)
    shared = frozenset(trajectory_events._Event.__struct_fields__)
    parts = []
    for each in every:
        parts.append(f"### {_tag(each)}\n\n{described(each.__doc__)}")
        parts.append(shapes.fields(each, without=shared))
    parts.append("## Values inside events\n")
    parts.append(shapes.others(level=3))
    return "\n".join(parts)


def event_fields() -> str:
    """List the fields that all trajectory events have."""
    base = trajectory_events._Event
    return _Shapes(described=()).fields(base)


def _tag(struct: type) -> str:
    return str(struct.__struct_config__.tag)  # type: ignore[attr-defined]


def script() -> str:
    """Describe a line of a script of replies."""
    return _structs(scripted.ScriptedReply)


def memory_receipts() -> str:
    """Describe the receipts of memory, and what is in them."""
    every = (receipt.RecallReceipt, receipt.ForgetReceipt)
    shapes = _Shapes(described=every)
    parts = [
        f"### {_tag(each)}\n\n{described(each.__doc__)}\n{shapes.fields(each)}" for each in every
    ]
    return "\n".join([*parts, shapes.others(level=4)])


def memory_log() -> str:
    """List the records in the log of a memory, with the names of such events in other systems."""
    return table(
        ("record", "what it says", "elsewhere"),
        (
            (f"`{_tag(each)}`", summary(each.__doc__), f"`{EVENT_TYPES[_tag(each)]}`")
            for each in get_args(MemoryRecord)
        ),
    )


def values() -> str:
    """Describe the file of a session's values."""
    return _structs(ExportedValues)


def _structs(struct: type) -> str:
    shapes = _Shapes(described=(struct,))
    return "\n".join([shapes.fields(struct), shapes.others(level=3)])


# -- errors and exit codes -------------------------------------------------------------------------


def import_everything() -> None:
    """Import every module of the package, so that every error is known."""
    for module in pkgutil.walk_packages(tallystick.__path__, "tallystick."):
        if ".guest.prelude" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def error_classes(
    base: type[BaseException] = TallystickError,
) -> Iterator[tuple[int, type[BaseException]]]:
    """List the errors under one, each with how deep it is, by name."""
    for each in sorted(base.__subclasses__(), key=lambda error: error.__name__):
        ours = each.__module__.startswith("tallystick.") and not each.__name__.startswith("_")
        if ours:
            yield 1, each
        yield from ((depth + ours, below) for depth, below in error_classes(each))


def _error_row(error: type[BaseException], under: str) -> tuple[str, ...]:
    made = error.__new__(error)
    if isinstance(made, ReplayStopped):
        made.timed_out = False
    code = str(exit_code_of(made))
    if isinstance(made, ReplayStopped):
        code += ", or 3 if time ended it"
    return f"`{error.code}`", f"`{error.__name__}`", under, summary(error.__doc__), code  # type: ignore[attr-defined]


def errors() -> str:
    """List all errors, in the families of their base classes."""
    import_everything()
    head = ("code", "class", "is a", "raised when", "exit code")
    parts, alone = [], []
    for family in sorted(TallystickError.__subclasses__(), key=lambda error: error.__name__):
        below = list(error_classes(family))
        if not below:
            alone.append(_error_row(family, "`TallystickError`"))
            continue
        rows = [_error_row(family, "`TallystickError`")]
        rows += [_error_row(each, f"`{each.__bases__[-1].__name__}`") for _, each in below]
        parts.append(f"### {family.__name__}\n\n{described(family.__doc__)}\n{table(head, rows)}")
    alone.append(_error_row(Cancelled, "`BaseException`"))
    parts.append(f"### Others\n\n{table(head, alone)}")
    return "\n".join(parts)


def stops() -> str:
    """List the reasons for which a run ends, with the exit code of each."""
    reasons: tuple[StopReason, ...] = get_args(StopReason)
    rows = [(f"`{each}`", str(exit_codes.exit_code_of_stop(each))) for each in reasons]
    return table(("reason", "exit code of `tally run`"), rows)


# -- Python ----------------------------------------------------------------------------------------


def python(module: str) -> str:
    """Describe the contract of a public module, and every name in it."""
    # The first line of the docstring is for those who read the code; the page has its own words.
    said = inspect.cleandoc(importlib.import_module(module).__doc__ or "")
    contract = said.partition("\n\n")[2]
    parts = [f"{contract}\n"]
    for name in sorted(public_names(module), key=str.lower):
        found = getattr(importlib.import_module(module), name)
        parts.append(f"## {name}\n")
        if inspect.isclass(found):
            parts += _class(name, found)
        elif inspect.isroutine(found):
            parts += [fenced(_signature(name, found)), described(found.__doc__)]
        else:
            parts.append(f"{CONSTANTS[name]}\n")
    return "\n".join(parts)


CONSTANTS = {
    "Decision": "One of `Pass`, `Retry`, `Warn`, `Block` and `Escalate`.",
    "ERROR_CODES": "All codes by the names of errors: each is an `ErrorCode`.",
    "LAYER_ORDER": "The kinds of layers with skills, the one that wins first.",
    "NORMAL": "The rules of `--vocabulary normal`: a program that fails the check is not run, but "
    "after three in a row the next one is, with a warning to the model.",
    "NOT_RECEIVED": "The answer of a lookup: the call never arrived, so it is safe to repeat it.",
    "PERMISSIVE": "The rules of `--vocabulary permissive`: a program that fails the check is run.",
    "PYTHON_FORM": "The name of the form of recall programs that are Python.",
    "STRICT": "The rules of `--vocabulary strict`: a program that fails the check is not run, and "
    "after three in a row a person decides.",
    "TrajectoryEvent": "One event of a run; [Events](events.md) lists them.",
    "UNKNOWN": "The answer of a lookup: nothing is known about the call, so it stays in doubt.",
}
# The interfaces that describe methods once for all classes that have them.
_PORTS = (Ledger, TransferLedger, Model, Sandbox)


def _documentation(name: str, method: Callable[..., object]) -> str:
    """Return the docstring of a method, or that of the interface which it belongs to."""
    if method.__doc__:
        return method.__doc__
    found = (getattr(port, name, None) for port in _PORTS)
    return next((each.__doc__ for each in found if each is not None and each.__doc__), "")


def _class(name: str, found: type) -> Iterator[str]:
    if not issubclass(found, BaseException):
        yield fenced(_signature(name, found))
    yield described(found.__doc__)
    if issubclass(found, TallystickError | Cancelled):
        yield f"Its code is `{found.code}`. See [errors](errors.md).\n"
    rows = []
    for attribute, value in _members(found):
        raw = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if isinstance(value, property | functools.cached_property):
            rows.append((f"`{attribute}`", summary(value.__doc__)))
        elif inspect.isfunction(raw):
            yield f"### {name}.{attribute}\n"
            yield fenced(_signature(attribute, raw))
            yield described(_documentation(attribute, raw))
    if rows:
        yield table(("property", "meaning"), rows)


def _members(found: type) -> Iterator[tuple[str, Any]]:
    """List the public members of a class, and of those of our own classes that it is made of."""
    seen: set[str] = set()
    for each in found.__mro__:
        if each.__module__.startswith("tallystick.") and each is not TallystickError:
            for name, value in vars(each).items():
                told = name == "text" and issubclass(found, BaseException)
                if not (name.startswith("_") or name in seen or told):
                    seen.add(name)
                    yield name, value


_LINE_CHARS_MAX = 88


def _signature(name: str, found: Callable[..., object]) -> str:
    signature = inspect.signature(found)
    words, star = [], False
    for each in signature.parameters.values():
        if each.name in ("self", "cls"):
            continue
        if each.kind is each.VAR_POSITIONAL:
            star = True
        elif each.kind is each.KEYWORD_ONLY and not star:
            words.append("*")
            star = True
        words.append(_parameter(each))
    returned = signature.return_annotation
    arrow = "" if returned is inspect.Signature.empty else f" -> {_annotation(returned)}"
    if inspect.iscoroutinefunction(found):
        name = f"async {name}"
    line = f"{name}({', '.join(words)}){arrow}"
    if len(line) <= _LINE_CHARS_MAX:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in words), f"){arrow}"])


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}
    text = stars.get(parameter.kind, "") + parameter.name  # type: ignore[call-overload]
    typed = parameter.annotation is not parameter.empty
    if typed:
        text += f": {_annotation(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        default = parameter.default
        plain = default is None or isinstance(default, bool | int | float | str | bytes | tuple)
        text += f"{' = ' if typed else '='}{repr(default) if plain else '…'}"
    return str(text)


def _annotation(annotation: object) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", text)
    text = re.sub(r"Annotated\[([^,\[\]]+), Meta\([^)]*\)\]", r"\1", text)
    return re.sub(r"Optional\[([^\[\]]+)\]", r"\1 | None", text)


# -- surfaces --------------------------------------------------------------------------------------


def surfaces() -> str:
    """List for each capability its commands, its Python names and its page."""
    titles = {each.page: _title(DOCS / each.page) for each in SURFACES}
    rows = [
        (
            each.what,
            _commands_cell(each),
            _names_cell(each),
            f"[{titles[each.page]}](../{each.page})",
        )
        for each in SURFACES
    ]
    return table(("capability", "command", "from Python", "page"), rows)


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _commands_cell(row: Surface) -> str:
    return ", ".join(f"`tally {each}`" for each in row.all_commands) or row.commands


def _names_cell(row: Surface) -> str:
    return ", ".join(f"`{each}`" for each in row.all_names) or row.python


# -- pages -----------------------------------------------------------------------------------------


def page_of(module: str) -> Path:
    """Return the reference page of a public module; its region has the same name."""
    return PAGES / f"python{module.removeprefix('tallystick').replace('.', '-')}.md"


REGIONS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "settings": settings,
    "providers": providers,
    "records": records,
    "events": events,
    "event-fields": event_fields,
    "errors": errors,
    "stops": stops,
    **{page_of(each).stem: functools.partial(python, each) for each in public_modules()},
    "script": script,
    "memory-log": memory_log,
    "memory-receipts": memory_receipts,
    "surfaces": surfaces,
    "values": values,
}


def rewritten(text: str) -> str:
    """Return a page with its regions made from the code, and its terms linked."""

    def region(match: re.Match[str]) -> str:
        made = REGIONS[match["name"]]().strip("\n")
        made = re.sub(r"\n{3,}", "\n\n", made)
        return f"{match['begin']}\n{made}\n\n{match['end']}"

    return link_terms(_REGION.sub(region, text), "../glossary.md")


def regions(page: Path) -> list[re.Match[str]]:
    """List the marked regions of a page."""
    return [*_REGION.finditer(page.read_text(encoding="utf-8"))]


def pages() -> list[Path]:
    """List the pages that have generated regions."""
    return [page for page in sorted(PAGES.glob("*.md")) if regions(page)]


def write() -> None:
    """Write every page whose text has changed, and name it."""
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = rewritten(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(page.relative_to(DOCS.parent), file=sys.stderr)


if __name__ == "__main__":
    write()
