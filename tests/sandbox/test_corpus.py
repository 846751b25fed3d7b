"""Many long texts by name: looked through at once, in their order, with a bound."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wasm_session import TestSession

from tallystick.core.errors import UsageError
from tallystick.sandbox.host import HostTable
from tallystick.sandbox.port import HostCall
from tallystick.sandbox.text import HostText, grep_each, search_each

TEXTS = {
    "a.log": "first ERR-1\nsecond\n",
    "empty.log": "",
    "b/c.log": "ä ERR-2 and ERR-3\nlast ERR-4",
}
some_texts = st.lists(st.text(st.sampled_from("ab \nä"), max_size=40), max_size=6)


def corpus(texts: dict[str, str] = TEXTS) -> HostTable:
    return HostTable(texts={"context": {name: HostText.of(text) for name, text in texts.items()}})


@given(some=some_texts, limit=st.integers(0, 9))
def test_matches_come_in_the_order_of_the_texts_and_end_at_the_limit(
    some: list[str], limit: int
) -> None:
    wanted = [
        (place, *match.span(), match[0])
        for place, text in enumerate(some)
        for match in re.finditer("[aä]b?", text)
    ]

    found = search_each([HostText.of(text) for text in some], "[aä]b?", limit)

    assert found == wanted[:limit]


@given(some=some_texts, limit=st.integers(0, 9))
def test_lines_are_those_that_grep_finds_in_each(some: list[str], limit: int) -> None:
    held = [HostText.of(text) for text in some]
    wanted = [(place, *line) for place, text in enumerate(held) for line in text.grep("ä|b", 99)]

    assert grep_each(held, "ä|b", limit) == wanted[:limit]


@pytest.mark.parametrize("limit", [-1, "5", None, True, 1.0])
def test_a_limit_that_is_none_is_refused(limit: object) -> None:
    with pytest.raises(UsageError, match="a limit is a whole number"):
        search_each([HostText.of("a")], "a", limit)  # type: ignore[arg-type]


def test_a_program_sees_which_text_each_match_is_in(session: TestSession) -> None:
    host = corpus()

    assert session.value("context.grep('ERR-[0-9]')", host=host) == repr(
        [("a.log", 1, "first ERR-1"), ("b/c.log", 1, "ä ERR-2 and ERR-3"),
         ("b/c.log", 2, "last ERR-4")]
    )  # fmt: skip
    assert session.value("context.search('ERR-[0-9]', 2)", host=host) == repr(
        [("a.log", 6, 11, "ERR-1"), ("b/c.log", 2, 7, "ERR-2")]
    )
    assert session.value("context.search('nothing'), context.grep('x', limit=0)", host=host) == (
        "([], [])"
    )


def test_it_is_a_dictionary_of_texts(session: TestSession) -> None:
    host = corpus()
    claims = (
        "isinstance(context, dict)",
        "context.names() == list(context) == ['a.log', 'empty.log', 'b/c.log']",
        "context['b/c.log'][2:7] == 'ERR-2' and context.get('none') is None",
        "[len(text) for text in context.values()] == [19, 0, 28]",
        "'a.log' in context and 'ERR-1' not in context",
        "repr(context) == \"<3 long texts by name: 'a.log', 'empty.log', 'b/c.log'>\"",
    )

    for claim in claims:
        assert session.value(claim, host=host) == "True", claim


def test_a_search_of_all_is_one_call(session: TestSession) -> None:
    many = corpus({f"{place}.txt": f"text {place}\n" for place in range(1_000)})

    result = session.run("context.grep('text 99[0-9]')[-1]", host=many)

    assert result.value == "('999.txt', 1, 'text 999')"
    assert result.charge.host_calls == 1


def test_texts_that_a_program_took_out_are_not_looked_through(session: TestSession) -> None:
    program = "del context['a.log']\ncontext['mine'] = 'ERR-9'\ncontext.search('ERR-[0-9]')[0][0]"

    assert session.value(program, host=corpus()) == "'b/c.log'"


@pytest.mark.parametrize(
    ("program", "kind", "said"),
    [
        ("context[0:500]", "TypeError", "a text is taken by its name"),
        ("context[0]", "TypeError", "texts.grep(pattern)"),
        ("context['no.log']", "KeyError", "no.log"),
        ("context.splitlines()", "AttributeError", "texts.grep(pattern)"),
        ("context.chunks(5)", "AttributeError", "take one (texts[name])"),
        ("context.nothing", "AttributeError", "nothing"),
        ("__import__('re').findall('a', context)", "TypeError", "texts.search(pattern)"),
        ("context.grep('(')", "HostError", "cannot be used"),
        ("context.grep('a', 'b')", "HostError", "a limit is a whole number"),
        ("context.grep(5)", "HostError", "text is needed"),
    ],
)
def test_what_does_not_work_shows_the_way(
    session: TestSession, program: str, kind: str, said: str
) -> None:
    error = session.run(program, host=corpus()).error

    assert error is not None
    assert error.kind == kind
    assert said in error.message


@given(
    ids=st.one_of(
        st.lists(st.integers(-2, 5), min_size=4, max_size=6),
        st.lists(st.sampled_from([-1, 3, True, "0", None, [0], 0.5]), min_size=1, max_size=3),
        st.sampled_from([0, "0", None, {}, {"a": 0}]),
    )
)
def test_only_the_texts_of_the_program_are_looked_through(ids: object) -> None:
    request = json.dumps(["text.grep_each", [ids, ".", 9], {}]).encode()

    reply = corpus().serve(HostCall(index=0, name="text.grep_each", request=request, fuel=0))

    assert isinstance(reply, bytes)
    assert reply.startswith(b"1")
    assert b"host.text" in reply


def test_a_pattern_that_would_take_for_ever_elsewhere_is_linear_here(session: TestSession) -> None:
    texts = corpus({f"{place}": "a" * 2_000 for place in range(50)})

    assert session.value("context.search('(a+)+$', 2)[1][:3]", host=texts) == "('1', 0, 2000)"
