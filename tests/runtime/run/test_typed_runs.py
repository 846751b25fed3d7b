"""Runs under a schema, and cited runs: live, replayed, resumed and forked, in short and long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.core.errors import UsageError
from tallystick.core.records import Record, RunStarted, decode_record, encode_record
from tallystick.ledger.memory import MemoryLedger
from tallystick.model.scripted import ScriptedModel, ScriptedReply
from tallystick.runtime.context.inputs import Input, given_text
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.text import HostText
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import block
from tallystick.testing.runs import Played, play

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["name", "tons"],
    "properties": {"name": {"type": "string"}, "tons": {"type": "number"}},
}
LOG = "Marble Wren unloaded\n120 tons of salt.\nBaltic Heron left.\n"


def of(played: Played, kind: type[Record]) -> list[Any]:
    return [record for record in played.records if isinstance(record, kind)]


def session_of(sandbox: WasmSandbox, replies: list[str], ledger: MemoryLedger) -> Session:
    model = ScriptedModel([ScriptedReply(text=each) for each in replies])
    return Session(model=model, ledger=ledger, sandbox=sandbox)


@pytest.mark.parametrize(
    ("program", "schema", "answer", "value"),
    [
        ("FINAL({'tons': 2, 'name': 'a'})", SCHEMA, '{"name":"a","tons":2}',
         {"name": "a", "tons": 2}),
        ("FINAL((1, 2.5))", {"type": "array"}, "[1,2.5]", [1, 2.5]),
        ("FINAL(42)", {"type": "integer"}, "42", 42),
        ("FINAL(2**80)", {"type": "integer"}, str(2**80), 2**80),
        ("FINAL('a b')", {"type": "string"}, '"a b"', "a b"),
        ("FINAL(True)", {"type": "boolean"}, "true", True),
        ("FINAL(None)", {"type": "null"}, "null", None),
        ("import json\nFINAL(json.dumps({'tons': 2, 'name': 'a'}))", SCHEMA,
         '{"name":"a","tons":2}', {"name": "a", "tons": 2}),
        ("x = {'b': 1, 'a': [None]}\nFINAL_VAR('x')", {}, '{"a":[null],"b":1}',
         {"a": [None], "b": 1}),
        ("answer['content'] = ['\u00e9']\nanswer['ready'] = True", {}, '["\u00e9"]', ["\u00e9"]),
    ],
)  # fmt: skip
def test_what_a_program_answers_with_is_json_and_a_value(
    sandbox: WasmSandbox, program: str, schema: dict[str, Any], answer: str, value: object
) -> None:
    run = play(sandbox, [block(program)], schema=schema).run

    assert (run.stop, run.answer, run.data) == ("answered", answer, value)


@pytest.mark.parametrize(
    "program",
    [
        "FINAL({'tons': float('nan'), 'name': 'a'})",
        "FINAL({'tons': 1, 'name': {1, 2}})",
        "FINAL({1: 1, '1': 2})",
        "x = []\nfor _ in range(500): x = [x]\nFINAL(x)",
        r"FINAL('{\"name\": \"\\ud800\", \"tons\": 1}')",
        "FINAL('x' * 1000)",
    ],
)
def test_what_is_no_json_is_told_and_asked_for_again(sandbox: WasmSandbox, program: str) -> None:
    good = block("FINAL({'name': 'a', 'tons': 1})")

    played = play(sandbox, [block(program), good], schema=SCHEMA)

    assert (played.run.data, played.run.turns) == ({"name": "a", "tons": 1}, 2)
    assert played.replayed().held


def test_a_run_whose_answers_never_fit_ends_with_the_last_and_replays(sandbox: WasmSandbox) -> None:
    replies = [block(f"FINAL({{'name': {number}}})") for number in range(4)]

    played = play(sandbox, replies, schema=SCHEMA)

    run = played.run
    assert (run.stop, run.answer, run.partial, run.turns) == ("no_progress", '{"name":2}', True, 3)
    assert run.data is None
    assert played.replayed().held
    assert of(played, RunStarted)[0].schema == json.dumps(SCHEMA, separators=(",", ":"))


def test_a_typed_run_is_resumed_and_forked_under_its_schema(sandbox: WasmSandbox) -> None:
    ledger = MemoryLedger()
    bad, good = block("FINAL({'name': 1})"), block("FINAL({'name': 'a', 'tons': 1})")
    with session_of(sandbox, [bad, good], ledger) as session:
        stopped = session.run("what?", schema=SCHEMA, limits=RunLimits(turns=1))
        assert (stopped.stop, stopped.answer) == ("no_progress", '{"name":1}')
        resumed = session.resume(stopped.run, limits=RunLimits(turns=3))
        assert resumed.data == {"name": "a", "tons": 1}
        assert session.replay(stopped.run).held
        assert session.resume(stopped.run) == resumed
    with session_of(sandbox, [bad, good], ledger) as session:
        forked = session.fork(stopped.run, turn=0, limits=RunLimits(turns=5))
        assert (forked.turns, forked.data) == (2, {"name": "a", "tons": 1})


def test_a_bad_schema_is_refused_before_anything_is_written(sandbox: WasmSandbox) -> None:
    ledger = MemoryLedger()
    with session_of(sandbox, [], ledger) as session:
        with pytest.raises(UsageError, match="'not' is not supported"):
            session.run("what?", schema={"not": {"const": "a"}})
        assert list(ledger.runs()) == []


def test_a_child_run_has_no_schema(sandbox: WasmSandbox) -> None:
    program = block("FINAL({'name': rlm_query('who?', 'text'), 'tons': 1})")

    played = play(
        sandbox, [program, block("FINAL('somebody')")], schema=SCHEMA, strategy="recursive"
    )

    assert played.run.data == {"name": "somebody", "tons": 1}


def test_an_old_start_has_no_schema_and_is_read() -> None:
    start = RunStarted(
        goal="g", model="m", limits=RunLimits(), grants=(), contexts=(), functions=(), texts=(),
        seed=0, clock_ns=0, session_id="s", template="t", guest="g", engine="e", started_at=0,
    )  # fmt: skip
    body = json.loads(encode_record(start))
    del body["schema"]

    assert decode_record(json.dumps(body).encode()) == start


# -- citations ---------------------------------------------------------------------------------

QUOTED = (
    'It says "Marble Wren unloaded 120 tons of salt" (log.txt, lines 1-2), "the crew was never '
    'seen again", and more [log.txt:9].'
)


def cited_run(sandbox: WasmSandbox, text: HostText, answer: str = QUOTED) -> tuple[Run, Played]:
    given = [Input(name="in/log.txt", text=text), given_text("nothing here\n", name="b.txt")]
    replies = [block(f"print(len(context), {answer!r})"), block(f"FINAL({answer!r})")]
    played = play(sandbox, replies, inputs=given)
    return played.run, played


def assert_cited(run: Run) -> None:
    (citation,) = run.citations
    assert (citation.name, citation.lines) == ("in/log.txt", "1-2")
    assert citation.quote == "Marble Wren unloaded\n120 tons of salt"
    assert [each.why for each in run.unchecked][:1] == ["stands nowhere in the data"]
    assert len(run.unchecked) == 2


def test_claims_are_checked_against_what_the_run_was_given(sandbox: WasmSandbox) -> None:
    run, played = cited_run(sandbox, HostText(LOG.encode()))

    assert_cited(run)
    assert run.unchecked[1].why == "in/log.txt has 3 lines"
    # One that is looked at again says the same.
    assert played.session.resume(run.run) == run
    assert played.replayed().held


def test_claims_about_texts_that_stay_on_the_host_are_checked_in_place(
    sandbox: WasmSandbox, tmp_path: Path
) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(LOG.encode() + b"x\xff\n" * 2_000_000)

    run, played = cited_run(sandbox, HostText.open(path))

    assert of(played, RunStarted)[0].texts
    assert [(each.name, each.lines, each.quote) for each in run.citations] == [
        ("in/log.txt", "1-2", "Marble Wren unloaded\n120 tons of salt"),
        ("in/log.txt", "9", "x\ufffd"),
    ]
    assert [each.why for each in run.unchecked] == ["stands nowhere in the data"]
    assert played.session.resume(run.run) == run


def test_a_computed_answer_has_neither(sandbox: WasmSandbox) -> None:
    run, _ = cited_run(sandbox, HostText(LOG.encode()), "42")

    assert (run.citations, run.unchecked) == ((), ())


def test_a_partial_answer_claims_nothing(sandbox: WasmSandbox) -> None:
    shown = block("print('\"four words that stand nowhere\" [b.txt:9]')")

    run = play(sandbox, [shown], inputs=[given_text(LOG, name="b.txt")],
               limits=RunLimits(turns=1)).run  # fmt: skip

    assert run.partial
    assert run.unchecked == ()
