"""Contexts of a run: with names of their own, long ones, many files; told in a short prompt."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.errors import UsageError
from tallystick.core.machine import prompt
from tallystick.core.records import ProgramFinished, RunStarted
from tallystick.inputs import layout as layout_module
from tallystick.inputs.layout import layout_of
from tallystick.inputs.reading import read_inputs
from tallystick.runtime.calls.functions import host_function
from tallystick.runtime.context.inputs import Input, given_text
from tallystick.runtime.context.namespace import VARIABLES_MAX
from tallystick.sandbox.text import HostText
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.steps.replay import RunAsked, inputs_digest
from tallystick.testing.models import block
from tallystick.testing.runs import Played, play

ORDERS = "id,vessel,tons\nA-1,V-1,10\nA-2,V-2,250\nA-3,V-1,7\n"
VESSELS = "number,owner\nV-1,Ada\nV-2,Xu\n"
# More than goes into the guest where `small_guest` says so.
LONG = "a line of text\n" * 2_000
REQUEST_BYTES_MAX = 4_096


@pytest.fixture
def small_guest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout_module, "STR_BYTES_MAX", 20_000)


def named(**texts: str) -> list[Input]:
    return [given_text(text, variable=name) for name, text in texts.items()]


def started(played: Played) -> RunStarted:
    begun = played.records[0]
    assert isinstance(begun, RunStarted)
    return begun


def request_bytes(begun: RunStarted) -> int:
    return sum(len(each.text.encode()) for each in prompt.opening(begun))


def failures(played: Played) -> list[str]:
    return [
        each.failure.message
        for each in played.records
        if isinstance(each, ProgramFinished) and each.failure is not None
    ]


# -- names -------------------------------------------------------------------------------------


def test_contexts_with_names_are_variables_with_views_of_their_own(sandbox: WasmSandbox) -> None:
    program = (
        "owner = {row['number']: row['owner'] for row in vessels_rows}\n"
        "print(len(orders), len(orders_lines), orders_rows[0]['tons'] + 1)\n"
        "FINAL([owner[row['vessel']] for row in orders_rows])"
    )
    played = play(sandbox, [block(program)], inputs=named(orders=ORDERS, vessels=VESSELS))

    assert played.run.answer == '["Ada","Xu","Ada"]', failures(played)
    assert [each.name for each in started(played).contexts] == ["orders", "vessels"]
    assert played.replayed().held


def test_what_has_no_name_stays_as_it_is_beside_what_has_one(sandbox: WasmSandbox) -> None:
    inputs = [given_text(ORDERS, name="a.csv"), *named(notes="one\ntwo\n")]
    program = "FINAL([context[:2], len(rows), len(lines), notes_lines, open('a.csv').read(2)])"

    played = play(sandbox, [block(program)], inputs=inputs)

    assert played.run.answer == '["id",3,4,["one","two"],"id"]', failures(played)
    alone = layout_of([given_text(ORDERS, name="a.csv")])
    beside = layout_of(inputs)
    assert beside.views[: len(alone.views)] == alone.views
    assert beside.files[:1] == alone.files


def test_several_texts_of_one_name_are_a_dictionary(sandbox: WasmSandbox) -> None:
    inputs = [
        given_text(text, name=name, variable="books")
        for name, text in (("a.csv", ORDERS), ("b.csv", VESSELS))
    ]

    played = play(
        sandbox,
        [block("FINAL([list(books), len(books_rows['a.csv']), 'context' in globals()])")],
        inputs=inputs,
    )

    assert played.run.answer == '[["a.csv","b.csv"],3,false]', failures(played)


def test_the_first_program_of_several_contexts_runs_and_joins_them(sandbox: WasmSandbox) -> None:
    layout = layout_of(named(orders=ORDERS, vessels=VESSELS))
    shown = layout.contexts[-1].sample.rpartition("```python\n")[2].removesuffix("\n```")

    played = play(
        sandbox,
        [block(shown), block("FINAL(1)")],
        inputs=named(orders=ORDERS, vessels=VESSELS),
    )

    assert "for row in vessels_rows}" in shown
    printed = [each.stdout for each in played.records if isinstance(each, ProgramFinished)]
    assert [line.rpartition(" ")[2] for line in printed[0].splitlines()] == ["Ada", "Xu", "Ada"]


@pytest.mark.parametrize(
    "name",
    ["1st", "a b", "a.b", "", "_x", "__x__", "class", "print", "FINAL", "answer", "budget",
     "outputs", "llm_query", "HostError", "x" * 61, "ﬁle", "a-b", "naïve\n"],
)  # fmt: skip
def test_a_name_that_programs_cannot_have_is_one_clear_line(name: str) -> None:
    with pytest.raises(UsageError) as refused:
        given_text("x", variable=name)

    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["orders", "größe", "data", "rows", "email", "license", "x1"])
def test_other_names_are_free(name: str, sandbox: WasmSandbox) -> None:
    played = play(sandbox, [block(f"FINAL({name})")], inputs=named(**{name: "some text"}))

    assert played.run.answer == "some text"


@pytest.mark.parametrize("names", [("context", "rows"), ("a", "a_lines"), ("context", "data")])
def test_a_name_that_a_view_of_another_has_is_refused(
    sandbox: WasmSandbox, names: tuple[str, ...]
) -> None:
    with pytest.raises(UsageError, match="use another"):
        play(sandbox, [block("FINAL(1)")], inputs=named(**dict.fromkeys(names, "text")))


def test_every_name_that_a_program_finds_is_known_to_be_taken(sandbox: WasmSandbox) -> None:
    program = "FINAL([name for name in globals() if not name.startswith('__')])"
    played = play(sandbox, [block(program)], grants=["attachments.read", "attachments.write"])
    assert played.run.answer is not None

    for name in played.run.answer.strip('["]').split('","'):
        with pytest.raises(UsageError, match="is taken"):
            given_text("x", variable=name)


def test_the_name_of_a_function_of_the_run_is_refused(sandbox: WasmSandbox) -> None:
    @host_function(policy="read")
    def orders() -> str:
        """Orders."""
        return ""

    with pytest.raises(UsageError, match="a function of this run"):
        play(sandbox, [block("FINAL(1)")], functions=[orders], inputs=named(orders="text"))


def test_more_names_than_can_be_told_are_refused(sandbox: WasmSandbox) -> None:
    some = named(**{f"n{place}": "text" for place in range(VARIABLES_MAX + 1)})

    with pytest.raises(UsageError, match=f"at most {VARIABLES_MAX}"):
        play(sandbox, [block("FINAL(1)")], inputs=some)


def test_two_texts_that_would_take_each_other_s_place_are_refused() -> None:
    with pytest.raises(UsageError, match="2 texts in `context` are called 'context'; name each"):
        layout_of([given_text("one"), given_text("two")])


# -- strategies --------------------------------------------------------------------------------


def test_a_direct_prompt_has_every_context_under_its_name(sandbox: WasmSandbox) -> None:
    inputs = [given_text("Ada lives in Riga.", name="a.txt"), *named(more="Xu lives in Oslo.")]

    played = play(sandbox, ["Riga"], inputs=inputs, strategy="direct")

    assert played.run.answer == "Riga"
    whole = ("Ada lives in Riga.", "Xu lives in Oslo.")
    shown = prompt.direct(started(played), whole)[1].text
    assert "--- 'a.txt' ---\nAda lives in Riga." in shown
    assert "--- more: 'more' ---\nXu lives in Oslo." in shown
    assert played.replayed().held


@pytest.mark.parametrize(
    ("inputs", "pieces"),
    [
        (named(notes="words " * 2_000), 2),
        (named(notes="words " * 2_000, other="more"), 2),
        ([given_text(text, name=text, variable="notes") for text in ("one", "two")], 2),
        (named(small="words", notes=LONG), 4),
        ([given_text("x"), *named(notes=LONG)], 4),
    ],
)
def test_a_recursive_run_is_shown_how_to_cut_its_data(
    sandbox: WasmSandbox, small_guest: None, inputs: list[Input], pieces: int
) -> None:
    begun = started(play(sandbox, [block("FINAL(1)")] * 2, inputs=inputs, strategy="recursive"))
    shown = prompt.opening(begun)[0].text.rpartition("```python\n")[2].splitlines()[0]

    played = play(sandbox, [block(f"{shown}\nFINAL(len(pieces))")], inputs=inputs)

    assert played.run.answer == str(pieces), shown


# -- sizes -------------------------------------------------------------------------------------


def test_the_largest_context_stays_on_the_host_and_the_others_do_not(
    sandbox: WasmSandbox, small_guest: None
) -> None:
    inputs = named(orders=ORDERS, log=LONG, notes="one\ntwo\n")
    program = "FINAL([type(each).__name__ for each in (orders, log, notes)] + [len(orders_rows)])"

    played = play(sandbox, [block(program)], inputs=inputs)

    assert played.run.answer == '["str","HostText","str",3]', failures(played)
    assert played.replayed().held
    assert request_bytes(started(played)) <= REQUEST_BYTES_MAX
    # What the steps around a run compare is the same from the inputs and from the record.
    assert RunAsked.of_record(started(played)).inputs == inputs_digest(inputs)


@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=8))
def test_no_more_goes_into_the_guest_than_fits_and_no_less_than_must(sizes: list[int]) -> None:
    texts = {f"n{place}": HostText(b"x" * size) for place, size in enumerate(sizes)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout_module, "STR_BYTES_MAX", 80)
        layout = layout_of(
            [Input(name=name, variable=name, text=text) for name, text in texts.items()]
        )

    held = [len(texts[name]) for name in layout.values]
    away = [len(texts[name]) for name in layout.texts]
    assert sorted(held + away) == sorted(sizes)
    assert sum(held) <= 80
    assert not away or sum(held) + min(away) > 80
    assert not away or max(held, default=0) <= min(away)


def test_many_contexts_are_told_in_a_short_prompt(sandbox: WasmSandbox) -> None:
    some = named(**{f"name_of_data_{place}": ORDERS * 50 for place in range(VARIABLES_MAX)})

    played = play(sandbox, [block("FINAL(len(name_of_data_19_lines))")], inputs=some)

    said = prompt.opening(started(played))[1].text
    assert all(f"`name_of_data_{place}" in said for place in range(VARIABLES_MAX))
    assert len(said) < 8_000
    assert played.run.answer == "200", failures(played)


def corpus(folder: Path, *, files: int, lines: int) -> None:
    for place in range(files):
        text = f"host-{place} says that all is quiet here today\n" * lines
        if place == files * 3 // 4:
            text += f"the needle is N-{place * 7}\n"
        (folder / f"host-{place:04}.log").write_text(text)
    (folder / "empty.log").touch()


@pytest.mark.parametrize(
    ("lines", "program"),
    [
        (110, "name, _, line = context.grep('needle')[0]\nFINAL([name[-8:], line])"),
        (
            3,
            "FINAL([[n[-8:], t.splitlines()[-1]] for n, t in context.items() if 'needle' in t][0])",
        ),
    ],
    ids=["on the host", "in the guest"],
)
def test_a_thousand_files_are_told_in_4_kb_and_a_program_finds_the_one(
    sandbox: WasmSandbox, tmp_path: Path, lines: int, program: str
) -> None:
    corpus(tmp_path, files=1_000, lines=lines)

    played = play(
        sandbox,
        [block(program)] * 2,
        goal="which host has the needle?",
        inputs=read_inputs([str(tmp_path)]),
    )

    assert played.run.answer == '["0750.log","the needle is N-5250"]', failures(played)
    assert request_bytes(started(played)) <= REQUEST_BYTES_MAX
    recursive = msgspec.structs.replace(started(played), strategy="recursive")
    assert request_bytes(recursive) <= REQUEST_BYTES_MAX


def test_a_search_through_a_corpus_is_replayed(sandbox: WasmSandbox, small_guest: None) -> None:
    inputs = [given_text(f"text {n}\n" + "the end\n" * 900, name=f"{n}.txt") for n in range(5)]

    played = play(sandbox, [block("FINAL(context.grep('[34]|z'))")], inputs=inputs)

    assert played.run.answer == '[["3.txt",1,"text 3"],["4.txt",1,"text 4"]]', failures(played)
    assert played.replayed().held
    said = prompt.opening(started(played))[1].text
    assert "context.grep(pattern) gives (name, line number, line)" in said
    assert "text 4" not in said


@pytest.mark.slow
@pytest.mark.parametrize("letter", ["o", "ö"])
def test_a_hundred_million_characters_are_told_in_4_kb_and_a_program_finds_the_needle(
    sandbox: WasmSandbox, tmp_path: Path, letter: str
) -> None:
    chars, line = 100_000_000, f"w{letter}rds and more words of the same kind, one after another\n"
    needle = "the needle is N-5250\n"
    half = line * (chars // 2 // len(line))
    path = tmp_path / "long.txt"
    path.write_text((half + needle + half).ljust(chars, "x"))
    del half
    program = (
        "start, end, text = context.search('N-[0-9]+')[0]\n"
        "print(len(context), context[start:end])\nFINAL(text)"
    )

    played = play(sandbox, [block(program)], inputs=read_inputs([str(path)]))

    assert played.run.answer == "N-5250", failures(played)
    printed = next(each.stdout for each in played.records if isinstance(each, ProgramFinished))
    assert printed == f"{chars} N-5250\n"
    assert request_bytes(started(played)) <= REQUEST_BYTES_MAX
