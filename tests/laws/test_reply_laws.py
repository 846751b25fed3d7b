"""Whatever a model writes: reading it ends, says something, and invents nothing."""

import ast

from hypothesis import assume, given
from hypothesis import strategies as st

from tallystick.core.machine.commands import Code, Final
from tallystick.core.machine.reply import fenced_block, parse_reply

PIECES = [
    *(
        "```",
        "````",
        "~~~",
        "```python",
        "```repl\n",
        "```bash\n",
        "```json\n",
        "`",
        "\n",
        "\r\n",
        " ",
    ),
    *("FINAL(", "FINAL_VAR(", "RUN(", "SNAPSHOT(", "ROLLBACK(", "QUERY_LLM(", "QUERY_LLM_BATCHED("),
    *(")", "(", '"', "'", '"""', "'''", "\\", "\\u00e9", "\\ud800", '["a"]', "[", "]", "\u201c"),
    *("<think>", "</think>", "x = 1", "print(x)", "it's", "- ", "> ", "**", "1. ", "#", "f", "\0"),
]
any_text = st.text(st.characters(exclude_categories=()))
pieces = st.lists(st.sampled_from([*PIECES, "CODE("]) | any_text, max_size=30).map("".join)
programs = st.lists(
    st.sampled_from([*PIECES, "CODE(", "\r", "\f", "\u2028", "    "]) | st.text(), max_size=20
).map("".join)
valid_programs = st.lists(
    st.sampled_from(["x = 1", "# it's", '# """', "'''\n```\n'''", "FINAL(x)", "</think>", "f'`'"])
).map("\n".join)


@given(text=pieces | any_text, cut=st.booleans())
def test_any_reply_gives_commands_or_one_line_that_says_why_not(text: str, cut: bool) -> None:
    reply = parse_reply(text, cut=cut)

    assert reply.commands or reply.problem
    assert reply.problem is None or "\n" not in reply.problem


@given(text=pieces)
def test_reading_a_reply_twice_gives_the_same(text: str) -> None:
    assert parse_reply(text) == parse_reply(text)


@given(
    parts=st.lists(
        st.sampled_from([piece for piece in PIECES if piece not in {" ", "- ", "1. "}])
        | st.sampled_from(["\n```python\n", "\n```\n", "\n```repl\n", "\n~~~py\n", "\n~~~\n"]),
        max_size=30,
    )
)
def test_a_program_is_a_part_of_the_reply(parts: list[str]) -> None:
    text = "".join(parts)

    for command in parse_reply(text).commands:
        assert not isinstance(command, Code) or command.source in text


@given(text=pieces.filter(lambda text: "CODE(" not in text))
def test_each_line_of_a_program_is_a_part_of_the_reply(text: str) -> None:
    for command in parse_reply(text).commands:
        lines = command.source.split("\n") if isinstance(command, Code) else []
        assert all(line in text for line in lines)


@given(program=programs, cut=st.booleans())
def test_a_rendered_program_is_read_as_it_was(program: str, cut: bool) -> None:
    assume(program.strip())

    reply = parse_reply(fenced_block(program), cut=cut)

    assert reply.commands == (Code(source=program),)
    assert reply.problem is None


@given(program=programs)
def test_a_rendered_program_is_read_with_prose_around_it(program: str) -> None:
    assume(program.strip())

    reply = parse_reply(f"First I look.\n\n{fenced_block(program)}\n\nThat's all.")

    assert reply.commands == (Code(source=program),)
    assert reply.prose == "First I look.\n\n\n\nThat's all."


@given(first=valid_programs, second=valid_programs)
def test_two_rendered_programs_are_read_as_two(first: str, second: str) -> None:
    assume(first.strip() and second.strip() and parses(first))

    reply = parse_reply(f"{fenced_block(first)}\n{fenced_block(second)}")

    assert reply.commands == (Code(source=first), Code(source=second))


@given(answer=any_text, quote=st.sampled_from(['"', "'", '"""', "'''"]))
def test_a_quoted_answer_is_read_as_it_was(answer: str, quote: str) -> None:
    assume(answer.strip())
    escaped = answer.replace("\\", "\\\\").replace(quote[0], f"\\{quote[0]}")

    reply = parse_reply(f"FINAL({quote}{escaped}{quote})")

    assert reply.commands == (Final(text=answer),)


def parses(program: str) -> bool:
    try:
        ast.parse(program)
    except SyntaxError:
        return False
    return True
