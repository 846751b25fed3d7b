"""The logger `tallystick`: a line for each turn, whole prompts for debugging, and never a key."""

from __future__ import annotations

import logging

import pytest
from tests.agent.test_agent import agent_of

from tallystick.model.endpoint import Secret


def test_a_run_is_a_few_lines_at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tallystick")
    with agent_of("print(1)", "FINAL(2)") as agent:
        run = agent.run("how\nmany?", strategy="code")

    lines = [each.getMessage() for each in caplog.records]
    assert all(line.startswith(f"run {run.id} ") and "\n" not in line for line in lines)
    assert [line.split(maxsplit=2)[2].split(":")[0].split(",")[0] for line in lines] == [
        "started with scripted",
        "turn 1 replied",
        "turn 1 program finished",
        "turn 2 replied",
        "turn 2 program finished",
        "ended",
    ]


def test_prompts_and_replies_are_there_at_debug_without_keys(
    caplog: pytest.LogCaptureFixture,
) -> None:
    key = Secret("sk-abcdef0123456789")
    caplog.set_level(logging.DEBUG, "tallystick")
    with agent_of(f"FINAL('{key.reveal()}')") as agent:
        agent.run(f"what is {key.reveal()}?", strategy="code")

    text = caplog.text
    assert "--- system ---" in text
    assert "The task: what is [key]?" in text
    assert "FINAL('[key]')" in text
    assert key.reveal() not in text


def test_nothing_is_printed_without_a_handler(capfd: pytest.CaptureFixture[str]) -> None:
    with agent_of("FINAL(2)") as agent:
        agent.run("x", strategy="code")

    assert capfd.readouterr() == ("", "")
