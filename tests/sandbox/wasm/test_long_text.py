"""A long text in a program: what people do with a `str` works on it too, or says what to do."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wasm_session import TestSession

from tallystick.sandbox import text as text_module
from tallystick.sandbox.host import HostTable
from tallystick.sandbox.text import HostText

texts = st.text(st.sampled_from("ab \näé\N{SNOWMAN}"), max_size=300)
TEXT = "".join(f"line {number}: ä{number % 7}\n" for number in range(400))


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seams everywhere: windows of a few bytes."""
    monkeypatch.setattr(text_module, "_BLOCK_BYTES", 16)
    monkeypatch.setattr(text_module, "_WINDOW_BYTES", 32)
    monkeypatch.setattr(text_module, "MATCH_BYTES_MAX", 64)


@given(text=texts, needle=st.text(st.sampled_from("abä"), min_size=1, max_size=3))
def test_count_is_the_count_of_the_str(text: str, needle: str) -> None:
    assert HostText.of(text).count(needle) == text.count(needle)


@given(text=texts, pattern=st.sampled_from(["a+b", "[äé]", "^b", "$", "a|b"]))
def test_grep_gives_the_lines_that_match_with_their_numbers(text: str, pattern: str) -> None:
    wanted = [
        (number, line)
        for number, line in enumerate(text.split("\n"), 1)
        if re.search(pattern, line) and (line or pattern == "$")
    ]

    found = HostText.of(text).grep(f"(?m){pattern}", 10_000)

    if pattern == "$":
        return  # An empty match is everywhere; that it ends is what counts.
    assert found == wanted


# Each is true of a text on the host as it is of the same `str`.
SAME = [
    "len(t) == len(s)",
    "t[5:30] == s[5:30] and t[-3:] == s[-3:] and t[0] == s[0] and t[::7] == s[::7]",
    "t.count('line') == s.count('line') and t.count('') == s.count('')",
    "t.find('line 7') == s.find('line 7') and t.find('line', 9, 12) == s.find('line', 9, 12)",
    "t.index('ä') == s.index('ä')",
    "t.startswith('line') and t.startswith(('x', 'line 0')) and not t.startswith('zzz')",
    "t.endswith(s[-4:]) and not t.endswith('zzz')",
    "list(t.lines()) == s.splitlines() and list(t.splitlines()) == s.splitlines()",
    "len(t.splitlines()) == len(s.splitlines())",
    "t.splitlines()[3] == s.splitlines()[3] and t.splitlines()[-1] == s.splitlines()[-1]",
    "t.splitlines()[10:20:3] == s.splitlines()[10:20:3]",
    "''.join(t) == s and list(t)[:50] == list(s)[:50]",
    "''.join(t.chunks(37)) == s",
    "[len(c) for c in t.chunks(100, 20)][:3] == [100, 100, 100]",
    "all(a[-20:] == b[:20] for a, b in zip(list(t.chunks(100, 20)), list(t.chunks(100, 20))[1:]))",
    "'line 399' in t and 'line 400' not in t",
    "bool(t)",
    "re.search('line 3.', t).span() == re.search('line 3.', s).span()",
    "re.search('nothing', t) is None",
    "re.findall('ä[0-2]', t) == re.findall('ä[0-2]', s)",
    "re.findall('line ([0-9]+): (ä)', t)[:9] == re.findall('line ([0-9]+): (ä)', s)[:9]",
    "[m.start() for m in re.finditer('LINE 9', t, re.I)] == [m.start() for m in re.finditer('LINE 9', s, re.I)]",  # noqa: E501
    "re.findall(re.compile('ä[3]'), t) == re.findall('ä[3]', s)",
    "re.findall('b', 'abc') == ['b'] and re.search('x', 'abc') is None",
    "t.grep('line 39[0-9]', limit=3) == [(391, s.splitlines()[390]), (392, s.splitlines()[391]), (393, s.splitlines()[392])]",  # noqa: E501
]


@pytest.mark.parametrize("claim", SAME)
def test_what_is_true_of_the_str_is_true_of_the_text(session: TestSession, claim: str) -> None:
    host = HostTable(texts={"t": HostText.of(TEXT)}, values={"s": TEXT})

    result = session.run(f"import re\n{claim}", host=host)

    assert (result.error, result.value) == (None, "True")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("t.upper()", "slice it (text[a:b])"),
        ("re.compile('x').findall(t)", "text.search"),
        ("re.sub('a', 'b', t)", "text.search"),
        ("t.chunks(0)", "size must be positive"),
        ("list(t.chunks(5, 5))", "overlap from 0"),
        ("t.index('nothing')", "substring not found"),
        ("t.splitlines()[400]", "out of range"),
        ("re.search('(l)', t).group(1)", "no groups"),
    ],
)
def test_what_does_not_work_shows_the_way(session: TestSession, program: str, said: str) -> None:
    host = HostTable(texts={"t": HostText.of(TEXT)})

    result = session.run(f"import re\nx = {program}\nlist(x)", host=host)

    assert result.error is not None
    assert said in result.error.message


def test_an_empty_text_has_no_lines_and_no_chunks(session: TestSession) -> None:
    host = HostTable(texts={"t": HostText(b"")})

    result = session.run(
        "[list(t.lines()), list(t.chunks(9)), len(t.splitlines()), bool(t)]", host=host
    )

    assert result.value == "[[], [], 0, False]"
