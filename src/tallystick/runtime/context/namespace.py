"""The names that a run's programs find: those of its data, and those made from what it recorded.

A text given without a name is in `context`, and its views are `lines`, `rows` and so on. Those of a
text with a name of its own carry it: `orders_lines`, `orders_rows`.
"""

from __future__ import annotations

import builtins
import keyword
import unicodedata
from collections.abc import Iterable, Mapping

from tallystick.core.errors import UsageError
from tallystick.core.json_text import canonical, digest
from tallystick.core.records import TAKEN, RunStarted
from tallystick.sandbox.host import check_host_name
from tallystick.sandbox.port import HostName, HostNames, HostTextName

CONTEXT = "context"
VARIABLES_MAX = 20
_VIEWS = ("lines", "rows", "records", "data", "numbers")
_NAME_CHARS_MAX = 60
# Without what is there for interactive use only.
_BUILT_IN = frozenset(dir(builtins)) - {"copyright", "credits", "license"}


def view_name(view: str, of: str) -> str:
    """What a view of a variable is called."""
    return view if of == CONTEXT else f"{of}_{view}"


def spelling_of(name: str, key: str | None) -> str:
    """How a program writes it: the name, or the entry if that is a dictionary."""
    return name if key is None else f"{name}[{key!r}]"


def check_variables(names: Iterable[str], *, functions: Iterable[str] = ()) -> None:
    """Refuse names that a program cannot have for its data. `functions` are those of the run."""
    given = list(dict.fromkeys(names))
    if len(given) > VARIABLES_MAX:
        raise UsageError(f"{len(given):,} names for data; at most {VARIABLES_MAX}")
    taken = {each.partition(".")[0] for each in functions}
    for name in given:
        if name != CONTEXT:
            _check_variable(name)
        if name in taken:
            raise UsageError(f"{name[:_NAME_CHARS_MAX]}: a function of this run has that name")
    for of in given:
        for view in _VIEWS:
            if view_name(view, of) in given:
                both = view_name(view, of)
                raise UsageError(f"{both}: what `{of}` is made of can have that name; use another")


def _check_variable(name: str) -> None:
    shown = name[:_NAME_CHARS_MAX]
    if (
        not name.isidentifier()
        or name.startswith("_")
        or len(name) > _NAME_CHARS_MAX
        # The compiler would read it as another name.
        or unicodedata.normalize("NFKC", name) != name
    ):
        raise UsageError(
            f"{shown!r} is no name for a variable: a letter, then letters, digits and '_', at most "
            f"{_NAME_CHARS_MAX}"
        )
    if keyword.iskeyword(name) or name in _BUILT_IN or name in TAKEN:
        raise UsageError(f"{name} is taken: programs have it for something else; use another name")


def check_function(name: str) -> None:
    """Refuse a name that programs could not call, or that they have for something else."""
    check_host_name(name)
    group = name.partition(".")[0]
    if group in TAKEN or group == CONTEXT:
        raise UsageError(f"{name}: programs have {group} for something else; use another name")


def texts_of(values: Mapping[str, object]) -> tuple[str, ...]:
    """Return the texts that a run was given whole."""
    held = [
        each
        for value in values.values()
        for each in (value.values() if isinstance(value, Mapping) else [value])
    ]
    return tuple(each for each in held if isinstance(each, str))


# The names a run's programs find, made from what the run recorded.
#
# Live and on replay the guest is told the same bytes, since both come from the record and from what
# it names by digest.


def names_of(started: RunStarted, values: Mapping[str, object]) -> HostNames:
    """The namespace of a run. `values` are its inputs, which the record names by their digests."""
    told = [
        started.functions,
        started.values,
        started.inputs,
        started.texts,
        started.views,
        started.files,
    ]
    return HostNames(
        key=digest(canonical(told)),
        functions=tuple(HostName(name=name, doc=doc) for name, doc in started.functions),
        texts=tuple(
            HostTextName(name=each.name, key=each.key, id=each.id, bytes=each.bytes)
            for each in started.texts
        ),
        values=values,
        answering=True,
        views=started.views,
        files=started.files,
    )
