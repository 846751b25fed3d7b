"""How a run is shown while it goes: on a terminal, elsewhere, and not at all."""

from __future__ import annotations

import io
import os
import pty
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.core.machine.test_machine import finished, started

from tallystick.cli.progress import progress_for
from tallystick.core.charge import ModelUsage, RunLimits
from tallystick.core.records import (
    AskModel,
    HostAnswered,
    ModelFailed,
    ModelReplied,
    ProgramFailure,
    Record,
    RunProgram,
)
from tallystick.runtime.calls.deltas import TextDelta

ESCAPE = "\x1b"
COLOUR = re.compile(r"\x1b\[(?:[0-9;]*;)?(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9;]*)?m")


def asked(turn: int = 1, *, intent: int = 1, attempt: int = 1, wait_ms: int = 0) -> AskModel:
    return AskModel(
        intent=intent, turn=turn, base=None, added=(), request_sha256="", attempt=attempt,
        wait_ms=wait_ms,
    )  # fmt: skip


def replied(text: str, turn: int = 1, *, reported: bool = True) -> ModelReplied:
    usage = ModelUsage(tokens_in=1_200, tokens_out=34, reported=reported)
    return ModelReplied(intent=1, turn=turn, text=text, usage=usage)


def failed(message: str = "slow down") -> ModelFailed:
    return ModelFailed(intent=1, turn=1, reason="rate_limit", message=message, kind="transient")


PROGRAM = RunProgram(intent=2, turn=1, part=0, sha256="")
CALL = HostAnswered(
    intent=3, program=2, index=0, name="f", request_sha256="", fuel=0, reply=b"0", ok=True
)
TURN: list[Record] = [
    asked(),
    replied("```python\nx = 1\nprint(x)\n```"),
    PROGRAM,
    CALL,
    finished(stdout="1\n", host_calls=1),
]


# Twelve characters of the reply that is awaited.
HEARD = TextDelta(run="run", call="turn", intent=1, text="sorted(rows)", chars=12)


def shown(*records: Record) -> str:
    """Everything that is shown of these records where no terminal is."""
    stream = io.StringIO()
    progress = progress_for(quiet=False, stream=stream, environ={"TERM": "xterm"})
    for record in (started(limits=RunLimits(retries=2)), *records):
        progress.watch("run", record)
        progress.heard(HEARD)
    progress.close()
    return stream.getvalue()


class Terminal:
    """A pseudo-terminal, and what was written on it."""

    def __init__(self) -> None:
        leader, follower = pty.openpty()
        self._leader = leader
        self.stream = os.fdopen(follower, "w", encoding="utf-8")
        self._said = bytearray()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                piece = os.read(self._leader, 65_536)
            except OSError:
                return
            if not piece:
                return
            self._said += piece

    def close(self) -> str:
        """Hang up. Returns what was written, as it was."""
        self.stream.close()
        self._reader.join(5)
        os.close(self._leader)
        return self._said.decode()


@contextmanager
def terminal() -> Iterator[Terminal]:
    opened = Terminal()
    try:
        yield opened
    finally:
        if not opened.stream.closed:
            opened.close()


def on_terminal(*records: Record, environ: dict[str, str]) -> str:
    with terminal() as opened:
        progress = progress_for(quiet=False, stream=opened.stream, environ=environ)
        progress.watch("run", started())
        for record in records:
            progress.watch("run", record)
        progress.heard(HEARD)
        progress.close()
        return opened.close()


@pytest.fixture(autouse=True)
def _xterm(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is said of the terminal is said to the library that draws on it, too."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


# -- elsewhere ---------------------------------------------------------------------------------


def test_quiet_says_nothing() -> None:
    stream = io.StringIO()
    progress = progress_for(quiet=True, stream=stream, environ={"TERM": "xterm"})

    for record in [started(), *TURN, failed()]:
        progress.watch("run", record)
    progress.heard(HEARD)
    progress.close()

    assert stream.getvalue() == ""


def test_where_no_terminal_is_every_turn_is_a_plain_line() -> None:
    text = shown(*TURN)

    assert text.count("\n") == 1
    assert ESCAPE not in text
    assert text.startswith("turn 1   program 2 lines   1 host call   1,234 tokens")
    assert "printed '1'" in text


def test_tokens_that_nobody_reported_are_called_an_estimate() -> None:
    text = shown(asked(), replied("```python\nx\n```", reported=False), PROGRAM, finished())

    assert "1,234 tokens (estimated)" in text


def test_a_failure_and_the_attempt_after_it_are_told() -> None:
    text = shown(asked(), failed(), asked(intent=2, attempt=2, wait_ms=500), *TURN[1:])

    first, second, third = text.splitlines()
    assert first == "turn 1   failed       rate_limit: slow down"
    assert second == "turn 1   asking again (attempt 2 of 3), after 0.5 s"
    assert third.startswith("turn 1   program")


def test_a_turn_without_a_program_is_told_with_the_next() -> None:
    text = shown(
        asked(),
        replied("I think so."),
        asked(2, intent=2),
        replied("Hm.", 2),
        asked(3, intent=3),
        replied("```python\nx\n```", 3),
        RunProgram(intent=4, turn=3, part=0, sha256=""),
        finished(turn=3),
    )

    assert [" ".join(line.split()[:4]) for line in text.splitlines()] == [
        "turn 1 no program",
        "turn 2 no program",
        "turn 3 program 1",
    ]


def test_a_program_that_failed_is_told_with_its_error() -> None:
    failure = ProgramFailure(kind="NameError", message="name 'x' is\nnot defined", traceback="")

    text = shown(*TURN[:-1], finished(failure=failure))

    head, outcome = text.splitlines()
    assert head.startswith("turn 1   program")
    assert outcome == "         NameError: \"name 'x' is not defined\""


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_can_do_nothing_gets_plain_lines(term: str) -> None:
    text = on_terminal(*TURN, environ={"TERM": term})

    assert ESCAPE not in text
    assert "turn 1   program 2 lines" in text


@pytest.mark.parametrize(
    "record",
    [
        failed(f"{ESCAPE}]0;gotcha\a and\rmore"),
        finished(stdout=f"{ESCAPE}[31mred"),
        finished(failure=ProgramFailure(kind=f"{ESCAPE}[2J", message="x", traceback="")),
        finished(failure=ProgramFailure(kind="E", message=f"{ESCAPE}[2J", traceback="")),
        finished(value=f"{ESCAPE}[2J"),
        finished(answer=f"{ESCAPE}[2J"),
    ],
    ids=["a server", "output", "an error's name", "an error's message", "a value", "an answer"],
)
def test_nobody_can_write_on_the_terminal_through_what_is_told_of_them(record: Record) -> None:
    """What servers say, and even the name of an error class, is chosen by others."""
    text = shown(*TURN[:-1], record)

    assert text
    assert all(each.isprintable() for each in text.removesuffix("\n"))


# -- on a terminal -----------------------------------------------------------------------------


def test_on_a_terminal_a_line_moves_and_is_gone_at_the_end() -> None:
    text = on_terminal(*TURN, environ={"TERM": "xterm"})

    assert ESCAPE in text
    assert "turn 1   program 2 lines   1 host call" in text
    assert text.index(f"{ESCAPE}[?25l") < text.index("turn 1") < text.rindex(f"{ESCAPE}[?25h")
    assert "asking the model" not in text.rpartition(f"{ESCAPE}[2K")[2]


def test_without_colour_nothing_on_a_terminal_is_coloured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    text = on_terminal(*TURN, failed(), environ={"TERM": "xterm", "NO_COLOR": "1"})

    assert "turn 1   program 2 lines" in text
    assert "rate_limit: slow down" in text
    assert COLOUR.search(text) is None


def test_words_that_look_like_markup_are_shown_as_they_are() -> None:
    text = on_terminal(*TURN, failed("use [bold red]this[/] instead"), environ={"TERM": "xterm"})

    assert "use [bold red]this[/] instead" in text


def test_closing_twice_is_harmless() -> None:
    with terminal() as opened:
        progress = progress_for(quiet=False, stream=opened.stream, environ={"TERM": "xterm"})
        progress.close()
        progress.close()
        opened.close()


def test_nothing_goes_to_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    shown(*TURN, failed())
    on_terminal(*TURN, failed(), environ={"TERM": "xterm"})

    assert capfd.readouterr().out == ""
