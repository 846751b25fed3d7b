"""Compaction, example by example: what is shown in short, what leaves, and where it is then."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

import msgspec
import pytest
from tests.core.machine.test_machine import finished, started

from tallystick.cli.show import transcript_lines
from tallystick.core.charge import ModelUsage, RunLimits
from tallystick.core.errors import InvalidLimit
from tallystick.core.machine.compaction import (
    COMPACT_AT,
    bound_for,
    check_bound,
    compact,
    size_of,
)
from tallystick.core.machine.machine import advance, begin
from tallystick.core.machine.state import KeptText, Phase, RunState
from tallystick.core.records import (
    AskModel,
    AttachmentRef,
    ContextRef,
    Intent,
    ModelReplied,
    ProgramFailure,
    ProgramFinished,
    RunProgram,
    decode_record,
    encode_record,
)

ROOMY = RunLimits(turns=1_000, tokens=10**9)
LONG = "a line of output that says nothing\n" * 100
# A bound that three turns with long output do not reach, and eight do.
BOUND = 5_000


def block(source: str) -> str:
    return f"```python\n{source}\n```"


def reply_of(intent: AskModel, text: str) -> ModelReplied:
    usage = ModelUsage(tokens_in=1, tokens_out=1, reported=True)
    return ModelReplied(intent=intent.intent, turn=intent.turn, text=text, usage=usage)


class Going:
    """A run that is driven turn by turn, with every request as it was sent."""

    def __init__(self, *, compact_at: int = BOUND, **more: object) -> None:
        begun = started(compact_at=compact_at, **{"limits": ROOMY, **more})
        self.state, intents = begin(begun)
        self.intents: tuple[Intent, ...] = intents
        self.asked: list[AskModel] = [each for each in intents if isinstance(each, AskModel)]

    def turn(self, source: str, *outcomes: dict[str, object], text: str | None = None) -> Going:
        """One reply and what comes of its programs."""
        (asked,) = self.intents
        assert isinstance(asked, AskModel)
        self._advance(reply_of(asked, block(source) if text is None else text))
        for outcome in outcomes:
            (program,) = self.intents
            assert isinstance(program, RunProgram)
            self._advance(finished(intent=program.intent, turn=program.turn, **outcome))
        return self

    def turns(self, count: int, stdout: str = LONG) -> Going:
        """Turns that print much, each something else."""
        for _ in range(count):
            number = self.state.turn
            self.turn(f"v{number} = {number}", {"stdout": f"{number}\n{stdout}"})
        return self

    def _advance(self, event: ModelReplied | ProgramFinished) -> None:
        self.state, self.intents = advance(self.state, event)
        self.asked += [each for each in self.intents if isinstance(each, AskModel)]

    @property
    def told(self) -> Sequence[str]:
        return [each.text for each in self.state.messages]

    def at(self, place: int) -> str:
        kept = self.state.outputs[place]
        assert isinstance(kept, KeptText)
        return kept.text

    def short(self) -> str:
        """What came of the first program, as it is shown now."""
        assert self.state.messages[3].part.startswith("brief:")
        return self.state.messages[3].text


def after(outcome: dict[str, object]) -> Going:
    """A run whose first turn has become old, and is shown in short."""
    return Going().turn("first = 1", outcome).turns(8)


# -- the bound ----------------------------------------------------------------------------------


def test_a_prompt_at_the_bound_is_left_alone_and_one_byte_more_is_not() -> None:
    state = Going(compact_at=10**6).turns(8).state
    at = size_of(state.messages) // 4 + 1
    padding = "." * (4 * at - size_of(state.messages))

    def padded(text: str) -> RunState:
        *before, last = state.messages
        longer = msgspec.structs.replace(last, text=last.text + text)
        begun = started(compact_at=at, limits=ROOMY)
        return msgspec.structs.replace(state, started=begun, messages=(*before, longer))

    exactly, more = padded(padding), padded(padding + "x")

    assert size_of(exactly.messages) == 4 * at
    assert compact(exactly) is exactly
    assert size_of(compact(more).messages) < 3 * at


def test_a_run_that_says_nothing_of_it_is_never_compacted() -> None:
    going = Going(compact_at=0).turns(60)

    assert size_of(going.state.messages) > 4 * COMPACT_AT
    assert going.state.outputs == ()
    assert going.state.results == ()


def test_records_from_before_say_never() -> None:
    body = encode_record(started()).replace(b'"compact_at":0,', b"")

    assert b"compact_at" not in body
    assert decode_record(body) == started(compact_at=0)


@pytest.mark.parametrize(
    ("window", "reply_tokens", "bound"),
    [
        (None, 4_096, 12_000),
        (1_000_000, 4_096, 12_000),
        (32_768, 4_096, 12_000),
        (16_384, 4_096, 6_144),
        (8_192, 4_096, 3_072),
        (8_192, 400, 3_896),
        (1, 4_096, 1),
    ],
)
def test_a_small_window_is_compacted_for_earlier(
    window: int | None, reply_tokens: int, bound: int
) -> None:
    assert bound_for(window, reply_tokens=reply_tokens) == bound


@pytest.mark.parametrize("given", [-1, 1.5, "12000", True, None])
def test_what_is_no_number_of_tokens_is_refused(given: object) -> None:
    with pytest.raises(InvalidLimit, match="compact_at: must be a whole number of tokens"):
        check_bound(given)


def test_zero_tokens_are_no_compaction() -> None:
    assert check_bound(0) == 0


# -- cut ------------------------------------------------------------------------------------------


def test_an_output_that_is_cut_says_how_to_see_the_rest() -> None:
    """A whole one stands nowhere yet: the program has it, or can make it again."""
    going = Going().turn("print(rows)", {"stdout": LONG * 2, "value": "x" * 5_000})

    assert going.told[-1].count("left out; keep it in a variable and print a part ...]") == 2


def test_an_output_that_is_kept_apart_names_its_place_although_it_is_cut() -> None:
    closing = "[output cut: 70,000 bytes in all; outputs[0] has all: outputs[0][0:500]]\n"
    going = Going().turn(
        "print(rows)", {"stdout": f"{LONG * 20}{closing}", "stderr": f"{LONG * 20}{closing}"}
    )

    assert going.told[-1].count("outputs[0] has all: outputs[0][0:500]]") == 2


# -- in short -----------------------------------------------------------------------------------


def test_an_old_output_is_shown_by_its_beginning_with_the_place_that_has_all() -> None:
    going = after({"stdout": f"the first {LONG}"})

    assert going.short().startswith("Output:\nthe first a line of output")
    left_out = len(f"the first {LONG}".rstrip()) - 240
    assert going.short().endswith(
        f"[... {left_out:,} characters left out; outputs[0] has all: outputs[0][0:2000] ...]"
    )
    assert len(going.short()) < 400
    assert going.at(0) == f"the first {LONG}"


def test_a_short_output_stays_whole_and_takes_no_place() -> None:
    going = after({"stdout": "42 rows\n", "value": "42"})

    assert going.short() == "Output:\n42 rows\nValue of the last line:\n42"
    assert going.at(0).startswith("2\na line of output")


def test_the_program_itself_stays() -> None:
    assert after({"stdout": LONG}).told[2] == block("first = 1")


def test_of_an_error_its_last_line_is_shown() -> None:
    """Only a failure behind a program that ran well stays in the prompt at all."""
    traceback = "Traceback\n" + "  File x\n" * 100 + "KeyError: 'total'"
    failure = ProgramFailure(kind="KeyError", message="'total'", traceback=traceback)
    going = Going().turn(
        "",
        {"stdout": "fine\n"},
        {"failure": failure},
        text=f"{block('first = 1')}\n{block('total')}",
    )
    going.turns(8)

    assert "Output:\nfine\nThe program failed:\nKeyError: 'total'\n[... " in going.short()
    assert going.at(0) == f"The program failed:\n{traceback}"


def test_an_output_that_was_too_long_for_the_record_keeps_its_own_place() -> None:
    ref = AttachmentRef(id="a" * 64, media_type="text/plain", byte_len=70_000, label="stdout")
    closing = "[output cut: 70,000 bytes in all; outputs[0] has all: outputs[0][0:500]]"
    going = after({"stdout": f"{LONG}{closing}\n", "outputs": (ref,)})

    assert going.short() == f"Output:\n{LONG[:240]}\n{closing}"
    assert going.state.outputs[0] == ref


def test_a_silent_program_is_said_to_have_printed_nothing() -> None:
    assert after({}).short() == "The program ran and printed nothing."


def test_what_a_silent_program_assigned_last_is_kept_as_well() -> None:
    going = after({"assigned": ("rows", "[1, 2, 3, " * 100)})

    assert going.short().startswith("The program printed nothing. rows is:\n[1, 2, 3, ")
    assert going.at(0).endswith("[1, 2, 3, " * 100)


def test_several_programs_of_a_reply_are_each_shown_in_short() -> None:
    going = Going().turn(
        "",
        {"stdout": f"one {LONG}"},
        {"stdout": f"two {LONG}"},
        text=f"{block('first = 1')}\n{block('second = 2')}",
    )
    going.turns(8)

    assert going.state.messages[3].part == "brief:2+brief:3"
    assert "Output:\none " in going.short()
    assert "Output:\ntwo " in going.short()
    assert (going.at(0), going.at(1)) == (f"one {LONG}", f"two {LONG}")


def test_it_comes_down_to_half_the_bound_and_then_rests() -> None:
    going = Going(compact_at=COMPACT_AT)
    sizes = []
    for _ in range(40):
        going.turns(1)
        sizes.append(size_of(going.state.messages))

    shorter = [n for n, (one, other) in enumerate(itertools.pairwise(sizes)) if other < one]

    assert [sizes[n + 1] < 2.2 * COMPACT_AT for n in shorter[:3]] == [True] * 3
    assert all(later - earlier >= 4 for earlier, later in itertools.pairwise(shorter))
    assert max(sizes) <= 4 * COMPACT_AT


def test_places_that_were_told_never_move() -> None:
    going = Going()
    told: dict[int, str] = {}
    for _ in range(60):
        going.turns(1)
        for text in going.told:
            for found in re.finditer(r"outputs\[(\d+)\] has", text):
                place = int(found[1])
                assert told.setdefault(place, going.at(place)) == going.at(place)
    assert len(told) > 20


# -- turns that leave ----------------------------------------------------------------------------


def programs_of(count: int) -> Going:
    """A run whose programs alone pass the bound."""
    going = Going(compact_at=1_000)
    for number in range(count):
        source = f"v{number} = {number}\n" + f"# {'why ' * 100}"
        going.turn(source, {"stdout": f"printed {number}\n{LONG}"})
    return going


def test_where_programs_alone_are_too_long_the_oldest_turns_leave() -> None:
    going = programs_of(20)
    system, task, *rest = going.state.messages
    found = re.search(r"The first (\d+) programs, and what came of them, are left out", task.text)

    assert found is not None
    assert system.text.startswith("You solve a task")
    assert "\n\nThe task: count the lines\n\nWrite one ```python block.\n\n" in task.text
    assert len(rest) == 2 * (20 - int(found[1]))
    assert rest[0].text.startswith(f"```python\nv{found[1]} = {found[1]}\n")


def test_one_place_has_all_that_left_in_its_order() -> None:
    going = programs_of(20)
    place = re.search(r"outputs\[(\d+)\] has them all", going.told[1])
    count = re.search(r"The first (\d+)", going.told[1])
    assert place is not None
    assert count is not None

    text = going.at(int(place[1]))
    parts = text.split("--- program ")

    assert len(parts) - 1 == int(count[1])
    for number, part in enumerate(parts[1:]):
        assert part.startswith(f"{number + 1} ---\n```python\nv{number} = {number}\n")
        assert part.endswith(f"\n--- what came of it ---\nprinted {number}\n{LONG}")


def test_the_names_that_programs_made_are_listed() -> None:
    going = Going(compact_at=300)
    going.turn(
        "import re, os.path as p\nfrom json import loads as read\n"
        "def parse(line):\n    inner = 1\n\nclass Row: pass\n"
        "rows, (a, *b) = [x for x in y], (1, [2])\ntotal += 1\n"
        "for n in rows:\n    seen = {k: v for k, v in n}\n"
        "with open('f') as f: pass\nif (m := 3): late: int = 4",
        {"stdout": LONG},
    ).turn("rows = 2", {"stdout": f"2{LONG}"}).turns(6)

    names = going.told[1].partition("Names they made: ")[2]

    assert re.findall(r"`(\w+)`", names)[:15] == [
        *("re", "p", "read", "parse", "Row", "a", "b", "total", "n", "seen", "f", "m", "late"),
        *("rows", "v3"),
    ]


def test_of_very_many_names_the_last_are_listed() -> None:
    going = Going(compact_at=500)
    for turn in range(12):
        source = "\n".join(f"name_{turn}_{number} = 0" for number in range(40))
        going.turn(source, {"stdout": f"{turn}\n{LONG}"})

    named = re.findall(r"`(\w+)`", going.told[1].partition("Names they made: ")[2])

    assert 20 < len(named) < 60
    assert named[-1].endswith("_39")
    assert len(going.told[1].encode()) < 1_100


@pytest.mark.parametrize("source", ["x = " + "+".join("1" * 3_000), "x = ("])
def test_a_program_of_any_kind_can_leave(source: str) -> None:
    going = Going(compact_at=200).turn(source, {"stdout": LONG}).turns(6)

    assert "are left out here" in going.told[1]


# -- what depends on what was shown ---------------------------------------------------------------


@pytest.mark.parametrize("bound", [0, 1_000])
def test_an_answer_that_was_shown_once_is_not_doubted_for_having_left(bound: int) -> None:
    sample = ContextRef(name="context", sha256="", bytes=9, chars=9, sample="...")
    going = Going(compact_at=bound, contexts=(sample,))
    going.turn("print(context)", {"stdout": f"{LONG[:700]}the total is 4711\n"}).turns(12)
    assert any("4711" in text for text in going.told) is (bound == 0)

    going.turn("FINAL(4711)", {"answer": "4711"})

    assert going.state.phase is Phase.ENDING
    assert going.state.answer == "4711"


@pytest.mark.parametrize("bound", [0, 1_000])
def test_an_answer_that_nothing_has_shown_before_is_doubted_as_ever(bound: int) -> None:
    sample = ContextRef(name="context", sha256="", bytes=9, chars=9, sample="...")
    going = Going(compact_at=bound, contexts=(sample,))
    going.turn("print(context)", {"stdout": LONG}).turns(12)

    going.turn("print(4711)\nFINAL(4711)", {"answer": "4711", "stdout": "4711\n"})

    assert going.state.phase is Phase.ASKING
    assert "Nothing that was printed before shows '4711'" in going.told[-1]


def test_the_last_turn_is_announced_by_what_the_shorter_prompt_takes() -> None:
    """Budgets reserve a prompt by its length: without compaction this run would end sooner."""

    def turns_until_told(compact_at: int) -> int:
        going = Going(compact_at=compact_at, limits=RunLimits(turns=100, tokens=60_000))
        while "This is your last turn" not in going.told[-1]:
            going.turns(1)
        return going.state.turn

    assert turns_until_told(0) < 20
    assert turns_until_told(BOUND) == 100


# -- what the record says --------------------------------------------------------------------------


def test_the_record_names_what_stays_of_the_prompt_and_what_takes_its_place() -> None:
    going = Going().turns(6)
    *_, asked = going.asked
    shorter = next(each for each in going.asked if "brief:2" in each.added)

    assert shorter.kept == 3
    assert shorter.added[:3] == ("brief:2", "reply:3", "brief:4")
    assert asked.request_sha256 != shorter.request_sha256 or asked is shorter


def test_it_is_shown_in_one_line_where_it_happened() -> None:
    going = programs_of(20)
    lines = [line for each in going.asked for line in transcript_lines(each)]
    found = [line for line in lines if "compacted" in line]

    assert len(lines) == len(going.asked) + len(found)
    assert re.fullmatch(r"turn \d+ +compacted  turns: \d+ in short", found[0])
    left = [line for line in found if "left" in line]
    assert re.fullmatch(r"turn \d+ +compacted  turns: (\d+ in short, )?\d+ left out", left[0])
