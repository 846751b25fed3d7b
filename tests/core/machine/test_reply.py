"""Replies of models: what is read as a program or a command, and what is said when nothing is."""

import time
import warnings

import msgspec
import pytest

from tallystick.core.machine.commands import (
    CHECKED_CHARS_MAX,
    Code,
    Command,
    Final,
    FinalVar,
    QueryLlm,
    QueryLlmBatched,
    Rollback,
    Run,
    Snapshot,
)
from tallystick.core.machine.reply import OPENINGS_MAX, Reply, fenced_block, parse_reply


def read(text: str, *, cut: bool = False) -> list[Command]:
    """Read a reply in which nothing is wrong."""
    reply = parse_reply(text, cut=cut)
    assert reply.problem is None
    return list(reply.commands)


def problem_of(text: str, *, cut: bool = False) -> str:
    """Read a reply from which nothing is taken."""
    reply = parse_reply(text, cut=cut)
    assert reply.commands == ()
    assert reply.problem is not None
    return reply.problem


# Fences.


@pytest.mark.parametrize(
    "tag",
    ["repl", "python", "py", "python3", "Python", "PYTHON", "tool_code", " python", "{.python}"],
)
def test_a_fence_tagged_as_python_is_a_program(tag: str) -> None:
    assert read(f"```{tag}\nprint(1)\n```") == [Code(source="print(1)")]


@pytest.mark.parametrize("tag", ["bash", "sh", "shell", "zsh", "console"])
def test_a_fence_tagged_as_a_shell_is_a_command_line(tag: str) -> None:
    assert read(f"```{tag}\nls -la\n```") == [Run(command="ls -la")]


@pytest.mark.parametrize("tag", ["json", "text", "sql", "js", "html", "c++", "!"])
def test_a_fence_of_another_language_is_prose(tag: str) -> None:
    text = f"```{tag}\nx = f(1)\nFINAL(1)\n```"

    reply = parse_reply(text)

    assert reply.commands == ()
    assert reply.prose == text
    assert "is not run; write one block of Python" in (reply.problem or "")


@pytest.mark.parametrize(
    "text",
    [
        "~~~python\nprint(1)\n~~~",
        "````python\nprint(1)\n````",
        "```python\nprint(1)\n`````",
        "```python title='a.py' {3-4}\nprint(1)\n```",
        "```python\r\nprint(1)\r\n```\r\n",
        "```python\r\nprint(1)\n```",
        "```python\nprint(1)\n```   ",
        "  ```python\n  print(1)\n  ```",
        "\t```python\n\tprint(1)\n\t```",
        "  ```python\nprint(1)\n  ```",
        "- ```python\n  print(1)\n  ```",
        "Here it is: ```python\nprint(1)\n```",
        "```python print(1)```",
        "```print(1)```",
        "```python\nprint(1)```",
        "```\nprint(1)\n```",
        "```python\nprint(1)\n",
        "```python\nprint(1)",
    ],
)
def test_fences_are_read_however_they_are_written(text: str) -> None:
    assert read(text) == [Code(source="print(1)")]


def test_the_indentation_of_a_fence_in_a_list_is_not_the_programs() -> None:
    text = "1. First:\n   ```python\n   if x:\n       print(x)\n\n   ```\n2. Then stop."

    assert read(text) == [Code(source="if x:\n    print(x)\n")]


def test_line_endings_inside_a_program_are_kept() -> None:
    assert read("```python\r\na = 1\r\nb = 2\r\n```\r\n") == [Code(source="a = 1\r\nb = 2")]


def test_a_fence_does_not_close_at_fewer_marks() -> None:
    assert read("````python\nx = '''\n```\n'''\n````") == [Code(source="x = '''\n```\n'''")]


def test_a_fence_inside_a_string_of_the_program_does_not_close_it() -> None:
    program = 'text = """\n```\nhello\n```\n"""\nprint(text)'

    assert read(f"```python\n{program}\n```\nFINAL(done)") == [
        Code(source=program),
        Final(text="done"),
    ]


def test_a_broken_program_does_not_swallow_the_next_block() -> None:
    text = '```python\nx = """\n```\nThen:\n```python\ny = 1\n```'

    assert read(text) == [Code(source='x = """'), Code(source="y = 1")]


def test_a_program_with_an_error_is_still_a_program() -> None:
    assert read("```python\nx = = 1\n```") == [Code(source="x = = 1")]


def test_the_prompts_of_a_console_are_not_part_of_what_was_typed() -> None:
    assert read("```console\n$ ls\na.txt\n$ cat a.txt\n```") == [Run(command="ls\ncat a.txt")]


def test_an_output_in_a_bare_fence_is_not_run() -> None:
    reply = parse_reply("```python\nprint(total)\n```\nOutput:\n```\n42\n```")

    assert reply.commands == (Code(source="print(total)"),)
    assert "42" in reply.prose


def test_a_bare_fence_may_hold_a_command() -> None:
    assert read("```\nFINAL(The capital is Paris)\n```") == [Final(text="The capital is Paris")]


def test_a_bare_fence_without_code_does_not_hide_the_block_after_it() -> None:
    text = "```\nsome output\n```\nNow:\n```python\nx = 1\n```"

    assert read(text) == [Code(source="x = 1")]


def test_a_closing_fence_that_was_never_opened_ends_the_program() -> None:
    assert read("x = 1\nprint(x)\n```\n") == [Code(source="x = 1\nprint(x)")]


def test_an_empty_block_says_so() -> None:
    assert "the python block is empty" in problem_of("```python\n\n```")


def test_an_empty_block_beside_another_is_passed_over() -> None:
    assert read("```python\n```\n```python\nx = 1\n```") == [Code(source="x = 1")]


# Order and prose.


def test_blocks_and_commands_keep_their_order() -> None:
    text = "SNAPSHOT(a)\n```python\nx = 1\n```\nthen\n```bash\nls\n```\nFINAL_VAR(x)"

    assert read(text) == [
        Snapshot(name="a"),
        Code(source="x = 1"),
        Run(command="ls"),
        FinalVar(name="x"),
    ]


def test_a_final_inside_a_program_is_the_programs() -> None:
    assert read("```repl\nx = 1\nFINAL(x)\n```") == [Code(source="x = 1\nFINAL(x)")]


def test_prose_is_what_is_neither_command_nor_program_nor_reasoning() -> None:
    reply = parse_reply("<think>hm</think>Let me look.\n```python\nx\n```\nDone.\nFINAL(1)\n")

    assert reply.prose == "Let me look.\n\nDone."


def test_a_reply_is_encoded_and_decoded_unchanged() -> None:
    reply = parse_reply('```python\nx\n```\nQUERY_LLM_BATCHED(["a"])\nFINAL()')

    assert msgspec.json.decode(msgspec.json.encode(reply), type=Reply) == reply


# Commands.


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("FINAL(42)", Final(text="42")),
        ("FINAL_VAR(total)", FinalVar(name="total")),
        ("RUN(ls -la)", Run(command="ls -la")),
        ("CODE(print(1))", Code(source="print(1)")),
        ("SNAPSHOT(before)", Snapshot(name="before")),
        ("ROLLBACK('before')", Rollback(name="before")),
        ("QUERY_LLM(Who (if any) won?)", QueryLlm(prompt="Who (if any) won?")),
        ('QUERY_LLM_BATCHED(["it\'s (a", "b"])', QueryLlmBatched(prompts=("it's (a", "b"))),
        ('QUERY_LLM_BATCHED([\n  "a",\n  "b"\n])', QueryLlmBatched(prompts=("a", "b"))),
    ],
)
def test_each_command_is_read(text: str, command: Command) -> None:
    assert read(text) == [command]


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("FINAL(it's 42)", "it's 42"),
        ("FINAL('tis (fine))", "'tis (fine)"),
        ("FINAL(the users' (both) dogs' home)", "the users' (both) dogs' home"),
        ("FINAL(rock 'n' roll 'til (dawn))", "rock 'n' roll 'til (dawn)"),
        ("""FINAL("a (b) 'c'")""", "a (b) 'c'"),
        ("""FINAL("a :) b")""", "a :) b"),
        ("""FINAL(see ":)" there)""", 'see ":)" there'),
        ("""FINAL('it\\'s')""", "it's"),
        ("""FINAL("ends in a backslash \\\\")""", "ends in a backslash \\"),
        ("""FINAL("She said "hi" to me")""", '"She said "hi" to me"'),
        ("""FINAL("a", "b")""", '"a", "b"'),
        ('FINAL("""one\n"two" :)\nthree""")', 'one\n"two" :)\nthree'),
        ("FINAL('''a''')", "a"),
        ('FINAL("one\ntwo (2")', "one\ntwo (2"),
        ('FINAL(\n  "a",\n)', "a"),
        ('FINAL(r"a\\nb")', "a\\nb"),
        (r'FINAL("a\nb\tc\"d\\e\u00e9\x41\U0001F600")', 'a\nb\tc"d\\eéA😀'),
        (r'FINAL("\ud83d\ude00")', "😀"),
        (r'FINAL("\ud83d")', r"\ud83d"),
        (r'FINAL("\d+ \q")', r"\d+ \q"),
        (r'FINAL("\U00110000")', r"\U00110000"),
        ('FINAL("a\\\nb")', "ab"),
        ("FINAL(\u201cParis (France)\u201d)", "Paris (France)"),
        ("FINAL(\u2018Paris\u2019)", "Paris"),
        ("FINAL(\u201ca :) b\u201d)", "a :) b"),
        ("FINAL(\nfirst\nsecond (2)\n)", "first\nsecond (2)"),
        ("FINAL(a frown :( )", "a frown :("),
        ("FINAL((42)", "(42"),
        ("FINAL(a frown :( )\nThat is 1) all", "a frown :("),
        ("FINAL(a\\b)", "a\\b"),
    ],
)
def test_an_argument_is_read_as_it_was_meant(text: str, answer: str) -> None:
    assert read(text) == [Final(text=answer)]


@pytest.mark.parametrize(
    "text",
    [
        "  FINAL(42)",
        "\tFINAL(42)\r\n",
        "- FINAL(42)",
        "* FINAL(42)",
        "+ FINAL(42)",
        "1. FINAL(42)",
        "> FINAL(42)",
        "## FINAL(42)",
        "**FINAL(42)**",
        "`FINAL(42)`",
        "* **`FINAL(42)`**.",
        "FINAL(42);",
        "FINAL(42)  # done",
        "I have counted them.\n\nFINAL(42)\n\nI hope that helps.",
        "Done\nFINAL(42)",
        "Answer: 42\nFINAL(42)",
    ],
)
def test_a_command_may_have_markdown_around_it_and_prose_on_other_lines(text: str) -> None:
    assert read(text) == [Final(text="42")]


@pytest.mark.parametrize(
    "text",
    [
        "I will call FINAL(42) when I am done.",
        'Then FINAL(f"{x}") gives it.',
        "<p>FINAL(42)</p>",
        "<html>\n<body class='a'>FINAL(1)</body>\n</html>",
    ],
)
def test_a_command_in_the_middle_of_a_line_is_only_talked_about(text: str) -> None:
    assert "FINAL(…) must start its own line" in problem_of(text)


@pytest.mark.parametrize("text", ["FINAL: 42", "FINAL 42", "Final(42) it is", "FINAL (42)"])
def test_what_only_resembles_a_command_is_none(text: str) -> None:
    assert "write one block of Python" in problem_of(text)


def test_a_lower_case_name_is_a_call_like_any_other() -> None:
    assert read("final(42)") == [Code(source="final(42)")]


@pytest.mark.parametrize(
    "text", ["FINAL(x) ends the run.", "RUN(ls) FINAL(x)", "FINAL(1) a, 2) b)"]
)
def test_a_command_with_text_after_it_is_refused(text: str) -> None:
    assert "must stand alone on its line" in problem_of(text)


@pytest.mark.parametrize("name", ["FINAL", "FINAL_VAR", "RUN", "CODE", "QUERY_LLM_BATCHED"])
@pytest.mark.parametrize("argument", ["", "  ", '""', "'  '", '""""""', "\n"])
def test_an_empty_argument_names_its_command(name: str, argument: str) -> None:
    assert problem_of(f"{name}({argument})").startswith(f"{name} has an empty argument")


@pytest.mark.parametrize("text", ["FINAL(", "FINAL(42", 'FINAL("42', "FINAL((42", "FINAL(a\nb"])
def test_an_argument_that_is_not_closed_is_a_problem(text: str) -> None:
    assert problem_of(text).startswith("FINAL( is not closed")


@pytest.mark.parametrize("text", ['FINAL(f"{x}")', "RUN(f'ls {x}')", 'FINAL(rf"{x}" + "a")'])
def test_an_f_string_outside_a_program_is_refused(text: str) -> None:
    assert 'cannot evaluate f"…" outside a code block' in problem_of(text)


@pytest.mark.parametrize("name", ["x", "_", "total_2", "naïve", '"x"', "'x'", " x "])
def test_a_variable_is_named_with_or_without_quotes(name: str) -> None:
    assert read(f"FINAL_VAR({name})") == [FinalVar(name=name.strip(" '\""))]


@pytest.mark.parametrize("name", ["a b", "a.b", "a['b']", "f(x)", "a-b"])
def test_a_variable_name_is_one_word(name: str) -> None:
    assert problem_of(f"FINAL_VAR({name})").startswith("FINAL_VAR takes the name of one variable")


@pytest.mark.parametrize(
    "argument",
    ["[]", "a", "{}", "[1]", '["a", 1]', '["a"', "['a']", '[""]', "[" * 5_000, r'["\ud800"]'],
)
def test_a_batch_is_a_json_list_of_strings(argument: str) -> None:
    assert "QUERY_LLM_BATCHED" in problem_of(f"QUERY_LLM_BATCHED({argument})")


def test_code_in_a_command_loses_the_indentation_its_lines_share() -> None:
    text = "CODE(\n    x = 1\n    if x:\n        print(x)\n)"

    assert read(text) == [Code(source="x = 1\nif x:\n    print(x)")]


def test_a_bad_command_does_not_hide_a_good_one() -> None:
    reply = parse_reply("FINAL()\n```python\nx = 1\n```")

    assert reply.commands == (Code(source="x = 1"),)
    assert (reply.problem or "").startswith("FINAL has an empty argument")


# Programs without a fence.


def test_blanks_around_a_program_without_a_fence_are_not_the_programs() -> None:
    assert read("\n x = 1\nprint(x)\n\n") == [Code(source="x = 1\nprint(x)")]
    assert read("  x = 1\n  print(x)") == [Code(source="x = 1\nprint(x)")]


@pytest.mark.parametrize(
    "program",
    [
        "x = 1",
        "x += 1",
        "x: int = 1",
        "import re",
        "print(len(context))",
        "context[:500]",
        "[line for line in context]",
        "for x in y:\n    pass",
        "def f():\n    return 1",
        "# Count.\nx = 1\nFINAL(x)",
        "x = 1\nprint('''\nFINAL(2)\n''')",
        "print('é', x)",
    ],
)
def test_a_reply_that_is_python_and_does_something_is_a_program(program: str) -> None:
    assert read(program) == [Code(source=program)]


@pytest.mark.parametrize(
    "text",
    [
        *("yes", "42", "Hello", "Hello, world", "not sure", "- Paris\n- London", "# Heading\n42"),
        *("Answer: 42", "Answer: Paris", "Paris (France)", "Paris[1]", "3.5 / 2", '{"a": 1}'),
        *('"Paris"', "pass", "return home", "global warming", "raise taxes", "...", "a\x00b = 1"),
        *("x = \ud800", "Sure! Here is what I would do next.", "-" * 50_000, "(" * 300),
    ],
)
def test_a_text_that_does_nothing_is_no_program(text: str) -> None:
    assert problem_of(text) == (
        "no code was found; write one block of Python: a line ```python, the program, a line ```"
    )


def test_a_text_too_long_to_be_judged_is_no_program() -> None:
    assert read("x = 1\n" * 10)
    assert problem_of("x = 1\n" * CHECKED_CHARS_MAX)


def test_judging_a_program_gives_no_warnings() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        assert read("x = '\\d' if 1else 2") == [Code(source="x = '\\d' if 1else 2")]

    assert caught == []


# Ends that are missing.


def test_a_block_that_is_not_closed_and_does_not_parse_is_a_problem() -> None:
    assert "no closing ```" in problem_of("```python\nx = (1")


def test_a_cut_block_that_parses_is_run() -> None:
    assert read("```python\nx = 1\nprint(x)", cut=True) == [Code(source="x = 1\nprint(x)")]


@pytest.mark.parametrize(
    "text",
    [
        "```python\nx = 1\nprint(",
        "```bash\nrm -rf /tmp/a",
        "```\nx = (1",
        "First I will plan what to",
        "FINAL(the answer is",
        "x = (1",
        "<think>The user wants",
    ],
)
def test_a_cut_reply_says_so_and_asks_for_code_only(text: str) -> None:
    problem = problem_of(text, cut=True)

    assert problem.startswith("cut")
    assert "write only one code block" in problem


def test_the_whole_blocks_of_a_cut_reply_are_kept() -> None:
    reply = parse_reply("```python\nx = 1\n```\n```python\nprint(", cut=True)

    assert reply.commands == (Code(source="x = 1"),)
    assert (reply.problem or "").startswith("cut")


def test_a_shell_block_that_is_not_closed_is_run_only_if_it_was_not_cut() -> None:
    assert read("```bash\nls") == [Run(command="ls")]


@pytest.mark.parametrize("text", ["", " ", "\n\r\n\t"])
def test_an_empty_reply_says_so(text: str) -> None:
    assert problem_of(text).startswith("the reply was empty; write one block of Python")


# Reasoning.


@pytest.mark.parametrize(
    "reasoning",
    [
        "<think>\nMaybe\n```python\nno = 1\n```\nFINAL(2)\n</think>\n",
        "<thinking>FINAL(2)</thinking>",
        "<think></think>\n<think>FINAL(2)</think>\n\n",
        "FINAL(2)\n```python\nno = 1\n```\n</think>\n",
    ],
)
def test_reasoning_is_not_read(reasoning: str) -> None:
    assert read(f"{reasoning}\nFINAL(1)") == [Final(text="1")]
    assert read(f"{reasoning}\nx = 1") == [Code(source="x = 1")]
    assert parse_reply(f"{reasoning}\nFine.\nFINAL(1)").prose == "Fine."


def test_tags_of_reasoning_inside_a_program_are_the_programs() -> None:
    program = "x = '''\n<think>\n</think>\n'''"

    assert read(fenced_block(program)) == [Code(source=program)]


def test_a_second_end_of_reasoning_takes_nothing_back() -> None:
    assert read("<think>a</think>\nFINAL(1)\n</think>") == [Final(text="1")]


def test_a_command_counts_in_unclosed_reasoning_if_the_reply_ends_with_it() -> None:
    assert read("<think>So\nFINAL(2)\n```python\nx = 1\n```\n") == [Code(source="x = 1")]


@pytest.mark.parametrize(
    "text", ["<think>So\nFINAL(2)\nor not", "<think>x = 1", "<think>\n<think>"]
)
def test_other_commands_in_unclosed_reasoning_are_not_read(text: str) -> None:
    assert "ended inside its reasoning" in problem_of(text)


def test_what_stands_before_unclosed_reasoning_is_kept() -> None:
    text = "```python\nx = 1\n```\n<think>\nFINAL(1)\nwait"

    assert read(text) == [Code(source="x = 1")]


# Rendering.


def test_a_program_is_rendered_in_the_form_that_is_asked_for() -> None:
    assert fenced_block("print(1)") == "```python\nprint(1)\n```"


def test_a_program_with_fences_in_it_is_rendered_with_more_marks() -> None:
    assert fenced_block("x = '````'") == "`````python\nx = '````'\n`````"


# Size. The bound is on processor time; a second look at everything for each opening, which is the
# mistake these would show, takes minutes.

HEADS = [
    *(
        "",
        "FINAL(",
        'FINAL("',
        "CODE(",
        'QUERY_LLM_BATCHED(["',
        "```\n",
        "```python\n",
        "````repl\n",
    ),
    *("  ```python\n  '''", "```python\n'''\n```\n", "FINAL((\n" * 250),
    "".join("`" * (300 - narrower) + "\n" for narrower in range(250)),
]
FILLINGS = [
    *("(", "FINAL(", "FINAL((\n", "RUN(a)\n", "- FINAL(\u201c(\n", "QUERY_LLM_BATCHED([\n"),
    *("```\n", "   ```\n", "x ```\n", "```python\n", "```python\nx = = 1\n```\n", "```json\n```\n"),
    *("````\n```\n", "'''\n```\n", "a ```python\n", "`", "~", "\n", " ", "> ", "1. ", "\r\n", "\0"),
    *(
        "'",
        " '",
        "('\\'",
        '\\"',
        '"\\u',
        "\u201c",
        "FINAL('''\n",
        'FINAL("\\"',
        "x = 1\n",
        "[",
        "é(",
    ),
    *("<think>", "<think>\n", "</think>\n", "<p>FINAL(1)</p>"),
]


def seconds_to_read(text: str) -> float:
    started = time.process_time()
    reply = parse_reply(text)
    assert reply.commands or reply.problem
    return time.process_time() - started


@pytest.mark.parametrize("filling", FILLINGS)
def test_a_long_hostile_reply_is_read_in_one_pass(filling: str) -> None:
    text = HEADS[-2] + filling * (200_000 // len(filling))

    assert seconds_to_read(text) < 1


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("filling", FILLINGS)
def test_a_hostile_reply_of_5_mb_is_read_in_a_second(head: str, filling: str) -> None:
    text = head + filling * (5_000_000 // len(filling))

    assert seconds_to_read(text) < 1
    assert seconds_to_read(text + ')\n```\n"])') < 1


def test_a_program_of_5_mb_is_read_whole() -> None:
    program = "x = '```'\n" * 500_000

    assert read(fenced_block(program)) == [Code(source=program)]


def test_more_openings_than_anyone_writes_are_refused_together() -> None:
    block = "```python\nx = 1\n```\n"

    assert len(read(block * OPENINGS_MAX)) == OPENINGS_MAX
    assert "more than 1000 blocks" in problem_of(block * (OPENINGS_MAX + 1))
