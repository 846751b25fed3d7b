"""Read the YAML of a frontmatter event by event: bounded, and with nothing resolved.

Rule 1: values are text, lists and mappings of text, or None. A date, a number and a version stay as
they were written, and no tag can construct anything.
Rule 2: anchors are refused, so aliases cannot multiply; depth is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

from tallystick.skills.format.frontmatter import one_line_text, quote

_DEPTH_MAX = 12
_LOADER: type[yaml.SafeLoader] | type[yaml.CSafeLoader] = getattr(
    yaml, "CSafeLoader", yaml.SafeLoader
)
_NULL = frozenset({"", "~", "null", "Null", "NULL"})


class Unusable(Exception):
    """Frontmatter that cannot be used.

    `final` says that putting its texts in quotes would not help.
    """

    def __init__(self, code: str, why: str, *, final: bool = False) -> None:
        super().__init__(why)
        self.code = code
        self.why = why
        self.final = final


@dataclass(slots=True)
class Reading:
    """Facts about a frontmatter besides its values.

    `keys` are as written, in order; `duplicates` are those that came twice; `flow` says that it has
    lists or mappings in brackets.
    """

    duplicates: list[str] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    flow: bool = False


# Events are read one by one. Composing nodes first, as the library does, would follow aliases and
# resolve scalars before anything could be refused.


def parse(source: str, reading: Reading) -> dict[str, object]:
    """Return the fields of a frontmatter, keys with underscores; none for an empty one.

    What `reading` held is replaced by the facts about this source. Raise `Unusable` for a fault.
    """
    reading.keys.clear()
    reading.duplicates.clear()
    reading.flow = False
    try:
        events = _content(source)
        first = next(events, None)
        if first is None:
            return {}
        value = _value(first, events, reading, depth=0)
        if next(events, None) is not None:
            raise Unusable("yaml.invalid", "it holds several documents")
    except yaml.YAMLError as error:
        raise Unusable("yaml.invalid", _reason(error)) from None
    except RecursionError:
        raise Unusable("yaml.deep", "nested too deeply", final=True) from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise Unusable("yaml.mapping", "the frontmatter is not a mapping of keys to values")
    return _with_underscores(value, reading)


def _content(source: str) -> Iterator[yaml.Event]:
    for event in yaml.parse(source, Loader=_LOADER):
        if isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
            yield event


def _value(event: yaml.Event, events: Iterator[yaml.Event], reading: Reading, depth: int) -> object:
    if isinstance(event, yaml.AliasEvent):
        # Not final: it may be a text that only needs quotes, such as `*test`.
        raise Unusable("yaml.alias", f"an alias, {quote(f'*{event.anchor}')}")
    if not isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
        raise Unusable("yaml.invalid", "it ends too early")
    if event.anchor is not None:
        raise Unusable("yaml.anchor", f"an anchor, {quote(f'&{event.anchor}')}", final=True)
    if event.tag is not None:
        raise Unusable("yaml.tag", f"a tag, {quote(event.tag)}", final=True)
    if isinstance(event, yaml.ScalarEvent):
        plain = event.implicit[0]
        return None if plain and event.value in _NULL else _text(event.value)
    if depth >= _DEPTH_MAX:
        raise Unusable("yaml.deep", f"nested deeper than {_DEPTH_MAX}", final=True)
    reading.flow |= bool(event.flow_style)
    if isinstance(event, yaml.SequenceStartEvent):
        return [_value(each, events, reading, depth + 1) for each in _until_end(events)]
    return _mapping(events, reading, depth)


def _text(value: str) -> str:
    """Return a text without halves of surrogate pairs, which nothing can encode.

    An escape in a quoted scalar can make one.
    """
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")


def _until_end(events: Iterator[yaml.Event]) -> Iterator[yaml.Event]:
    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            return
        yield event


def _mapping(events: Iterator[yaml.Event], reading: Reading, depth: int) -> dict[str, object]:
    made: dict[str, object] = {}
    for event in _until_end(events):
        if not isinstance(event, yaml.ScalarEvent):
            raise Unusable("yaml.key", "a key that is not text")
        _value(event, events, reading, depth)
        if event.value in made:
            reading.duplicates.append(event.value)
        if depth == 0:
            reading.keys.append(event.value)
        made[event.value] = _value(next(events), events, reading, depth + 1)
    return made


def _with_underscores(value: dict[str, object], reading: Reading) -> dict[str, object]:
    """Return the fields with underscores in their keys: a hyphen and an underscore count as one.

    Of two keys that become one, the last counts; it is added to the duplicates of `reading`.
    """
    made: dict[str, object] = {}
    for key, each in value.items():
        name = key.replace("-", "_")
        if name in made:
            reading.duplicates.append(key)
        made[name] = each
    return made


def _reason(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return one_line_text(f"line {error.problem_mark.line + 2}: {error.problem}")
    return quote(str(error))


# The usual fault is text that needs quotes: a colon inside a description, a pattern that begins
# with a star. Quotes are added line by line, at the top level and in lists, and the result is read
# once more.
_KEYED = re.compile(r"([A-Za-z_][\w-]{0,63}):[ \t]+(\S.*)")
_ITEM = re.compile(r"([ \t]*-[ \t]+)([*&!%@`].*)")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x84\x86-\x9f\ufffe\uffff]")


def quote_texts(source: str, reading: Reading, first: Unusable) -> dict[str, object]:
    """Read a frontmatter again with its texts in quotes, where they need them.

    Control characters are left out.

    Raise `first`, the fault of the first reading, if that does not help; a final fault is raised as
    it is.
    """
    try:
        return parse("\n".join(_quoted_lines(_CONTROL.sub("", source))), reading)
    except Unusable as error:
        raise (error if error.final else first) from None


def _quoted_lines(source: str) -> Iterator[str]:
    lines = [_spaces_for_tabs(line) for line in source.split("\n")]
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if keyed := _KEYED.fullmatch(line):
            value = [keyed[2]]
            while _is_bare(keyed[2]) and at < len(lines) and lines[at][:1] == " ":
                value.append(lines[at].strip())
                at += 1
            line = f"{keyed[1]}: {_with_quotes(' '.join(value))}"
        elif item := _ITEM.fullmatch(line):
            line = item[1] + _in_quotes(item[2])
        yield line


def _is_bare(value: str) -> bool:
    """Return True if indented lines below a value continue it, as they do bare text."""
    return value[0] not in "\"'|>[{#"


def _with_quotes(value: str) -> str:
    """Return a value, in quotes if it is text that YAML does not read as text without them."""
    first, last = value[0], value.rstrip()[-1]
    if first in "\"'":
        ends = value.count(first) == 1 or (value.count(first) == 2 and last == first)
        return value if ends else _in_quotes(value.strip(first) if last == first else value)
    if first in "[{":
        whole = last in "]}" and value.count(first) == 1
        return value if whole else _in_quotes(value)
    wants = first in "*&!%@`" or ": " in value or last == ":"
    return _in_quotes(value) if wants and first not in "|>#" else value


def _in_quotes(value: str) -> str:
    return "'" + value.strip().replace("'", "''") + "'"


def _spaces_for_tabs(line: str) -> str:
    bare = line.lstrip(" \t")
    return line[: len(line) - len(bare)].replace("\t", "  ") + bare
