"""The durability bench: counts what a process forces and writes, and cuts a run off cleanly."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from bench.durability_count import PEERS, Peer, PerTurn, of_ours
from bench.durability_resume import cut_off
from bench.durability_trace import Traced, counted, trace, trace_available
from bench.durability_worker import REPLY_BYTES, TurnsModel, append_at_once

from tallystick.core.machine.prompt import Message
from tallystick.core.records import AskModel, ModelReplied
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import verify_ledger
from tallystick.model.port import ModelRequest
from tallystick.runtime.runs.history import records_of
from tallystick.sandbox.wasm.sandbox import WasmSandbox

needs_strace = pytest.mark.skipif(not trace_available(), reason="counts system calls with strace")
# Three files forced and one not, 1,500 bytes here and 9 elsewhere, by two threads.
_WORK = """
import os, sys, threading

def work():
    descriptor = os.open(f"{sys.argv[1]}/{threading.get_native_id()}", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"x" * 500)
    os.fdatasync(descriptor)
    os.close(descriptor)

thread = threading.Thread(target=work)
thread.start()
thread.join()
work()
descriptor = os.open(f"{sys.argv[1]}/at", os.O_WRONLY | os.O_CREAT)
os.pwrite(descriptor, b"x" * 500, 4096)
os.fsync(descriptor)
os.write(1, b"elsewhere")
"""


def test_calls_are_counted_for_the_folder_and_only_if_they_were_done() -> None:
    lines = [
        'pwrite64(3</data/ledger.db-wal>, ""..., 4096, 56) = 4096\n',
        "fdatasync(3</data/ledger.db-wal>)       = 0\n",
        "fsync(4</data>)                         = 0\n",
        "msync(0x7f0000000000, 4096, MS_SYNC)    = 0\n",
        'write(5</data/old>(deleted), ""..., 20) = 10\n',
        "fsync(6</elsewhere/file>)               = 0\n",
        "fsync(6</database>)                     = 0\n",
        'write(1<pipe:[17]>, ""..., 5)           = 5\n',
        "fdatasync(3</data/ledger.db-wal>)       = -1 EIO (Input/output error)\n",
        'write(3</data/full>, ""..., 5)          = -1 ENOSPC (No space left on device)\n',
        "+++ exited with 0 +++\n",
    ]

    found = counted(lines, Path("/data"))

    assert found == Traced(forced=3, bytes_written=4106)


@needs_strace
def test_every_thread_of_a_process_is_counted(tmp_path: Path) -> None:
    found = trace([sys.executable, "-c", _WORK, str(tmp_path)], tmp_path)

    assert found == Traced(forced=3, bytes_written=1_500, output="elsewhere")


@needs_strace
def test_a_process_that_fails_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no such luck"):
        trace([sys.executable, "-c", "raise SystemExit('no such luck')"], tmp_path)


def test_what_opening_costs_is_taken_off_a_turn() -> None:
    found = PerTurn(
        short=Traced(forced=11, bytes_written=200_000),
        long=Traced(forced=110, bytes_written=1_190_000),
        further=99,
    )

    assert (found.forced, found.kilobytes) == (1.0, 10.0)


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: f"{peer.who}, {peer.mode}")
def test_a_peer_that_is_not_there_is_skipped_and_says_what_to_set(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(peer.variable, raising=False)

    (row,) = peer.rows([])

    assert row.skipped == f"set {peer.variable} to a Python that has it"
    assert (row.who, row.met) == (peer.who, None)


@needs_strace
def test_a_peer_that_breaks_is_a_row_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    peer = PEERS[0]
    # It is there, and has nothing that its driver imports.
    monkeypatch.setenv(peer.variable, sys.executable)

    (row,) = peer.rows([])

    assert row.skipped.startswith("failed: ")
    assert "langgraph" in row.skipped


def test_the_model_tells_the_turn_by_the_prompt_in_a_kilobyte() -> None:
    model = TurnsModel(2)
    asked = Message(role="user", part="task", text="?")
    said = Message(role="assistant", part="reply:1", text="!")

    first = asyncio.run(model.ask(ModelRequest(messages=(asked,)))).text
    last = asyncio.run(model.ask(ModelRequest(messages=(asked, said, asked)))).text

    assert [len(first), len(last)] == [REPLY_BYTES, REPLY_BYTES]
    assert ["FINAL" in first, "FINAL" in last] == [False, True]


def test_appends_at_once_are_all_there_and_hold(tmp_path: Path) -> None:
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        append_at_once(ledger, threads=3, count=4)

        assert [row.head.count for row in ledger.runs()] == [4, 4, 4]


def test_a_run_is_cut_off_with_no_call_open(sandbox: WasmSandbox, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"

    run, _ = cut_off(sandbox, tmp_path / "run.db", copy, turns=3)

    with SqliteLedger(copy) as ledger:
        records = list(records_of(ledger, run))
        assert verify_ledger(ledger, [run]).first_bad is None
    assert sum(isinstance(each, AskModel) for each in records) == 2
    assert sum(isinstance(each, ModelReplied) for each in records) == 2


@needs_strace
@pytest.mark.slow
def test_a_paid_turn_waits_for_the_disk_about_once() -> None:
    assert 1.0 <= of_ours("runs", many=1, each=30).forced <= 1.2
