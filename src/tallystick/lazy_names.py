"""Import the names of a public module when they are first used.

A public module is a package whose `__init__` is a contract: the names in its `__all__`. It knows
where each of them is, and imports none of them itself, so that importing the module costs nothing.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping


def lazy_names(
    module: str,
    homes: Mapping[str, str],
    *,
    moved: Mapping[str, str] | None = None,
    replaced: Mapping[str, tuple[str, str]] | None = None,
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a public module.

    `homes` has the names of the contract, separated by spaces, by the module that defines them.
    `moved` has names that the module had in the release before, by the public module which has
    them now: they still work here, with a `DeprecationWarning` that says from where to import them.
    `replaced` has names that are replaced by another, with the module that has them and that other:
    they work here in the same way, and the warning says that other.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}
    new_home_of = {name: home for home, names in (moved or {}).items() for name in names.split()}

    replacements = dict(replaced or {})

    def find(name: str) -> object:
        home = home_of.get(name)
        if home is None:
            home, now = replacements.get(name) or (new_home_of.get(name), "")
            if home is None:
                raise AttributeError(f"module {module!r} has no attribute {name!r}")
            advice = f"write `{now}`" if now else f"write `from {home} import {name}`"
            # Above this function is the module's own `__getattr__`, and above that whoever used the
            # name. Frames of the import machinery are left out by `warnings` itself.
            warnings.warn(
                f"{module}.{name} has {'another name' if now else 'moved'} and will be removed "
                f"from here in the next release: {advice}",
                DeprecationWarning,
                stacklevel=3,
            )
        return getattr(importlib.import_module(home), name)

    return find, lambda: sorted([*vars(importlib.import_module(module)), *home_of])
