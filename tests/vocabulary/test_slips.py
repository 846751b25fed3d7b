"""Programs that are written to slip past the check are stopped, or named as not covered."""

from __future__ import annotations

import asyncio
import json

import pytest
from tests.vocabulary.slips import SLIPS

from tallystick.sandbox.host import HostTable
from tallystick.sandbox.port import ExecutionContext
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.vocabulary.check import NORMAL, STRICT, Rules, validate
from tallystick.vocabulary.guest_python import read_python_in
from tallystick.vocabulary.program import Program
from tallystick.vocabulary.terms import Vocabulary, read_thesaurus

DENIED = b"""
{"term": "payroll", "denied": true}
{"term": "crm.delete", "denied": true}
{"term": "os.system", "denied": true}
{"term": "invoice"}
"""
VOCABULARY = Vocabulary(
    functions=["llm_query", "FINAL"],
    tools=["crm.find", "crm.delete", "payroll"],
    thesaurus=read_thesaurus(DENIED, name="terms.jsonl"),
)
GIVEN = {"invoices": ""}
# Stands in for what is denied: it notes that it was reached.
WORLD = """
import os, types
def _reached(*args, **kwargs):
    import builtins
    builtins.reached = True
    return 1
crm = types.SimpleNamespace(delete=_reached, find=_reached)
payroll = os.system = __import__("posix").system = _reached
invoices = []
"""


# To read and to run all of them takes seconds: by default a tenth is.
@pytest.fixture(scope="module", params=[10, pytest.param(1, marks=pytest.mark.slow)])
def slips(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return SLIPS[:: request.param]


@pytest.fixture(scope="module")
def read(slips: tuple[str, ...], sandbox: WasmSandbox) -> dict[str, Program]:
    async def all_read() -> dict[str, Program]:
        return {each: await read_python_in(sandbox, each, given=GIVEN) for each in slips}

    return asyncio.run(all_read())


def test_there_are_three_hundred_of_them() -> None:
    assert len(set(SLIPS)) >= 300


@pytest.mark.parametrize("rules", [NORMAL, STRICT], ids=["normal", "strict"])
def test_each_is_stopped_or_named_as_not_covered(read: dict[str, Program], rules: Rules) -> None:
    passed = []
    for source, program in read.items():
        verdict = validate(program, VOCABULARY, rules)
        if verdict.is_valid and "Not covered by the check: " not in verdict.message:
            passed.append((source, verdict.message))

    assert passed == []


def test_each_of_them_reaches_what_is_denied_when_it_runs(
    slips: tuple[str, ...], sandbox: WasmSandbox
) -> None:
    """Otherwise it would prove nothing that it is stopped."""

    async def all_run() -> list[tuple[str, str]]:
        failed = []
        session = await sandbox.open(session_id="slips")
        context, host = ExecutionContext(session_id="slips"), HostTable()
        await session.execute(WORLD, context=context, host=host)
        image = await session.image()
        for each in slips:
            await session.load(image)
            result = await session.execute(each, context=context, host=host)
            asked = await session.execute("reached", context=context, host=host)
            if asked.value != "True":
                failed.append((each, json.dumps(result.error and result.error.message)))
        await session.close()
        return failed

    assert asyncio.run(all_run()) == []


def test_usual_programs_are_neither_stopped_nor_named(sandbox: WasmSandbox) -> None:
    usual = [
        "rows = [each for each in invoices if each['due'] < 10]\nFINAL(len(rows))",
        "import os, re, json\nprint(os.path.join('a', 'b'), os.getcwd())",
        "found = crm.find('invoice')\nprint(found.name, type(found).__name__)",
        "class A:\n    def __init__(self): self.x = 1\nprint(A().x)",
        "def f(x: int) -> str:\n    return str(x)\nprint(f'{f(1)!r:>10}')",
        "print(getattr(crm, 'find')('invoice'), getattr(invoices, 'index', None))",
        "match invoices:\n    case [{'due': int(due)}, *_]: print(due)",
        "import datetime as dt, collections\nprint(dt.datetime(2026, 1, 1), collections.Counter())",
        "code, trace, gc, inspect = 1, 2, 3, 4\nprint(code, trace.bit_length(), gc, inspect)",
        "import timeit, re\nprint(timeit.default_timer() > 0, re.compile('a').match('a'))",
        "def main(path): return path\nprint(main(1))",
    ]

    async def verdicts() -> list[tuple[bool, str]]:
        made = []
        for each in usual:
            program = await read_python_in(sandbox, each, given=GIVEN)
            verdict = validate(program, VOCABULARY, Rules(ratio_min=0.0))
            made.append((not verdict.unknown_terms, verdict.message))
        return made

    assert asyncio.run(verdicts()) == [(True, "")] * len(usual)
