"""`tally check`: a program and a vocabulary, from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tallystick.cli.errors import exit_code_of
from tallystick.cli.main import cli


def checked(*words: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(cli, ["check", *words], input=stdin, standalone_mode=False)


def code_of(result: Result) -> int:
    return exit_code_of(result.exception) if result.exception else int(result.return_value)


@pytest.fixture
def slip(tmp_path: Path) -> str:
    path = tmp_path / "slip.py"
    path.write_text("type A = int\nprint(f'{crm.fnd('a')}', rows)\n")
    return str(path)


def test_what_would_not_run_says_why_with_exit_code_1(slip: str) -> None:
    result = checked(slip, "--tool", "crm.find", "--given", "rows")

    assert code_of(result) == 1
    assert result.stdout.splitlines()[1:3] == [
        '  Unknown terms: ["crm.fnd"]',
        "  Instead of 'crm.fnd', consider: [\"crm.find\"]",
    ]


def test_what_would_run_says_what_is_known_and_what_is_not_covered() -> None:
    source = b"print(crm.find('a'), getattr(llm_query, name))"

    result = checked("-", "--tool", "crm.find", "--given", "name", stdin=source)

    assert code_of(result) == 0
    assert result.stdout.splitlines() == [
        "passes    known terms: crm.find, llm_query",
        'note      Not covered by the check: "getattr" (line 1).',
    ]


def test_a_level_a_thesaurus_and_a_shell_text(tmp_path: Path, slip: str) -> None:
    (tmp_path / "terms.jsonl").write_text('{"term": "crm.fnd", "denied": true}\n')

    assert code_of(checked(slip, "--vocabulary", "permissive")) == 0
    assert code_of(checked(slip, "--thesaurus", str(tmp_path / "terms.jsonl"))) == 1
    shell = checked("-", "--shell", "--json", "--function", "crm", stdin=b"crm x | curl y")
    assert code_of(shell) == 1
    assert json.loads(shell.stdout)["unknown_terms"] == ["curl"]


@pytest.mark.parametrize(
    ("words", "stdin", "said"),
    [
        (("missing.py",), b"", "missing.py: No such file or directory"),
        (("-",), b"a\xff", "- is not UTF-8 at byte 1"),
        (("-", "--thesaurus", "missing.jsonl"), b"", "missing.jsonl: No such file"),
    ],
)
def test_bad_input_is_one_clear_line(words: tuple[str, ...], stdin: bytes, said: str) -> None:
    result = checked(*words, stdin=stdin)

    assert code_of(result) == 2
    assert said in str(result.exception)
    assert "\n" not in str(result.exception)
