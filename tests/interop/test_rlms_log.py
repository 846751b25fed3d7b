"""Logs of another runtime, taken in: what becomes of them, and what is refused."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.attachments.memory import MemoryAttachments
from tallystick.core.chain import Sealed
from tallystick.core.errors import RecordUnreadable, RunNotOwned, TransferRefused
from tallystick.core.json_text import digest
from tallystick.core.records import (
    AskModel,
    ChildBegun,
    ChildEnded,
    ModelReplied,
    ProgramFinished,
    QueryAsked,
    QueryFailed,
    QueryReplied,
    Record,
    RunEnded,
    RunProgram,
    RunStarted,
)
from tallystick.core.resume_errors import ResumeRefused
from tallystick.interop import rlms, rlms_format
from tallystick.interop.rlms import ImportedLog, import_rlms_log
from tallystick.interop.trajectory import export_trajectory
from tallystick.interop.trajectory_events import decode_event
from tallystick.ledger.memory import MemoryLedger
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.transfer import export_run, import_run
from tallystick.ledger.verify import verify_ledger
from tallystick.runtime.runs.history import records_of, refuse_foreign

Json = dict[str, Any]
GOAL = "How many words?"


# -- logs in the shape that the other runtime writes ---------------------------------------------


def metadata(**more: Any) -> Json:
    return {
        "type": "metadata", "timestamp": "2026-01-02T03:04:05.678901", "root_model": "gpt-x",
        "max_depth": 2, "max_iterations": 3, "backend": "openai",
        "backend_kwargs": {"model_name": "gpt-x", "base_url": "http://secret.example/v1"},
        "environment_type": "local", "environment_kwargs": {}, "other_backends": None, **more,
    }  # fmt: skip


def iteration(number: int, *blocks: Json, answer: str | None = None, **more: Any) -> Json:
    said = "".join(f"\n```repl\n{each['code']}\n```" for each in blocks)
    return {
        "type": "iteration", "iteration": number, "timestamp": f"2026-01-02T03:04:{5 + number:02}",
        "prompt": [
            {"role": "system", "content": "Some fixed part."},
            {"role": "user",
             "content": f"Answer the following: {GOAL}\n\nYour context is a str of 5 characters."},
            {"role": "user", "content": f"Turn {number}"},
        ],
        "response": f"Let me see.{said}", "code_blocks": list(blocks), "final_answer": answer,
        "iteration_time": 1.5, **more,
    }  # fmt: skip


def ran(code: str, *calls: Json, answer: str | None = None, **more: Any) -> Json:
    result = {
        "stdout": "", "stderr": "", "locals": {"context": "hello", "x": 1}, "execution_time": 0.25,
        "rlm_calls": list(calls), "final_answer": answer, **more,
    }  # fmt: skip
    return {"code": code, "result": result}


def usage(calls: int = 1, tokens_in: int = 11, tokens_out: int = 3, **more: Any) -> Json:
    line = {
        "total_calls": calls, "total_input_tokens": tokens_in, "total_output_tokens": tokens_out,
        **more,
    }  # fmt: skip
    return {"model_usage_summaries": {"gpt-x": line}}


def call(prompt: object, response: str, **more: Any) -> Json:
    return {
        "root_model": "gpt-x", "prompt": prompt, "response": response, "usage_summary": usage(),
        "execution_time": 0.125, **more,
    }  # fmt: skip


def inside(prompt: str, answer: str, *iterations: Json, **more: Any) -> Json:
    """A call that was a run of its own."""
    own = {key: each for key, each in metadata().items() if key not in ("type", "timestamp")}
    found = iterations or (iteration(1, ran("ready()", answer=answer), answer=answer),)
    nested = {"run_metadata": own, "iterations": list(found)}
    return call(
        prompt, answer, metadata=nested, usage_summary=usage(2, 900, 40, total_cost=0.5), **more
    )


def log(*lines: object) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in lines)


SMALL = log(
    metadata(),
    iteration(1, ran("print(len(context))", stdout="5\n")),
    iteration(2, ran("ready()", answer="42"), answer="42"),
)


def taken_in(data: bytes, ledger: Any = None) -> tuple[ImportedLog, Any]:
    ledger = ledger or MemoryLedger()
    return import_rlms_log(ledger, io.BytesIO(data), name="a.jsonl"), ledger


def the_run(data: bytes) -> list[Record]:
    imported, ledger = taken_in(data)
    (run,) = imported.runs
    return list(records_of(ledger, run.run))


def of(records: list[Record], kind: type[Any]) -> list[Any]:
    return [each for each in records if isinstance(each, kind)]


# -- what a log becomes --------------------------------------------------------------------------


def test_an_iteration_is_a_turn_and_a_block_is_a_program() -> None:
    records = the_run(SMALL)

    assert [type(each).__name__ for each in records] == [
        "RunStarted",
        "AskModel", "ModelReplied", "RunProgram", "ProgramFinished",
        "AskModel", "ModelReplied", "RunProgram", "ProgramFinished",
        "RunEnded",
    ]  # fmt: skip
    assert [each.turn for each in of(records, ModelReplied)] == [1, 2]
    assert of(records, ModelReplied)[0].text.startswith("Let me see.\n```repl")
    assert of(records, RunProgram)[0].sha256 == digest(b"print(len(context))")
    assert [each.stdout for each in of(records, ProgramFinished)] == ["5\n", ""]
    assert [each.answer for each in of(records, ProgramFinished)] == [None, "42"]
    assert [each.intent for each in of(records, AskModel)] == [1, 3]


def test_a_run_says_what_the_log_says_and_where_it_came_from() -> None:
    started = the_run(SMALL)[0]

    assert isinstance(started, RunStarted)
    assert (started.goal, started.model) == (GOAL, "openai:gpt-x")
    assert (started.limits.turns, started.limits.depth) == (3, 2)
    assert (started.template, started.guest, started.engine) == ("rlms-log", "", "")
    # One second and a half before its first iteration ended, as if that were in UTC.
    assert started.started_at == 1767323044500
    (source,) = started.contexts
    assert (source.name, source.sha256, source.bytes, source.chars) == (
        "rlms-log", digest(SMALL), len(SMALL), len(SMALL.decode()),
    )  # fmt: skip


def test_what_it_was_made_with_is_not_kept_but_for_the_model() -> None:
    _, ledger = taken_in(SMALL)

    bodies = b"".join(each.body for row in ledger.runs() for each in ledger.read(row.run))
    assert b"secret.example" not in bodies
    assert b"Some fixed part" not in bodies


def test_a_request_has_the_digest_of_the_prompt_in_the_log_and_is_marked() -> None:
    first, second = of(the_run(SMALL), AskModel)
    (again, _) = of(the_run(SMALL.replace(b"gpt-x", b"gpt-y")), AskModel)

    assert first.request_sha256.startswith("rlms:")
    assert len(first.request_sha256) == len("rlms:") + 64
    assert first.request_sha256 != second.request_sha256
    assert first.request_sha256 == again.request_sha256


def test_a_log_without_a_question_says_so() -> None:
    asked = [{"role": "system", "content": "x"}, {"role": "user", "content": "Look at it."}]

    for prompt in (asked, "a text", [], {"a": 1}, None):
        started = the_run(log(metadata(), iteration(1, prompt=prompt)))[0]
        assert isinstance(started, RunStarted)
        assert started.goal == "(the log does not say)"


def test_the_answer_of_the_last_iteration_is_the_answer() -> None:
    ended = the_run(SMALL)[-1]

    assert isinstance(ended, RunEnded)
    assert (ended.stop, ended.answer, ended.partial) == ("answered", "42", False)
    assert ended.detail == "from a log of rlms"
    assert (ended.charge.turns, ended.charge.wall_ms, ended.charge.usd) == (2, 3_000, None)


def test_an_answer_after_all_turns_is_partial() -> None:
    turns = [iteration(number) for number in (1, 2, 3)]
    ended = the_run(log(metadata(), *turns, iteration(4, answer="well", iteration_time=None)))[-1]

    assert isinstance(ended, RunEnded)
    assert (ended.stop, ended.answer, ended.partial) == ("max_turns", "well", True)


def test_a_log_that_breaks_off_is_a_run_without_an_end() -> None:
    assert not of(the_run(log(metadata(), iteration(1))), RunEnded)


def test_calls_of_a_block_stand_in_it_with_their_usage() -> None:
    calls = [call("one?", "1", usage_summary=usage(total_cost=0.00012)), call("two?", "2")]
    records = the_run(log(metadata(), iteration(1, ran("ask()", *calls)), iteration(2, answer="")))

    names = [type(each).__name__ for each in records[3:9]]
    assert names == [
        "RunProgram", "QueryAsked", "QueryReplied", "QueryAsked", "QueryReplied", "ProgramFinished",
    ]  # fmt: skip
    asked, replied = of(records, QueryAsked), of(records, QueryReplied)
    assert [each.prompt for each in asked] == ["one?", "two?"]
    assert [each.model for each in asked] == ["openai:gpt-x"] * 2
    assert {each.program for each in asked} == {records[3].intent}  # type: ignore[union-attr]
    assert [(each.text, each.settled.usd) for each in replied] == [("1", 120_000), ("2", None)]
    assert [each.usage.tokens_in for each in replied] == [11, 11]
    charge = of(records, RunEnded)[0].charge
    assert (charge.model_calls, charge.tokens_in, charge.tokens_out) == (4, 22, 6)
    assert (charge.host_calls, charge.usd) == (2, 120_000)


def test_usage_that_is_not_in_the_log_is_said_to_be_missing() -> None:
    silent = call("one?", "1", usage_summary={"model_usage_summaries": {}})
    records = the_run(log(metadata(), iteration(1, ran("ask()", silent))))

    for event in [*of(records, ModelReplied), *of(records, QueryReplied)]:
        assert not event.usage.reported
        assert event.settled.flags == ("usage_missing",)


def test_a_call_that_failed_is_a_failure() -> None:
    failed = call("one?", "", error="llm() call failed", usage_summary=None)
    (event,) = of(the_run(log(metadata(), iteration(1, ran("ask()", failed)))), QueryFailed)

    assert event.message == "llm() call failed"


def test_a_call_of_messages_has_their_json_for_a_prompt() -> None:
    messages = [{"role": "user", "content": "hm?"}]
    (asked,) = of(the_run(log(metadata(), iteration(1, ran("x", call(messages, "1"))))), QueryAsked)

    assert json.loads(asked.prompt) == messages


@pytest.mark.parametrize(
    ("stderr", "kind", "message"),
    [
        ("\nZeroDivisionError: division by zero", "ZeroDivisionError", "division by zero"),
        ("\nBadLuck: two\nlines", "BadLuck", "two\nlines"),
        ("it warns\n\nKeyError: 'x'", "KeyError", "'x'"),
        ("it warns\nnote: nothing", None, None),
        ("a ValueError: in the middle\n", None, None),
        ("", None, None),
    ],
)
def test_what_a_block_raised_is_known_by_the_end_of_its_errors(
    stderr: str, kind: str | None, message: str | None
) -> None:
    (finished,) = of(
        the_run(log(metadata(), iteration(1, ran("x", stderr=stderr)))), ProgramFinished
    )

    assert finished.stderr == stderr
    if kind is None:
        assert finished.failure is None
    else:
        assert (finished.failure.kind, finished.failure.message) == (kind, message)


def test_several_completions_of_one_file_are_several_runs() -> None:
    again = [iteration(1, ran("a")), iteration(2, answer="b")]
    other = metadata(root_model="gpt-y")
    imported, ledger = taken_in(SMALL + log(*again) + log(other, *again))

    assert len(imported.runs) == len({each.run for each in imported.runs}) == 3
    starts = [next(iter(records_of(ledger, each.run))) for each in imported.runs]
    assert [getattr(each, "model", "") for each in starts] == [
        "openai:gpt-x", "openai:gpt-x", "openai:gpt-y",
    ]  # fmt: skip


# -- runs inside ---------------------------------------------------------------------------------

DEEP = log(
    metadata(),
    iteration(1, ran("rlm_query('part')", inside(
        "part", "7",
        iteration(1, ran("rlm_query('less')", inside("less", "3"))),
        iteration(2, ran("ready()", answer="7"), answer="7"),
    ))),
    iteration(2, ran("ready()", answer="42"), answer="42"),
)  # fmt: skip


def test_a_run_inside_a_call_has_a_chain_of_its_own() -> None:
    imported, ledger = taken_in(DEEP)
    (root,) = imported.runs

    assert root.children == 2
    records = list(records_of(ledger, root.run))
    (begun,), (ended,) = of(records, ChildBegun), of(records, ChildEnded)
    child = list(records_of(ledger, begun.run))
    started = child[0]
    assert isinstance(started, RunStarted)
    assert started.caller is not None
    assert (started.goal, started.caller.run, started.caller.depth) == ("part", root.run, 1)
    assert started.caller.intent == begun.intent
    row = ledger.row(begun.run)
    assert row is not None
    assert (ended.count, ended.hash) == (row.head.count, row.head.hash)
    assert (ended.answer, ended.charge) == ("7", child[-1].charge)  # type: ignore[union-attr]
    assert (ended.charge.tokens_in, ended.charge.usd) == (900, 500_000_000)


def test_the_one_that_others_are_inside_of_comes_last_in_the_ledger() -> None:
    imported, ledger = taken_in(DEEP)

    assert ledger.runs()[-1].run == imported.runs[0].run
    assert len(ledger.runs()) == 3


def test_a_trajectory_of_it_has_the_runs_inside_where_they_were_begun() -> None:
    imported, ledger = taken_in(DEEP)

    written = io.BytesIO()
    export_trajectory(ledger, MemoryAttachments(), imported.runs[0].run, written)
    events = [decode_event(line) for line in written.getvalue().splitlines()]

    assert [depth for depth, _ in groupby(each.depth for each in events)] == [0, 1, 2, 1, 0]
    assert len({each.run for each in events}) == 3


@pytest.mark.parametrize("place", [0, 1])
def test_a_record_that_cannot_be_read_is_named(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    imported, ledger = taken_in(SMALL)
    run, read = imported.runs[0].run, ledger.read

    def damaged(run: str, **spans: int | None) -> Iterator[Sealed]:
        for seq, entry in enumerate(read(run, **spans)):
            yield msgspec.structs.replace(entry, body=b"{}") if seq == place else entry

    monkeypatch.setattr(ledger, "read", damaged)
    with pytest.raises(RecordUnreadable, match=f"entry {place} of run {run} cannot be read"):
        export_trajectory(ledger, MemoryAttachments(), run, io.BytesIO())


# -- the chain -----------------------------------------------------------------------------------


def test_the_chains_hold() -> None:
    _, ledger = taken_in(DEEP)

    assert verify_ledger(ledger).ok


def test_nobody_goes_on_with_it() -> None:
    imported, ledger = taken_in(SMALL)

    with pytest.raises(RunNotOwned):
        ledger.claim(imported.runs[0].run, create=False)


def test_it_says_why_it_is_neither_replayed_nor_gone_on_with() -> None:
    started = the_run(SMALL)[0]
    assert isinstance(started, RunStarted)

    with pytest.raises(ResumeRefused, match="run R came from a log of rlms"):
        refuse_foreign("R", started)
    refuse_foreign("R", msgspec.structs.replace(started, template="python@2"))


def test_the_same_log_gives_the_same_chains_everywhere() -> None:
    one, here = taken_in(DEEP)
    other, there = taken_in(DEEP)

    assert one == other
    assert here.runs() == there.runs()
    assert here.runs() != taken_in(DEEP + b"\n")[1].runs()


def test_salts_are_not_the_same_from_run_to_run_or_place_to_place() -> None:
    _, ledger = taken_in(DEEP)

    salts = [each.salt for row in ledger.runs() for each in ledger.read(row.run)]
    assert len(set(salts)) == len(salts)


def test_a_log_that_is_here_is_left_as_it_is() -> None:
    _, ledger = taken_in(DEEP)
    before = ledger.runs()

    again, _ = taken_in(DEEP, ledger)

    assert [each.new for each in again.runs] == [False]
    assert ledger.runs() == before


def test_what_a_cut_left_out_is_taken_in_the_next_time() -> None:
    """Runs are adopted one by one: a process may die between two of them."""
    imported, ledger = taken_in(DEEP)
    whole = ledger.runs()
    ledger.remove(imported.runs[0].run)

    again, _ = taken_in(DEEP, ledger)

    assert [each.new for each in again.runs] == [True]
    assert ledger.runs() == whole


def test_it_can_be_exported_and_imported_like_any_run(tmp_path: Path) -> None:
    imported, ledger = taken_in(SMALL)
    run = imported.runs[0].run
    export_run(ledger, run, tmp_path / "a.tally")

    other = SqliteLedger(tmp_path / "ledger.db")
    with other:
        assert import_run(other, tmp_path / "a.tally") == run
        assert verify_ledger(other).ok


# -- what is refused -----------------------------------------------------------------------------


def changed(change: Callable[[Json], None], at: int = 1) -> bytes:
    lines = [json.loads(each) for each in DEEP.splitlines()]
    change(lines[at])
    return log(*lines)


def in_block(name: str, value: object) -> bytes:
    return changed(lambda line: line["code_blocks"][0]["result"].update({name: value}))


def in_call(name: str, value: object) -> bytes:
    return changed(
        lambda line: line["code_blocks"][0]["result"]["rlm_calls"][0].update({name: value})
    )


def nested(depth: int) -> bytes:
    found = inside("bottom", "0")
    for number in range(depth - 1):
        found = inside(f"{number}", "0", iteration(1, ran("x", found), answer="0"))
    return log(metadata(), iteration(1, ran("x", found)))


HOSTILE: dict[str, tuple[bytes, str]] = {
    "nothing": (b"{}", "line 1: Object missing required field `type`"),
    "blank lines": (b" \n\n", "it has no iteration"),
    "only its metadata": (log(metadata()), "it has no iteration"),
    "no metadata": (log(iteration(1)), "line 1: it does not begin with its metadata"),
    "a list": (b"{\n[1]", "line 1"),
    "no JSON": (log(metadata()) + b"{'type': 1}\n", "line 2: JSON is malformed"),
    "half a line": (SMALL[:-20], "line 3: "),
    "another type": (log({"type": "surprise"}), "line 1: Invalid value 'surprise'"),
    "a type with a colour": (log({"type": "\x1b[31m"}), "line 1: Invalid value '?[31m'"),
    "a field too few": (changed(lambda line: line.pop("response")), "line 2: Object missing"),
    "a number for a text": (changed(lambda line: line.update(response=5)), "line 2: Expected"),
    "a text for a number": (in_block("execution_time", "fast"), "line 2: Expected"),
    "a list for a text": (in_block("stdout", ["a"]), "line 2: Expected"),
    "true for a number": (changed(lambda line: line.update(iteration=True)), "line 2: Expected"),
    "blocks that are none": (changed(lambda line: line.update(code_blocks={})), "line 2: Expected"),
    "no number": (in_block("execution_time", float("nan")), "line 2: Expected"),
    "no end of a number": (in_call("usage_summary", usage(total_cost=float("inf"))), "line 2"),
    "time that runs back": (in_block("execution_time", -1.0), "line 2: Expected"),
    "tokens below zero": (in_call("usage_summary", usage(tokens_in=-5)), "line 2: Expected"),
    "tokens without end": (in_call("usage_summary", usage(tokens_in=10**30)), "line 2: Expected"),
    "tokens that add up": (
        log(
            metadata(),
            iteration(
                1, ran("x", *[call("?", "", usage_summary=usage(tokens_in=1 << 53))] * 3_000)
            ),
            iteration(2, answer="a"),
        ),
        "line 3: its figures add up to more than can be kept",
    ),
    "digits without end": (
        SMALL.replace(b'"max_depth": 2', b'"max_depth": ' + b"9" * 9_999),
        "1: ",
    ),
    "half a character": (in_block("stdout", "\ud800"), "line 2"),
    "no text": (SMALL.replace(b"print", b"pri\xff\xfent"), "line 2"),
    "too deep": (SMALL.replace(b'"x": 1', b'"x": ' + b"[" * 99_999), "line 2: it is nested too"),
    "quotes that nothing closes": (
        log(metadata()) + b'{"type":"iteration","x":NaN,"y":"' + b'\\"' * 500_000,
        "line 2: ",
    ),
    "a long name": (log(metadata(root_model="x" * 1_001)), "line 1: Expected"),
    "a turn left out": (
        log(metadata(), iteration(1), iteration(3)),
        "3: iteration 3 where 2 was expected",
    ),
    "a turn before the first": (
        log(metadata(), iteration(0)),
        "2: iteration 0 where 1 was expected",
    ),
    "on after the answer": (log(metadata(), iteration(1, answer="a"), iteration(2)), "line 3: an"),
    "no time": (changed(lambda line: line.update(timestamp="noon")), "line 2: its timestamp"),
    "a time to come": (log(metadata(), iteration(1, timestamp="9999-01-01")), "line 2: its times"),
    "a time before": (log(metadata(), iteration(1, timestamp="1812-01-01")), "line 2: its times"),
    "runs too deep": (nested(17), "line 2: runs are nested more than 16 deep"),
    "an empty run inside": (
        in_call("metadata", {"run_metadata": metadata(), "iterations": []}),
        "line 2: a run inside it has no iteration",
    ),
    "a run inside without end": (
        in_call("metadata", {"run_metadata": metadata(), "iterations": [iteration(1)]}),
        "line 2: a run inside it has no final answer",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_does_not_fit_is_refused_in_a_line_and_nothing_is_kept(name: str) -> None:
    data, said = HOSTILE[name]
    ledger = MemoryLedger()

    with pytest.raises(TransferRefused) as refused:
        taken_in(data, ledger)

    told = str(refused.value)
    assert told.startswith("a.jsonl: ")
    assert said in told
    assert told.endswith("; nothing was imported")
    assert told.isprintable()
    assert len(told) < 400
    assert ledger.runs() == []


def test_a_good_log_may_be_as_deep_as_is_allowed() -> None:
    imported, ledger = taken_in(nested(16))

    assert imported.runs[0].children == 16
    assert verify_ledger(ledger).ok


def test_a_variable_may_hold_what_is_no_number() -> None:
    line = json.dumps(
        iteration(1, ran("x", locals={"a": float("nan"), "b": [float("-inf"), 'NaN "NaN"']}))
    )

    assert "-Infinity" in line
    records = the_run(log(metadata()) + line.encode() + b"\n")
    assert len(of(records, ProgramFinished)) == 1


@pytest.mark.parametrize(
    ("module", "name", "limit", "said"),
    [
        (rlms, "FILE_BYTES_MAX", len(DEEP) - 1, "it has more than"),
        (rlms_format, "LINE_BYTES_MAX", 900, "a.jsonl: line 2: it has more than 900 bytes"),
        (rlms_format, "CONSTANTS_MAX", 0, "line 2: more than 0 of its values are no numbers"),
        (rlms, "ENTRIES_MAX", 12, "line 2: it would make more than 12 entries"),
        (rlms, "BODY_BYTES_MAX", 500, "line 2: a text in it is too long to be kept"),
    ],
)
def test_limits_are_where_they_say(
    module: Any, name: str, limit: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, limit)
    ledger = MemoryLedger()
    data = DEEP.replace(b'"x": 1', b'"x": NaN') if name == "CONSTANTS_MAX" else DEEP

    with pytest.raises(TransferRefused, match=said):
        taken_in(data, ledger)

    assert ledger.runs() == []


def test_exactly_at_a_limit_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rlms, "FILE_BYTES_MAX", len(DEEP))
    monkeypatch.setattr(rlms_format, "LINE_BYTES_MAX", max(map(len, DEEP.splitlines(True))))

    assert taken_in(DEEP)[0].runs


def test_what_can_be_read_once_only_is_taken_in_the_same() -> None:
    reading, writing = os.pipe()

    def write() -> None:
        with os.fdopen(writing, "wb") as file:
            file.write(DEEP)

    thread = threading.Thread(target=write)
    thread.start()
    ledger = MemoryLedger()
    with os.fdopen(reading, "rb") as file:
        import_rlms_log(ledger, file, name="a pipe")
    thread.join()

    assert ledger.runs() == taken_in(DEEP)[1].runs()


class Changing(io.BytesIO):
    """Something else when it is read for the second time."""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with self.getbuffer() as held:
            held[:] = bytes(held).replace(b"hello", b"HELLO")
        return super().seek(offset, whence)


def test_a_file_that_changes_while_it_is_read_is_refused() -> None:
    ledger = MemoryLedger()

    with pytest.raises(TransferRefused, match="it changed while it was read"):
        import_rlms_log(ledger, Changing(DEEP), name="a.jsonl")

    assert ledger.runs() == []


@given(
    cuts=st.lists(
        st.tuples(
            st.integers(0, len(DEEP)),
            st.integers(0, 40),
            st.sampled_from([b"", b'"', b"{", b"]", b"null", b"-1", b"NaN", b"\\ud800", b"\n"]),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_any_damage_is_refused_or_gives_chains_that_hold(
    cuts: list[tuple[int, int, bytes]],
) -> None:
    data = DEEP
    for start, length, instead in cuts:
        data = data[:start] + instead + data[start + length :]
    ledger = MemoryLedger()

    try:
        taken_in(data, ledger)
    except TransferRefused:
        assert ledger.runs() == []
    else:
        assert verify_ledger(ledger).ok
