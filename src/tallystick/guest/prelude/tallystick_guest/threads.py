"""Threads, locks and pools in a guest that has one thread.

A started thread waits in a queue and runs, to its end, when something waits: `join`, a held lock,
an empty queue, a sleep, an idle event loop, or the end of the program. Running it at `start` was
rejected: a worker that is started before its queue is filled would find it empty and could never be
resumed. A thread that blocks with nothing left to wake it ends there if others wait for it, since
that is what a daemon worker does when its work has run out; in the main thread it is a deadlock,
and says so.

Pools run each task when it is submitted.
"""

import _thread
import _threading_local
import collections
import concurrent.futures
import contextvars
import itertools
import queue
import sys
import threading
import time
import types

_pending: collections.deque = collections.deque()
_running: list = []
_idents = itertools.count(2)
_real_sleep = time.sleep


class _Parked(BaseException):
    """Ends a thread that waits for what can no longer come."""


def run_pending() -> bool:
    """Run the next started thread, if there is one."""
    if not _pending:
        return False
    _run(_pending.popleft())
    return True


def drain() -> None:
    """Run every started thread: the program has ended."""
    while run_pending():
        pass


def _run(thread: threading.Thread) -> None:
    _running.append(thread)
    threading._active[thread._ident] = thread
    try:
        # A thread begins with an empty context of its own, as a real one does.
        (getattr(thread, "_context", None) or contextvars.Context()).run(thread.run)
    except (_Parked, SystemExit):
        pass
    except BaseException:
        thread._invoke_excepthook(thread)
    finally:
        threading._active.pop(thread._ident, None)
        _running.pop()
        thread._tally_done = True


def _wait(ready: object, timeout: float | None) -> bool:
    """Run other threads until `ready()`; without any left, let the timeout pass or give up."""
    while not ready():
        if run_pending():
            continue
        if timeout is not None and timeout >= 0:
            _real_sleep(timeout)
            return ready()
        if _running:
            raise _Parked
        raise RuntimeError("deadlock: waiting for what no other thread is left to do")
    return True


class Lock:
    """`threading.Lock` for one thread that plays many."""

    __slots__ = ("__weakref__", "_held")

    def __init__(self) -> None:
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not blocking and timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        if self._held and not (blocking and _wait(self._free, timeout if timeout >= 0 else None)):
            return False
        self._held = True
        return True

    def _free(self) -> bool:
        return not self._held

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *exc: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self._held = False

    acquire_lock, release_lock, locked_lock = acquire, release, locked


def _get_ident() -> int:
    return _running[-1]._ident if _running else 1


def _start(self: threading.Thread) -> None:
    if not self._initialized:
        raise RuntimeError("thread.__init__() not called")
    if self._started.is_set():
        raise RuntimeError("threads can only be started once")
    self._started.set()
    self._ident = self._native_id = next(_idents)
    self._tally_done = False
    _pending.append(self)


def _join(self: threading.Thread, timeout: float | None = None) -> None:
    if not self._started.is_set():
        raise RuntimeError("cannot join thread before it is started")
    if self in _running:
        raise RuntimeError("cannot join current thread")
    _wait(lambda: self._tally_done, timeout)


def _is_alive(self: threading.Thread) -> bool:
    return self._started.is_set() and not getattr(self, "_tally_done", True)


def _start_new_thread(function: object, args: tuple, kwargs: dict | None = None) -> int:
    thread = threading.Thread(target=function, args=args, kwargs=kwargs or {}, daemon=True)
    thread.start()
    return thread._ident


def _sleep(seconds: float) -> None:
    run_pending()
    _real_sleep(seconds)


class InlineExecutor(concurrent.futures.Executor):
    """A pool whose tasks run when they are submitted."""

    def __init__(self, max_workers: int | None = None, *args: object, **kwargs: object) -> None:
        if max_workers is not None and max_workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        self._max_workers = max_workers or 1
        self._shutdown = False
        initializer = kwargs.get("initializer")
        if initializer is not None:
            initializer(*kwargs.get("initargs", ()))

    def submit(self, fn: object, /, *args: object, **kwargs: object) -> concurrent.futures.Future:
        if self._shutdown:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future: concurrent.futures.Future = concurrent.futures.Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._shutdown = True


class ThreadPoolExecutor(InlineExecutor):
    pass


class ProcessPoolExecutor(InlineExecutor):
    pass


class AsyncResult:
    """What `Pool.apply_async` gives back: already there."""

    def __init__(self, future: concurrent.futures.Future) -> None:
        self._future = future

    def get(self, timeout: float | None = None) -> object:
        return self._future.result()

    def wait(self, timeout: float | None = None) -> None:
        pass

    def ready(self) -> bool:
        return True

    def successful(self) -> bool:
        return self._future.exception() is None


class Pool:
    """`multiprocessing.Pool` and `ThreadPool`, run in place."""

    def __init__(
        self,
        processes: int | None = None,
        initializer: object = None,
        initargs: tuple = (),
        *rest: object,
        **kwargs: object,
    ) -> None:
        self._executor = InlineExecutor(initializer=initializer, initargs=initargs)

    def apply(self, func: object, args: tuple = (), kwds: dict | None = None) -> object:
        return func(*args, **(kwds or {}))

    def apply_async(
        self,
        func: object,
        args: tuple = (),
        kwds: dict | None = None,
        callback: object = None,
        error_callback: object = None,
    ) -> AsyncResult:
        future = self._executor.submit(func, *args, **(kwds or {}))
        told, outcome = (
            (callback, future.result)
            if not future.exception()
            else (error_callback, future.exception)
        )
        if told is not None:
            told(outcome())
        return AsyncResult(future)

    def map(self, func: object, iterable: object, chunksize: int | None = None) -> list:
        return [func(item) for item in iterable]

    def imap(self, func: object, iterable: object, chunksize: int = 1) -> object:
        return map(func, iterable)

    imap_unordered = imap

    def starmap(self, func: object, iterable: object, chunksize: int | None = None) -> list:
        return [func(*items) for items in iterable]

    def map_async(
        self,
        func: object,
        iterable: object,
        chunksize: int | None = None,
        callback: object = None,
        error_callback: object = None,
    ) -> AsyncResult:
        return self.apply_async(self.map, (func, iterable), None, callback, error_callback)

    def starmap_async(
        self,
        func: object,
        iterable: object,
        chunksize: int | None = None,
        callback: object = None,
        error_callback: object = None,
    ) -> AsyncResult:
        return self.apply_async(self.starmap, (func, iterable), None, callback, error_callback)

    def close(self) -> None:
        self._executor.shutdown()

    terminate = close

    def join(self) -> None:
        pass

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Process(threading.Thread):
    """`multiprocessing.Process`, run as an inline thread in the same namespace."""

    exitcode = 0

    def terminate(self) -> None:
        pass

    kill = close = terminate


def _module(name: str, **names: object) -> types.ModuleType:
    module = types.ModuleType(name, "An inline stand-in: this sandbox has one process.")
    module.__dict__.update(names)
    module.__all__ = sorted(names)
    sys.modules[name] = module
    return module


def _install_processes() -> None:
    shared = {
        "Pool": Pool,
        "Process": Process,
        "Queue": queue.Queue,
        "JoinableQueue": queue.Queue,
        "SimpleQueue": queue.SimpleQueue,
        "cpu_count": lambda: 1,
        "Lock": Lock,
        "RLock": threading.RLock,
        "Event": threading.Event,
        "Condition": threading.Condition,
        "Semaphore": threading.Semaphore,
        "BoundedSemaphore": threading.BoundedSemaphore,
        "Barrier": threading.Barrier,
        "current_process": threading.current_thread,
        "active_children": list,
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
    process = _module("concurrent.futures.process", ProcessPoolExecutor=ProcessPoolExecutor)
    concurrent.futures.process = process
    concurrent.futures.ProcessPoolExecutor = ProcessPoolExecutor


def install() -> None:
    """Replace what `threading`, `queue` and the pools are made of."""
    main = threading.main_thread()
    threading._active.clear()
    main._ident = main._native_id = 1
    main._tally_done = False
    threading._active[1] = main
    # `_thread.get_ident` stays: the import system's own locks are keyed by it.
    threading.get_ident = threading._get_ident = _get_ident
    threading.get_native_id = _get_ident
    threading.Lock = threading._allocate_lock = Lock
    threading._CRLock = None
    threading.RLock = threading._PyRLock
    threading.local = _threading_local.local
    threading.Thread.start, threading.Thread.join = _start, _join
    threading.Thread.is_alive = _is_alive
    threading._start_new_thread = _thread.start_new_thread = _start_new_thread
    queue.SimpleQueue = queue._PySimpleQueue
    time.sleep = _sleep
    concurrent.futures.ThreadPoolExecutor = ThreadPoolExecutor
    concurrent.futures.thread.ThreadPoolExecutor = ThreadPoolExecutor
    _install_processes()
