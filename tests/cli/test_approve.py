"""`tally approve` and `tally deny`: a run that waits for a person, from the command line."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result

from tallystick.cli.errors import exit_code_of
from tallystick.cli.main import cli
from tallystick.core.ids import moment_text

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


def test_a_thesaurus_that_is_none_or_not_there_is_refused(tally: CliRunner, tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"term": 5}')
    for name in ("bad.jsonl", "missing.jsonl"):
        refused = asked(tally, "run", "what?", *MODEL, "--thesaurus", name)
        assert code_of(refused) == 2
        assert refused.stdout == ""
    assert not (tmp_path / "data" / "ledger.db").exists()
