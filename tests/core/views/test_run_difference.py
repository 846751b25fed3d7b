"""Two runs compared by their records: what is the same, what is not, and where they part."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.core.charge import ModelUsage, Reserved, RunLimits, Settled
from tallystick.core.json_text import digest
from tallystick.core.machine.machine import advance, begin
from tallystick.core.machine.state import Phase
from tallystick.core.machine.turn import program_of
from tallystick.core.records import (
    AskModel,
    AttachmentRef,
    CheckProgram,
    Event,
    HostAnswered,
    InputRef,
    ModelFailed,
    ModelReplied,
    ProgramFailure,
    ProgramFinished,
    QueryAsked,
    QueryReplied,
    ReceiptIssued,
    Record,
    RunEnded,
    RunForked,
    RunProgram,
    RunPruned,
    RunResumed,
    RunStarted,
)
from tallystick.core.views.difference import RunDifference, TurnDifference, difference_of
from tallystick.core.views.receipt import Tally

EXAMPLES = settings().max_examples // 2
FAILS = "(the model fails)"
USED = Settled(figures="reported", tokens_in=10, tokens_out=2, usd=1_000)
USAGE = ModelUsage(tokens_in=10, tokens_out=2, reported=True)
DIES = 6  # records of `LONG` that a run leaves which dies as its second turn begins


def code(source: str) -> str:
    return f"```python\n{source}\n```"


LONG = (code("look(1)"), code("look(2)"), code("FINAL(3)"))


def started(**more: Any) -> RunStarted:
    given: dict[str, Any] = {
        "goal": "what is it?", "model": "some:model", "limits": RunLimits(), "grants": (),
        "contexts": (), "functions": (("look", "look(x)"),), "texts": (), "seed": 0,
        "clock_ns": 1, "session_id": "S", "template": "python@2", "guest": "g", "engine": "e",
        "started_at": 5,
    }  # fmt: skip
    return RunStarted(**{**given, **more})


def a_run(*replies: str, answers: str = "", **more: Any) -> list[Record]:
    """The records of a run in a made-up world, in which programs call `name(number)`.

    `ask` asks a model, `fail` raises, FINAL answers, any other name is a host function's. `answers`
    is put into what the world says.
    """
    begun = started(**more)
    records: list[Record] = [begun]
    said = iter(replies)
    state, intents = begin(begun)
    while state.phase not in (Phase.ENDING, Phase.DONE):
        (intent,) = intents
        assert not isinstance(intent, CheckProgram)
        records.append(intent)
        if isinstance(intent, AskModel):
            events: list[Record] = [reply(intent, next(said, None))]
        else:
            assert isinstance(intent, RunProgram)
            events = outcome(intent, program_of(state), answers)
        for event in events:
            records.append(event)
            if not isinstance(event, QueryAsked):
                state, intents = advance(state, event)  # type: ignore[arg-type]
    assert state.ended is not None
    return [*records, state.ended]


def reply(asked: AskModel, text: str | None) -> Event:
    if text is None or text == FAILS:
        return ModelFailed(
            intent=asked.intent, turn=asked.turn, reason="unknown", message="it is down",
            kind="transient" if text else "terminal", usage=USAGE, settled=USED,
        )  # fmt: skip
    return ModelReplied(
        intent=asked.intent, turn=asked.turn, text=text, usage=USAGE, settled=USED, wall_ms=3
    )


def outcome(run: RunProgram, source: str, answers: str) -> list[Record]:
    made: list[Record] = []
    answer = failure = None
    for at, (name, number) in enumerate(re.findall(r"(\w+)\((\d+)\)", source)):
        intent = 1_000 * run.intent + at
        sha256 = digest(number.encode())
        if name == "FINAL":
            answer = number + answers
        elif name == "fail":
            failure = ProgramFailure(kind="ValueError", message=number, traceback=f"at {number}")
        else:
            made += queries(intent, run.intent, number, answers) if name == "ask" else []
            made.append(HostAnswered(
                intent=intent, program=run.intent, index=at, name=name, request_sha256=sha256,
                fuel=at, reply=(number + answers).encode(), ok=True,
            ))  # fmt: skip
    finished = ProgramFinished(
        intent=run.intent, turn=run.turn, stop="finished", stdout=f"ran\n{source}\n", stderr="",
        value=None, failure=failure, answer=answer, names_restored=(), fuel=100,
        host_calls=len(made), truncated=False, wall_ms=2,
    )  # fmt: skip
    return [*made, finished]


def queries(intent: int, program: int, number: str, answers: str) -> list[Record]:
    """A batch of two, answered in an order that the number decides."""
    asked: list[Record] = [
        QueryAsked(
            intent=intent, program=program, item=item, attempt=1, model="small:model",
            request_sha256=digest(f"{number}-{item}".encode()), tokens_out_max=9,
            reserved=Reserved(tokens_in=9, tokens_out=9), prompt=f"what of {number}-{item}?",
        ) for item in (0, 1)
    ]  # fmt: skip
    replied: list[Record] = [
        QueryReplied(
            intent=intent, item=item, attempt=1, text=f"it is {number}-{item}{answers}",
            usage=USAGE, settled=USED,
        ) for item in (0, 1)
    ]  # fmt: skip
    return asked + (replied if int(number) % 2 else replied[::-1])


def of(records: Sequence[Record], kind: type[Record]) -> list[Any]:
    return [each for each in records if isinstance(each, kind)]


def turn_of(found: RunDifference, number: int) -> TurnDifference:
    return next(each for each in found.turns if each.turn == number)


def mirrored_diff(lines: list[str]) -> list[str]:
    """A unified diff from the other side."""
    made: list[str] = []
    taken: list[str] = []
    put: list[str] = []
    for line in [*lines, " "]:
        if line[0] == "-":
            put.append(f"+{line[1:]}")
        elif line[0] == "+":
            taken.append(f"-{line[1:]}")
        else:
            made += [*taken, *put, re.sub(r"^@@ -(\S+) \+(\S+) @@$", r"@@ -\2 +\1 @@", line)]
            taken, put = [], []
    return made[:-1]


def mirrored(value: Any, name: str = "") -> Any:
    """What was said of (a, b), said of (b, a)."""
    if name == "diff":
        return mirrored_diff(value)
    if isinstance(value, list):
        return [mirrored(each) for each in value]
    if isinstance(value, dict):
        sides = {"a": "b", "b": "a"}
        return {sides.get(key, key): mirrored(each, key) for key, each in value.items()}
    return {"only_a": "only_b", "only_b": "only_a"}.get(value, value)


def plainly(found: RunDifference) -> Any:
    return msgspec.json.decode(msgspec.json.encode(found))


def differences_in(value: Any) -> list[Any]:
    """Every place in a comparison that says that something is not the same."""
    if isinstance(value, list):
        return [found for each in value for found in differences_in(each)]
    if not isinstance(value, dict):
        return []
    found = [each for each in value.values() if each in ("other", "only_a", "only_b", "unknown")]
    found += [
        value[name] for name in ("diff", "parts", "given", "texts", "first") if value.get(name)
    ]
    if set(value) == {"a", "b"} and value["a"] != value["b"]:
        found.append(value)
    return found + [each for inner in value.values() for each in differences_in(inner)]


numbers = st.integers(0, 3).map(str)
calls = st.tuples(st.sampled_from(["look", "ask", "fail", "FINAL", "x"]), numbers).map(
    lambda call: f"{call[0]}({call[1]})"
)
sources = st.lists(calls, min_size=1, max_size=3).map("\n".join)
replies = st.one_of(
    sources.map(code),
    st.lists(sources.map(code), min_size=2, max_size=2).map("\nand\n".join),
    numbers.map(lambda number: f"FINAL({number})"),
    st.sampled_from(["I do not know.", "FINAL(x)", "SNAPSHOT(x)", FAILS]),
)
runs = st.builds(
    lambda said, answers, goal, model: a_run(*said, answers=answers, goal=goal, model=model),
    st.lists(replies, max_size=4),
    st.sampled_from(["", "!"]),
    st.sampled_from(["what is it?", "how many?"]),
    st.sampled_from(["some:model", "other:model"]),
)


@st.composite
def remains(draw: st.DrawFn) -> list[Record]:
    """What is left of a run: all of it, a beginning, or some of its records."""
    records = draw(runs)
    match draw(st.sampled_from(["whole", "dead", "pruned"])):
        case "dead":
            return records[: draw(st.integers(0, len(records)))]
        case "pruned":
            gone = draw(st.sets(st.integers(0, len(records) - 1)))
            return [each for at, each in enumerate(records) if at not in gone]
        case _:
            return records


@settings(max_examples=EXAMPLES)
@given(records=remains())
def test_nothing_differs_between_a_run_and_itself(records: list[Record]) -> None:
    found = difference_of(records, records)

    assert differences_in(plainly(found)) == []
    assert (found.same, found.parted, found.prompt_parted) == (True, None, None)


@settings(max_examples=EXAMPLES)
@given(a=remains(), b=remains())
def test_from_the_other_side_the_comparison_is_mirrored(a: list[Record], b: list[Record]) -> None:
    there, back = plainly(difference_of(a, b)), plainly(difference_of(b, a))

    assert mirrored(there) == back


@settings(max_examples=EXAMPLES)
@given(records=runs, data=st.data())
def test_a_run_that_died_is_the_same_as_far_as_it_came(
    records: list[Record], data: st.DataObject
) -> None:
    dead = records[: data.draw(st.integers(1, len(records)))]
    found = difference_of(dead, records)

    assert found.started == "same"
    assert "other" not in {each.request for each in found.turns}
    assert "other" not in {each.reply for each in found.turns} or of(dead, ModelFailed)
    assert {each.source for turn in found.turns for each in turn.programs} <= {"same", "only_b"}
    assert {each.output for turn in found.turns for each in turn.programs} <= {
        "same", "only_b", "none",
    }  # fmt: skip


@settings(max_examples=EXAMPLES)
@given(records=runs)
def test_the_turns_make_up_what_the_run_says_it_used(records: list[Record]) -> None:
    (ended,) = of(records, RunEnded)
    found = difference_of(records[:-1], records)

    assert found.spend.b.charge == ended.charge
    assert found.spend.a.charge == ended.charge


def test_ids_and_times_are_no_differences() -> None:
    later = a_run(*LONG, session_id="another", started_at=99)

    assert difference_of(a_run(*LONG), later).same


def test_another_program_parts_the_runs_and_is_shown() -> None:
    found = difference_of(a_run(*LONG), a_run(LONG[0], code("look(2)\nx = 7"), LONG[2]))
    turn = turn_of(found, 2)

    assert (found.same, found.parted, found.prompt_parted) == (False, 2, 3)
    assert turn_of(found, 1).verdict == "same"
    assert (turn.request, turn.reply, turn.differs) == (
        "same",
        "other",
        ("reply", "program", "output"),
    )
    assert turn.programs[0].diff == ("@@ -1,1 +1,2 @@", " look(2)", "+x = 7")
    assert [(each.name, each.diff) for each in turn.programs[0].texts] == [
        ("stdout", ("@@ -1,3 +1,4 @@", " ran", " look(2)", "+x = 7", " "))
    ]
    assert turn.diff == ()
    assert found.end.verdict == "same"


def test_the_parts_of_a_prompt_that_differ_are_named_by_their_turns() -> None:
    """A failed attempt moves the numbers of intents, and nothing else."""
    found = difference_of(a_run(*LONG), a_run(FAILS, LONG[0], code("look(2)\nx = 7"), LONG[2]))

    assert [turn_of(found, number).request for number in (1, 2, 3)] == ["same", "same", "other"]
    assert [(each.name, each.how) for each in turn_of(found, 3).parts] == [
        ("reply of turn 2", "other"), ("result of turn 2", "other"),
    ]  # fmt: skip
    assert (turn_of(found, 1).attempts.a, turn_of(found, 1).attempts.b) == (1, 2)


def test_attempts_that_failed_part_nobody_and_are_paid_for() -> None:
    found = difference_of(a_run(*LONG), a_run(FAILS, *LONG))
    turn = turn_of(found, 1)

    assert found.same
    assert (turn.spend.a.charge.usd, turn.spend.b.charge.usd) == (1_000, 2_000)
    assert (turn.failed.a, turn.failed.b) == (None, None)


def test_another_task_is_seen_in_the_first_prompt() -> None:
    found = difference_of(a_run(*LONG), a_run(*LONG, goal="how many?"))

    assert [each.name for each in found.given] == ["goal"]
    assert [(each.name, each.how) for each in turn_of(found, 1).parts] == [("task", "other")]
    assert (found.parted, found.prompt_parted, found.same) == (None, 1, False)


def test_a_prompt_that_differed_before_says_so() -> None:
    found = difference_of(a_run(*LONG), a_run(*LONG, goal="how many?"))

    # What comes of a program is said with the task behind it, which no record tells of.
    assert [(each.name, each.how) for each in turn_of(found, 3).parts] == [("earlier", "other")]


def test_another_model_that_writes_the_same_parts_the_prompts_and_not_the_runs() -> None:
    found = difference_of(a_run(*LONG), a_run(*LONG, model="other:model"))

    assert (found.parted, found.prompt_parted, found.same) == (None, 1, False)
    assert [(each.name, each.a, each.b) for each in found.given] == [
        ("model", "some:model", "other:model")
    ]
    assert {part.name for turn in found.turns for part in turn.parts} == {"model"}


def test_a_part_whose_text_is_in_no_record_may_differ() -> None:
    def asked(sha256: str) -> list[Record]:
        ask = AskModel(
            intent=1, turn=1, base=None, added=("nudge:7", "last"), request_sha256=sha256
        )
        return [started(), ask]

    (turn,) = difference_of(asked("x"), asked("y")).turns

    assert [(each.name, each.how) for each in turn.parts] == [
        ("last", "unknown"), ("nudge:7", "unknown"),
    ]  # fmt: skip


def test_a_request_that_is_named_by_another_base_is_not_taken_apart() -> None:
    def asked(base: int | None, sha256: str) -> list[Record]:
        return [AskModel(intent=1, turn=1, base=base, added=("task",), request_sha256=sha256)]

    (turn,) = difference_of(asked(None, "x"), asked(4, "y")).turns

    assert [(each.name, each.how) for each in turn.parts] == [("earlier", "unknown")]


def test_words_around_a_program_are_shown_when_the_program_is_the_same() -> None:
    found = difference_of(a_run(LONG[2]), a_run(f"Here:\n{LONG[2]}"))
    turn = turn_of(found, 1)

    assert turn.differs == ("reply",)
    assert turn.diff[:2] == ("@@ -1,3 +1,4 @@", "+Here:")
    assert turn.programs[0].source == turn.programs[0].output == "same"


def test_commands_that_run_nothing_are_compared_as_they_are_written() -> None:
    (turn,) = difference_of(a_run("FINAL(41)"), a_run("FINAL(42)")).turns

    assert turn.programs[0].diff == ("@@ -1,1 +1,1 @@", "-FINAL(41)", "+FINAL(42)")
    assert turn.programs[0].output == "none"


def test_an_empty_answer_is_not_the_same_as_none() -> None:
    records = a_run(LONG[2])
    (finished,) = of(records, ProgramFinished)

    def answering(answer: str | None) -> list[Record]:
        other = msgspec.structs.replace(finished, answer=answer)
        return [other if each is finished else each for each in records]

    (turn,) = difference_of(answering(""), answering(None)).turns

    assert [(each.name, each.diff) for each in turn.programs[0].texts] == [
        ("answer", ("@@ -1,1 +0,0 @@", "-"))
    ]


def test_a_program_that_failed_is_told_from_one_that_did_not() -> None:
    found = difference_of(a_run(code("x(1)")), a_run(code("fail(1)")))
    (program,) = turn_of(found, 1).programs

    assert [each.name for each in program.texts] == ["failure", "stdout"]
    assert "+ValueError: 1" in program.texts[0].diff


@pytest.mark.parametrize(
    ("a", "b", "first", "what", "names"),
    [
        ("look(1)\nlook(2)", "look(1)\nlook(3)", 2, "request", ("look", "look")),
        ("look(1)\nlook(2)", "look(1)\nfind(2)", 2, "request", ("look", "find")),
        ("look(1)", "look(1)\nlook(2)", 2, "missing", (None, "look")),
        ("x=0", "look(1)", 1, "missing", (None, "look")),
    ],
)
def test_host_calls_are_counted_and_the_first_that_differs_is_named(
    a: str, b: str, first: int, what: str, names: tuple[str | None, str | None]
) -> None:
    called = turn_of(difference_of(a_run(code(a)), a_run(code(b))), 1).host_calls

    assert (called.first, called.what, (called.names.a, called.names.b)) == (first, what, names)
    assert (called.count.a, called.count.b) == (a.count("("), b.count("("))


def test_the_same_calls_with_other_answers_part_the_runs() -> None:
    found = difference_of(a_run(code("ask(1)")), a_run(code("ask(1)"), answers="!"))
    turn = turn_of(found, 1)

    assert turn.differs == ("host_calls", "queries")
    assert (turn.host_calls.first, turn.host_calls.what) == (1, "answer")
    assert (turn.queries.first, turn.queries.what) == (1, "answer")
    assert turn.queries.diff == ("@@ -1,1 +1,1 @@", "-it is 1-0", "+it is 1-0!")


def test_model_calls_of_a_batch_are_compared_by_their_places_and_not_as_they_came() -> None:
    records = a_run(code("ask(1)"))
    one, other = of(records, QueryReplied)
    swapped: dict[int, Record] = {id(one): other, id(other): one}

    assert difference_of(records, [swapped.get(id(each), each) for each in records]).same


def test_model_calls_are_counted_and_what_they_ask_is_shown() -> None:
    found = difference_of(a_run(code("ask(1)\nask(3)")), a_run(code("ask(1)\nask(5)\nask(3)")))
    called = turn_of(found, 1).queries

    assert (called.count.a, called.count.b) == (4, 6)
    assert (called.first, called.what, called.names.a) == (3, "request", "small:model")
    assert called.diff == ("@@ -1,1 +1,1 @@", "-what of 3-0?", "+what of 5-0?")


def test_what_a_run_was_given_is_compared_by_name() -> None:
    def holding(name: str) -> dict[str, Any]:
        ref = AttachmentRef(id=digest(name.encode()), media_type="text/plain", byte_len=1)
        return {"inputs": (InputRef(name="context", key="a.txt", attachment=ref),)}

    found = difference_of(
        a_run(*LONG, seed=1, limits=RunLimits(turns=9, usd=10**9), grants=("x",), **holding("a")),
        a_run(*LONG, temperature=0.5, limits=RunLimits(turns=8), functions=(), **holding("b")),
    )

    assert {each.name: (each.a, each.b) for each in found.given} == {
        "functions.look": ("look(x)", None),
        "grants.x": ("granted", None),
        "inputs.context['a.txt']": (digest(b"a"), digest(b"b")),
        "limits.turns": ("9", "8"),
        "limits.usd": ("$1.00", None),
        "seed": ("1", "0"),
        "temperature": (None, "0.5"),
    }


def test_a_run_that_died_has_not_ended() -> None:
    records = a_run(*LONG)
    found = difference_of(records[:DIES], records)

    assert (found.end.verdict, found.end.ends.a) == ("only_b", None)
    assert (found.parted, turn_of(found, 2).verdict) == (2, "only_b")
    assert [each.verdict for each in found.turns] == ["same", "only_b", "only_b"]


def test_a_run_that_was_gone_on_with_has_the_end_it_came_to() -> None:
    whole = a_run(*LONG)
    cut = a_run(LONG[0], limits=RunLimits(turns=1))
    more = RunLimits(turns=30)
    resumed = [*cut, RunResumed(at=1, fence=2, limits=more), *whole[DIES:]]
    found = difference_of(whole, resumed)

    assert (found.parted, found.end.verdict) == (None, "same")
    assert found.passages.a == ()
    assert [(each.kind, each.after_turn) for each in found.passages.b] == [("resumed", 1)]
    assert dict(found.passages.b[0].limits or ())["turns"] == 30
    assert difference_of(resumed[: len(cut) + 1], whole).end.ends.a is None


def test_a_fork_has_its_parent_s_turns_and_its_own_model_from_there_on() -> None:
    whole = a_run(*LONG)
    other = a_run(*LONG[:2], code("FINAL(4)"), model="other:model")
    at = next(at for at, each in enumerate(whole) if isinstance(each, AskModel) and each.turn == 3)
    forked = RunForked(
        parent="P", count=at, hash="", turn=2, at=1, session_id="F", model="other:model"
    )
    found = difference_of(whole, [*whole[:at], forked, *other[at:]])

    assert found.given == ()
    assert (found.parted, found.prompt_parted) == (3, 3)
    assert [(each.name, each.how) for each in turn_of(found, 3).parts] == [("model", "other")]
    assert [(each.kind, each.model) for each in found.passages.b] == [("forked", "other:model")]
    assert (found.models.a, found.models.b) == ("some:model", "other:model")
    assert found.end.diff == ("@@ -1,1 +1,1 @@", "-3", "+4")


def test_of_a_pruned_run_the_receipt_still_says_how_it_ended() -> None:
    whole = a_run(*LONG)
    tally = Tally()
    for record in whole:
        tally.add(record)
    receipt = ReceiptIssued(receipt=tally.receipt(whole[0], whole[-1]))  # type: ignore[arg-type]
    pruned: list[Record] = [receipt, RunPruned(at=1, before=9, removed=7, bytes=70, why="old")]
    found = difference_of(pruned, whole)

    assert (found.started, found.given) == ("only_b", ())
    assert (found.end.verdict, found.end.diff) == ("same", ())
    assert found.spend.a == found.spend.b
    assert [(each.kind, each.removed) for each in found.passages.a] == [("pruned", 7)]
    assert {each.verdict for each in found.turns} == {"only_b"}


def test_a_program_whose_reply_is_gone_is_known_by_its_digest() -> None:
    whole, other = a_run(*LONG), a_run(code("look(7)"), *LONG[1:])
    gone = [each for each in whole if not isinstance(each, ModelReplied)]

    assert turn_of(difference_of(gone, whole), 1).programs[0].source == "same"
    (program,) = turn_of(difference_of(gone, other), 1).programs
    assert (program.source, program.diff) == ("other", ())


def test_of_nothing_nothing_is_said() -> None:
    found = difference_of([], [])

    assert (found.started, found.end.verdict, found.turns) == ("none", "none", ())


def test_names_of_parts_are_hostile_too() -> None:
    def asked(*added: str) -> list[Record]:
        return [AskModel(intent=1, turn=1, base=None, added=added, request_sha256=str(added))]

    (turn,) = difference_of(asked("reply:" + "9" * 5_000, "+", "result:-1"), asked("task")).turns

    assert {each.how for each in turn.parts} == {"only_a", "only_b"}
