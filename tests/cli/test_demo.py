"""`tally demo`: a question over three megabytes, answered, replayed and verified, with no model."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from tests.cli.test_exec import Tally
from tests.core.citation.correct import is_correct

from tallystick.cli.commands.demo import corpus_sha256
from tallystick.cli.main import cli
from tallystick.core.citation.claims import Documents
from tallystick.core.errors import LedgerError, UsageError
from tallystick.core.records import AskModel
from tallystick.demo import corpus as corpus_module
from tallystick.demo.corpus import QUESTION, expected_answer, harbour
from tallystick.demo.recording import recording
from tallystick.model.recorded import RecordedModel
from tallystick.runtime.context.inputs import given_text
from tallystick.sandbox.text import HostText
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.settings.paths import cache_directory
from tallystick.testing.runs import Played, play

pytestmark = pytest.mark.slow


@pytest.fixture
def tally(tmp_path: Path) -> Tally:
    return Tally(tmp_path)


@pytest.fixture(scope="module")
def corpus() -> dict[str, str]:
    """The sample data. Three megabytes take half a second to make."""
    return harbour()


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of some lines, where it does not matter how many. The answer is the same."""
    monkeypatch.setattr(corpus_module, "_LOG_BYTES", 3_000)


# -- as a user calls it ------------------------------------------------------------------------


def test_the_demonstration_answers_cites_replays_and_verifies(tally: Tally) -> None:
    done = tally("demo")

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert all(part in done.stdout for part in expected_answer())
    # A long line goes on in the next, which begins with the column of the text.
    whole = done.stderr.replace("\n" + " " * 9, " ")
    said = {line.partition(" ")[0]: line for line in whole.splitlines() if line}
    assert QUESTION in said["question"]
    assert recording().made_with in said["model"]
    assert all(part in said["cited"] for part in expected_answer())
    assert "without a model: the same, to the byte" in said["replay"]
    assert "every hash holds" in said["verify"]
    assert "note" not in said
    assert "    tally inspect last\n    tally demo --save demo\n" in done.stderr
    assert max(map(len, done.stderr.partition("\nnext ")[2].splitlines())) <= 80


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize(
    ("started", "shown"),
    [(".venv/bin/tally", ".venv/bin/tally"), ("/nowhere/else/tally", "/nowhere/else/tally")],
)
def test_a_tally_that_is_not_on_the_path_is_named_as_it_can_be_typed(
    started: str,
    shown: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("TALLYSTICK_DATA_DIR", str(tmp_path))
    monkeypatch.setattr("sys.argv", [started, "demo"])

    assert cli(["demo"], standalone_mode=False) == 0

    assert f"    {shown} inspect last\n" in capfd.readouterr().err


@pytest.mark.usefixtures("_small")
def test_quiet_prints_the_answer_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TALLYSTICK_DATA_DIR", str(tmp_path))

    code = cli(["demo", "--quiet"], standalone_mode=False)

    printed = capfd.readouterr()
    assert code == 0
    assert printed.out.count("\n") == 1
    assert all(part in printed.out for part in expected_answer())
    assert printed.err == ""


@pytest.mark.usefixtures("_small")
def test_the_sample_can_be_saved_to_ask_questions_of_ones_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "some" / "where"

    code = cli(["demo", "--save", str(folder)], standalone_mode=False)

    assert code == 0
    assert {path.name: path.read_text() for path in folder.iterdir()} == harbour()
    assert capfd.readouterr().out.splitlines() == [str(folder / name) for name in harbour()]


@pytest.mark.usefixtures("_small")
def test_where_nothing_can_be_written_it_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TALLYSTICK_CACHE_DIR", str(cache_directory()))
    monkeypatch.setenv("TALLYSTICK_DATA_DIR", "")
    monkeypatch.setenv("XDG_DATA_HOME", "")
    monkeypatch.setenv("HOME", "/dev/null")

    with pytest.raises(LedgerError, match=r"^/dev/null/[^\n]+$"):
        cli(["demo", "--quiet"], standalone_mode=False)

    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("_small")
def test_a_place_where_no_directory_can_be_is_wrong_usage(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file, and no directory")

    with pytest.raises(UsageError, match="taken/below"):
        cli(["demo", "--save", str(taken / "below")], standalone_mode=False)


# -- the recording -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played(sandbox: WasmSandbox, corpus: dict[str, str]) -> tuple[Played, RecordedModel]:
    kept = recording()
    model = RecordedModel(kept.exchanges, name="recorded", recorded_name=kept.model)
    inputs = [given_text(text, name=name) for name, text in corpus.items()]
    run = play(sandbox, model, goal=QUESTION, inputs=inputs, temperature=kept.temperature)
    return run, model


@pytest.mark.slow
def test_the_recorded_prompts_are_the_present_ones(played: tuple[Played, RecordedModel]) -> None:
    """A changed prompt needs a new recording: `bench/real/record_demo.py` makes one."""
    run, model = played
    asked = [each for each in run.records if isinstance(each, AskModel)]

    assert model.drift == []
    assert [each.added for each in asked] == [each.added for each, _ in recording().exchanges]


def test_the_recorded_replies_lead_to_the_answer_and_its_line(
    played: tuple[Played, RecordedModel], corpus: dict[str, str]
) -> None:
    run = played[0].run

    (citation,) = run.citations
    assert run.stop == "answered"
    assert run.answer is not None
    assert all(part in run.answer for part in expected_answer())
    assert all(part in citation.quote for part in expected_answer())
    held = {name: HostText(text.encode()) for name, text in corpus.items()}
    assert is_correct(citation, Documents(held))
    assert corpus[citation.name].splitlines()[citation.line - 1] == citation.quote


def test_the_recording_is_of_this_question_and_the_seed_gives_the_bytes_it_was_made_with(
    corpus: dict[str, str],
) -> None:
    kept = recording()

    assert kept.version == 1
    assert kept.question == QUESTION
    assert kept.corpus_sha256 == corpus_sha256(corpus)


# -- the corpus --------------------------------------------------------------------------------


def test_a_digest_is_of_names_and_texts_and_where_they_part() -> None:
    digests = {
        corpus_sha256(texts)
        for texts in ({}, {"a": "bc"}, {"ab": "c"}, {"a": "b", "c": ""}, {"c": "", "a": "b"})
    }

    assert len(digests) == 5


def test_the_event_of_the_question_stands_in_the_log_once_and_neither_first_nor_last(
    corpus: dict[str, str],
) -> None:
    ((name, text),) = corpus.items()
    rows = list(csv.DictReader(text.splitlines()))

    places = [place for place, row in enumerate(rows) if "towed in" in row["entry"]]

    assert len(places) == 1
    assert (rows[places[0]]["vessel"], rows[places[0]]["officer"]) == expected_answer()
    assert len(rows) // 10 < places[0] < len(rows) * 9 // 10
    assert 3_000_000 <= len(text.encode()) < 3_100_000
    assert name.endswith(".csv")


def test_another_seed_asks_for_another_vessel() -> None:
    assert len({expected_answer(seed) for seed in range(50)}) > 40


@pytest.mark.slow
def test_a_model_that_is_named_is_asked_under_the_users_caps(tally: Tally) -> None:
    """A cap in dollars and a price that nobody knows: nothing is sent."""
    url = "http://127.0.0.1:9/v1"
    done = tally("demo", "-m", "local:m", "--max-usd", "1", "--quiet", TALLYSTICK_MODEL_URL=url)
    from_settings = tally(
        "demo", "-m", "local:m", TALLYSTICK_MODEL_URL=url, TALLYSTICK_MAX_TOKENS="500"
    )

    assert (done.returncode, done.stdout) == (3, "")
    assert from_settings.returncode == 3
    assert "500 left in this run" in from_settings.stderr


@pytest.mark.slow
def test_the_readme_shows_what_the_demonstration_prints(tally: Tally) -> None:
    page = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    shown = page.partition("```text\n")[2].partition("```")[0].splitlines()
    done = tally("demo")
    printed = {line.rstrip() for line in (done.stdout + done.stderr).splitlines()}

    assert len(shown) >= 8
    assert [line for line in shown if line.rstrip() not in printed] == []
