"""Threads and pools of a program: run in place, in an order that is always the same."""

import pytest
from tests.wasm_session import TestSession


def test_a_thread_has_run_when_it_was_joined(session: TestSession) -> None:
    program = """
import threading
done = []
threads = [threading.Thread(target=done.append, args=(n,)) for n in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
done, [thread.is_alive() for thread in threads]
"""
    assert session.value(program) == "([0, 1, 2], [False, False, False])"


def test_workers_that_start_before_their_queue_is_filled_find_their_work(
    session: TestSession,
) -> None:
    program = """
import queue, threading
work, done = queue.Queue(), []
def worker():
    while True:
        item = work.get()
        if item is None:
            return
        done.append(item * 2)
        work.task_done()
threads = [threading.Thread(target=worker) for _ in range(2)]
for thread in threads: thread.start()
for n in range(4): work.put(n)
for _ in threads: work.put(None)
for thread in threads: thread.join()
done
"""
    assert session.value(program) == "[0, 2, 4, 6]"


def test_daemon_workers_and_queue_join(session: TestSession) -> None:
    program = """
import queue, threading
work, done = queue.Queue(), []
def worker():
    while True:
        done.append(work.get())
        work.task_done()
threading.Thread(target=worker, daemon=True).start()
for n in range(3): work.put(n)
work.join()
done
"""
    assert session.value(program) == "[0, 1, 2]"


def test_events_locks_conditions_and_locals(session: TestSession) -> None:
    program = """
import threading
ready, lock, own, seen = threading.Event(), threading.Lock(), threading.local(), []
own.name = 'main'
def other():
    with lock:
        seen.append((threading.current_thread().name, getattr(own, 'name', None)))
    ready.set()
threading.Thread(target=other, name='other').start()
ready.wait()
seen, own.name, threading.current_thread() is threading.main_thread()
"""
    assert session.value(program) == "([('other', None)], 'main', True)"


def test_a_thread_nobody_joins_runs_before_the_program_ends(session: TestSession) -> None:
    result = session.run("import threading\nthreading.Thread(target=print, args=('late',)).start()")

    assert result.stdout == "late\n"


def test_an_error_in_a_thread_is_printed_and_does_not_end_the_program(
    session: TestSession,
) -> None:
    result = session.run(
        "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()\n'on'"
    )

    assert result.value == "'on'"
    assert "ZeroDivisionError" in result.stderr


@pytest.mark.parametrize(
    "program",
    [
        "import threading\nlock = threading.Lock()\nlock.acquire()\nlock.acquire()",
        "import queue\nqueue.Queue().get()",
        "import threading\nthreading.Event().wait()",
    ],
)
def test_waiting_for_nothing_is_a_deadlock_that_says_so(session: TestSession, program: str) -> None:
    error = session.run(program).error

    assert error is not None
    assert error.kind == "RuntimeError"
    assert "deadlock" in error.message


def test_a_wait_with_a_timeout_passes_in_virtual_time(session: TestSession) -> None:
    program = """
import queue, threading, time
before = time.monotonic()
woken = threading.Event().wait(30)
try:
    queue.Queue().get(timeout=30)
except queue.Empty:
    pass
woken, round(time.monotonic() - before)
"""
    result = session.run(program)

    assert result.value == "(False, 60)"
    assert result.charge.wall_ms < 5_000


@pytest.mark.parametrize(
    "program",
    [
        "from concurrent.futures import ThreadPoolExecutor as P\nlist(P(4).map(abs, [-1, -2]))",
        "from concurrent.futures import ProcessPoolExecutor as P\nlist(P().map(abs, [-1, -2]))",
        "import multiprocessing as m\nwith m.Pool(2) as p: r = p.map(abs, [-1, -2])\nr",
        "from multiprocessing.pool import ThreadPool as P\nP(2).starmap(pow, [(1, 1), (2, 1)])",
        "import asyncio\n[await asyncio.to_thread(abs, n) for n in (-1, -2)]",
        "from concurrent.futures import *\nf = [ThreadPoolExecutor().submit(abs, n) "
        "for n in (-1, -2)]\n[e.result() for e in as_completed(f)] and [e.result() for e in f]",
    ],
)
def test_pools_run_their_tasks_in_place(session: TestSession, program: str) -> None:
    assert session.value(program) == "[1, 2]"


def test_a_failing_task_fails_where_its_result_is_asked_for(session: TestSession) -> None:
    program = """
from concurrent.futures import ThreadPoolExecutor
future = ThreadPoolExecutor().submit(lambda: 1 / 0)
type(future.exception()).__name__
"""
    assert session.value(program) == "'ZeroDivisionError'"
