"""One index of a run's records, against what twelve indexes before it said of every prefix.

`vectors.txt` has their results over the stored ledgers of `tests/fixtures`, frozen before they
went.
It has a digest for each ledger and view, over every prefix of every run. A record is named by its
place.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import pytest
from tests.fixtures.test_stored import Stored
from tests.fixtures.write import DATA, SETS

from tallystick.core.history import WHOLE, Beginning, History, Key, Outcome, key_of
from tallystick.core.records import (
    CallHost,
    ChildBegun,
    ChildEnded,
    HostAnswered,
    QueryAsked,
    QueryFailed,
    QueryRefused,
    QueryReplied,
    Record,
    RunStarted,
)
from tallystick.core.resume_errors import ResumeRefused
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.runtime.runs.history import whole_records

VECTORS = Path(__file__).with_name("vectors.txt")
# The sets that there were when the indexes before this one said what is frozen.
FROZEN = SETS[:2]
FOLDERS = (DATA, Path("cut"))


def attempts_of(history: History, intent: int) -> int:
    last = history.begun(Key("host", intent))[-1]
    assert isinstance(last, CallHost)
    return last.attempt


def prefixes(ledger: SqliteLedger) -> Iterator[list[Record]]:
    for row in ledger.runs():
        try:
            records = whole_records(ledger, row.run)
        except ResumeRefused:
            continue  # Its bodies are pruned.
        if records and isinstance(records[0], RunStarted):
            for end in range(1, len(records) + 1):
                yield records[:end]


def views(history: History) -> dict[str, object]:
    records = history.records
    queries = [each for each in records if isinstance(each, QueryAsked)]
    ended = [
        each for each in records if isinstance(each, QueryReplied | QueryFailed | QueryRefused)
    ]
    children = [each for each in records if isinstance(each, ChildBegun)]
    refused = [each for each in records if isinstance(each, QueryRefused)]
    answered = {each.intent for each in records if isinstance(each, HostAnswered)}
    assert all(history.is_answered(each) for each in answered)
    return {
        "asked": history.asked,
        "replies": history.replies,
        "refused": history.refused,
        "programs": set(history.programs),
        "finished": history.finished,
        "snapshots": history.snapshots,
        "files": history.files,
        "effects": {
            each.intent: attempts_of(history, each.intent)
            for each in records
            if isinstance(each, CallHost)
        },
        "answers": history.answers,
        "unanswered": history.unanswered,
        "queries": {
            program: history.inside(program)
            for program in {0, *history.programs}
            if history.inside(program)
        },
        "ended": history.end,
        "continued_after": {
            intent: history.continued_after(intent)
            for intent in {**history.replies, **history.finished}
        },
        "query_asked": {
            place(each): history.query(each.intent, each.item, each.attempt)[0] for each in queries
        },
        "query_ended": {
            place(each): history.query(each.intent, each.item, each.attempt)[1] for each in ended
        },
        "child_begun": {
            (each.intent, each.item): [begun for begun, _ in history.child(each.intent, each.item)]
            for each in children
        },
        "child_ended": {
            place(each): history.ended(key_of(each))
            for each in records
            if isinstance(each, ChildEnded)
        },
        "answered": answered,
        "child_refused": {
            (each.intent, each.item): history.child_refusal(each.intent, each.item)
            for each in refused
        },
        "start": history.started,
        "holder": history.holder,
        "holds": history.holds,
        "awaited_children": history.awaited_children,
        "model_answers": history.answers_of(history.records[0].model),  # type: ignore[union-attr, arg-type]
        "open_calls": history.open,
        "left_calls": history.left,
        "charges": [[model, repr(charge)] for model, charge in history.charges],
        "exchanges": [list(each) for each in history.exchanges],
    }


def place(record: QueryAsked | QueryReplied | QueryFailed | QueryRefused | ChildEnded) -> object:
    return record.intent, record.item, record.attempt


def frozen(value: object, places: Mapping[int, int]) -> object:
    if value is None or isinstance(value, int | str):
        return value
    if isinstance(value, RunStarted) and id(value) not in places:
        return repr((value.model, value.temperature, value.limits))
    if isinstance(value, msgspec.Struct):
        return places.get(id(value), repr(value))
    if isinstance(value, Mapping):
        return [
            [list(key) if isinstance(key, tuple) else key, frozen(each, places)]
            for key, each in sorted(value.items())
        ]
    if isinstance(value, set):
        return sorted(value)
    assert isinstance(value, Sequence)
    return [frozen(each, places) for each in value]


@pytest.mark.parametrize("name", FROZEN)
@pytest.mark.parametrize("folder", FOLDERS, ids=["data", "cut"])
def test_every_view_of_every_prefix_is_what_it_was(name: str, folder: Path, tmp_path: Path) -> None:
    sums: dict[str, hashlib._Hash] = {}
    with SqliteLedger(Stored(tmp_path, name).path(folder)) as ledger:
        for records in prefixes(ledger):
            places = {id(each): seq for seq, each in enumerate(records)}
            for view, found in views(History(records)).items():
                line = json.dumps(frozen(found, places)).encode() + b"\n"
                sums.setdefault(view, hashlib.sha256()).update(line)

    known = [line.split() for line in VECTORS.read_text(encoding="ascii").splitlines()]
    then = {
        view: digest for each, where, view, digest in known if (each, where) == (name, folder.name)
    }
    assert {view: each.hexdigest()[:32] for view, each in sums.items()} == then


@pytest.mark.parametrize("name", SETS)
def test_every_key_of_a_recorded_run_is_unique(name: str, tmp_path: Path) -> None:
    with SqliteLedger(Stored(tmp_path, name).path()) as ledger:
        for records in prefixes(ledger):
            ended = [key_of(each) for each in records if isinstance(each, Outcome)]
            begun = [
                (key_of(each), each.attempt if isinstance(each, CallHost) else 0)
                for each in records
                if isinstance(each, Beginning)
            ]
            assert len(set(ended)) == len(ended)
            assert len(set(begun)) == len(begun)


def test_a_run_of_which_nothing_is_recorded_knows_nothing() -> None:
    history = History([])

    assert history.begun(Key("turn", 1)) == ()
    assert history.ended(Key("turn", 1)) is None
    assert history.query(1, WHOLE, 0) == (None, None)
    assert history.child(1, 0) == []
    assert (history.end, history.holder, history.open) == (None, "", [])
