"""`tally exec` as a user calls it: in a process of its own, with its exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tallystick.sandbox.port import COMPILED
from tallystick.settings.paths import cache_directory

# Each starts processes: CI runs them.
pytestmark = pytest.mark.slow


class Tally:
    """Runs the command with data of its own and the shared cache."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "TALLYSTICK_CACHE_DIR": str(cache_directory()),
            "TALLYSTICK_DATA_DIR": str(directory / "data"),
        }

    def __call__(
        self,
        *words: str,
        program: str | bytes | None = None,
        stdin: str | None = None,
        **env: str,
    ) -> Any:
        if program is not None:
            path = self.directory / "program.py"
            path.write_bytes(program if isinstance(program, bytes) else program.encode())
            words = (words[0], str(path), *words[1:])
        return subprocess.run(
            [sys.executable, "-m", "tallystick.cli.main", *words],
            capture_output=True,
            text=True,
            env={**self.env, **env},
            cwd=self.directory,
            input=stdin,
            # Else the command would read what this process was given.
            stdin=subprocess.DEVNULL if stdin is None else None,
            timeout=120,
        )

    def python(self, script: str) -> None:
        """Run a program of the user's own, where the command has its data."""
        command = [sys.executable, "-c", script]
        subprocess.run(command, env=self.env, cwd=self.directory, check=True, timeout=120)

    def result(self, *words: str, program: str) -> Any:
        return json.loads(self("exec", *words, "--json", program=program).stdout)


@pytest.fixture
def tally(tmp_path: Path) -> Tally:
    return Tally(tmp_path)


def test_output_and_value_go_to_stdout_and_the_rest_to_stderr(tally: Tally) -> None:
    done = tally("exec", program="import sys\nprint('a')\nprint('b', file=sys.stderr)\n6 * 7")

    assert done.returncode == 0
    assert done.stdout == "a\n42\n"
    assert done.stderr.startswith("b\nok: ")


def test_quiet_leaves_out_the_closing_line(tally: Tally) -> None:
    assert tally("exec", "--quiet", program="1").stderr == ""


def test_a_program_from_standard_input(tally: Tally) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tallystick.cli.main", "exec", "-", "--quiet"],
        input="'from ' + 'stdin'",
        capture_output=True,
        text=True,
        env=tally.env,
        timeout=60,
    )

    assert done.stdout == "'from stdin'\n"


@pytest.mark.parametrize(
    ("program", "words", "code"),
    [
        ("1", (), 0),
        ("1 / 0", (), 1),
        ("import sys; sys.exit(7)", (), 1),
        ("import os; os.abort()", (), 1),
        ("while True: pass", ("--fuel", "10000000"), 3),
        ("while True: pass", ("--wall-ms", "100"), 3),
        ("x = bytearray(10**8)", ("--memory-mb", "64"), 3),
        ("1", ("--memory-mb", "1"), 2),
        ("1", ("--fuel", "-1"), 2),
        ("1", ("--fuel", "many"), 2),
        ("1", ("--nosuch",), 2),
        ("1", ("--text", "oops"), 2),
        ("1", ("--text", "a-b=x"), 2),
        ("1", ("--text", "a=nosuch.txt"), 2),
        ("1", ("--wheel", "nosuch.whl"), 2),
        ("1", ("--session", "../evil"), 2),
    ],
)
def test_exit_codes(tally: Tally, program: str, words: tuple[str, ...], code: int) -> None:
    done = tally("exec", *words, program=program)

    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr or "program.py" in done.stderr
    if code == 2:
        assert done.stdout == ""
        assert done.stderr.count("\n") == 1


def test_the_json_result_has_its_promised_shape(tally: Tally) -> None:
    result = tally.result(program="print('x')\n[1]")

    assert result["stdout"] == "x\n"
    assert result["value"] == "[1]"
    assert result["exit_code"] == 0
    assert result["error"] is None
    assert result["stop"] == "finished"
    assert result["charge"]["fuel"] > 0
    assert result["charge"]["output_bytes"] == 2
    assert result["calls"] == []


def test_the_json_result_of_a_failure_names_it(tally: Tally) -> None:
    result = tally.result(program="open('/etc/passwd')")

    assert result["exit_code"] == 1
    assert result["error"]["kind"] == "SandboxViolation"
    assert "files.read" in result["error"]["message"]
    assert 'File "program.py", line 1' in result["error"]["traceback"]


def test_long_output_is_cut_and_whole_in_a_file(tally: Tally) -> None:
    result = tally.result("--output-bytes", "100", program="for n in range(100): print(n)")

    assert result["output_truncated"]
    assert len(result["stdout"]) < 400
    assert Path(result["output_file_path"]).read_text() == "".join(f"{n}\n" for n in range(100))


def test_the_same_seed_gives_the_same_result_in_every_process(tally: Tally) -> None:
    program = "import os, random, time\nos.urandom(4), random.random(), time.time(), {'a', 'b'}"

    first, again, other = (
        tally.result("--seed", seed, program=program) for seed in ("7", "7", "8")
    )
    for result in (first, again, other):
        del result["execution_time_ms"], result["charge"]["wall_ms"]

    assert first == again
    assert first["value"] != other["value"]


def test_the_clock_can_start_at_the_present(tally: Tally) -> None:
    result = tally.result("--clock", "now", program="import time\nint(time.time())")

    assert abs(int(result["value"]) - time.time()) < 60


def test_a_session_is_found_again_by_the_next_process(tally: Tally) -> None:
    program = "count = globals().get('count', 0) + 1\nimport random\ncount, random.random()"
    values = [tally.result("--session", "work", program=program)["value"] for _ in range(3)]

    assert [value[:2] for value in values] == ["(1", "(2", "(3"]
    assert len(set(values)) == 3


def test_a_session_keeps_its_seed(tally: Tally) -> None:
    tally("exec", "--session", "work", "--seed", "3", program="1")

    done = tally("exec", "--session", "work", "--seed", "4", program="1")

    assert done.returncode == 2
    assert "has seed 3" in done.stderr


def test_a_limit_leaves_the_session_as_it_was(tally: Tally) -> None:
    tally("exec", "--session", "work", program="kept = 1")
    ended = tally("exec", "--session", "work", "--fuel", "9000000", program="kept = 2\nwhile 1: 0")

    assert ended.returncode == 3
    assert tally.result("--session", "work", program="kept")["value"] == "1"


def test_a_session_in_use_is_refused_in_one_line(tally: Tally) -> None:
    path = tally.directory / "long.py"
    path.write_text("while True: pass")
    holder = subprocess.Popen(
        [sys.executable, "-m", "tallystick.cli.main", "exec", str(path), "--session", "work"],
        env=tally.env,
        stderr=subprocess.DEVNULL,
    )
    try:
        locks = tally.directory / "data" / "sessions.db-held"
        while not list(locks.glob("*.lock")):
            time.sleep(0.01)
        done = tally("exec", "--session", "work", program="1")
    finally:
        holder.kill()
        holder.wait()

    assert done.returncode == 4
    assert done.stderr.count("\n") == 1
    assert "in use by another process" in done.stderr


def test_ctrl_c_ends_the_program_and_keeps_what_it_printed(tally: Tally) -> None:
    path = tally.directory / "long.py"
    path.write_text("print('begun')\nwhile True: pass")
    running = subprocess.Popen(
        [sys.executable, "-m", "tallystick.cli.main", "exec", str(path)],
        env=tally.env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # Its output is shown at its end, so nothing tells that it has begun; starting takes 0.4 s.
    time.sleep(3.0)
    running.send_signal(signal.SIGINT)
    stdout, stderr = running.communicate(timeout=20)

    assert running.returncode == 130
    assert stdout == "begun\n"
    assert "ended by cancelled" in stderr


def test_a_text_stays_on_the_host(tally: Tally) -> None:
    (tally.directory / "log.txt").write_text("one\ntwo ERR-7\n")

    done = tally(
        "exec", "--quiet", "--text", "log=log.txt", program="log.search('ERR-[0-9]'), len(log)"
    )

    assert done.stdout == "([(8, 13, 'ERR-7')], 14)\n"


@pytest.mark.parametrize(
    "damage",
    [b"", b"{}", b'{"format": 9, "name": "work", "session_id": "S", "seed": 0, '
     b'"clock_ns": 0, "created_at": 0}'],
)  # fmt: skip
def test_a_damaged_record_of_an_earlier_version_is_one_clear_line(
    tally: Tally, damage: bytes
) -> None:
    record = tally.directory / "data" / "sessions" / "work.json"
    record.parent.mkdir(mode=0o700, parents=True)
    record.write_bytes(damage)

    done = tally("exec", "--session", "work", program="1")

    assert done.returncode == 4
    assert done.stderr.count("\n") == 1
    assert record.read_bytes() == damage


@pytest.mark.slow
def test_a_home_that_cannot_be_written_costs_two_lines_and_no_more(tally: Tally) -> None:
    """Not even root may make a directory there, as on a read-only disk."""
    home = {"HOME": "/sys/kernel", "TALLYSTICK_CACHE_DIR": "", "TALLYSTICK_DATA_DIR": ""}

    done = tally("exec", "--quiet", program="6 * 7", **home)

    assert (done.returncode, done.stdout) == (0, "42\n")
    told, *waits, took = done.stderr.splitlines()
    assert "without a cache" in told
    # A slow machine is told every few seconds that it still compiles.
    assert all(each.endswith("on most machines)") for each in waits)
    assert took.startswith(COMPILED)


def test_a_cache_and_data_directory_that_cannot_be_made_cost_a_line_and_no_more(
    tally: Tally,
) -> None:
    blocked = tally.directory / "file"
    blocked.write_text("in the way")

    done = tally("exec", "--quiet", program="6 * 7", TALLYSTICK_DATA_DIR=str(blocked / "data"))

    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")


def test_a_session_that_cannot_be_kept_is_one_clear_line(tally: Tally) -> None:
    blocked = tally.directory / "file"
    blocked.write_text("in the way")

    done = tally(
        "exec", "--session", "work", program="1", TALLYSTICK_DATA_DIR=str(blocked / "data")
    )

    assert done.returncode == 4
    assert done.stderr.count("\n") == 1
