"""Frontmatter: whatever a file holds, it is taken apart without an error, in bounded time."""

from __future__ import annotations

import time
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from tests.skills.skill_corpus import CHANGES, changed

from tallystick.skills.format import yaml_head
from tallystick.skills.format.frontmatter import FILE_BYTES_MAX, FRONTMATTER_BYTES_MAX, Split, split

pytestmark = pytest.mark.slow

GOOD = "---\nname: a\ndescription: Does it.\n---\n# Title\n\nText\n"


def fields(yaml_text: str) -> dict[str, Any]:
    made = split(f"---\n{yaml_text}\n---\n".encode())
    assert made.fields is not None, made.problems
    return dict(made.fields)


def codes(made: Split) -> list[str]:
    return [each.code for each in made.problems]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_a_byte_order_mark_change_nothing(line_end: str, mark: bytes) -> None:
    made = split(mark + GOOD.replace("\n", line_end).encode())

    assert made.fields == {"name": "a", "description": "Does it."}
    assert made.body == "# Title\n\nText"
    assert codes(made) == (["encoding.bom"] if mark else [])


def test_a_file_without_frontmatter_is_all_body() -> None:
    made = split(b"# Title\n\n---\n\nText\n")

    assert (made.fields, made.body) == (None, "# Title\n\n---\n\nText")
    assert [(each.level, each.code) for each in made.problems] == [
        ("warning", "frontmatter.missing")
    ]


@pytest.mark.parametrize("raw", [b"", b"\n\n", b"   ", b"---", b"---\n", b"---\nname: a\n"])
def test_a_file_that_has_no_fields_is_told(raw: bytes) -> None:
    made = split(raw)

    assert made.fields is None
    assert codes(made)[-1] in {"frontmatter.missing", "frontmatter.unclosed"}


@pytest.mark.parametrize(
    ("opening", "closing"),
    [("\n\n---\n", "---\n"), ("--- # x\n", "---\n"), ("---\n", "-----\n"), ("---\n", "  ---\n")],
)
def test_fences_that_are_not_quite_right_are_taken_with_a_warning(
    opening: str, closing: str
) -> None:
    made = split(f"{opening}name: a\n{closing}Body\n".encode())

    assert (made.fields, made.body) == ({"name": "a"}, "Body")
    assert [each.level for each in made.problems] == ["warning"]


def test_only_a_line_of_its_own_closes_the_frontmatter() -> None:
    text = "---\ndescription: |\n  a\n  ---\n  b --- c\nname: d\n---\nBody --- here\n---\nMore\n"

    made = split(text.encode())

    assert made.fields == {"description": "a\n---\nb --- c\n", "name": "d"}
    assert made.body == "Body --- here\n---\nMore"


def test_values_stay_the_text_that_was_written() -> None:
    found = fields("a: 2024-01-01\nb: 1.10\nc: yes\nd: 0x1F\ne: 1_000\nf: '~'\ng: ~\nh:\ni: 12:30")

    assert found == {
        "a": "2024-01-01", "b": "1.10", "c": "yes", "d": "0x1F", "e": "1_000", "f": "~",
        "g": None, "h": None, "i": "12:30",
    }  # fmt: skip


def test_hyphens_and_underscores_in_keys_are_told_alike() -> None:
    made = split(b"---\nallowed-tools: a\nuser_invocable: b\n---\n")

    assert made.fields == {"allowed_tools": "a", "user_invocable": "b"}
    assert made.keys == ("allowed-tools", "user_invocable")


@pytest.mark.parametrize("second", ["allowed-tools", "allowed_tools"])
def test_of_a_key_that_is_there_twice_the_last_counts_with_a_warning(second: str) -> None:
    made = split(f"---\nallowed-tools: a\n{second}: b\n---\n".encode())

    assert made.fields == {"allowed_tools": "b"}
    assert codes(made) == ["yaml.duplicate"]


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("Use when: always", "Use when: always"),
        ("Use when: always # not a comment", "Use when: always # not a comment"),
        ("Does it: first\n  then: second\n  third", "Does it: first then: second third"),
        ("It's: so", "It's: so"),
        ("*bold* text", "*bold* text"),
        ("*alone", "*alone"),
        ("`code` first", "`code` first"),
        ("@file: x", "@file: x"),
        ("%percent", "%percent"),
        ("[one] [two]", "[one] [two]"),
        ("'It's so'", "It's so"),
        ('"quoted" and more', '"quoted" and more'),
        ("bell\a", "bell"),
        ("ends with a colon:", "ends with a colon:"),
    ],
)
def test_text_that_wants_quotes_is_read_as_if_it_had_them(written: str, read: str) -> None:
    made = split(f"---\ndescription: {written}\nflag: true # yes\n---\n".encode())

    assert made.fields == {"description": read, "flag": "true"}
    assert codes(made) == ["yaml.mended"]


def test_patterns_in_lists_and_indents_by_tab_are_mended_too() -> None:
    made = split(b"---\nd: a: b\npaths:\n\t- *.py\n\t- '*.md'\n---\n")

    assert made.fields == {"d": "a: b", "paths": ["*.py", "*.md"]}


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        ("a: &a [x]\nb: [*a, *a]", "yaml.anchor"),
        ("a: &a\n  b: *a", "yaml.anchor"),
        ("a: !!python/object/apply:os.system ['true']", "yaml.tag"),
        ("a: !x y", "yaml.tag"),
        ("!!map\na: b", "yaml.tag"),
        ("a:\n  - *b\n  - ]", "yaml.alias"),
        ("a: " + "[" * 12 + "]" * 12, "yaml.deep"),
        ("a:\n" + "".join(f"{'  ' * n}- \n" for n in range(1, 20)), "yaml.deep"),
        ("- a\n- b", "yaml.mapping"),
        ("just text", "yaml.mapping"),
        ("? [a, b]\n: c", "yaml.key"),
        ("? {a: b}\n: c", "yaml.key"),
        ("a: 'open", "yaml.invalid"),
        ("a:\n  b: [c\nd: e", "yaml.invalid"),
        ("a: b\n...\nc: d", "yaml.invalid"),
        ("x" * FRONTMATTER_BYTES_MAX, "frontmatter.large"),
    ],
)
def test_yaml_that_is_not_taken_is_an_error_with_its_reason(bad: str, code: str) -> None:
    made = split(f"---\n{bad}\n---\nBody\n".encode())

    assert made.fields is None
    assert made.body == "Body"
    assert [(each.level, each.code) for each in made.problems] == [("error", code)]


def test_twelve_levels_are_taken() -> None:
    value = fields("a: " + "[" * 11 + "]" * 11)["a"]

    for _ in range(10):
        (value,) = value
    assert value == []


def test_a_bomb_of_aliases_is_refused_at_its_first_anchor() -> None:
    levels = "".join(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]\n" for n in range(1, 30))

    made = split(f"---\nl0: &l0 lol\n{levels}---\n".encode())

    assert codes(made) == ["yaml.anchor"]


def test_an_empty_frontmatter_has_no_fields_and_no_problem() -> None:
    assert fields("") == {}
    assert fields("# only a comment") == {}


def test_a_file_over_its_limit_is_not_looked_at() -> None:
    at_limit = GOOD.encode() + b"x" * (FILE_BYTES_MAX - len(GOOD))

    assert split(at_limit).fields is not None
    assert codes(split(at_limit + b"x")) == ["file.large"]
    assert split(at_limit + b"x").body == ""


def test_bytes_that_are_no_text_are_told() -> None:
    latin = split(GOOD.encode() + b"caf\xe9")
    binary = split(GOOD.encode("utf-16"))

    assert latin.fields is not None
    assert latin.body.endswith("caf\ufffd")
    assert codes(latin) == ["encoding.utf8"]
    assert (binary.fields, codes(binary)) == (None, ["encoding.binary"])


@pytest.mark.parametrize("between", ["\x85", "\u2028", "\u2029"])
def test_a_key_cannot_hide_behind_a_line_end_of_old_yaml(between: str) -> None:
    assert fields(f"name: a{between}shell: b")["name"] == "a shell: b"


def test_a_list_in_brackets_matters_to_others_and_not_here() -> None:
    made = split(b"---\npaths: [a, b]\n---\n")

    assert made.fields == {"paths": ["a", "b"]}
    assert (codes(made), [each.code for each in made.strict]) == ([], ["yaml.flow"])


HOSTILE = {
    "brackets": "a: " + "[" * 60_000,
    "braces": "a: " + "{" * 60_000,
    "items": "- " * 30_000,
    "questions": "? " * 30_000,
    "colons": "a: " * 20_000,
    "keys": "".join(f"k{n}: v\n" for n in range(6_000)),
    "same key": "a: b\n" * 12_000,
    "stairs": "".join(" " * n + "a:\n" for n in range(340)),
    "backslashes": 'a: "' + "\\" * 60_000,
    "to mend": "".join(f"k{n}: a: b\n" for n in range(5_000)),
    "continued": "d: a: b\n" + " c: d\n" * 10_000,
    "tabs": "\t" * 60_000,
    "line ends": "\n" * 60_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_yaml_of_full_size_takes_no_long_time(name: str) -> None:
    raw = f"---\n{HOSTILE[name]}\n---\n".encode()
    begun = time.process_time()

    split(raw)

    # It takes some hundredths; a second means that the time grows with the square of the size.
    assert time.process_time() - begun < 1


@given(st.binary(max_size=300))
def test_no_bytes_raise(raw: bytes) -> None:
    for each in (raw, b"---\n" + raw, b"---\n" + raw + b"\n---\nBody"):
        assert isinstance(split(each).body, str)


PIECES = st.sampled_from([
    "name", "description", ":", "-", "?", "|", ">", "[", "]", "{", "}", ",", "&a", "*a", "!",
    "!!str", "%", "@", "`", "'", '"', "\\", "#", "~", "null", "---", "...", "<<", "=", "\n", "\t",
    "é", "😀", "\ufeff", "\x85", "\u2028", "\ud800", "\n  ", "\n- ", ": ", " ",
])  # fmt: skip


@given(st.lists(PIECES, max_size=30).map("".join))
def test_no_text_made_of_yaml_raises_and_values_are_plain(text: str) -> None:
    made = split(f"---\n{text}\n---\n".encode("utf-8", "replace"))

    assert _is_plain(made.fields if made.fields is None else dict(made.fields))
    assert all(each.message.isprintable() or "\ufffd" in each.message for each in made.problems)


@given(st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text(max_size=40)))
def test_what_yaml_writes_is_read_back(values: dict[str, str]) -> None:
    dumped = yaml.safe_dump(values, allow_unicode=False, default_style='"')
    expected = {key: value.encode("utf-8", "replace").decode() for key, value in values.items()}

    assert fields(dumped) == expected


@pytest.mark.parametrize("name", CHANGES)
def test_without_the_library_in_c_the_same_is_read(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = changed(name, seed=3).raw
    quick = split(raw)
    monkeypatch.setattr(yaml_head, "_LOADER", yaml.SafeLoader)

    slow = split(raw)

    assert (slow.fields, slow.body, slow.keys) == (quick.fields, quick.body, quick.keys)
    assert codes(slow) == codes(quick)


def _is_plain(value: object) -> bool:
    match value:
        case None | str():
            return True
        case list():
            return all(_is_plain(each) for each in value)
        case dict():
            return all(type(key) is str and _is_plain(each) for key, each in value.items())
        case _:
            return False
