"""The public check of one program, outside of runs."""

from __future__ import annotations

import asyncio

import pytest

from tallystick.core.errors import UsageError
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.vocabulary import STRICT, ValidationResult, Vocabulary, check_program

TERMS = Vocabulary(functions=["llm_query"], tools=["crm.find"])


def test_a_program_is_read_as_the_sandbox_reads_it(sandbox: WasmSandbox) -> None:
    source = "type A = int\nprint(f'{crm.fnd('a')}', llm_query(rows))"

    result = check_program(source, TERMS, STRICT, given=["rows"], sandbox=sandbox)

    assert isinstance(result, ValidationResult)
    assert not result.is_valid
    assert result.unknown_terms == ("crm.fnd",)
    assert result.suggestions == {"crm.fnd": ("crm.find",)}


def test_it_opens_a_sandbox_of_its_own_and_works_in_an_event_loop() -> None:
    async def checked() -> ValidationResult:
        return check_program("crm.find('a')", TERMS, STRICT)

    assert asyncio.run(checked()).matched_terms == ("crm.find",)


def test_a_shell_text_needs_no_sandbox() -> None:
    result = check_program("curl x | crm.find", TERMS, STRICT, kind="bash", retry_count=3)

    assert result.unknown_terms == ("curl",)
    assert result.escalation_required


@pytest.mark.parametrize(
    ("source", "kind", "said"),
    [
        (b"x", "python", "a program to check is a text, not bytes"),
        ("x", "perl", "program kind 'perl': there are python, bash"),
    ],
)
def test_bad_input_is_one_clear_line(source: str, kind: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_program(source, TERMS, kind=kind)  # type: ignore[arg-type]
    assert str(caught.value) == said
