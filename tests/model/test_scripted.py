"""Scripted models: files of JSON lines, functions, and where they end."""

import asyncio
from pathlib import Path

import pytest

from tallystick.core.errors import UsageError
from tallystick.core.machine.prompt import Message
from tallystick.model.port import ModelError, ModelReply, ModelRequest
from tallystick.model.scripted import ScriptedModel, ScriptedReply

PROMPT = (Message(role="user", part="task", text="hello there"),)


def ask(model: ScriptedModel) -> ModelReply:
    return asyncio.run(model.ask(ModelRequest(messages=PROMPT)))


def test_a_file_is_read_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text('{"text": "a", "usage": {"tokens_in": 7, "tokens_out": 2}}\n\n{"text": "b"}\n')
    model = ScriptedModel.from_file(path)

    first, second = ask(model), ask(model)

    assert (first.text, first.usage.tokens_in, first.usage.reported) == ("a", 7, True)
    assert (second.text, second.usage.reported) == ("b", False)
    assert second.usage.tokens_in > 0


def test_a_function_sees_position_and_prompt() -> None:
    model = ScriptedModel(lambda position, messages: f"{position}: {messages[0].text}")

    assert [ask(model).text for _ in range(2)] == ["0: hello there", "1: hello there"]


def test_the_end_of_a_script_is_an_error_that_says_so() -> None:
    with pytest.raises(ModelError, match="no reply after number 0"):
        ask(ScriptedModel([]))


def test_a_scripted_error_is_raised() -> None:
    with pytest.raises(ModelError, match="unknown: gone"):
        ask(ScriptedModel([ScriptedReply(error="gone")]))


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"txt": "a"}', '{"text": 1}', '{"text": "a", "usage": 3}']
)
def test_a_line_that_is_none_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "s.jsonl"
    path.write_text('{"text": "fine"}\n' + line)

    with pytest.raises(UsageError, match="line 2"):
        ScriptedModel.from_file(path)


def test_a_missing_script_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        ScriptedModel.from_file(tmp_path / "nosuch.jsonl")
