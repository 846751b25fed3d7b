"""`tally exec --sandbox`: where the program runs, and what that sandbox cannot do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.cli.test_exec import Tally
from tests.escape.process.boxes import made_sandbox

pytestmark = pytest.mark.slow

NATIVE = (
    "import subprocess\n"
    "print(subprocess.run(['bash', '-c', 'echo hi | tr h H'], capture_output=True).stdout)\n6 * 7"
)


@pytest.fixture
def tally(tmp_path: Path) -> Tally:
    # Skips the test on a host that lacks a layer.
    asyncio.run(made_sandbox(spares=0).close())
    return Tally(tmp_path)


def test_a_program_runs_in_the_process_sandbox_and_its_closing_line_has_no_fuel(
    tally: Tally,
) -> None:
    done = tally("exec", "--sandbox", "process", program=NATIVE)

    assert (done.returncode, done.stdout) == (0, "b'Hi\\n'\n42\n")
    assert done.stderr.startswith("ok: ")
    assert "fuel" not in done.stderr
    assert "MiB" not in done.stderr


@pytest.mark.parametrize(
    ("sandbox", "backend"), [("process", "process"), ("wasm", "wasm"), ("process,wasm", "process")]
)
def test_the_result_names_the_sandbox(tally: Tally, sandbox: str, backend: str) -> None:
    result = tally.result("--sandbox", sandbox, program="1 + 1")

    assert (result["value"], result["metadata"]["backend"]) == ("2", backend)


def test_texts_seed_and_limits_are_those_of_the_command_line(tally: Tally) -> None:
    (tally.directory / "log.txt").write_text("one\ntwo\n")
    words = ("--sandbox", "process", "--text", "log=log.txt", "--seed", "7")
    program = "import random\n[len(log), random.random()]"

    first = tally.result(*words, program=program)
    again = tally.result(*words, program=program)
    late = tally("exec", "--sandbox", "process", "--wall-ms", "200", program="while True: pass")
    much = tally("exec", "--sandbox", "process", "--memory-mb", "64", program="bytearray(90 << 20)")

    assert first["value"] == again["value"]
    assert json.loads(first["value"])[0] == 8
    assert (late.returncode, "ended by wall" in late.stderr) == (3, True)
    assert (much.returncode, "ended by memory" in much.stderr) == (3, True)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--session", "work"), "--session"),
        (("--fuel", "1000"), "--fuel"),
        (("--clock", "now"), "--clock"),
        (("--wheel", "program.py"), "--wheel"),
        (("--session", "work", "--fuel", "1000"), "--session, --fuel"),
    ],
)
@pytest.mark.parametrize("sandbox", ["process", "process,wasm"])
def test_an_option_that_native_programs_cannot_honour_is_refused(
    tally: Tally, sandbox: str, words: tuple[str, ...], named: str
) -> None:
    done = tally("exec", "--sandbox", sandbox, *words, program="print('ran')")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"usage: the process sandbox does not support {named}; "
        "leave it out, or use --sandbox wasm\n"
    )
    assert not (tally.directory / "data" / "exec").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--sandbox", "docker"), "usage: sandbox 'docker': there are auto, wasm, process\n"),
        (
            ("--sandbox", "wasm", "--accept-without", "landlock"),
            "usage: accept without landlock: only the process sandbox has layers to do without\n",
        ),
    ],
)
def test_a_sandbox_that_there_is_not_is_refused(
    tally: Tally, words: tuple[str, ...], said: str
) -> None:
    done = tally("exec", *words, program="print('ran')")

    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_the_help_names_both_sandboxes(tally: Tally) -> None:
    said = tally("exec", "--help").stdout

    assert "--sandbox NAME[,NAME]" in said
    assert "wasm, or in process: native Python and bash with files" in " ".join(said.split())
