"""`tally run` and the commands around a ledger, as a user calls them."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_exec import Tally

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow


@pytest.fixture
def tally(tmp_path: Path) -> Tally:
    (tmp_path / "data.txt").write_text("a,1\nb,2\nc,3\n")
    replies = [
        {"text": "```repl\nrows = [l.split(',') for l in context.splitlines()]\nprint(rows)\n```"},
        {"text": "```repl\nFINAL(sum(int(r[1]) for r in rows))\n```"},
    ]
    (tmp_path / "demo.jsonl").write_text("\n".join(json.dumps(each) for each in replies))
    return Tally(tmp_path)


def run(tally: Tally, *words: str, **env: str) -> Any:
    return tally("run", "what is the sum?", "-f", "data.txt", "-m", "scripted:demo.jsonl",
                 *words, **env)  # fmt: skip


def test_the_answer_is_on_stdout_and_progress_on_stderr(tally: Tally) -> None:
    done = run(tally)

    assert (done.returncode, done.stdout) == (0, "6\n")
    assert "turn 1" in done.stderr
    assert "ledger   run" in done.stderr


def test_quiet_prints_the_answer_only(tally: Tally) -> None:
    assert run(tally, "--quiet").stderr == ""


def test_the_json_of_a_run_has_its_promised_shape(tally: Tally) -> None:
    result = json.loads(run(tally, "--json").stdout)

    assert result["answer"] == "6"
    assert result["stop"] == "answered"
    assert result["turns"] == 2
    assert set(result["charge"]) >= {
        "usd", "tokens_in", "tokens_out", "model_calls", "host_calls", "fuel", "wall_ms",
    }  # fmt: skip
    assert result["citations"] == []
    assert result["ledger"].endswith("ledger.db")


def test_a_run_records_which_flag_and_variable_set_it(tally: Tally) -> None:
    run(tally, "--max-turns", "7", TALLYSTICK_MAX_TOKENS="9000")

    assert json.loads(tally("inspect", "last", "--json").stdout)["records"][0]["settings"] == {
        "max_tokens": "environment TALLYSTICK_MAX_TOKENS",
        "max_turns": "flag --max-turns",
        "model": "flag --model",
    }


def test_a_total_of_the_command_line_binds_a_run_that_does_not_know_it(tally: Tally) -> None:
    prices = tally.directory / "prices.toml"
    prices.write_text('[prices."scripted:*"]\ninput = 1\noutput = 1\n')
    tally("total", "0")

    stopped = run(tally, TALLYSTICK_CONFIG=str(prices))

    assert stopped.returncode == 3
    assert "left in this deployment; tally total shows its limit" in stopped.stderr


def test_events_are_json_lines(tally: Tally) -> None:
    printed = run(tally, "--events").stdout
    lines = [json.loads(line) for line in printed.splitlines()]

    assert lines[0]["event_type"] == "session_start"
    assert (lines[-1]["event_type"], lines[-1]["stop"]) == ("query_complete", "answered")
    assert {line["run"] for line in lines} == {lines[0]["run"]}
    assert [line["number"] for line in lines] == [*range(1, len(lines) + 1)]
    # They are the same when they are read from the record.
    assert tally("inspect", "last", "--follow", "--json").stdout == printed
    after = tally("inspect", "last", "--follow", "--json", "--after", "3").stdout
    assert after.splitlines() == printed.splitlines()[3:]
    shown = tally("inspect", "last", "--follow").stdout
    assert "started   run" in shown
    assert "ended     answered" in shown


def test_a_run_is_listed_inspected_replayed_and_verified(tally: Tally) -> None:
    run(tally)

    listed = json.loads(tally("ls", "--json").stdout)
    inspected = tally("inspect", "last", "--programs", "--records").stdout
    replayed = json.loads(tally("replay", listed[0]["run"][:12], "--json").stdout)
    verified = json.loads(tally("verify", "--json").stdout)

    assert (listed[0]["stop"], listed[0]["answer"]) == ("answered", "6")
    assert "answer='6'" in inspected
    assert "rows = " in inspected
    assert replayed["held"]
    assert replayed["divergence"] is None
    assert set(replayed) >= {"run", "entries", "held", "divergence"}
    assert verified["ok"]
    assert verified["first_bad"] is None
    assert (verified["runs"], verified["entries"]) == (1, replayed["entries"])


def test_replay_needs_neither_the_script_nor_the_data(tally: Tally) -> None:
    run(tally)
    (tally.directory / "demo.jsonl").unlink()
    (tally.directory / "data.txt").unlink()

    done = tally("replay", "last")

    assert done.returncode == 0
    assert "no divergence" in done.stdout


def test_a_changed_byte_is_found_and_named(tally: Tally) -> None:
    run(tally)
    ledger = tally.directory / "data" / "ledger.db"
    with sqlite3.connect(ledger) as db:
        db.execute("UPDATE body SET body = replace(body, 'rows', 'rovs') WHERE seq = 2")
    db.close()

    done = tally("verify", "--json")

    assert done.returncode == 6
    assert json.loads(done.stdout)["first_bad"]["seq"] == 2
    replayed = tally("replay", "last", "--json")
    assert replayed.returncode == 8
    divergence = json.loads(replayed.stdout)["divergence"]
    assert (divergence["seq"], divergence["field"]) == (2, "chain")


def test_an_export_is_imported_elsewhere_and_replays_there(tally: Tally, tmp_path: Path) -> None:
    run(tally)
    exported = tally("export", "last", "run.tally")
    other = {"TALLYSTICK_DATA_DIR": str(tmp_path / "other")}

    imported = tally("import", "run.tally", **other)
    replayed = tally("replay", "last", **other)

    assert exported.returncode == 0, exported.stderr
    assert imported.returncode == 0, imported.stderr
    assert replayed.returncode == 0


def test_an_export_without_a_name_is_named_after_its_run(tally: Tally) -> None:
    run(tally)

    assert tally("export", "last").returncode == 0
    assert len(list(tally.directory.glob("*.tally"))) == 1
    assert tally("export", "last", "-", "--move").returncode == 2


def test_a_moved_run_is_gone_from_here(tally: Tally) -> None:
    run(tally)
    tally("export", "last", "run.tally", "--move")

    assert json.loads(tally("ls", "--json").stdout)[0]["stop"] in ("answered", "moved")
    assert tally("export", "last", "again.tally").returncode in (0, 6)


def test_a_removed_run_is_gone(tally: Tally) -> None:
    run(tally)
    done = tally("rm", "last", "--yes")

    assert done.returncode == 0
    assert json.loads(tally("ls", "--json").stdout) == []


def test_a_recorded_run_answers_again(tally: Tally) -> None:
    run(tally)

    again = tally("run", "what is the sum?", "-f", "data.txt", "-m", "recorded:last")

    assert again.stdout == "6\n"


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("run", "?"), 2, "no model"),
        (("run", "?", "-m", "gpt"), 2, "not known"),
        (("run", "?", "-m", "scripted:nosuch"), 2, "No such file"),
        (("run", "?", "-m", "scripted:data.txt"), 2, "line 1"),
        (("run", "?", "-m", "recorded:last"), 2, "no run yet"),
        (("run", "?", "-m", "scripted:demo.jsonl", "-f", "nosuch"), 2, "no such file"),
        (("run", "?", "-m", "scripted:demo.jsonl", "--max-turns", "-1"), 2, "max-turns"),
        (("run", "?", "-m", "scripted:demo.jsonl", "--max-turns", "many"), 2, "max-turns"),
        (("inspect", "ZZZ"), 6, "ZZZ"),
        (("replay", "last"), 2, "no run yet"),
        (("import", "data.txt"), 6, "data.txt"),
        (("verify", "--head", "data.txt"), 2, "--head"),
    ],
)
def test_wrong_usage_is_one_clear_line(
    tally: Tally, words: tuple[str, ...], code: int, says: str
) -> None:
    done = tally(*words)

    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("replies", "words", "code", "stop"),
    [
        ([], (), 5, "model_error"),
        (["```repl\n1\n```"], ("--max-turns", "1"), 3, "max_turns"),
        (["hm", "well", "so"], (), 1, "no_progress"),
        (["```repl\nwhile True: pass\n```"], ("--timeout", "0.3"), 3, "deadline"),
    ],
)
def test_every_stop_has_its_exit_code(
    tally: Tally, replies: list[str], words: tuple[str, ...], code: int, stop: str
) -> None:
    lines = "\n".join(json.dumps({"text": reply}) for reply in replies)
    (tally.directory / "demo.jsonl").write_text(lines)

    done = run(tally, *words, "--json")

    assert done.returncode == code
    assert json.loads(done.stdout)["stop"] == stop


def test_ctrl_c_ends_the_run_written_down_and_replayable(tally: Tally) -> None:
    (tally.directory / "demo.jsonl").write_text(
        json.dumps({"text": "```repl\n'so far'\n```"})
        + "\n"
        + json.dumps({"text": "x", "delay_ms": 60_000})
    )
    running = subprocess.Popen(
        [sys.executable, "-m", "tallystick.cli.main", "run", "?", "-m", "scripted:demo.jsonl"],
        env=tally.env, cwd=tally.directory, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # A suite that runs in the background has it ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert running.stderr is not None
    while "program" not in running.stderr.readline():
        pass
    time.sleep(0.2)
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=20)

    assert running.returncode == 130, stderr
    assert "so far" in stdout
    assert json.loads(tally("ls", "--json").stdout)[0]["stop"] == "cancelled"
    assert tally("replay", "last").returncode == 0


@pytest.mark.parametrize(
    "damage", [b"not a database at all" * 50, b"SQLite format 3\0" + b"x" * 50]
)
def test_a_file_that_is_no_ledger_is_one_clear_line(tally: Tally, damage: bytes) -> None:
    (tally.directory / "data").mkdir(mode=0o700)
    (tally.directory / "data" / "ledger.db").write_bytes(damage)

    for words in (("ls",), ("verify",)):
        done = tally(*words)
        assert done.returncode == 6
        assert done.stderr.count("\n") == 1
    assert run(tally).returncode == 6


def test_config_says_where_each_value_came_from(tally: Tally) -> None:
    found = {each["name"]: each for each in json.loads(tally("config", "--json").stdout)}

    assert found["data"]["source"] == "environment TALLYSTICK_DATA_DIR"
    assert found["max_turns"] == {"name": "max_turns", "value": "30", "source": "default"}


def typed(tally: Tally, *answers: str) -> Any:
    """A run under a schema whose programs answer so, one a turn."""
    schema = {"type": "object", "required": ["sum"], "properties": {"sum": {"type": "integer"}}}
    (tally.directory / "s.json").write_text(json.dumps(schema))
    replies = [json.dumps({"text": f"```python\nFINAL({each})\n```"}) for each in answers]
    (tally.directory / "typed.jsonl").write_text("\n".join(replies))
    return tally("run", "the sum?", "-m", "scripted:typed.jsonl", "--schema", "s.json", "--json")


def test_a_typed_answer_is_json_with_its_value(tally: Tally) -> None:
    done = typed(tally, "{'sum': '6'}", "{'sum': 6}")
    result = json.loads(done.stdout)

    assert (done.returncode, result["answer"], result["value"]) == (0, '{"sum":6}', {"sum": 6})
    assert (result["turns"], result["unchecked"]) == (2, [])


def test_answers_that_never_fit_end_with_exit_code_1_and_the_last_as_partial(tally: Tally) -> None:
    done = typed(tally, "1", "2", "3", "4")
    result = json.loads(done.stdout)

    assert (done.returncode, result["stop"]) == (1, "no_progress")
    assert (result["answer"], result["partial"], result["turns"]) == ("3", True, 3)
    assert "value" not in result


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ('{"if": {}}', "s.json: schema: 'if' is not supported in a schema"),
        (None, "s.json: No such file or directory"),
    ],
)
def test_a_bad_schema_is_wrong_usage_and_nothing_is_written(
    tally: Tally, written: str | None, said: str
) -> None:
    if written is not None:
        (tally.directory / "s.json").write_text(written)

    done = run(tally, "--schema", "s.json")

    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert json.loads(tally("ls", "--json").stdout) == []


def test_what_an_answer_claims_is_cited_or_marked(tally: Tally) -> None:
    said = 'It is "b,2 c,3" [data.txt:2], and "four words stand nowhere".'
    (tally.directory / "said.jsonl").write_text(json.dumps({"text": said}))
    words = ("run", "what?", "-f", "data.txt", "-m", "scripted:said.jsonl", "--strategy", "direct")

    lines = tally(*words).stderr.splitlines()
    result = json.loads(tally(*words, "--json").stdout)

    assert "cited    [1] data.txt:2-3  'b,2\\nc,3'" in lines
    assert 'unchecked: "four words stand nowhere" (stands nowhere in the data)' in lines
    assert result["citations"] == [
        {"name": "data.txt", "line": 2, "start": 4, "end": 11, "quote": "b,2\nc,3", "line_end": 3}
    ]
    assert result["unchecked"] == [
        {"claim": '"four words stand nowhere"', "why": "stands nowhere in the data"}
    ]
