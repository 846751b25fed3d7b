"""What a model is told beside an error: what there is instead of what its program looked for.

Each hint is one line about this run's own names. A hint that could be wrong is not given: a weak
model follows it all the same.
"""

from __future__ import annotations

import re

from tallystick.core.records import ProgramFailure, RunStarted, ViewRef

__all__ = ["advice", "data_names", "named_in"]

_COLUMNS_SHOWN = 20
_OF_FILES = frozenset(
    {"FileNotFoundError", "PermissionError", "ModuleNotFoundError", "ImportError"}
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_QUOTED = re.compile(r"'([A-Za-z_][\w.]{0,60})'")


def data_names(started: RunStarted) -> tuple[str, ...]:
    """The names under which a program finds its data, the most useful first."""
    views = dict.fromkeys(view.name for view in started.views)
    names = [name for name in views if name != "lines"]
    if "lines" in views:
        names.append("lines")
    return (*names, *(each.name for each in started.contexts))


def named_in(source: str, started: RunStarted) -> bool:
    """Whether a program names any of its data, or opens it as a file."""
    return not {*data_names(started), "open"}.isdisjoint(_WORD.findall(source))


def advice(failure: ProgramFailure, started: RunStarted) -> str | None:
    """A line of help for this failure, if there is a certain one."""
    names = ", ".join(f"`{name}`" for name in data_names(started))
    if started.backend != "wasm" and failure.kind in _OF_FILES:
        # There are files, and packages; which, nobody here knows.
        return None
    match failure.kind:
        case "SandboxViolation" | "FileNotFoundError" | "PermissionError" if (
            "open(" in failure.message or "files.read" in failure.message
        ):
            files = "" if started.skills is None else _FILES_OF_SKILLS
            if names:
                return f"There are no such files. The data is already there: {names}.{files}"
            return f"There are no files here.{files}"
        case "ModuleNotFoundError" | "ImportError" if _of_skills(failure, started):
            return (
                "`skills` is no module, and what it knows are texts to follow, not functions. It "
                f"is there already: {_search(started)}"
            )
        case "ModuleNotFoundError" | "ImportError":
            data = f" The data is already there: {names}." if names else ""
            return f"Only the standard library can be imported.{data}"
        case "KeyError":
            return _columns(failure.message, started.views)
        case "NameError":
            return _undefined(failure, names, started)
        case "EOFError" if "input" in failure.traceback:
            return "Nobody answers input(). Take values from the data."
        case _:
            return None


_FILES_OF_SKILLS = " Files of a skill: skills.read(name, path)."


def _of_skills(failure: ProgramFailure, started: RunStarted) -> bool:
    return started.skills is not None and "'skills" in failure.message


def _search(started: RunStarted) -> str:
    given = started.skills
    return given.begin if given is not None and given.begin else 'print(skills.search("words"))'


def _columns(message: str, views: tuple[ViewRef, ...]) -> str | None:
    """The columns there are, where a column was looked for that is none."""
    tables = [view for view in views if view.kind == "table"]
    known = {column for view in tables for column, _ in view.columns}
    if not tables or message.strip("'\"") in known:
        return None
    return "\n".join(
        f"The keys of `{view.name if view.key is None else f'{view.name}[{view.key!r}]'}` are: "
        + ", ".join(repr(name) for name, _ in view.columns[:_COLUMNS_SHOWN])
        for view in tables[:4]
    )


def _undefined(failure: ProgramFailure, names: str, started: RunStarted) -> str | None:
    found = _QUOTED.search(failure.message)
    if found is None:
        return None
    if f"FINAL({found[1]}" in failure.traceback and found[1][:1].isupper():
        return f"Text needs quotes: FINAL({found[1]!r})."
    if any(f"\n{found[1]} = " in each.sample for each in started.contexts):
        # It took the example for something that had been run.
        return f"Your block has to begin with the lines of the example that make `{found[1]}`."
    data = f" The data is in {names}." if names else ""
    return f"`{found[1]}` was never defined: import or define it first.{data}"
