"""Each public field, argument and setting changes something, where its row says."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fields import configured, options, programs, runs
from tests.fields.table import Row, World
from tools import surfaces

from tallystick import Agent
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.settings.schema import PROVIDER_KEYS, SETTINGS

ROWS = [*runs.ROWS, *programs.ROWS, *configured.ROWS, *options.ROWS]
# Every field of these has a row: users make them, and give them as arguments.
ARGUMENTS = (
    *("Budget", "RunLimits", "ledger.RunFilter", "memory.Budget", "memory.Filters"),
    *("memory.Recall", "memory.Score", "model.Pricing", "model.ScriptedReply"),
    *("model.ScriptedUsage", "sandbox.ExecutionContext", "sandbox.Limits", "vocabulary.Rules"),
)
METHODS = ("__init__", "run", "resume", "fork", "replay")


def public_fields() -> Iterator[str]:
    """Yield every field, argument and setting that has to have a row."""
    for name in ARGUMENTS:
        found: Any = surfaces.found(name)
        fields = getattr(found, "__struct_fields__", None)
        each_field = fields or [each.name for each in dataclasses.fields(found)]
        # Two classes are called `Budget`; where a name is one class alone, that is enough.
        owner = name if name.startswith(("ledger.", "memory.")) else name.rpartition(".")[2]
        yield from (f"{owner}.{each}" for each in each_field)
    for method in METHODS:
        called = "Agent" if method == "__init__" else f"Agent.{method}"
        given = [*inspect.signature(getattr(Agent, method)).parameters][1:]
        yield from (f"{called}({each}=)" for each in given)
    yield from SETTINGS
    yield from (f"providers.{each}" for each in PROVIDER_KEYS)


def test_every_public_field_argument_and_setting_has_a_row() -> None:
    named = Counter(each.field for each in ROWS)

    # A line in `tests/fields` for what is missing here.
    assert sorted({*public_fields()} - named.keys()) == []
    assert sorted(named.keys() - {*public_fields()}) == []
    assert [name for name, count in named.items() if count > 1] == []


@pytest.mark.parametrize("method", ["run", "resume"])
def test_the_awaitable_methods_take_the_same_arguments(method: str) -> None:
    plain, awaited = (inspect.signature(getattr(Agent, f"{a}{method}")) for a in ("", "a"))

    # A default that is a function is one of its own in each.
    assert re.sub(r" at 0x\w+", "", str(plain)) == re.sub(r" at 0x\w+", "", str(awaited))


def rows() -> list[object]:
    return [
        pytest.param(each, id=each.field, marks=[pytest.mark.slow] if each.slow else [])
        for each in ROWS
    ]


@pytest.mark.parametrize("row", rows())
def test_two_values_of_a_field_differ_where_its_row_says(
    row: Row, sandbox: WasmSandbox, tmp_path: Path
) -> None:
    world = World(sandbox, tmp_path)

    seen = row.look(world, row.first)

    assert row.look(world, row.first) == seen, "the place differs by chance"
    assert row.look(world, row.second) != seen
