"""`tally recall --program`: both forms, their limits, and what is left of one that ended early."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cli.test_memory import Here
from tests.memory.memory_store import quick_folder

from tallystick.memory.memory import Memory
from tallystick.settings.paths import cache_directory

# Each starts processes or waits for them: CI runs them.
pytestmark = pytest.mark.slow

# Of the program's own time nothing is to be tested here, on a machine that others use as well.
PATIENT = ("--wall-ms", "60000")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Here]:
    with quick_folder() as folder:
        made = Here(folder, monkeypatch)
        made.environ["TALLYSTICK_CACHE_DIR"] = str(cache_directory())
        made.remember("the ferry leaves at nine")
        made.remember("bread is in the cellar")
        yield made


def operations(*given: dict[str, Any]) -> str:
    return json.dumps({"operations": given})


def recall(query: str, k: int = 1) -> dict[str, Any]:
    return {"op": "recall", "query": query, "k": k}


def test_operations_give_an_answer_and_a_bundle(here: Here) -> None:
    (here.path / "it.json").write_text(operations(recall("ferry"), recall("bread")))

    text = here.tally("recall", "--program", "it.json", *PATIENT)
    bundle = here.json("recall", "--program", "it.json", *PATIENT)

    assert text.stdout == "- the ferry leaves at nine\n- bread is in the cellar\n"
    assert "2 notes read, 2 returned, fuel 2,000,000" in text.stderr
    assert bundle["final_answer"] == text.stdout.rstrip("\n")
    assert (bundle["fuel_used"], bundle["records_seen"], bundle["records_emitted"]) == (
        2_000_000, 2, 2,
    )  # fmt: skip
    assert (bundle["form"], bundle["error"]) == ("operations", None)
    assert bundle["answer_tokens"]["tokenizer"] == "tallystick-pieces-1"


def test_what_a_program_cites_is_a_citation_that_resolves(here: Here) -> None:
    id = here.json("recall", "ferry")["hits"][0]["id"]
    program = operations(
        recall("ferry"), {"op": "score", "memory_id": id}, {"op": "cite", "memory_id": id}
    )

    bundle = here.json("recall", "--program", "-", *PATIENT, say=program)

    assert 0 < bundle["scores"][id] <= 1
    shown = here.json("memory", "show", bundle["receipts"][0])
    assert shown["content"] == "the ferry leaves at nine"


def test_a_note_that_was_not_recalled_is_not_cited(here: Here) -> None:
    id = here.json("recall", "ferry")["hits"][0]["id"]
    program = operations({"op": "cite", "memory_id": id})

    bundle = here.json("recall", "--program", "-", *PATIENT, say=program, code=1)

    assert bundle["error"]["code"] == "refused.code_mode.operation"
    assert "was not recalled here" in bundle["error"]["message"]


def test_a_limit_ends_it_and_what_it_had_is_shown(here: Here) -> None:
    program = operations(recall("ferry"), recall("bread"))
    limit = ("--fuel", "1000000", *PATIENT)

    bundle = here.json("recall", "--program", "-", *limit, say=program, code=3)
    text = here.tally("recall", "--program", "-", *limit, say=program)

    assert bundle["final_answer"] == "- the ferry leaves at nine"
    assert bundle["error"]["message"] == "guest fuel exhausted (1000000 units consumed)"
    assert bundle["fuel_used"] == 2_000_000
    assert text.stdout == ""
    assert text.stderr.splitlines()[-1].endswith("; to give it more: --fuel N")
    assert "- the ferry leaves at nine" in text.stderr
    none = here.json("recall", "--program", "-", "--wall-ms", "0", say=program, code=3)
    assert none["error"]["message"] == "guest exceeded wall-time budget 0ns"
    held = here.json("recall", "--program", "-", "--pages", "0", *PATIENT, say=program, code=1)
    assert held["error"]["code"] == "refused.code_mode.sandbox"


def test_a_slow_call_is_cut_at_the_wall_and_making_ready_is_not_counted(
    here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    let = threading.Event()
    usual, prepare = Memory.recall, Memory.prepare

    def recall_(self: Memory, query: str, k: int = 10, **more: Any) -> object:
        if query == "slow":
            let.wait(30)
        return usual(self, query, k, **more)

    def prepare_(self: Memory, **more: Any) -> None:
        prepare(self, **more)
        time.sleep(1.5)

    monkeypatch.setattr(Memory, "recall", recall_)
    monkeypatch.setattr(Memory, "prepare", prepare_)
    program = operations(recall("ferry"), recall("slow"), recall("bread"))
    began = time.monotonic()

    bundle = here.json("recall", "--program", "-", "--wall-ms", "1000", say=program, code=3)
    took = time.monotonic() - began
    let.set()

    assert took < 20
    assert bundle["error"]["message"] == "guest exceeded wall-time budget 1s"
    assert bundle["final_answer"] == "- the ferry leaves at nine"
    assert bundle["fuel_used"] == 2_000_000


def test_no_notes_may_be_asked_for(here: Here) -> None:
    bundle = here.json("recall", "--program", "-", *PATIENT, say=operations(recall("ferry", 0)))

    assert (bundle["recalled"], bundle["error"]) == ([], None)
    assert here.json("recall", "ferry", "-k", "0")["hits"] == []


def test_filters_hold_for_every_recall_of_a_program(here: Here) -> None:
    program = operations(recall("ferry bread", 10))

    bundle = here.json("recall", "--program", "-", "--before", "2020-01-01", *PATIENT, say=program)

    assert bundle["final_answer"] == "(no relevant memories)"
    assert bundle["recalled"] == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "empty"),
        ("{}", "operations"),
        (operations({"op": "forget"}), "unknown operation"),
        (operations({"op": "recall", "query": "x", "k": -1}), "k is -1"),
        (operations({"op": "recall", "query": "x", "k": 10_000}), "k is 10000"),
        (b"\xff", "not UTF-8"),
        ("for", "line 1"),
    ],
)
def test_what_is_no_program_is_wrong_usage(here: Here, given: str | bytes, said: str) -> None:
    assert said in here.error("recall", "--program", "-", say=given, code=2)


def test_an_empty_list_of_operations_is_refused(here: Here) -> None:
    bundle = here.json("recall", "--program", "-", say=operations(), code=1)

    assert bundle["error"]["code"] == "refused.code_mode.empty"
    assert bundle["final_answer"] == ""


@pytest.mark.slow
def test_a_python_program_lets_results_flow_between_calls(here: Here) -> None:
    here.remember("the captain of the ferry is Mia")
    program = """
first = recall("who is captain of the ferry?", k=1)[0]
name = first["content"].rsplit(" ", 1)[1]
print(name, cite(first["id"]))
"""

    bundle = here.json("recall", "--program", "-", *PATIENT, say=program)

    name, citation = bundle["final_answer"].split()
    assert (name, bundle["form"], bundle["records_seen"], bundle["records_emitted"]) == (
        "Mia", "python", 1, 0,
    )  # fmt: skip
    assert here.json("memory", "show", citation)["content"].endswith("Mia")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "code", "exit_code"),
    [
        ("recall('ferry'); open('/etc/passwd')", "refused.code_mode.sandbox", 1),
        ("recall('ferry'); 1 / 0", "refused.code_mode.program", 1),
        ("recall('ferry')\nwhile True: pass", "refused.code_mode.fuel", 3),
    ],
)
def test_a_python_program_that_ends_early_leaves_what_it_had(
    here: Here, program: str, code: str, exit_code: int
) -> None:
    bundle = here.json("recall", "--program", "-", *PATIENT, say=program, code=exit_code)

    assert bundle["error"]["code"] == code
    assert [hit["content"] for hit in bundle["recalled"]] == ["the ferry leaves at nine"]
