"""Scripted worlds in, normalized transcripts out: a change in behaviour is a diff in a file.

Set TALLYSTICK_WRITE_TRANSCRIPTS=1 to write the files anew, then read the diff.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tallystick.core.charge import RunLimits
from tallystick.model.scripted import ScriptedReply
from tallystick.runtime.calls.functions import host_function
from tallystick.runtime.context.inputs import given_text
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import block
from tallystick.testing.runs import Played, play

TRANSCRIPTS = Path(__file__).parent / "transcripts"


@host_function(policy="read", local=True)
def lookup(key: str) -> str:
    """Look a key up."""
    return {"a": "apple"}[key]


@host_function(policy="effect", needs="mail.send")
def send(text: str) -> str:
    """Send a message."""
    return "sent"


@host_function(policy="effect")
def pay(amount: int) -> str:
    """Pay an amount, slowly."""
    time.sleep(1.5)
    return "paid"


SCENARIOS: dict[str, Callable[[WasmSandbox], Played]] = {
    "plain answer": lambda box: play(box, [block("FINAL(6 * 7)")]),
    "look, then answer": lambda box: play(
        box,
        [block("print(context[:3])\nlen(context)"), block("FINAL(context.count('a'))")],
        inputs=[given_text("abracadabra")],
    ),
    "several blocks": lambda box: play(
        box, [f"First\n{block('x = 1')}\nthen\n{block('x + 1')}", block("FINAL_VAR('x')")]
    ),
    "final outside the block": lambda box: play(box, [block("x = 2"), "FINAL(two of them)"]),
    "final of a variable outside the block": lambda box: play(
        box, [block("total = 2"), "FINAL(total)"]
    ),
    "final of a word outside the block": lambda box: play(box, [block("total = 2"), "FINAL(two)"]),
    "final var outside the block": lambda box: play(box, [block("x = 2"), "FINAL_VAR(x)"]),
    "answer dictionary": lambda box: play(
        box, [block("answer['content'] = 'yes'; answer['ready'] = True")]
    ),
    "broken code then mended": lambda box: play(
        box, [block("totl = 1\ntotal + 1"), block("total = 1\nFINAL(total + 1)")]
    ),
    "syntax error then mended": lambda box: play(box, [block("x = = 1"), block("FINAL(1)")]),
    "name rebinding": lambda box: play(
        box,
        [block("context = 'lost'\ncontext"), block("FINAL(context)")],
        inputs=[given_text("kept")],
    ),
    "host calls": lambda box: play(
        box,
        [
            block("lookup('a')"),
            block("try:\n    lookup('b')\nexcept HostError:\n    FINAL('no b')"),
        ],
        functions=[lookup],
    ),
    "a granted effect": lambda box: play(
        box, [block("FINAL(send('hi'))")], functions=[send], grants=["mail.send"]
    ),
    "refusal of a missing capability": lambda box: play(
        box, [block("send('hi')"), block("FINAL('could not send')")], functions=[send]
    ),
    "touching files": lambda box: play(box, [block("open('data.csv')"), block("FINAL(0)")]),
    "unavailable commands": lambda box: play(box, ["RUN(ls)", block("FINAL('no shell')")]),
    "a program that is stopped": lambda box: play(
        box, [block("x = 'a' * 10**9"), block("FINAL('too big')")]
    ),
    "stop answered": lambda box: play(box, [block("FINAL('done')")]),
    "stop max_turns": lambda box: play(
        box, [block("n = 1\nn"), block("n = 2\nn"), block("n = 3\nn")], limits=RunLimits(turns=3)
    ),
    "stop budget": lambda box: play(
        box,
        [block("n = 1\nn"), block("n = 2\nn"), block("n = 3\nn")],
        limits=RunLimits(tokens=1_600),
    ),
    "stop deadline": lambda box: play(
        box, [block("import time\nwhile True: pass")], limits=RunLimits(wall_ms=300)
    ),
    "stop model_error": lambda box: play(
        box, [block("'so far'"), ScriptedReply(error="the server is gone")]
    ),
    "stop in_doubt": lambda box: play(
        box, [block("pay(3)")], functions=[pay], limits=RunLimits(wall_ms=400)
    ),
    "stop refused": lambda box: play(box, ["RUN(ls)", "RUN(ls -l)", "RUN(cat data)"]),
    "stop no_progress by silence": lambda box: play(box, ["I think", "Hmm", "Well"]),
    "stop no_progress by repetition": lambda box: play(box, [block("1 + 1")] * 4),
    "no turns at all": lambda box: play(box, [], limits=RunLimits(turns=0)),
}


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_a_scenario_goes_as_its_transcript_says(name: str, sandbox: WasmSandbox) -> None:
    played = SCENARIOS[name](sandbox)
    file = TRANSCRIPTS / f"{name.replace(' ', '-').replace(',', '')}.txt"
    if os.environ.get("TALLYSTICK_WRITE_TRANSCRIPTS"):
        file.write_text(played.transcript, encoding="utf-8")

    assert played.transcript == file.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_every_scenario_replays_without_divergence(name: str, sandbox: WasmSandbox) -> None:
    report = SCENARIOS[name](sandbox).replayed()

    assert report.divergence is None
    assert report.held


def test_every_transcript_belongs_to_a_scenario() -> None:
    names = {f"{name.replace(' ', '-').replace(',', '')}.txt" for name in SCENARIOS}

    assert {path.name for path in TRANSCRIPTS.iterdir()} == names
