"""A run as trajectory events: which there are, what they name, and what they leave out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.views.test_run_difference import FAILS, LONG, USAGE, USED, a_run, code, started

from tallystick.core.charge import Charge, Reserved, RunLimits
from tallystick.core.json_text import digest
from tallystick.core.records import (
    AskModel,
    AttachmentRef,
    Caller,
    ChildBegun,
    ChildEnded,
    ModelRefused,
    ModelReplied,
    ProgramFinished,
    QueryAsked,
    QueryRefused,
    QueryReplied,
    Record,
    RunEnded,
    RunForked,
    RunPruned,
    RunResumed,
    StopReason,
)
from tallystick.interop.trajectory import DEPTH_MAX, ChainEntry, trajectory_of
from tallystick.interop.trajectory_events import (
    CHARS_MAX,
    REDACTED,
    TERMINATIONS,
    BudgetWarning,
    CommandExecuted,
    CommandParsed,
    CommandParseFailed,
    CommandStarted,
    Content,
    ErrorSeen,
    HostAnswer,
    LlmCall,
    LlmResponse,
    QueryComplete,
    QueryStart,
    SessionEnd,
    SessionStart,
    Shown,
    Termination,
    TrajectoryEvent,
    decode_event,
    encode_event,
    termination_of,
)

# The tags that other tools know, and how runs end for them.
TAGS = {
    "session_start", "query_start", "llm_call", "llm_response", "command_parsed",
    "command_parse_failed", "command_executed", "query_complete", "session_end",
    "budget_warning", "error", "command_started", "host_answer",
}  # fmt: skip
ENDS = {
    "FinalReached", "FinalVarReached", "TokenBudgetExhausted", "TimeBudgetExhausted",
    "MaxIterationsReached", "RecursionDepthExhausted", "Error", "Cancelled",
}  # fmt: skip
NOTHING = Charge()


def placed(records: Iterable[Record], run: str = "R") -> list[ChainEntry]:
    return [
        ChainEntry(run=run, seq=seq, hash=f"{run}#{seq}", record=record)
        for seq, record in enumerate(records)
    ]


def told(
    records: Iterable[Record],
    children: dict[str, list[Record]] | None = None,
    shown: Shown | None = None,
) -> list[TrajectoryEvent]:
    held = {run: placed(each, run) for run, each in (children or {}).items()}
    return list(trajectory_of(placed(records), children=held.get, shown=shown or Shown()))


def tags(events: Sequence[TrajectoryEvent]) -> list[str]:
    return [json.loads(encode_event(each))["event_type"] for each in events]


def one(events: Sequence[TrajectoryEvent], kind: type[Any]) -> Any:
    (found,) = [each for each in events if isinstance(each, kind)]
    return found


def begun_as(events: Sequence[TrajectoryEvent], begun: str) -> QueryStart:
    (found,) = [each for each in events if isinstance(each, QueryStart) and each.begun == begun]
    return found


def child_of(parent: str, *replies: str, depth: int = 1, **more: Any) -> list[Record]:
    caller = Caller(run=parent, intent=9, item=0, depth=depth)
    return a_run(*replies, caller=caller, goal="a part of it", **more)


def with_child(records: list[Record], name: str = "C", *, twice: bool = False) -> list[Record]:
    """A run whose first program begins a child."""
    begun = ChildBegun(intent=9, program=2, item=0, run=name, request_sha256="d")
    ended = ChildEnded(
        intent=9, item=0, run=name, stop="answered", detail="program", answer="7", partial=False,
        charge=NOTHING, count=6, hash="h",
    )  # fmt: skip
    at = next(n for n, each in enumerate(records) if isinstance(each, ProgramFinished))
    return [*records[:at], begun, *([begun] if twice else []), ended, *records[at:]]


# -- what there is -----------------------------------------------------------------------------


def test_a_run_is_told_from_its_start_to_its_end() -> None:
    events = told(a_run(code("look(1)"), "no idea", code("FINAL(3)")))

    assert tags(events) == [
        "session_start", "query_start",
        "llm_call", "llm_response", "command_parsed",
        "command_started", "host_answer", "command_executed",
        "llm_call", "llm_response", "command_parse_failed",
        "llm_call", "llm_response", "command_parsed", "command_started", "command_executed",
        "query_complete", "session_end",
    ]  # fmt: skip
    assert [each.iteration for each in events] == [0, 0, *[1] * 6, *[2] * 3, *[3] * 7]


def test_every_event_names_the_entry_that_it_came_from() -> None:
    records = a_run(*LONG)
    of = {
        SessionStart: "RunStarted", QueryStart: "RunStarted", LlmCall: "AskModel",
        LlmResponse: "ModelReplied", CommandParsed: "ModelReplied",
        CommandStarted: "RunProgram", CommandExecuted: "ProgramFinished",
        HostAnswer: "HostAnswered", QueryComplete: "RunEnded", SessionEnd: "RunEnded",
    }  # fmt: skip

    for event in told(records):
        assert type(records[event.seq]).__name__ == of[type(event)]
        assert (event.run, event.hash, event.depth) == ("R", f"R#{event.seq}", 0)


def test_only_what_a_record_dates_has_a_time() -> None:
    events = told(a_run(*LONG))

    assert [each.at for each in events[:2]] == [5, 5]
    assert {each.at for each in events[2:]} == {None}


def test_a_call_that_failed_is_an_error_and_its_attempt_is_told() -> None:
    events = told(a_run(FAILS, code("FINAL(3)")))

    error = one(events, ErrorSeen)
    assert (error.of, error.reason, error.transient, error.billed) == (
        "turn",
        "unknown",
        True,
        True,
    )
    assert [each.attempt for each in events if isinstance(each, LlmCall)] == [1, 2]


def test_an_end_by_an_error_is_told_as_one_too() -> None:
    events = told(a_run(code("look(1)")))

    assert tags(events)[-4:] == ["error", "error", "query_complete", "session_end"]
    errors = [each for each in events if isinstance(each, ErrorSeen)]
    assert [each.of for each in errors] == ["turn", "run"]
    assert one(events, QueryComplete).termination_reason == "Error"
    assert not one(events, QueryComplete).success


def test_calls_of_programs_have_their_prompts_and_places() -> None:
    events = told(a_run(code("ask(1)"), code("FINAL(3)")))

    calls = [each for each in events if isinstance(each, LlmCall) and each.call == "query"]
    replies = [each for each in events if isinstance(each, LlmResponse) and each.call == "query"]
    assert [(each.item, each.prompt and each.prompt.text) for each in calls] == [
        (0, "what of 1-0?"),
        (1, "what of 1-1?"),
    ]
    assert sorted(each.text.text or "" for each in replies) == ["it is 1-0", "it is 1-1"]
    assert all(each.model == "small:model" and each.iteration == 1 for each in calls)


def test_a_program_that_failed_is_told_with_its_error() -> None:
    executed = [
        each
        for each in told(a_run(code("fail(3)"), code("FINAL(3)")))
        if isinstance(each, CommandExecuted)
    ]

    assert [each.success for each in executed] == [False, True]
    assert executed[0].error_kind == "ValueError"
    assert executed[0].error is not None
    assert executed[0].error.text == "3"
    assert executed[1].answer is not None
    assert executed[1].answer.text == "3"


def test_the_program_that_ran_is_found_by_its_digest() -> None:
    events = told(a_run(code("look(1)"), code("FINAL(3)")))

    sources = [each.content.sha256 for each in events if isinstance(each, CommandParsed)]
    assert sources == [digest(b"look(1)"), digest(b"FINAL(3)")]
    ran = [each.command_sha256 for each in events if isinstance(each, CommandExecuted)]
    assert ran == sources


@pytest.mark.parametrize(
    ("part", "kind", "share"),
    [("spent:80", "share", 80), ("result:2+spent:95", "share", 95), ("last", "last_turn", None)],
)
def test_what_the_model_is_told_of_its_budget_is_a_warning(
    part: str, kind: str, share: int | None
) -> None:
    asked = AskModel(intent=1, turn=2, base=None, added=("reply:1", part), request_sha256="d")

    warning = one(told([started(), asked]), BudgetWarning)

    assert (warning.kind, warning.share, warning.iteration) == (kind, share, 2)


def test_a_call_that_no_budget_pays_for_is_a_warning_and_no_error() -> None:
    refused = ModelRefused(intent=1, turn=1, message="usd: too dear", dimension="usd", scope="run")

    warning = one(told([started(), refused]), BudgetWarning)

    assert (warning.kind, warning.dimension, warning.scope) == ("refused", "usd", "run")


def test_a_model_that_is_not_for_programs_is_an_error() -> None:
    refused = QueryRefused(intent=4, item=0, attempt=1, message="who?", dimension="model", scope="")

    assert one(told([started(), refused]), ErrorSeen).reason == "refused"


def test_a_run_that_has_not_ended_has_no_end() -> None:
    assert {"query_complete", "session_end"}.isdisjoint(tags(told(a_run(*LONG)[:6])))


def test_a_run_that_was_gone_on_with_ends_once() -> None:
    stopped = RunEnded(
        stop="cancelled", detail="by the user", answer=None, partial=False, charge=NOTHING
    )
    whole = a_run(*LONG)
    again = RunResumed(at=77, fence=2, limits=RunLimits(turns=9))

    events = told([*whole[:6], stopped, again, *whole[6:]])

    assert tags(events).count("session_end") == 1
    ends = [each for each in events if isinstance(each, QueryComplete)]
    assert [each.termination_reason for each in ends] == ["Cancelled", "FinalReached"]
    resumed = begun_as(events, "resumed")
    assert (resumed.at, resumed.limits) == (77, RunLimits(turns=9))


def test_a_fork_is_told_with_what_it_shares_and_its_other_model() -> None:
    whole = a_run(*LONG)
    fork = RunForked(
        parent="R", count=6, hash="R#5", turn=1, at=99, session_id="F", model="other:model"
    )
    entries = [*placed(whole[:6]), *placed([fork, *whole[6:]], run="F")]

    events = list(trajectory_of(entries))

    shared = len(told(whole[:6]))
    assert [each.run for each in events] == ["R"] * shared + ["F"] * (len(events) - shared)
    models = [each.model for each in events if isinstance(each, LlmCall)]
    assert models == ["some:model", "other:model", "other:model"]
    assert one(events, SessionEnd).session_id == "F"


def test_what_is_no_part_of_a_trajectory_has_no_event() -> None:
    pruned = RunPruned(at=1, before=3, removed=2, bytes=9, why="old")

    assert told([started(), pruned]) == told([started()])


# -- children ----------------------------------------------------------------------------------


def test_a_child_is_told_where_its_parent_began_it() -> None:
    records = with_child(a_run(code("look(1)"), code("FINAL(3)")))

    events = told(records, {"C": child_of("R", code("FINAL(7)"))})

    inside = [each for each in events if each.run == "C"]
    assert tags(inside) == [
        "query_start", "llm_call", "llm_response", "command_parsed",
        "command_started", "command_executed", "query_complete",
    ]  # fmt: skip
    assert {each.depth for each in inside} == {1}
    first = events.index(inside[0])
    assert events[first : first + len(inside)] == inside
    assert isinstance(events[first + len(inside)], CommandExecuted)
    assert {each.parent_query for each in inside if isinstance(each, QueryStart)} == {"R"}
    assert tags(events).count("session_start") == tags(events).count("session_end") == 1


def test_a_child_that_is_not_here_is_told_by_its_parent() -> None:
    events = told(with_child(a_run(code("look(1)"), code("FINAL(3)"))))

    begun = begun_as(events, "elsewhere")
    ended = next(each for each in events if isinstance(each, QueryComplete))
    assert (begun.query, begun.parent_query, begun.run, begun.depth) == ("C", "R", "R", 1)
    assert ended.query == "C"
    assert ended.result is not None
    assert ended.result.text == "7"


def test_a_child_alone_knows_its_parent_and_its_depth() -> None:
    events = told(child_of("P", code("FINAL(7)"), depth=3))

    assert {each.depth for each in events} == {3}
    assert one(events, QueryStart).parent_query == "P"
    assert one(events, QueryComplete).parent_query == "P"


def test_a_child_that_was_gone_on_with_is_told_once() -> None:
    records = with_child(a_run(code("look(1)"), code("FINAL(3)")), twice=True)

    events = told(records, {"C": child_of("R", code("FINAL(7)"))})

    assert [each.query for each in events if isinstance(each, QueryStart)] == ["R", "C"]


@pytest.mark.parametrize("name", ["R", "C"])
def test_chains_that_name_each_other_come_to_an_end(name: str) -> None:
    own = with_child(child_of("R", code("look(1)"), code("FINAL(7)")), name)

    events = told(with_child(a_run(code("look(1)"), code("FINAL(3)"))), {"C": own, "R": own})

    assert [each.query for each in events if isinstance(each, QueryStart)] == ["R", "C"]


def test_a_ledger_that_is_too_deep_is_told_as_far_as_runs_go() -> None:
    held = {
        f"C{n}": with_child(child_of("R", code("look(1)"), code("FINAL(7)")), f"C{n + 1}")
        for n in range(DEPTH_MAX + 20)
    }

    events = told(with_child(a_run(code("look(1)"), code("FINAL(3)")), "C0"), held)

    begun = [each for each in events if isinstance(each, QueryStart)]
    assert len(begun) == DEPTH_MAX + 2
    assert [each.begun for each in begun[-1:]] == ["elsewhere"]


# -- how runs end ------------------------------------------------------------------------------


def test_the_tables_have_every_reason_and_every_name() -> None:
    assert set(TERMINATIONS) == set(get_args(StopReason))
    assert set(get_args(Termination)) == ENDS
    assert set(TERMINATIONS.values()) <= ENDS


@pytest.mark.parametrize(
    ("stop", "detail", "name"),
    [
        ("answered", "program", "FinalReached"),
        ("max_turns", "all 30 turns used", "MaxIterationsReached"),
        ("deadline", "300,000 ms passed", "TimeBudgetExhausted"),
        ("cancelled", "by the user", "Cancelled"),
        ("budget", "tokens: 100 allowed, all used", "TokenBudgetExhausted"),
        ("budget", "reply_tokens: none allowed", "TokenBudgetExhausted"),
        ("budget", "depth: 3 needed, 2 left in run", "RecursionDepthExhausted"),
        ("budget", "usd: $1 allowed, all used", "Error"),
        ("budget", "host_calls: 10 allowed", "Error"),
        ("model_error", "it is down", "Error"),
        ("sandbox_error", "it broke", "Error"),
        ("refused", "RUN is not available", "Error"),
        ("in_doubt", "send was begun", "Error"),
        ("no_progress", "the same again", "Error"),
        ("a reason to come", "", "Error"),
    ],
)
def test_an_end_has_a_name_that_others_know(stop: str, detail: str, name: str) -> None:
    assert termination_of(stop, detail) == name


def test_an_answer_from_a_variable_says_which() -> None:
    ran = a_run(code("look(1)"), "FINAL_VAR(total)")
    finished = msgspec.structs.replace(
        [each for each in ran if isinstance(each, ProgramFinished)][-1], answer="3"
    )
    ended = RunEnded(stop="answered", detail="program", answer="3", partial=False, charge=NOTHING)
    # What the made-up world says of that program does not count: it knows no variables.
    until = max(n for n, each in enumerate(ran) if isinstance(each, ProgramFinished))

    end = one(told([*ran[:until], finished, ended]), QueryComplete)

    assert (end.termination_reason, end.variable, end.success) == ("FinalVarReached", "total", True)


# -- content -----------------------------------------------------------------------------------

SECRET = "the-harbour-master"
_QUERY = QueryAsked(
    intent=5, program=2, item=0, attempt=1, model="m", request_sha256="d", tokens_out_max=1,
    reserved=Reserved(tokens_in=1, tokens_out=1), prompt=SECRET,
)  # fmt: skip


def secretive() -> list[Record]:
    """A run in which every text is a secret."""
    records: list[Record] = []
    for record in a_run(code("look(1)"), FAILS, code("fail(2)"), "hm", code("FINAL(3)")):
        fields = {
            name: SECRET
            for name in ("goal", "stdout", "stderr", "value", "answer", "detail", "message")
            if hasattr(record, name)
        }
        if isinstance(record, ModelReplied):
            fields["text"] = code(f"print('{SECRET}')") if "```" in record.text else SECRET
        records.append(msgspec.structs.replace(record, **fields))
        if isinstance(record, ProgramFinished):
            failure = record.failure
            if failure is not None:
                records[-1] = msgspec.structs.replace(
                    records[-1],
                    failure=msgspec.structs.replace(failure, message=SECRET, traceback=SECRET),
                )
    return [*records[:3], _QUERY, *records[3:]]


def contents(value: object) -> list[dict[str, Any]]:
    """Every content in an event, as JSON has it."""
    if isinstance(value, dict):
        own = [value] if set(value) == set(Content.__struct_fields__) else []
        return own + [found for each in value.values() for found in contents(each)]
    return [found for each in value for found in contents(each)] if isinstance(value, list) else []


def test_redacted_events_hold_no_content_but_counts_and_digests() -> None:
    plain = told(secretive())
    redacted = told(secretive(), shown=Shown(redact=True))

    assert tags(redacted) == tags(plain)
    lines = b"\n".join(map(encode_event, redacted))
    assert SECRET.encode() in b"\n".join(map(encode_event, plain))
    assert SECRET.encode() not in lines
    before = [contents(json.loads(encode_event(each))) for each in plain]
    after = [contents(json.loads(encode_event(each))) for each in redacted]
    assert sum(map(len, before)) > 20
    assert [[{**each, "text": REDACTED} for each in found] for found in before] == after


def test_content_is_cut_and_says_so_unless_all_is_asked_for() -> None:
    long = "x" * CHARS_MAX
    whole, cut = Shown().content(long), Shown().content(long + "y")

    assert (whole.text, whole.cut) == (long, False)
    assert (cut.text, cut.cut, cut.chars) == (long, True, CHARS_MAX + 1)
    assert cut.sha256 == digest((long + "y").encode())
    assert Shown(chars_max=None).content(long + "y").text == long + "y"


@pytest.mark.parametrize(("redact", "text"), [(False, "kept apart"), (True, REDACTED)])
def test_what_is_kept_apart_is_read_only_if_it_is_shown(redact: bool, text: str) -> None:
    ref = AttachmentRef(id=digest(b"kept apart"), media_type="text/plain", byte_len=10)
    read: list[AttachmentRef] = []

    def text_of(asked: AttachmentRef) -> str:
        read.append(asked)
        return "kept apart"

    content = Shown(redact=redact, text_of=text_of).stored_content("", ref)

    assert (content.text, content.bytes, content.sha256) == (text, 10, ref.id)
    assert read == ([] if redact else [ref])


def test_what_is_kept_apart_and_gone_has_its_digest() -> None:
    ref = AttachmentRef(id="d", media_type="text/plain", byte_len=10)
    reply = QueryReplied(
        intent=5, item=0, attempt=1, text="", text_ref=ref, usage=USAGE, settled=USED
    )

    text = one(told([started(), reply]), LlmResponse).text

    assert text == Content(text=None, chars=None, bytes=10, sha256="d")


@given(st.text(st.characters(min_codepoint=0, max_codepoint=0x10FFFF), max_size=30))
def test_any_text_can_be_written_and_read_back(text: str) -> None:
    content = Shown(chars_max=20).content(text)
    event = CommandParseFailed(
        run="R", seq=0, hash="h", iteration=0, depth=0, intent=1, problem=content
    )

    assert decode_event(encode_event(event)) == event
    assert content.chars == len(text)


def test_events_can_be_read_back() -> None:
    events = [
        *told(with_child(secretive()), {"C": child_of("R", code("FINAL(7)"))}),
        *told([started(), ModelRefused(intent=1, turn=1, message="", dimension="usd", scope="")]),
    ]

    assert [decode_event(encode_event(each)) for each in events] == events
    assert set(tags(events)) == TAGS
