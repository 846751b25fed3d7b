"""The pytest plugin, as a user's project has it: in a process and a directory of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tallystick.core.errors import UsageError
from tallystick.model.endpoint import Secret
from tallystick.model.scripted import ScriptedModel
from tallystick.stores import open_stores
from tallystick.testing.agents import AgentTest, example_of
from tallystick.testing.models import PRICING, ModelDouble, block
from tallystick.testing.plugin import recording_path
from tallystick.testing.recordings import RecordingUnusable, child_paths, holds_key, prompts_path
from tallystick.testing.sandbox import PlainSandbox
from tallystick.tools.tool import tool

KEY = "sk-0123456789abcdefghijklmnop-of-a-test"


@tool(reads=True)
def rate(currency: str) -> float:
    """Return the rate of a currency in euro."""
    return {"usd": 0.92, "text": 1.0}[currency]


def script(folder: Path, *programs: str, answers: tuple[str, ...] = ()) -> str:
    """Write a script, and return the name of the model that reads it."""
    path = folder / "script.jsonl"
    texts = [*(f"```python\n{each}\n```" for each in programs), *answers]
    path.write_text("".join(json.dumps({"text": each}) + "\n" for each in texts))
    return f"scripted:{path}"


def opened(folder: Path, mode: Any = "replay", **options: Any) -> AgentTest:
    said: list[str] = []
    made = AgentTest(
        recording=folder / "recordings" / "test_it.tally",
        mode=mode,
        remedy="pytest --tally=record",
        sandbox=PlainSandbox(),  # type: ignore[arg-type]
        warn=said.append,
        **options,
    )
    made.said = said  # type: ignore[attr-defined]
    return made


def recorded(folder: Path, *programs: str, goal: str = "the rate?", **options: Any) -> AgentTest:
    """Record a run, and return a test that replays it."""
    with opened(folder, "record", model=script(folder, *programs)) as test:
        test.run(goal, tools=[rate], **options)
    return opened(folder)


# -- recordings ---------------------------------------------------------------------------------


def test_a_recorded_run_is_replayed_with_its_tools_and_without_a_difference(
    tmp_path: Path,
) -> None:
    with recorded(tmp_path, "x = rate('usd')\nprint(x)", "FINAL(x)") as test:
        run = test.run("the rate?", tools=[rate])

        assert run.value == "0.92"
        test.assert_calls(run, "rate", times=1, args={"currency": "usd"})
        test.assert_replays(run)
        assert test.drift == []


def test_several_runs_of_a_test_have_a_recording_each(tmp_path: Path) -> None:
    with opened(tmp_path, "record", model=script(tmp_path, "FINAL(1)")) as test:
        test.run("one?")
        test.run("two?")
    with opened(tmp_path) as test:
        assert [test.run("one?").answer, test.run("two?").answer] == ["1", "1"]
        assert test.drift == []


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"goal": "which rate?"}, "task: -1 +1 lines"),
        ({"instructions": "Be brief."}, "prompt 1 differs"),
        ({"limits": {"turns": 5}}, "limit turns: 30 in the recording, 5 now"),
    ],
)
def test_what_differs_is_shown_and_is_no_failure(
    tmp_path: Path, change: dict[str, Any], shown: str
) -> None:
    with recorded(tmp_path, "FINAL(rate('usd'))") as test:
        run = test.run(**{"goal": "the rate?", "tools": [rate], **change})

        assert run.value == "0.92"
        assert shown in str(test.drift[0])
        assert shown in test.said[0]  # type: ignore[attr-defined]


def test_a_tool_that_answers_otherwise_is_shown_at_its_turn(tmp_path: Path) -> None:
    @tool(reads=True, name="rate")
    def other(currency: str) -> float:
        """Return the rate of a currency in euro."""
        return 0.93

    with recorded(tmp_path, "FINAL(rate('usd'))") as test:
        run = test.run("the rate?", tools=[other])

        assert run.value == "0.93"
        assert "turn 1: output, host_calls" in str(test.drift[0])
        assert "call 1 of rate: another answer" in str(test.drift[0])
        assert "end: another answer or stop" in str(test.drift[0])


def test_with_strict_a_difference_is_a_failure(tmp_path: Path) -> None:
    with recorded(tmp_path, "FINAL(1)") as test:
        test.strict = True
        with pytest.raises(AssertionError, match=r"record it again: pytest --tally=record"):
            test.run("another goal?", tools=[rate])


def test_calls_of_programs_to_models_are_replayed_too(tmp_path: Path) -> None:
    program = "FINAL(llm_query('say it') + '!')"
    with opened(tmp_path, "record", model=script(tmp_path, program, answers=("hello",))) as test:
        test.run("?")
    with opened(tmp_path) as test:
        assert test.run("?").answer == "hello!"
        assert test.drift == []


def test_child_runs_are_in_the_recording(tmp_path: Path) -> None:
    program = "FINAL(rlm_query('a longer question about ' + 'x' * 4000))"
    model = script(tmp_path, program, "FINAL('inner')")
    with opened(tmp_path, "record", model=model) as test:
        first = test.run("?")
    with opened(tmp_path) as test:
        again = test.run("?")
        assert (again.answer, test.drift) == (first.answer, [])


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("how", ["missing", "foreign", "damaged", "empty", "prompts"])
def test_a_recording_that_cannot_be_used_names_the_command_that_mends_it(
    tmp_path: Path, how: str
) -> None:
    with recorded(tmp_path, "FINAL(1)") as test:
        path = test.recording
        match how:
            case "missing":
                path.unlink()
            case "foreign":
                path.write_text("no run")
            case "damaged":
                damage(path)
            case "empty":
                path.write_bytes(b"")
            case _:
                newer = prompts_path(path).read_text().replace('"version": 1', '"version": 9')
                prompts_path(path).write_text(newer)

        with pytest.raises(RecordingUnusable, match=r"pytest --tally=record$"):
            test.run("the rate?", tools=[rate])


def test_once_records_what_is_missing_and_replays_what_is_there(tmp_path: Path) -> None:
    with opened(tmp_path, "once", model=script(tmp_path, "FINAL(1)")) as test:
        assert test.run("?").answer == "1"
    before = test.recording.read_bytes()
    with opened(tmp_path, "once", model="scripted:/nowhere") as test:
        assert test.run("?").answer == "1"
    assert test.recording.read_bytes() == before


def test_live_asks_and_writes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path, "live", model=script(tmp_path, "FINAL(1)")) as test:
        assert test.run("?").answer == "1"
    assert not test.recording.parent.exists()


def test_all_tests_on_one_ledger_may_spend_no_more_together_than_is_said(tmp_path: Path) -> None:
    model = ModelDouble(block("FINAL(1)"))
    stops = []
    # A run costs $0.000084, and reserves more than ten times as much.
    for _ in range(20):
        stores = open_stores(tmp_path / "ledger.db")
        with opened(tmp_path, "live", stores=stores, max_usd="0.0013") as test:
            test.real_model = lambda name: model  # type: ignore[method-assign]
            stops.append(test.run("?", pricing=PRICING, limits={"reply_tokens": 200}).stop)

    assert (stops[0], stops[-1]) == ("answered", "budget")
    assert 0 < model.billed <= 1_300_000


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.sampled_from(["goal", "file", "program"]), before=st.text("ab \n", max_size=9))
def test_a_key_never_gets_into_a_recording(tmp_path: Path, where: str, before: str) -> None:
    secret = Secret(KEY)
    said = f"{before}{KEY}"
    program = f"FINAL({said!r})" if where == "program" else "FINAL(1)"
    goal = said if where == "goal" else "?"
    inputs = {"text": said} if where == "file" else None
    with (
        opened(tmp_path, "record", model=script(tmp_path, program)) as test,
        pytest.raises(RecordingUnusable, match="a key would be in it"),
    ):
        test.run(goal, inputs=inputs)
    assert not test.recording.exists()
    assert secret.reveal() == KEY


@pytest.mark.parametrize("text", ["ghp_" + "a" * 36, "AKIA" + "A" * 16, "xoxb-" + "1" * 24])
def test_what_has_the_form_of_a_key_is_one(text: str) -> None:
    assert holds_key(f"a {text} b".encode())
    assert not holds_key(b"a word and sk-short")


# -- models -------------------------------------------------------------------------------------


def test_a_probe_calls_each_tool_and_answers_with_a_value_that_fits(tmp_path: Path) -> None:
    with opened(tmp_path) as test:
        run = test.run("?", model=test.probe(), tools=[rate], answer=dict[str, list[int]])

        assert run.answered
        assert isinstance(run.value, dict)
        test.assert_calls(run, "rate", times=1, args={"currency": "text"})


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer", "minimum": 5}, 5),
        ({"type": "integer", "exclusiveMinimum": 5, "multipleOf": 4}, 8),
        ({"type": "number", "maximum": -2}, -2),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 2}, [True, True]),
        ({"type": "string", "minLength": 6}, "textxx"),
        ({"enum": ["a", "b"]}, "a"),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, None),
    ],
)
def test_an_example_fits_its_schema(schema: dict[str, Any], value: object) -> None:
    assert example_of(schema) == value


def test_faults_come_first_and_then_the_model_is_asked(tmp_path: Path) -> None:
    with opened(tmp_path) as test:
        model = test.faults(test.script("FINAL(1)"), "429", "500")

        assert test.run("?", model=model).answer == "1"
        with pytest.raises(UsageError, match="there is no 'fire'"):
            test.faults(model, "fire")


def test_a_run_may_die_after_any_entry_and_is_resumed(tmp_path: Path) -> None:
    with opened(tmp_path) as test:
        model = test.script("x = rate('usd')\nprint(x)", "FINAL(x)")
        run = test.run("?", model=model, tools=[rate])

        entries = len(test.records(run))
        answers = [test.crash_at(each, run).answer for each in range(1, entries)]
        assert answers == ["0.92"] * (entries - 1)
        with pytest.raises(UsageError, match=f"the run has {entries} entries, not {entries + 1}"):
            test.crash_at(entries + 1, run)


def test_a_transcript_is_the_same_each_time(tmp_path: Path) -> None:
    with opened(tmp_path) as test:
        one, two = (test.transcript(test.run("?", model=test.script("FINAL(1)"))) for _ in range(2))
        assert one == two
        assert "answer='1'" in one


def test_a_call_that_was_not_made_is_named(tmp_path: Path) -> None:
    with opened(tmp_path) as test:
        run = test.run("?", model=test.script("FINAL(rate('usd'))"), tools=[rate])

        with pytest.raises(AssertionError, match=r"rate\(currency='usd'\)"):
            test.assert_calls(run, "rate", args={"currency": "chf"})
        with pytest.raises(AssertionError, match="called 1 times, not 2"):
            test.assert_calls(run, "rate", times=2)
        with pytest.raises(AssertionError, match="mail was not called"):
            test.assert_calls(run, "mail")
        with pytest.raises(UsageError, match="not one of this test"):
            test.crash_at(1, SimpleNamespace(run="01M7H9059YPYTCBKVW1YQJBKX4"))  # type: ignore[arg-type]


def test_a_model_of_ones_own_needs_no_recording(tmp_path: Path) -> None:
    with opened(tmp_path) as test:
        assert test.run("?", model=ScriptedModel.of("FINAL(1)")).stop
        assert not child_paths(test.recording)


# -- files --------------------------------------------------------------------------------------


def test_the_recording_of_a_test_has_a_name_that_every_file_system_takes() -> None:
    path = Path("tests/test_books.py")

    assert recording_path(path, "test_it", None) == Path(
        "tests/recordings/test_books/test_it.tally"
    )
    odd = recording_path(path, "test_it[a/b:c]", SimpleNamespace)
    assert odd.parent == Path("tests/recordings/test_books")
    assert odd != recording_path(path, "test_it[a_b:c]", SimpleNamespace)
    assert len(recording_path(path, "x" * 500, None).name) < 130


# -- as pytest loads it -------------------------------------------------------------------------

_TEST = """
import tallystick

@tallystick.tool(reads=True)
def rate(currency: str) -> float:
    '''Return a rate.'''
    return 0.92

def test_it(tally):
    run = tally.run('the rate?', tools=[rate])
    assert run.value == EXPECTED
"""


def run_pytest(folder: Path, *words: str) -> Any:
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TALLYSTICK_", "PYTEST_", "OPENAI_"))
        or name == "TALLYSTICK_CACHE_DIR"
    }
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words],
        cwd=folder,
        env={**kept, "HOME": str(folder)} | {"TALLYSTICK_CACHE_DIR": _cache()},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def _cache() -> str:
    from tallystick.settings.paths import cache_directory

    return str(cache_directory())


@pytest.mark.slow
def test_a_project_records_once_and_replays_without_a_key(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(_TEST.replace("EXPECTED", "'0.92'"))

    missing = run_pytest(tmp_path)
    assert missing.returncode == 1
    assert "pytest --tally=record 'test_it.py::test_it'" in missing.stdout
    words = ["--tally=record", "--tally-model", script(tmp_path, "FINAL(rate('usd'))")]
    assert run_pytest(tmp_path, *words).returncode == 0
    assert run_pytest(tmp_path).returncode == 0


@pytest.mark.slow
def test_a_failed_test_shows_its_run_and_leaves_it_as_a_file(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(_TEST.replace("EXPECTED", "'1'"))
    words = ["--tally=record", "--tally-model", script(tmp_path, "FINAL(rate('usd'))")]

    done = run_pytest(tmp_path, *words, "--tally-artifacts", "artifacts")

    assert done.returncode == 1
    assert "tally run 1" in done.stdout
    assert ">>> FINAL(rate(" in done.stdout
    names = sorted(each.suffix for each in (tmp_path / "artifacts").iterdir())
    assert names == [".tally", ".txt"]


@pytest.mark.slow
def test_a_project_without_the_fixture_loads_nothing_of_the_engine(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import sys\n"
        "def test_it():\n"
        "    ours = [name for name in sys.modules if name.startswith('tallystick.')]\n"
        "    assert sorted(ours) == ['tallystick.lazy_names', 'tallystick.testing',\n"
        "                            'tallystick.testing.plugin']\n"
    )

    done = run_pytest(tmp_path)

    assert done.returncode == 0, done.stdout
