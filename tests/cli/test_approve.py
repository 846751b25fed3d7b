"""`tally approve` and `tally deny`: a run that waits for a person, from the command line."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from tallystick.cli.errors import exit_code_of
from tallystick.cli.main import cli
from tallystick.client import Session
from tallystick.core.ids import moment_text
from tallystick.model.scripted import ScriptedModel
from tallystick.runtime.calls.functions import host_function

# Each starts processes or waits for them: CI runs them.
pytestmark = pytest.mark.slow

BAD = {"text": "```python\nprint(llm_qurey('x'))\n```"}
END = {"text": "```python\nFINAL(42)\n```"}


@pytest.fixture
def tally(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    monkeypatch.setenv("TALLYSTICK_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    script = b"\n".join(msgspec.json.encode(each) for each in [BAD] * 4 + [END])
    (tmp_path / "script.jsonl").write_bytes(script)
    return CliRunner()


def code_of(result: Result) -> int:
    if result.exception is not None:
        return exit_code_of(result.exception)
    return int(result.return_value)


def asked(tally: CliRunner, *words: str) -> Result:
    return tally.invoke(cli, words, standalone_mode=False)


MODEL = ("-m", "scripted:script.jsonl", "--quiet")


@pytest.mark.parametrize("decision", ["approve", "deny"])
def test_a_person_decides_and_the_run_goes_on(tally: CliRunner, decision: str) -> None:
    begun = asked(tally, "run", "what?", *MODEL, "--vocabulary", "strict")
    assert code_of(begun) == 9
    (listed,) = msgspec.json.decode(asked(tally, "ls", "--json").stdout)
    assert (listed["stop"], listed["waits"]) == ("waiting", "print(llm_qurey('x'))")
    waits = msgspec.json.decode(asked(tally, "inspect", "last", "--json").stdout)["waits"]
    assert [each["kind"] for each in waits] == ["program"]
    assert "waits     print(llm_qurey('x'))" in asked(tally, "inspect", "last").stdout

    alone = asked(tally, "resume", "last", *MODEL)
    assert code_of(alone) == 2

    went_on = asked(tally, decision, "last", *MODEL)

    assert (code_of(went_on), went_on.stdout) == (0, "42\n")
    shown = asked(tally, "inspect", "last").stdout
    assert "vocabulary escalate  unknown: llm_qurey" in shown
    assert code_of(asked(tally, "replay", "last")) == 0
    again = asked(tally, decision, "last", *MODEL)
    assert code_of(again) == 2


def test_inspect_and_the_receipt_show_who_decided_and_when(
    tally: CliRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ann")
    monkeypatch.setattr("platform.node", lambda: "desk")
    asked(tally, "run", "what?", *MODEL, "--vocabulary", "strict")
    asked(tally, "deny", "last", *MODEL)

    shown = asked(tally, "inspect", "last").stdout
    receipt = asked(tally, "receipt", "last").stdout
    whole = msgspec.json.decode(asked(tally, "receipt", "last", "--json").stdout)
    harn = msgspec.json.decode(asked(tally, "receipt", "last", "--harn").stdout)

    (approval,) = whole["receipt"]["approvals"]
    at = moment_text(approval["at"])
    assert f"run       resumed     denied by ann@desk at {at}" in shown
    line = f"person    turn 4  denied by ann@desk at {at}  program sha256:{approval['sha256']}"
    assert line in receipt
    assert (approval["decision"], approval["by"]) == ("deny", "ann@desk")
    assert harn["approvals"] == [
        {
            "decision": "deny",
            "approver": "ann@desk",
            "at": approval["at"],
            "subject": f"program {approval['sha256']}",
        }
    ]


@pytest.mark.parametrize(
    ("typed", "code", "shown"),
    [("y\n", 0, "approved by"), ("n\nno such name\n", 0, "no such name"), ("l\n", 9, "ended")],
)
def test_on_a_terminal_a_person_is_asked_at_once(
    tally: CliRunner, monkeypatch: pytest.MonkeyPatch, typed: str, code: int, shown: str
) -> None:
    monkeypatch.setattr("tallystick.cli.driving.has_person", lambda: True)
    words = ("run", "what?", "-m", "scripted:script.jsonl", "--vocabulary", "strict")

    ended = tally.invoke(cli, words, standalone_mode=False, input=typed)

    assert code_of(ended) == code
    assert "waits    print(llm_qurey('x'))" in ended.stderr
    assert shown in asked(tally, "inspect", "last", "--records").stdout


def test_without_a_terminal_the_next_commands_are_said(tally: CliRunner) -> None:
    words = ("run", "what?", "-m", "scripted:script.jsonl", "--vocabulary", "strict")

    ended = asked(tally, *words)

    assert code_of(ended) == 9
    assert "next     tally approve" in ended.stderr
    assert "tally deny" in ended.stderr


def test_a_decision_where_the_functions_are_not_is_taken_by_the_next_resume(
    tally: CliRunner, tmp_path: Path
) -> None:
    paid = []

    @host_function(ask=True)
    def pay(invoice: str) -> str:
        """Pay an invoice."""
        paid.append(invoice)
        return "paid"

    def opened() -> Session:
        model = ScriptedModel.from_file(str(tmp_path / "pays.jsonl"))
        return Session(model=model, functions=[pay], config=None)

    text = "```python\nFINAL(pay('INV-1'))\n```"
    (tmp_path / "pays.jsonl").write_bytes(msgspec.json.encode({"text": text}))
    with opened() as session:
        run = session.run("Pay it.", strategy="code")
    assert run.stop == "waiting"
    assert 'waits for pay("INV-1")' in asked(tally, "ls").stdout

    kept = asked(tally, "approve", "last")
    again = asked(tally, "deny", "last")

    assert code_of(kept) == 0, kept.stderr
    assert "the decision is kept" in kept.stderr
    assert code_of(again) == 2
    assert "was decided about already, by" in str(again.exception)
    with opened() as session:
        ended = session.resume(run.run)
    assert (ended.answer, paid) == ("paid", ["INV-1"])


def test_a_thesaurus_that_is_none_or_not_there_is_refused(tally: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"term": 5}')
    for name in ("bad.jsonl", "missing.jsonl"):
        refused = asked(tally, "run", "what?", *MODEL, "--thesaurus", name)
        assert code_of(refused) == 2
        assert refused.stdout == ""
    assert not (tmp_path / "data" / "ledger.db").exists()
