"""The program a model is shown first: it fits the data, and it runs."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sandbox.wasm.test_given_data import Given
from tests.wasm_session import open_session

from tallystick.inputs.description import program_over
from tallystick.inputs.layout import InputLayout, layout_of
from tallystick.inputs.shapes import shape_of
from tallystick.runtime.context.inputs import given_text
from tallystick.runtime.context.namespace import CONTEXT
from tallystick.sandbox.wasm.sandbox import WasmSandbox

# Every example runs in the sandbox: fewer of them, in proportion to what the profile says.
EXAMPLES = settings().max_examples * 15 // 100

words = st.text("abcXYZ é'\"\\{}", min_size=1, max_size=8)
keys = st.sampled_from(["id", "name", "it's", "a b", 'say "x"'])
plain = st.none() | st.booleans() | st.integers(-99, 99) | words
values = st.recursive(plain, lambda inner: st.dictionaries(keys, inner, max_size=2), max_leaves=4)


def as_json_lines(records: list[object]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def as_table(rows: list[tuple[str, int]]) -> str:
    return "it's,n\n" + "".join(f"{name},{number}\n" for name, number in rows)


one_kind_of_record = st.dictionaries(keys, values, min_size=1, max_size=3).flatmap(
    lambda record: st.integers(2, 4).map(lambda count: as_json_lines([record] * count))
)
tables = st.lists(st.tuples(st.text("abc", min_size=1), st.integers()), min_size=2).map(as_table)
texts = st.one_of(
    tables,
    one_kind_of_record,
    values.map(lambda value: json.dumps([value])),
    st.dictionaries(keys, values).map(json.dumps),
    st.lists(st.integers(-(10**6), 10**6), min_size=2).map(lambda n: " ".join(map(str, n))),
    st.lists(words, min_size=1).map("\n".join),
    words.map(lambda word: (word + " ") * 400),
)


def program_for(texts: dict[str, str]) -> str:
    return program_over(
        [
            (CONTEXT, None if len(texts) == 1 else name, shape_of(text))
            for name, text in texts.items()
        ]
    )


def assert_runs(sandbox: WasmSandbox, texts: dict[str, str]) -> str:
    """Run the program over its data. Returns what it printed."""
    program = program_for(texts)
    with open_session(sandbox) as session:
        result = session.run(program, host=Given(texts))
    assert result.error is None, f"{program}\n{result.error.traceback}"
    return result.stdout


@settings(max_examples=EXAMPLES)
@given(text=texts)
def test_the_program_over_one_text_runs_and_prints_something(
    sandbox: WasmSandbox, text: str
) -> None:
    assert assert_runs(sandbox, {"a.txt": text})


@settings(max_examples=EXAMPLES)
@given(some=st.dictionaries(st.sampled_from(["a.csv", "b'c.txt", "lines"]), texts, min_size=2))
def test_the_program_over_several_texts_runs_and_prints_something(
    sandbox: WasmSandbox, some: dict[str, str]
) -> None:
    assert assert_runs(sandbox, some)


@settings(max_examples=EXAMPLES)
@given(
    left=st.lists(st.sampled_from(["1", "2", "7", "x", "$5", ""]), min_size=2, max_size=3),
    right=st.lists(
        st.sampled_from(["1", "2", "7", "x", "$5", "1.0", "", "y"]),
        min_size=2, max_size=8, unique=True,
    ),
)  # fmt: skip
def test_the_program_over_two_tables_runs_whatever_their_columns_hold(
    sandbox: WasmSandbox, left: list[str], right: list[str]
) -> None:
    """A column of numbers here may be one of words there, though its cells are written alike."""
    ordered = "".join(f"{place}o,{cell}\n" for place, cell in enumerate(left))
    known = "".join(f"{cell},{place}k\n" for place, cell in enumerate(right))

    assert assert_runs(sandbox, {"l.csv": f"place,key\n{ordered}", "r.csv": f"code,what\n{known}"})


def test_the_program_over_records_of_several_kinds_runs(sandbox: WasmSandbox) -> None:
    text = as_json_lines([{"user": {"name": "Ada"}}, {"user": None}, {"event": "left"}])

    assert assert_runs(sandbox, {"a.jsonl": text})


def test_two_tables_that_share_a_column_are_joined(sandbox: WasmSandbox) -> None:
    texts = {
        "log.csv": "day,vessel\nmon,V-1\ntue,V-2\nwed,V-1\n",
        "vessels.csv": "number,owner\nV-1,Ada\nV-2,Xu\n",
    }

    printed = assert_runs(sandbox, texts)

    assert "by_key" in program_for(texts)
    assert [line.rpartition(" ")[2] for line in printed.splitlines()] == ["Ada", "Xu", "Ada"]


def test_tables_whose_values_do_not_meet_are_not_joined() -> None:
    texts = {
        "log.csv": "day,vessel\nmon,V-1\ntue,V-3\n",
        "vessels.csv": "number,owner\nV-1,Ada\nV-2,Xu\n",
    }

    assert "by_key" not in program_for(texts)


@pytest.mark.parametrize(
    ("text", "program"),
    [
        ("name,tons\na,1\nb,2\n", "for row in rows[:3]:\n    print(row['tons'])"),
        ("id,name,n\nx,a,1\ny,b,2\n", "for row in rows[:3]:\n    print(row['name'], row['n'])"),
        ('{"a": {"b": 1}}\n' * 2, "for record in records[:3]:\n    print(record['a']['b'])"),
        ('{"a": 1}', "print(type(data), list(data)[:5])"),
        ("1 2 3", "print(len(numbers), min(numbers), max(numbers))"),
        ("one\ntwo", "for line in lines[:3]:\n    print(line)"),
        ("word " * 200, "print(context[:500])"),
    ],
)
def test_the_program_names_what_the_data_has(text: str, program: str) -> None:
    assert program_for({"a.txt": text}) == program


def test_the_program_has_no_condition_a_model_would_keep() -> None:
    texts = ["name,tons\na,1\nb,2\n", '{"a": 1}\n{"a": 2}\n', "1 2 3", "one\ntwo"]

    assert not any(" if " in program_for({"a": text}) for text in texts)


def test_the_program_stands_last_in_what_the_model_is_told_of_the_data() -> None:
    (context,) = layout_of([given_text("name,tons\na,1\nb,2\n", name="a.csv")]).contexts

    program = "for row in rows[:3]:\n    print(row['tons'])"
    assert context.sample.endswith(f"A block can begin like this:\n```python\n{program}\n```")


# -- how inputs are laid out -------------------------------------------------------------------


@settings(max_examples=EXAMPLES)
@given(text=texts)
def test_a_text_up_to_1500_characters_is_told_whole_and_a_longer_one_is_not(text: str) -> None:
    layout = layout_of([given_text(text, name="a.txt")])

    (context,) = layout.contexts
    assert context.whole == (len(text) <= 1_500)
    if context.whole:
        assert text in context.sample
    assert (context.chars, context.bytes) == (len(text), len(text.encode()))
    assert layout.values == {"context": text}


@settings(max_examples=EXAMPLES)
@given(some=st.dictionaries(st.sampled_from(["a.csv", "b/a.csv", "c.txt"]), texts, min_size=2))
def test_several_texts_lie_under_their_names_with_every_view_by_its_key(
    some: dict[str, str],
) -> None:
    layout = layout_of([given_text(text, name=name) for name, text in some.items()])

    assert layout.values == {"context": some}
    assert layout.files == tuple((name, "context", name) for name in some)
    assert {view.key for view in layout.views if view.name == "lines"} == set(some)
    assert {view.of for view in layout.views} == {"context"}
    assert not layout.contexts[0].whole


def test_without_inputs_nothing_is_laid_out() -> None:
    layout = layout_of([])

    assert layout == InputLayout()
