"""Define the names in the namespace of a run's programs, and check the names of variables.

A text without a name is in the variable `context`, and its views are `lines`, `rows` and so on. The
views of a text with a name of its own begin with that name: `orders_lines`, `orders_rows`.
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
# Without the names that exist for interactive use only.
_BUILT_IN = frozenset(dir(builtins)) - {"copyright", "credits", "license"}


def view_name(view: str, of: str) -> str:
    """Return the name of a view of a variable."""
    return view if of == CONTEXT else f"{of}_{view}"


def spelling_of(name: str, key: str | None) -> str:
    """Return the Python expression for a text: its variable, or its entry if `key` is not None."""
    return name if key is None else f"{name}[{key!r}]"


def check_variables(names: Iterable[str], *, functions: Iterable[str] = ()) -> None:
    """Raise `UsageError` for names that variables of a program cannot have, or more than 20.

    `functions` are the names of the functions of the run. A name is refused if one of these, or a
    view of another variable, has it. A name that comes twice counts once.
    """
    given = list(dict.fromkeys(names))
    if len(given) > VARIABLES_MAX:
        raise UsageError(f"{len(given):,} names for data; at most {VARIABLES_MAX}")
    taken = {each.partition(".")[0] for each in functions}
    for name in given:
        if name != CONTEXT:
            _check_variable(name)
        if name in taken:
            raise UsageError(f"{name[:_NAME_CHARS_MAX]}: a function of this run has that name")
    # Whether a text has a view depends on its content, so every view that it may have is reserved.
    for of in given:
        for view in _VIEWS:
            if view_name(view, of) in given:
                both = view_name(view, of)
                raise UsageError(f"{both}: a view of `{of}` may have that name; use another")


def _check_variable(name: str) -> None:
    shown = name[:_NAME_CHARS_MAX]
    if (
        not name.isidentifier()
        or name.startswith("_")
        or len(name) > _NAME_CHARS_MAX
        # The compiler normalizes names, so programs would see another name.
        or unicodedata.normalize("NFKC", name) != name
    ):
        raise UsageError(
            f"{shown!r} is no name for a variable: a letter, then letters, digits and '_', at most "
            f"{_NAME_CHARS_MAX}"
        )
    if keyword.iskeyword(name) or name in _BUILT_IN or name in TAKEN:
        raise UsageError(f"{name} is taken: programs have it for something else; use another name")


def check_function(name: str) -> None:
    """Raise `UsageError` for a function name that programs cannot call, or that is taken."""
    check_host_name(name)
    group = name.partition(".")[0]
    if group in TAKEN or group == CONTEXT:
        raise UsageError(f"{name}: programs have {group} for something else; use another name")


def texts_of(values: Mapping[str, object]) -> tuple[str, ...]:
    """Return the texts in the variables of a run: those in the guest, in order.

    Texts in dictionaries are among them, one level deep. Other values are left out.
    """
    held = [
        each
        for value in values.values()
        for each in (value.values() if isinstance(value, Mapping) else [value])
    ]
    return tuple(each for each in held if isinstance(each, str))


# -- the namespace of a recorded run ------------------------------------------------------------
#
# Live and on replay the guest is given the same bytes: both come from the record, and from the
# attachments that it names by digest.


def names_of(started: RunStarted, values: Mapping[str, object]) -> HostNames:
    """Return the namespace of a run. `values` are its inputs, which the record names by digest."""
    recorded = [
        started.functions,
        started.values,
        started.inputs,
        started.texts,
        started.views,
        started.files,
    ]
    return HostNames(
        key=digest(canonical(recorded)),
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
