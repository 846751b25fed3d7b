"""Threads, locks and pools in a guest that has one thread.

A started thread runs when the one that started it waits: for a lock, a queue, an event, a join, a
sleep, the event loop, or the end of the program. Everything that waits in `threading`, `queue` and
`concurrent.futures` waits for a lock in the end, so these modules are the library's own, over the
`Lock` and the thread handle below.

Rule 1: the main thread is at the bottom of the one stack and is never paused. Where it waits, it
runs the others. Another thread runs as a generator (see `twins`) and is paused where it waits.
Rule 2: a thread that waits inside a function that has no twin (one that `map` or `sorted` calls, a
generator, code without source) stays on the stack and runs the others from there. That works unless
it needs one that lies below it on the stack.
Rule 3: if nobody can continue, the clock moves to the next timeout. If there is none, the program
ends with an error that names who waits where. Catching the error does not help: the end of the
program raises it again. So no thread loses work in silence.
Rule 4: the order is that of starting, and turns are taken at waits only (and after a thousand turns
of a `while` loop, so that a loop that watches a flag ends). The same program does the same again.
"""

import _thread
import _threading_local
import asyncio
import collections
import concurrent.futures
import concurrent.futures.thread
import contextlib
import contextvars
import functools
import importlib
import itertools
import queue
import sched
import sys
import threading
import time
import types

from tallystick_guest import twins

_real_sleep, _now_ns = time.sleep, time.monotonic_ns
_get_running_loop, _set_running_loop = (
    asyncio._get_running_loop,
    asyncio._set_running_loop,
)
_swap_current_task = asyncio.tasks._swap_current_task
_twin, _is_paused, _value_of, _SPIN = twins.twin, twins.is_paused, twins.value_of, twins.SPIN
_SPIN_SECONDS = 0.001
_POLLS_PER_TURN = 16
_NESTED_MAX = 40
_LAST_TURNS_MAX = 100
_WAITERS_NAMED_MAX = 5


class _Stuck(BaseException):
    """Takes a thread off the stack when the program cannot continue."""


class _Wait:
    """What a thread waits for: until `ready()`, or until a time on the clock."""

    __slots__ = ("deadline_ns", "of", "ready")

    def __init__(self, ready: object, timeout: float | None, of: object = None) -> None:
        self.ready = ready
        self.of = of
        self.deadline_ns = None if timeout is None else _now_ns() + int(timeout * 1e9)

    def is_over(self) -> bool:
        if self.ready():
            return True
        return self.deadline_ns is not None and _now_ns() >= self.deadline_ns


class _Task:
    """One thread as the scheduler has it."""

    __slots__ = ("context", "generator", "handle", "loop", "on_stack", "thread", "wait")

    def __init__(self, thread: threading.Thread, handle: "Handle") -> None:
        self.thread = thread
        self.handle = handle
        self.context = thread._context or contextvars.Context()
        self.generator: object = None
        self.wait: _Wait | None = None
        self.on_stack = False
        self.loop: object = None


class _Scheduler:
    """All threads of a session. The main thread is None here."""

    def __init__(self) -> None:
        self.tasks: collections.deque[_Task] = collections.deque()
        self.current: _Task | None = None
        # Those that wait on the one stack, the main thread first.
        self.nested: list[tuple[_Task | None, _Wait]] = []
        self.failure: str | None = None
        # A generator that is dropped runs its `finally`: what was given up is kept instead.
        self.given_up: list[_Task] = []
        self.polls = 0

    def next_task(self) -> _Task | None:
        """Return the next thread that can run, in turn."""
        tasks = self.tasks
        for _ in range(len(tasks)):
            task = tasks[0]
            tasks.rotate(-1)
            if not task.on_stack and (task.wait is None or task.wait.is_over()):
                return task
        return None

    def block(self, wait: _Wait) -> bool:
        """Wait on the stack: run the others until it is over. False if only the time is."""
        if self.failure is not None:
            self.fail(self.failure)
        self.nested.append((self.current, wait))
        try:
            while not wait.ready():
                if wait.deadline_ns is not None and _now_ns() >= wait.deadline_ns:
                    return wait.ready()
                task = self.next_task() if len(self.nested) <= _NESTED_MAX else None
                if task is not None:
                    self.step(task)
                elif not self.move_clock(wait):
                    self.fail(self.explain())
            return True
        finally:
            self.nested.pop()

    def move_clock(self, wait: _Wait) -> bool:
        """Move the clock to the next timeout. False if there is none."""
        waits = [wait, *(task.wait for task in self.tasks if not task.on_stack and task.wait)]
        deadlines = [each.deadline_ns for each in waits if each.deadline_ns is not None]
        if not deadlines:
            return False
        _real_sleep(max(min(deadlines) - _now_ns(), 1) / 1e9)
        return True

    def fail(self, message: str) -> None:
        """End the program: in the main thread with an error, elsewhere by leaving the stack."""
        self.failure = message
        if self.current is None:
            raise RuntimeError(message)
        raise _Stuck(message)

    def step(self, task: _Task) -> None:
        """Run a thread until it waits, or to its end."""
        outer, self.current = self.current, task
        loop = _get_running_loop()
        running = _swap_current_task(loop, None) if loop is not None else None
        _set_running_loop(task.loop)
        task.wait, task.on_stack = None, True
        try:
            self.advance(task)
        finally:
            task.on_stack = False
            task.loop = _get_running_loop()
            _set_running_loop(loop)
            if loop is not None:
                _swap_current_task(loop, running)
            self.current = outer
        if self.failure is not None:
            self.fail(self.failure)

    def advance(self, task: _Task) -> None:
        thread = task.thread
        try:
            if task.generator is None:
                result = task.context.run(_twin(thread.run))
                if not _is_paused(result):
                    self.finish(task)
                    return
                task.generator = result
            given = task.context.run(task.generator.send, None)
            if given is _SPIN:
                _real_sleep(_SPIN_SECONDS)
            else:
                task.wait = given
            return
        except StopIteration as end:
            try:
                if task.generator is None:
                    raise
                _value_of(end.value)
            except BaseException as error:
                _report(thread, error)
        except _Stuck:
            pass
        except BaseException as error:
            _report(thread, error)
        self.finish(task)

    def finish(self, task: _Task) -> None:
        if self.tasks and self.tasks[-1] is task:
            self.tasks.pop()  # Its turn has just put it there: no need to look for it.
        else:
            with contextlib.suppress(ValueError):
                self.tasks.remove(task)
        task.generator = None
        threading._active.pop(task.thread._ident, None)
        task.handle.done = True

    def give_up(self, task: _Task) -> None:
        """Never run a thread again."""
        self.given_up.append(task)
        generator = task.generator
        self.finish(task)
        task.generator = generator

    def must_finish(self, task: _Task) -> bool:
        """Tell whether the program is not over before this thread is."""
        return not task.thread.daemon and not _is_idle_worker(task)

    def drain(self) -> None:
        """Run what was started until the program is over."""
        try:
            if self.failure is None:
                self.block(_Wait(self.all_finished, None))
                self.run_daemons()
            if self.failure is not None:
                raise RuntimeError(self.failure)
        finally:
            if self.failure is not None:
                for task in [task for task in self.tasks if self.must_finish(task)]:
                    self.give_up(task)
            self.failure = None

    def all_finished(self) -> bool:
        return not any(self.must_finish(task) for task in self.tasks)

    def run_daemons(self) -> None:
        """Let daemons do what they can do at once. They stay for the next program."""
        for _ in range(_LAST_TURNS_MAX * max(len(self.tasks), 1)):
            task = self.next_task()
            if task is None:
                return
            self.step(task)

    def poll(self) -> bool:
        """Count a question that changes nothing. True if it is time to let others run."""
        if not self.tasks:
            return False
        self.polls += 1
        return self.polls % _POLLS_PER_TURN == 0

    def take_turn(self) -> None:
        """Let every thread that can run do so once, and a little time pass."""
        for _ in range(len(self.tasks)):
            task = self.next_task()
            if task is None:
                break
            self.step(task)
        _real_sleep(_SPIN_SECONDS)

    def explain(self) -> str:
        """Say who waits where, and what to write instead."""
        below, (task, _) = self.nested[:-1], self.nested[-1]
        places = [_place_on_stack(each, wait) for each, wait in self.nested]
        places[-1] += places[-1] and _where()
        places += [_place_of(each) for each in self.tasks if not each.on_stack]
        places = [each for each in places if each]
        if len(places) > _WAITERS_NAMED_MAX:
            more = len(places) - _WAITERS_NAMED_MAX
            places = [*places[:_WAITERS_NAMED_MAX], f"{more} more threads wait"]
        who = "; ".join(places)
        if any(wait.ready() or wait.deadline_ns is not None for _, wait in below):
            return (
                f"threads cannot take turns here: {_name_of(task)} waits inside a function that "
                "cannot be paused (one that is called by map, sorted or another built-in, by an "
                "operator, or by library code), and only a thread below it could continue. "
                f"{who}. Write the wait in a plain function or loop that the thread runs itself."
            )
        return (
            f"deadlock: every thread waits for what no other thread is left to do. {who}. "
            "Make sure that what is waited for is done before or by another thread "
            "(put, set, notify, release, a sentinel for each worker), or give the wait a timeout."
        )


_scheduler = _Scheduler()
drain = _scheduler.drain


def _name_of(task: _Task | None) -> str:
    return threading.main_thread().name if task is None else task.thread.name


def _report(thread: threading.Thread, error: BaseException) -> None:
    """Give an error that ends a thread to the hook for it, without the frames of this module."""
    if isinstance(thread, Process):
        thread._tally_error = error
        if isinstance(error, SystemExit) and not isinstance(error.code, (int, type(None))):
            print(error.code, file=sys.stderr)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    if isinstance(error, SystemExit):
        return
    try:
        raise error.with_traceback(trace)
    except BaseException:
        error.__traceback__ = trace
        thread._invoke_excepthook(thread)


def _is_idle_worker(task: _Task) -> bool:
    """Tell whether this is a thread of a pool that waits for its next task."""
    work = concurrent.futures.thread._threads_queues.get(task.thread)
    if work is None or task.wait is None or task.wait.of is None:
        return False
    return any(task.wait.of is waiter for waiter in work._count._cond._waiters)


def _place_on_stack(task: _Task | None, wait: _Wait) -> str:
    if wait.ready == _scheduler.all_finished:
        return ""
    return f"{_name_of(task)} waits"


def _where() -> str:
    """Say which function of the library the main program has called, and on which line."""
    frame, called = sys._getframe(), ""
    while frame is not None:
        code = frame.f_code
        if not code.co_filename.startswith("/"):
            return f" in {called} (line {frame.f_lineno})" if called else ""
        if code.co_filename != __file__ or code.co_qualname.startswith("Lock."):
            called = code.co_qualname
        frame = frame.f_back
    return f" in {called}" if called else ""


_PAUSED_NAMES = {
    "_paused_acquire": "Lock.acquire",
    "_paused_join": "Thread.join",
    "_paused_sleep": "time.sleep",
    "paused_select": "the event loop",
}
# Library functions that call what a program gave them: not what it waits in.
_CALLERS = ("Thread.run", "Timer.run", "_worker", "_WorkItem.run", "WorkerContext.run")


def _place_of(task: _Task) -> str:
    """Say which function of the library a paused thread has called, and on which line."""
    generator, line, called = task.generator, None, ""
    while generator is not None and getattr(generator, "gi_frame", None) is not None:
        code = generator.gi_code
        if not code.co_filename.startswith("/"):
            line, called = generator.gi_frame.f_lineno, ""
        elif not called and code.co_qualname not in _CALLERS:
            called = _PAUSED_NAMES.get(code.co_name, code.co_qualname.lstrip("_"))
        generator = generator.gi_yieldfrom
    place = f" in {called}" if called else ""
    return f"{task.thread.name} waits{place}" + (f" (line {line})" if line else "")


# -- what waits --------------------------------------------------------------------------------


def _never() -> bool:
    return False


class Lock:
    """`threading.Lock` for one thread that plays many."""

    __slots__ = ("__weakref__", "_held")

    def __init__(self) -> None:
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if timeout != -1:
            _check_timeout(blocking, timeout)
        if self._held:
            if not blocking or timeout == 0:
                if _scheduler.poll() and _scheduler.current is None:
                    _scheduler.take_turn()
                return False
            if not _scheduler.block(_Wait(self._free, timeout if timeout >= 0 else None, self)):
                return False
        self._held = True
        return True

    def __enter__(self) -> bool:
        return self.acquire()

    def _free(self) -> bool:
        return not self._held

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False

    def locked(self) -> bool:
        return self._held

    def __exit__(self, *exc: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<{'locked' if self._held else 'unlocked'} _thread.lock object at {id(self):#x}>"

    def _at_fork_reinit(self) -> None:
        self._held = False

    def _is_owned(self) -> bool:
        # `Condition` would find out by trying to acquire, which here counts as a question.
        return self._held

    acquire_lock, release_lock, locked_lock = acquire, release, locked


def _check_timeout(blocking: bool, timeout: float) -> None:
    if not blocking:
        raise ValueError("can't specify a timeout for a non-blocking call")
    if timeout < 0:
        raise ValueError("timeout value must be a non-negative number")
    if timeout > threading.TIMEOUT_MAX:
        raise OverflowError("timeout value is too large")


def _paused_acquire(self: Lock, blocking: bool = True, timeout: float = -1) -> object:
    if timeout != -1:
        _check_timeout(blocking, timeout)
    if self._held:
        if not blocking or timeout == 0:
            if _scheduler.poll():
                yield _SPIN
            return False
        yield _Wait(self._free, timeout if timeout >= 0 else None, self)
        if self._held:
            return False
    self._held = True
    return True


class Handle:
    """`_thread._ThreadHandle`: what a thread is joined by."""

    def __init__(self, ident: int = 0, done: bool = False) -> None:
        self.ident = ident
        self.done = done

    def is_done(self) -> bool:
        return self.done

    def join(self, timeout: float | None = None) -> None:
        if timeout is not None and timeout < 0:
            timeout = None
        if not self.done:
            _scheduler.block(_Wait(self.is_done, timeout))

    def _set_done(self) -> None:
        self.done = True


def _paused_join(self: Handle, timeout: float | None = None) -> object:
    if timeout is not None and timeout < 0:
        timeout = None
    if not self.done:
        yield _Wait(self.is_done, timeout)


def _sleep(seconds: float) -> None:
    if not _scheduler.tasks:
        _real_sleep(seconds)
        return
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    if seconds == 0:
        _scheduler.take_turn()
    else:
        _scheduler.block(_Wait(_never, seconds))


def _paused_sleep(seconds: float) -> object:
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    yield _Wait(_never, seconds)


def select(timeout: float | None, woken: object) -> None:
    """Wait as an idle event loop does: until it is woken or its next timer is due."""
    if timeout is not None and timeout <= 0:
        task = _scheduler.next_task()
        if task is not None:
            _scheduler.step(task)
        return
    _scheduler.block(_Wait(woken, timeout))


def paused_select(timeout: float | None, woken: object) -> object:
    """Wait as the idle event loop of a thread that is not the main one."""
    yield _Wait(woken, timeout)


def _polled(question: object, waiting: bool) -> object:
    """Let others run now and then when the answer is `waiting`, so that a loop over it ends."""

    def ask(self: object) -> bool:
        answer = question(self)
        if answer is waiting and _scheduler.poll() and _scheduler.current is None:
            _scheduler.take_turn()
        return answer

    def paused_ask(self: object) -> object:
        answer = question(self)
        if answer is waiting and _scheduler.poll():
            yield _SPIN
        return answer

    functools.update_wrapper(ask, question)
    ask.__code__ = ask.__code__.replace()  # A twin belongs to a code object: each has its own.
    return ask, paused_ask


# -- threads -----------------------------------------------------------------------------------

_idents = itertools.count(2)


def _get_ident() -> int:
    task = _scheduler.current
    return 1 if task is None else task.thread._ident


def _start(self: threading.Thread) -> None:
    if not self._initialized:
        raise RuntimeError("thread.__init__() not called")
    if self._started._flag:
        raise RuntimeError("threads can only be started once")
    self._started.set()
    self._ident = self._native_id = next(_idents)
    self._os_thread_handle.ident = self._ident
    threading._active[self._ident] = self
    _scheduler.tasks.append(_Task(self, self._os_thread_handle))


def _start_new_thread(function: object, args: tuple, kwargs: dict | None = None) -> int:
    thread = threading.Thread(target=function, args=args, kwargs=kwargs or {}, daemon=True)
    thread.start()
    return thread._ident


def _start_joinable_thread(
    function: object, handle: Handle | None = None, daemon: bool = True
) -> Handle:
    thread = threading.Thread(target=function, daemon=daemon)
    if handle is not None:
        thread._os_thread_handle = handle
    thread.start()
    return thread._os_thread_handle


def _refuse_interrupt(signum: int = 2) -> None:
    raise RuntimeError(
        "_thread.interrupt_main is not available: there are no signals in this sandbox. "
        "Set a threading.Event that the main thread waits for."
    )


def _get_native_id(self: threading.Thread) -> int | None:
    return getattr(self, "_native_id", None)


# -- pools and processes -----------------------------------------------------------------------

ThreadPoolExecutor = concurrent.futures.thread.ThreadPoolExecutor


class BrokenProcessPool(concurrent.futures.BrokenExecutor):
    """Raised when the initializer of a process pool failed."""


class ProcessPoolExecutor(ThreadPoolExecutor):
    """A pool of threads under the name of a pool of processes."""

    BROKEN = BrokenProcessPool

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: object = None,
        initializer: object = None,
        initargs: tuple = (),
        *,
        max_tasks_per_child: int | None = None,
    ) -> None:
        super().__init__(max_workers, "", initializer, initargs)


class AsyncResult:
    """What `Pool.apply_async` and `Pool.map_async` give back."""

    def __init__(self, futures: list, collect: object, callback: object, failed: object) -> None:
        self._futures = futures
        self._collect = collect
        self._callback, self._failed = callback, failed
        self._left = len(futures)
        for future in futures:
            future.add_done_callback(self._done)
        if not futures and callback is not None:
            callback(collect([]))

    def _done(self, future: concurrent.futures.Future) -> None:
        self._left -= 1
        if self._left:
            return
        errors = [each.exception() for each in self._futures if each.exception() is not None]
        if errors and self._failed is not None:
            self._failed(errors[0])
        elif not errors and self._callback is not None:
            self._callback(self._collect([each.result() for each in self._futures]))

    def get(self, timeout: float | None = None) -> object:
        self.wait(timeout)
        if not self.ready():
            raise TimeoutError
        return self._collect([each.result() for each in self._futures])

    def wait(self, timeout: float | None = None) -> None:
        concurrent.futures.wait(self._futures, timeout)

    def ready(self) -> bool:
        return all(each.done() for each in self._futures)

    def successful(self) -> bool:
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return all(each.exception() is None for each in self._futures)


def _first(results: list) -> object:
    return results[0]


def _joined(results: list) -> list:
    return [each for chunk in results for each in chunk]


def _map_chunk(func: object, chunk: list) -> list:
    return [func(item) for item in chunk]


def _starmap_chunk(func: object, chunk: list) -> list:
    return [func(*items) for items in chunk]


class Pool:
    """`multiprocessing.Pool` and `ThreadPool`: a pool of threads of the same program."""

    def __init__(
        self,
        processes: int | None = None,
        initializer: object = None,
        initargs: tuple = (),
        *rest: object,
        **kwargs: object,
    ) -> None:
        if processes is not None and processes < 1:
            raise ValueError("Number of processes must be at least 1")
        self._processes = processes or 1
        self._executor = ThreadPoolExecutor(
            self._processes, initializer=initializer, initargs=tuple(initargs)
        )
        self._closed = False

    def _submit(self, func: object, *args: object, **kwargs: object) -> concurrent.futures.Future:
        if self._closed:
            raise ValueError("Pool not running")
        return self._executor.submit(func, *args, **kwargs)

    def apply(self, func: object, args: tuple = (), kwds: dict | None = None) -> object:
        return self.apply_async(func, args, kwds).get()

    def apply_async(
        self,
        func: object,
        args: tuple = (),
        kwds: dict | None = None,
        callback: object = None,
        error_callback: object = None,
    ) -> AsyncResult:
        future = self._submit(func, *args, **(kwds or {}))
        return AsyncResult([future], _first, callback, error_callback)

    def _chunks(self, run: object, func: object, iterable: object, size: int | None) -> list:
        items = list(iterable)
        size = size or max(1, -(-len(items) // (4 * self._processes)))
        return [
            self._submit(run, func, items[start : start + size])
            for start in range(0, len(items), size)
        ]

    def map(self, func: object, iterable: object, chunksize: int | None = None) -> list:
        return self.map_async(func, iterable, chunksize).get()

    def starmap(self, func: object, iterable: object, chunksize: int | None = None) -> list:
        return self.starmap_async(func, iterable, chunksize).get()

    def imap(self, func: object, iterable: object, chunksize: int = 1) -> object:
        chunks = self._chunks(_map_chunk, func, iterable, chunksize)
        return (each for chunk in chunks for each in chunk.result())

    def imap_unordered(self, func: object, iterable: object, chunksize: int = 1) -> object:
        chunks = self._chunks(_map_chunk, func, iterable, chunksize)
        return (
            each for chunk in concurrent.futures.as_completed(chunks) for each in chunk.result()
        )

    def map_async(
        self,
        func: object,
        iterable: object,
        chunksize: int | None = None,
        callback: object = None,
        error_callback: object = None,
    ) -> AsyncResult:
        chunks = self._chunks(_map_chunk, func, iterable, chunksize)
        return AsyncResult(chunks, _joined, callback, error_callback)

    def starmap_async(
        self,
        func: object,
        iterable: object,
        chunksize: int | None = None,
        callback: object = None,
        error_callback: object = None,
    ) -> AsyncResult:
        chunks = self._chunks(_starmap_chunk, func, iterable, chunksize)
        return AsyncResult(chunks, _joined, callback, error_callback)

    def close(self) -> None:
        self._closed = True
        self._executor.shutdown(wait=False)

    def terminate(self) -> None:
        self._closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)

    def join(self) -> None:
        if not self._closed:
            raise ValueError("Pool is still running")
        self._executor.shutdown()

    def __enter__(self) -> "Pool":
        if self._closed:
            raise ValueError("Pool not running")
        return self

    def __exit__(self, *exc: object) -> None:
        self.terminate()


_process_numbers = itertools.count(1)


class Process(threading.Thread):
    """`multiprocessing.Process`: a thread of the same program, with an exit code."""

    _signal: int | None = None
    _tally_error: BaseException | None = None

    def __init__(
        self,
        group: object = None,
        target: object = None,
        name: str | None = None,
        args: tuple = (),
        kwargs: dict | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        name = name or f"Process-{next(_process_numbers)}"
        super().__init__(group, target, name, tuple(args), kwargs, daemon=daemon)

    @property
    def pid(self) -> int | None:
        return self._ident

    @property
    def exitcode(self) -> int | None:
        """The exit code, None before the end: 1 after an error, -15 or -9 after a signal."""
        if not self._started.is_set() or not self._os_thread_handle.is_done():
            return None
        if self._signal is not None:
            return -self._signal
        error = self._tally_error
        if error is None:
            return 0
        if not isinstance(error, SystemExit):
            return 1
        if error.code is None:
            return 0
        return error.code if isinstance(error.code, int) else 1

    def _end(self, signal: int) -> None:
        if not self._started.is_set():
            raise AttributeError("the process has not been started")
        for task in list(_scheduler.tasks):
            if task.thread is self:
                if task.on_stack:
                    raise RuntimeError(
                        f"{self.name} cannot be ended here: it is waiting for the code that ends it"
                    )
                self._signal = signal
                _scheduler.give_up(task)

    def terminate(self) -> None:
        self._end(15)

    def kill(self) -> None:
        self._end(9)

    def close(self) -> None:
        if self.is_alive():
            raise ValueError("Cannot close a process while it is still running.")


class _MainProcess:
    """What `current_process` gives in the program itself."""

    name, pid, ident, daemon, exitcode, authkey = "MainProcess", 1, 1, False, None, b""

    def is_alive(self) -> bool:
        return True


_main_process = _MainProcess()


def _current_process() -> object:
    thread = threading.current_thread()
    return thread if isinstance(thread, Process) else _main_process


def _active_children() -> list:
    return [each for each in threading.enumerate() if isinstance(each, Process)]


class ProcessQueue(queue.Queue):
    """`multiprocessing.Queue`: a queue of the same program."""

    def close(self) -> None:
        pass

    def join_thread(self) -> None:
        pass

    def cancel_join_thread(self) -> None:
        pass


def _module(name: str, **names: object) -> types.ModuleType:
    module = types.ModuleType(
        name, "A stand-in: this sandbox has one process, and its processes are threads."
    )
    module.__dict__.update(names)
    module.__all__ = sorted(names)
    sys.modules[name] = module
    return module


def _install_processes() -> None:
    shared = {
        "Pool": Pool,
        "Process": Process,
        "Queue": ProcessQueue,
        "JoinableQueue": ProcessQueue,
        "SimpleQueue": queue.SimpleQueue,
        "cpu_count": lambda: 1,
        "Lock": Lock,
        "RLock": threading.RLock,
        "Event": threading.Event,
        "Condition": threading.Condition,
        "Semaphore": threading.Semaphore,
        "BoundedSemaphore": threading.BoundedSemaphore,
        "Barrier": threading.Barrier,
        "current_process": _current_process,
        "active_children": _active_children,
        "freeze_support": lambda: None,
        "TimeoutError": TimeoutError,
        "get_start_method": lambda allow_none=False: "inline",
        "set_start_method": lambda method, force=False: None,
    }
    package = _module("multiprocessing", **shared)
    package.__path__ = []
    package.get_context = lambda method=None: package
    package.pool = _module(
        "multiprocessing.pool", Pool=Pool, ThreadPool=Pool, AsyncResult=AsyncResult
    )
    package.dummy = _module("multiprocessing.dummy", **shared)
    process = _module(
        "concurrent.futures.process",
        ProcessPoolExecutor=ProcessPoolExecutor,
        BrokenProcessPool=BrokenProcessPool,
    )
    concurrent.futures.process = process
    concurrent.futures.ProcessPoolExecutor = ProcessPoolExecutor


# Which functions of the library wait, or call what a program gave them. The others hold locks of
# their own for a moment at most, and no thread is paused in between: they need no twin.
_WAITING = {
    threading: """
        Thread.run Thread.join Timer.run Condition.__enter__ Condition.__exit__ Condition.wait
        Condition.wait_for Semaphore.acquire Event.wait Barrier.wait Barrier._enter Barrier._wait
        _RLock.acquire _RLock._acquire_restore
    """,
    queue: "Queue.get Queue.put Queue.join _PySimpleQueue.get",
    concurrent.futures._base: """
        Future.result Future.exception wait as_completed _result_or_cancel Executor.map
        Executor.map.<locals>.result_iterator Executor.__exit__
    """,
    concurrent.futures.thread: """
        _worker _WorkItem.run WorkerContext.initialize WorkerContext.run ThreadPoolExecutor.shutdown
    """,
    asyncio.base_events: """
        BaseEventLoop.run_forever BaseEventLoop._run_once BaseEventLoop.run_until_complete
        BaseEventLoop._do_shutdown
    """,
    asyncio.runners: "run Runner.run Runner.close Runner.__exit__ _cancel_all_tasks",
    contextlib: """
        contextmanager.<locals>.helper _GeneratorContextManagerBase.__init__
        _GeneratorContextManager.__enter__ _GeneratorContextManager.__exit__
        ExitStack.__exit__ ExitStack.close _BaseExitStack.enter_context closing.__exit__
    """,
    sched: "scheduler.run",
}


def _install_threads() -> None:
    main = threading.main_thread()
    threading._active.clear()
    main._ident = main._native_id = 1
    main._os_thread_handle = Handle(1)
    threading._active[1] = main
    threading.get_ident = _get_ident
    threading.get_native_id = _get_ident
    threading._HAVE_THREAD_NATIVE_ID = True
    threading.Lock = threading._allocate_lock = threading._LockType = Lock
    threading._CRLock = None
    threading.RLock = threading._PyRLock
    threading.local = _threading_local.local
    threading._ThreadHandle = Handle
    threading._make_thread_handle = Handle
    threading._start_joinable_thread = _start_joinable_thread
    thread = threading.Thread
    thread.start = _start
    thread.native_id = property(_get_native_id, doc="The number of the thread; None before start.")
    thread._set_native_id = lambda self: None
    concurrent.futures.thread._global_shutdown_lock = Lock()
    queue.SimpleQueue = queue._PySimpleQueue
    time.sleep = _sleep
    for holder, name, waiting in (
        (thread, "is_alive", True),
        (threading.Event, "is_set", False),
        (concurrent.futures.Future, "done", False),
        (queue.Queue, "empty", True),
        (queue.Queue, "full", True),
    ):
        ask, paused_ask = _polled(getattr(holder, name), waiting)
        setattr(holder, name, ask)
        twins.set_primitive(ask, paused_ask)


def _install_raw_threads() -> None:
    """Replace what `_thread` has. The import system keeps its own locks, which never wait."""
    kept = types.SimpleNamespace(**vars(_thread))
    importlib._bootstrap._thread = kept
    for name, replaced in {
        "allocate_lock": Lock,
        "allocate": Lock,
        "lock": Lock,
        "LockType": Lock,
        "RLock": threading._PyRLock,
        "get_ident": _get_ident,
        "get_native_id": _get_ident,
        "start_new_thread": _start_new_thread,
        "start_new": _start_new_thread,
        "start_joinable_thread": _start_joinable_thread,
        "_ThreadHandle": Handle,
        "_make_thread_handle": Handle,
        "_local": _threading_local.local,
        "_count": lambda: len(_scheduler.tasks),
        "interrupt_main": _refuse_interrupt,
    }.items():
        setattr(_thread, name, replaced)


def install() -> None:
    """Replace what `threading`, `queue` and the pools are made of."""
    for module, names in _WAITING.items():
        twins.store_module(module, frozenset(names.split()))
    twins.store_module(sys.modules[__name__])
    _install_threads()
    _install_raw_threads()
    twins.set_primitive(Lock.acquire, _paused_acquire)
    twins.set_primitive(Lock.__enter__, _paused_acquire)
    twins.set_primitive(Handle.join, _paused_join)
    twins.set_primitive(_sleep, _paused_sleep)
    twins.set_primitive(select, paused_select)
    twins.block = _scheduler.block
    _install_processes()
