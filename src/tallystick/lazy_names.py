"""Import the names of a public module when they are first used.

A public module is a package whose `__init__` is a contract: the names in its `__all__`. It knows
where each of them is, and imports none of them itself, so that importing the module costs nothing.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping


def lazy_names(
    module: str, homes: Mapping[str, str], *, moved: Mapping[str, str] | None = None
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a public module.

    `homes` has the names of the contract, separated by spaces, by the module that defines them.
    `moved` has names that the module had in the release before, by the public module which has
    them now: they still work here, with a `DeprecationWarning` that says from where to import them.
    """
    home_of = {name: home for home, names in homes.items() for name in names.split()}
    new_home_of = {name: home for home, names in (moved or {}).items() for name in names.split()}

    def find(name: str) -> object:
        home = home_of.get(name)
        if home is None:
            home = new_home_of.get(name)
            if home is None:
                raise AttributeError(f"module {module!r} has no attribute {name!r}")
            # Above this function is the module's own `__getattr__`, and above that whoever used the
            # name. Frames of the import machinery are left out by `warnings` itself.
            warnings.warn(
                f"{module}.{name} has moved and will be removed from here in the next release: "
                f"write `from {home} import {name}`",
                DeprecationWarning,
                stacklevel=3,
            )
        return getattr(importlib.import_module(home), name)

    return find, lambda: sorted([*vars(importlib.import_module(module)), *home_of])
