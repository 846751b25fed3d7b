"""Threads and pools of a program: they take turns where they wait, always in the same order."""

import pytest
from tests.sandbox.wasm.thread_programs import PROGRAMS
from tests.wasm_session import TestSession, open_session

from tallystick.sandbox.wasm.sandbox import WasmSandbox


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_with_threads_ends_as_in_cpython(session: TestSession, name: str) -> None:
    program, value = PROGRAMS[name]

    result = session.run(program)

    assert result.error is None, result.error.traceback or result.error
    assert result.value == value
    assert result.stderr == ""


@pytest.mark.parametrize("name", list(PROGRAMS)[::6])
def test_threads_use_the_same_fuel_each_time(sandbox: WasmSandbox, name: str) -> None:
    results = []
    for _ in range(2):
        with open_session(sandbox) as session:
            results.append(session.run(PROGRAMS[name][0] + "\nimport time; time.monotonic_ns()"))

    assert results[0].charge.fuel == results[1].charge.fuel
    assert results[0].value == results[1].value


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


STUCK = {
    "a consumer without a sentinel": (
        """
import queue, threading
line, out = queue.Queue(), []
def consume():
    while True:
        out.append(line.get())
thread = threading.Thread(target=consume, name='eater')
thread.start()
line.put(1)
""",
        "eater waits in Queue.get (line 6)",
    ),
    "locks in the wrong order": (
        """
import threading, time
a, b = threading.Lock(), threading.Lock()
def take(first, second):
    with first:
        time.sleep(0.01)
        with second:
            pass
threads = [threading.Thread(target=take, args=each) for each in ((a, b), (b, a))]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
        "waits in Lock.acquire (line 7)",
    ),
    "an event that is never set, in a pool": (
        """
import threading
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(1) as pool:
    pool.submit(threading.Event().wait)
""",
        "waits in Event.wait",
    ),
    "a task of a full pool waits for its own pool": (
        """
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1)
def outer():
    return pool.submit(abs, -1).result()
pool.submit(outer).result()
""",
        "waits in Future.result (line 5)",
    ),
    "a barrier with too few": (
        """
import threading
barrier = threading.Barrier(3)
threads = [threading.Thread(target=barrier.wait) for _ in range(2)]
for thread in threads: thread.start()
""",
        "waits in Barrier.wait",
    ),
    "an error that is caught": (
        """
import threading
lock = threading.Lock()
lock.acquire()
try:
    lock.acquire()
except Exception:
    pass
'on'
""",
        "MainThread waits in Lock.acquire (line 6)",
    ),
    "a wait under a built-in function": (
        """
import queue, threading
line, out = queue.Queue(1), []
def consume():
    out.extend(map(lambda _: line.get(), range(3)))
threading.Thread(target=consume, name='eater').start()
for n in range(3):
    line.put(n)
""",
        "eater waits inside a function that cannot be paused",
    ),
}


@pytest.mark.parametrize("name", STUCK)
def test_threads_that_cannot_continue_end_the_program_with_an_error(
    session: TestSession, name: str
) -> None:
    program, told = STUCK[name]

    error = session.run(program).error

    assert error is not None
    assert error.kind == "RuntimeError"
    assert told in error.message
    assert session.value("1 + 1") == "2"


def test_a_daemon_that_is_not_waited_for_does_not_keep_the_program(session: TestSession) -> None:
    program = """
import threading, time
beats = []
def beat():
    while True:
        beats.append(1)
        time.sleep(1)
threading.Thread(target=beat, daemon=True).start()
"""
    assert session.run(program).error is None
    assert session.value("time.sleep(2.5)\nlen(beats)") == "3"


def test_a_daemon_and_a_pool_work_on_in_the_next_program(session: TestSession) -> None:
    session.run(
        """
import queue, threading
from concurrent.futures import ThreadPoolExecutor
work, done, pool = queue.Queue(), [], ThreadPoolExecutor(2)
def worker():
    while True:
        done.append(work.get())
        work.task_done()
threading.Thread(target=worker, daemon=True).start()
first = pool.submit(abs, -1)
"""
    )

    program = "work.put(1)\nwork.join()\ndone, first.result(), pool.submit(abs, -2).result()"
    assert session.value(program) == "([1], 1, 2)"


def test_the_error_of_the_program_is_told_before_that_of_its_threads(
    session: TestSession,
) -> None:
    error = session.run(
        "import queue, threading\nline = queue.Queue()\n"
        "threading.Thread(target=line.get).start()\n1 / 0"
    ).error

    assert error is not None
    assert error.kind == "ZeroDivisionError"


def test_a_process_that_fails_has_exit_code_1_and_says_why(session: TestSession) -> None:
    result = session.run(
        "import multiprocessing\np = multiprocessing.Process(target=lambda: 1 / 0)\n"
        "p.start()\np.join()\np.exitcode"
    )

    assert result.value == "1"
    assert "ZeroDivisionError" in result.stderr


def test_interrupting_the_main_thread_is_refused_by_name(session: TestSession) -> None:
    error = session.run("import _thread\n_thread.interrupt_main()").error

    assert error is not None
    assert "_thread.interrupt_main is not available" in error.message


def test_the_traceback_of_a_thread_shows_the_program_only(session: TestSession) -> None:
    result = session.run(
        """
import threading, time
def inner():
    time.sleep(0.01)
    raise ValueError('here')
def outer():
    inner()
thread = threading.Thread(target=outer, name='one')
thread.start()
thread.join()
"""
    )

    assert "Exception in thread one" in result.stderr
    assert "line 7, in outer" in result.stderr
    assert "line 5, in inner" in result.stderr
    assert "tallystick" not in result.stderr


def test_a_thread_that_computes_costs_what_the_main_thread_costs(session: TestSession) -> None:
    program = """
def work(n):
    return n if n < 2 else work(n - 1) + work(n - 2)
"""
    session.run(program)
    alone = session.run("work(18)").charge.fuel
    threaded = session.run(
        "import threading\nt = threading.Thread(target=work, args=(18,))\nt.start()\nt.join()"
    ).charge.fuel

    assert threaded < 3 * alone


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
