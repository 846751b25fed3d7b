"""Long runs: prompts stay bounded; what left them is read, replayed, resumed and forked."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

import pytest
from tests.runtime.run.cut_runs import GOAL, Whole, World, keys_of, world

from tallystick.core.charge import RunLimits
from tallystick.core.errors import InvalidLimit
from tallystick.core.machine.compaction import COMPACT_AT
from tallystick.core.machine.prompt import Message
from tallystick.core.records import (
    AskModel,
    HostAnswered,
    ModelReplied,
    ProgramFinished,
    Record,
    RunStarted,
    encode_record,
)
from tallystick.model.scripted import ScriptedModel, ScriptedReply
from tallystick.runtime.runs.history import whole_records
from tallystick.runtime.runs.result import Run
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import ModelDouble, block
from tallystick.testing.plans import Plan, Planned, program
from tallystick.testing.runs import Played, play

# The prompts have the errors and the outputs of the guest.
NEEDS_GUEST = True

pytestmark = pytest.mark.slow

ROOMY = RunLimits(turns=100, tokens=10**9)
TURNS = 40
# Low enough that turns leave the prompt too.
BOUND = 4_000


def printing(number: int) -> str:
    """A program that prints much, and keeps something."""
    return (
        f"total_{number} = {number} * 1_000\n# {'so that it is long ' * 20}\n"
        f"print(*(f'{number} {{n}} of what was printed' for n in range(250)), sep='\\n')"
    )


def printed(number: int) -> str:
    return "".join(f"{number} {n} of what was printed\n" for n in range(250))


def long_run(
    sandbox: WasmSandbox, *, turns: int = TURNS, **more: Any
) -> tuple[Played, ModelDouble]:
    sources = [*map(printing, range(turns)), "FINAL(total_0 + total_1)"]
    model = ModelDouble([block(each) for each in sources])
    return play(sandbox, model, limits=ROOMY, **more), model


def sent(model: ModelDouble) -> list[tuple[Message, ...]]:
    return [each.messages for each in model.requests]


def size(messages: Sequence[Message]) -> int:
    return sum(len(each.text.encode()) for each in messages)


def only(records: Sequence[Record], kind: type) -> list[Any]:
    return [each for each in records if isinstance(each, kind)]


@pytest.fixture(scope="module")
def long(sandbox: WasmSandbox) -> tuple[Played, ModelDouble]:
    return long_run(sandbox, compact_at=BOUND)


@pytest.fixture(scope="module")
def unbounded(sandbox: WasmSandbox) -> tuple[Played, ModelDouble]:
    """The same, as runs were made before there was compaction."""
    return long_run(sandbox, compact_at=0)


# -- the prompt ----------------------------------------------------------------------------------


def test_prompts_of_a_long_run_stay_below_the_bound(long: tuple[Played, ModelDouble]) -> None:
    played, model = long

    assert played.run.answer == "1000"
    assert max(map(size, sent(model))) > 3 * BOUND
    assert max(map(size, sent(model))) <= max(4 * BOUND, 2 * BOUND + 3 * 6_000)


def test_tokens_grow_with_the_turns_and_not_with_their_square(
    long: tuple[Played, ModelDouble], unbounded: tuple[Played, ModelDouble]
) -> None:
    whole, _ = unbounded

    def tokens(played: Played, *, turns: range) -> int:
        replied = only(played.records, ModelReplied)
        return sum(replied[turn].usage.tokens_in for turn in turns)

    first, last = range(10, 20), range(30, 40)
    assert tokens(whole, turns=last) > 2 * tokens(whole, turns=first)
    assert tokens(long[0], turns=last) < 1.2 * tokens(long[0], turns=first)
    assert long[0].run.charge.tokens_in * 4 < whole.run.charge.tokens_in


def test_what_servers_keep_of_a_prompt_is_lost_seldom(sandbox: WasmSandbox) -> None:
    """By default, and with long outputs, three quarters of what is sent was sent before."""
    _, model = long_run(sandbox)
    same = [
        size([one for one, other in itertools.takewhile(_alike, zip(*both, strict=False))])
        for both in itertools.pairwise(sent(model))
    ]

    assert max(map(size, sent(model))) <= 4 * COMPACT_AT
    assert sum(same) > 0.75 * sum(map(size, sent(model)))


def _alike(both: tuple[Message, Message]) -> bool:
    return both[0] == both[1]


def test_a_run_that_is_short_has_the_same_prompts_to_the_byte(sandbox: WasmSandbox) -> None:
    runs = [long_run(sandbox, turns=6, compact_at=bound) for bound in (0, None, 10**9)]

    assert len({tuple(sent(model)) for _, model in runs}) == 1
    digests = [[each.request_sha256 for each in only(p.records, AskModel)] for p, _ in runs]
    assert digests[0] == digests[1] == digests[2]


def test_the_bound_is_recorded_and_a_bad_one_refused(sandbox: WasmSandbox) -> None:
    def bound_of(played: Played) -> int:
        begun = played.records[0]
        assert isinstance(begun, RunStarted)
        return begun.compact_at

    answer = [block("FINAL(1)")]
    assert bound_of(play(sandbox, answer)) == COMPACT_AT
    assert bound_of(play(sandbox, answer, compact_at=77)) == 77
    with pytest.raises(InvalidLimit, match="compact_at"):
        play(sandbox, answer, compact_at=-1)


def test_a_model_that_says_how_much_it_holds_is_compacted_for_earlier(
    sandbox: WasmSandbox,
) -> None:
    model = ScriptedModel([ScriptedReply(text=block("FINAL(1)"))])
    model.window = 8_192  # type: ignore[attr-defined]

    begun = play(sandbox, model).records[0]

    assert isinstance(begun, RunStarted)
    assert begun.compact_at == 3_072


# -- what left it --------------------------------------------------------------------------------

# What a program does with the places of `outputs` that the prompt names by then.
READING = (
    "first = outputs[0]\n"
    "print(type(first).__name__, len(first), first.splitlines()[7])\n"
    "whole = [text for text in outputs if text[0:3] == '---'][-1]\n"
    "print(len(outputs), whole[0:17])\n"
    "print(whole.find('3 249 of'))"
)


def reading_plan(*, turns: int = TURNS) -> list[Planned]:
    """Much output, with a program that reads what was printed long before."""
    made = [program(printing(number)) for number in range(turns)]
    made[turns // 2] = made[turns - 2] = program(READING)
    return [*made, program("kept = outputs[1]", "FINAL(kept[0:30])")]


def run_plan(sandbox: WasmSandbox, plan: Sequence[Planned], **more: Any) -> Whole:
    made = world(sandbox, plan, bare=True, **more)
    run = made.session.run(GOAL, limits=ROOMY, compact_at=BOUND)
    return Whole(made, plan, run, made.records(run.run))


@pytest.fixture(scope="module")
def whole(sandbox: WasmSandbox) -> Whole:
    return run_plan(sandbox, reading_plan())


def read_in(whole: Whole) -> list[str]:
    """What the programs printed that read what had left the prompt."""
    printed = [each.stdout for each in only(whole.records, ProgramFinished)]
    return [each for each in printed if each.startswith("str ")]


def test_a_program_reads_by_its_place_what_left_the_prompt(whole: Whole) -> None:
    read = read_in(whole)

    assert len(read) == 2
    for text in read:
        assert text.startswith(f"str {len(printed(0))} 0 7 of what was printed\n")
    assert whole.run.answer == printed(1)[:30]


def test_the_turns_that_left_are_one_text_with_programs_and_outputs(whole: Whole) -> None:
    *_, last = read_in(whole)
    _, shown, at = last.splitlines()

    assert re.fullmatch(r"\d+ --- program 1 ---", shown)
    # Behind the programs of the first four turns, and all that three of them printed.
    assert int(at) > 4 * len(printing(0)) + 3 * len(printed(0))


def test_what_is_read_again_is_not_written_again(whole: Whole) -> None:
    answers = [each for each in only(whole.records, HostAnswered) if each.name == "outputs.get"]

    assert len(answers) > 40
    assert all(each.reply == b"" and each.reply_sha256 for each in answers)
    assert sum(len(encode_record(each)) for each in only(whole.records, HostAnswered)) < 60_000


def test_it_replays(whole: Whole) -> None:
    report = whole.world.session.replay(whole.id)

    assert report.held, report.divergence
    assert report.programs == len(whole.plan)


def test_a_long_run_that_was_made_without_compaction_still_replays(
    unbounded: tuple[Played, ModelDouble],
) -> None:
    played, model = unbounded

    assert size(sent(model)[-1]) > 4 * COMPACT_AT
    assert played.replayed().held


def check_same(made: World, run: Run, whole: Whole) -> None:
    assert run.answer == whole.run.answer
    report = made.session.replay(run.run)
    assert report.held, report.divergence


def asked_in(records: Sequence[Record]) -> list[tuple[int, str, tuple[str, ...]]]:
    return [(each.turn, each.request_sha256, each.added) for each in only(records, AskModel)]


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "turn", [21, *(pytest.param(turn, marks=SLOW) for turn in (5, 20, TURNS - 1, TURNS))]
)
def test_killed_anywhere_it_goes_on_with_the_same_prompts(
    whole: Whole, sandbox: WasmSandbox, turn: int
) -> None:
    places = [n for n, each in enumerate(whole.records) if isinstance(each, ModelReplied)]
    at = places[turn] + 1
    made = whole.cut(sandbox, at)

    run = made.session.resume(whole.id)

    check_same(made, run, whole)
    assert asked_in(made.records(whole.id)) == asked_in(whole.records)
    assert not set(made.asked) & keys_of(whole.id, whole.records[:at])


@pytest.mark.parametrize("turn", [2, pytest.param(15, marks=SLOW), TURNS])
def test_a_fork_has_the_prompts_of_the_run_it_grew_from(
    whole: Whole, sandbox: WasmSandbox, turn: int
) -> None:
    made = whole.cut(sandbox, len(whole.records))
    made.model.answers = Plan(whole.plan, _up_to(whole, turn))

    run = made.session.fork(whole.id, turn=turn)

    check_same(made, run, whole)
    assert asked_in(whole_records(made.ledger, run.run)) == asked_in(whole.records)


def _up_to(whole: Whole, turn: int) -> list[Record]:
    return [each for each in whole.records if getattr(each, "turn", 0) <= turn]


def test_a_stranger_s_key_is_no_text(sandbox: WasmSandbox) -> None:
    """A program that makes up handles gets what was kept for it, and nothing else."""
    reading = (
        "text = type(outputs[0])\n"
        "for key in ('kept:0', 'kept:1', 'kept:-1', 'kept:x', 'kept:', 'a' * 64):\n"
        "    try: print(key[:7], text(key, 9, 'made up')[0:5])\n"
        "    except SandboxViolation as error: print(key[:7], 'refused')"
    )
    long_output = "print('x' * 70_000)"
    played = play(sandbox, [block(long_output), block(reading), block("FINAL(1)")])
    said = only(played.records, ProgramFinished)[1].stdout

    assert said.count("refused") == 6
    assert played.replayed().held
