"""Public modules: each says what it promises, imports it late, and says what has moved."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import warnings

import pytest
from tools.public import PACKAGE, declared_names, public_modules, public_names

import tallystick

MODULES = public_modules()
# What users import from `tallystick` itself. Who adds a name has a reason why it is in no module.
TOP_MAX = 30
# The names of release 0.1 that have moved, by the module that has them now.
MOVED = {
    "tallystick.inputs": "given_text read_inputs",
    "tallystick.ledger": "MemoryLedger SqliteLedger",
    "tallystick.model": (
        "NOT_RECEIVED UNKNOWN ModelReply PriceTable Pricing ScriptedModel ScriptedReply"
    ),
    "tallystick.sandbox": (
        "ExecutionContext ExecutionResult HostFunction HostTable HostText Limits Scripted "
        "ScriptedSandbox SnapshotId SnapshotMismatch WasmSandbox"
    ),
    "tallystick.sessions": "open_snapshots",
    "tallystick.settings": "cache_directory data_directory",
    "tallystick.steps": "CompletedStep StepBudgetError StepsDiverged completed_steps step_log",
}
MOVES = [(name, home) for home, names in MOVED.items() for name in names.split()]


def test_the_modules_that_were_promised_are_public() -> None:
    promised = (
        "attachments inputs interop ledger memory model sandbox sessions settings skills steps"
    )
    asked = {f"tallystick.{each}" for each in f"{promised} upkeep vocabulary".split()}

    assert {"tallystick", *asked} <= set(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_a_public_module_has_every_name_of_its_contract_and_no_other(module: str) -> None:
    found = importlib.import_module(module)

    assert [name for name in found.__all__ if getattr(found, name, None) is None] == []
    assert set(found.__all__) <= set(dir(found))
    assert declared_names(module) == set(found.__all__)
    with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'nosuch'"):
        _ = found.nosuch


@pytest.mark.parametrize("module", MODULES)
def test_a_public_module_says_in_its_docstring_what_each_name_is_for(module: str) -> None:
    said = re.findall(r"`(\w+)`", importlib.import_module(module).__doc__ or "")

    assert [name for name in public_names(module) if name not in said] == []


@pytest.mark.parametrize("module", MODULES)
def test_no_public_name_is_that_of_a_submodule_which_would_take_its_place(module: str) -> None:
    folder = PACKAGE.joinpath(*module.split(".")[1:])
    below = {path.stem for path in folder.iterdir()}

    assert below & set(public_names(module)) == set()


def test_importing_all_public_modules_imports_nothing_behind_them() -> None:
    asked = (
        f"import sys, {', '.join(MODULES)}\n"
        "print(*sorted(each for each in sys.modules if each.startswith('tallystick')))"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)

    assert done.stdout.split() == sorted([*MODULES, "tallystick.lazy_names"])


def test_the_package_itself_has_only_what_most_programs_use() -> None:
    assert len(tallystick.__all__) <= TOP_MAX


@pytest.mark.parametrize(("name", "home"), MOVES)
def test_a_name_that_has_moved_still_works_and_says_where_it_is_now(name: str, home: str) -> None:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = getattr(tallystick, name)

    (warning,) = said
    assert warning.category is DeprecationWarning
    assert f"write `from {home} import {name}`" in str(warning.message)
    assert warning.filename == __file__
    assert found is getattr(importlib.import_module(home), name)
    assert name in public_names(home)
    assert name not in tallystick.__all__
    assert name not in dir(tallystick)
