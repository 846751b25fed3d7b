"""Programs that use threads, each with the value that every interpreter gives for its last line.

None depends on the order in which threads run, so the values are those of CPython with real
threads.
"""

from __future__ import annotations

__all__ = ["PROGRAMS"]

PROGRAMS: dict[str, tuple[str, str]] = {
    "two threads over a queue of one": (
        """
import queue, threading
line, out = queue.Queue(maxsize=1), []
def produce():
    for n in range(5):
        line.put(n)
    line.put(None)
def consume():
    while (item := line.get()) is not None:
        out.append(item)
threads = [threading.Thread(target=produce), threading.Thread(target=consume)]
for thread in threads: thread.start()
for thread in threads: thread.join()
out
""",
        "[0, 1, 2, 3, 4]",
    ),
    "the consumer starts first": (
        """
import queue, threading
line, out = queue.Queue(maxsize=2), []
def consume():
    for item in iter(line.get, None):
        out.append(item)
thread = threading.Thread(target=consume)
thread.start()
for n in range(2):
    line.put(n)
line.put(None)
thread.join()
out
""",
        "[0, 1]",
    ),
    "the main thread produces into a small queue": (
        """
import queue, threading
line, out = queue.Queue(maxsize=1), []
def consume():
    while True:
        item = line.get()
        if item is None:
            break
        out.append(item * 10)
        line.task_done()
thread = threading.Thread(target=consume)
thread.start()
for n in range(4):
    line.put(n)
line.join()
line.put(None)
thread.join()
out
""",
        "[0, 10, 20, 30]",
    ),
    "events in turn": (
        """
import threading
ping, pong, log = threading.Event(), threading.Event(), []
def first():
    for _ in range(3):
        ping.wait(); ping.clear(); log.append('ping'); pong.set()
def second():
    for _ in range(3):
        pong.wait(); pong.clear(); log.append('pong'); ping.set()
threads = [threading.Thread(target=each) for each in (first, second)]
for thread in threads: thread.start()
ping.set()
for thread in threads: thread.join()
log
""",
        "['ping', 'pong', 'ping', 'pong', 'ping', 'pong']",
    ),
    "a buffer with a condition": (
        """
import threading
class Buffer:
    def __init__(self, size):
        self.items, self.size, self.changed = [], size, threading.Condition()
    def add(self, item):
        with self.changed:
            while len(self.items) >= self.size:
                self.changed.wait()
            self.items.append(item)
            self.changed.notify_all()
    def pop(self):
        with self.changed:
            self.changed.wait_for(lambda: self.items)
            item = self.items.pop(0)
            self.changed.notify_all()
            return item
buffer, out = Buffer(1), []
def produce():
    for n in range(6): buffer.add(n)
def consume():
    for _ in range(6): out.append(buffer.pop())
threads = [threading.Thread(target=produce), threading.Thread(target=consume)]
for thread in threads: thread.start()
for thread in threads: thread.join()
out
""",
        "[0, 1, 2, 3, 4, 5]",
    ),
    "several producers and consumers": (
        """
import queue, threading
line, out, lock = queue.Queue(maxsize=2), [], threading.Lock()
def produce(base):
    for n in range(5):
        line.put(base + n)
def consume():
    while True:
        item = line.get()
        if item is None:
            return
        with lock:
            out.append(item)
producers = [threading.Thread(target=produce, args=(base,)) for base in (0, 10, 20)]
consumers = [threading.Thread(target=consume) for _ in range(4)]
for thread in consumers + producers: thread.start()
for thread in producers: thread.join()
for _ in consumers: line.put(None)
for thread in consumers: thread.join()
sorted(out) == [b + n for b in (0, 10, 20) for n in range(5)], len(out)
""",
        "(True, 15)",
    ),
    "a pipeline of three stages": (
        """
import queue, threading
def stage(work, source, target):
    while True:
        item = source.get()
        if item is None:
            target.put(None)
            return
        target.put(work(item))
a, b, c, d = (queue.Queue(maxsize=1) for _ in range(4))
stages = [(lambda x: x + 1, a, b), (lambda x: x * 2, b, c), (str, c, d)]
threads = [threading.Thread(target=stage, args=each, daemon=True) for each in stages]
for thread in threads: thread.start()
def feed():
    for n in range(5): a.put(n)
    a.put(None)
threading.Thread(target=feed).start()
out = []
while (item := d.get()) is not None:
    out.append(item)
out
""",
        "['2', '4', '6', '8', '10']",
    ),
    "a barrier in two rounds": (
        """
import threading
barrier, log, lock = threading.Barrier(3), [], threading.Lock()
def work(n):
    for round in range(2):
        with lock: log.append(round)
        barrier.wait()
threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
log
""",
        "[0, 0, 0, 1, 1, 1]",
    ),
    "a semaphore lets two in": (
        """
import threading, time
gate, inside, most, lock = threading.Semaphore(2), 0, 0, threading.Lock()
def work():
    global inside, most
    with gate:
        with lock:
            inside += 1
            most = max(most, inside)
        time.sleep(0.05)
        with lock:
            inside -= 1
threads = [threading.Thread(target=work) for _ in range(5)]
for thread in threads: thread.start()
for thread in threads: thread.join()
most, inside
""",
        "(2, 0)",
    ),
    "a worker that watches a flag and sleeps": (
        """
import threading, time
running, count = True, 0
def work():
    global count
    while running:
        count += 1
        time.sleep(0.01)
thread = threading.Thread(target=work)
thread.start()
time.sleep(0.1)
running = False
thread.join()
1 < count < 30, thread.is_alive()
""",
        "(True, False)",
    ),
    "a worker that watches a flag without a pause": (
        """
import threading, time
running, count = True, 0
def work():
    global count
    while running:
        count += 1
thread = threading.Thread(target=work)
thread.start()
time.sleep(0.05)
running = False
thread.join()
count > 0
""",
        "True",
    ),
    "a worker that watches an event": (
        """
import threading, time
stop, beats = threading.Event(), []
def work():
    while not stop.is_set():
        beats.append(1)
        stop.wait(0.1)
thread = threading.Thread(target=work)
thread.start()
time.sleep(0.35)
stop.set()
thread.join()
len(beats)
""",
        "4",
    ),
    "the main thread asks without a pause": (
        """
import threading, time
done = []
def work():
    time.sleep(0.02)
    done.append(1)
thread = threading.Thread(target=work)
thread.start()
while thread.is_alive():
    pass
done
""",
        "[1]",
    ),
    "a lock that is not free is tried again": (
        """
import threading, time
lock, tries = threading.Lock(), []
def hold():
    with lock:
        time.sleep(0.05)
thread = threading.Thread(target=hold)
thread.start()
time.sleep(0.01)
tries.append(lock.acquire(blocking=False))
tries.append(lock.acquire(timeout=0.01))
tries.append(lock.acquire(timeout=5))
lock.release()
thread.join()
tries
""",
        "[False, False, True]",
    ),
    "waits with timeouts": (
        """
import queue, threading
seen = []
def work():
    seen.append(threading.Event().wait(0.05))
    try:
        queue.Queue().get(timeout=0.05)
    except queue.Empty:
        seen.append('empty')
    full = queue.Queue(1)
    full.put(1)
    try:
        full.put(2, timeout=0.05)
    except queue.Full:
        seen.append('full')
    condition = threading.Condition()
    with condition:
        seen.append(condition.wait(0.05))
thread = threading.Thread(target=work)
thread.start()
thread.join(0.01)
alive = thread.is_alive()
thread.join()
alive, seen
""",
        "(True, [False, 'empty', 'full', False])",
    ),
    "a timer and a cancelled timer": (
        """
import threading, time
seen = []
late = threading.Timer(0.05, seen.append, ['late'])
never = threading.Timer(0.05, seen.append, ['never'])
late.start(); never.start()
seen.append('first')
never.cancel()
late.join(); never.join()
seen
""",
        "['first', 'late']",
    ),
    "locals and a reentrant lock": (
        """
import threading
own, lock, seen = threading.local(), threading.RLock(), []
def depth(n):
    with lock:
        return 0 if n == 0 else 1 + depth(n - 1)
def work(n):
    own.n = n
    with lock:
        seen.append((own.n, depth(3)))
threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sorted(seen), hasattr(own, 'n')
""",
        "([(0, 3), (1, 3), (2, 3)], False)",
    ),
    "a reentrant lock keeps others out": (
        """
import threading, time
lock, log = threading.RLock(), []
def work(name):
    with lock:
        with lock:
            log.append(name + ' in')
            time.sleep(0.01)
            log.append(name + ' out')
threads = [threading.Thread(target=work, args=(name,)) for name in 'ab']
for thread in threads: thread.start()
for thread in threads: thread.join()
log
""",
        "['a in', 'a out', 'b in', 'b out']",
    ),
    "a pool whose tasks wait for each other": (
        """
import threading
from concurrent.futures import ThreadPoolExecutor
barrier = threading.Barrier(3)
def task(n):
    barrier.wait()
    return n * n
with ThreadPoolExecutor(3) as pool:
    squares = list(pool.map(task, range(3)))
squares
""",
        "[0, 1, 4]",
    ),
    "a pool with errors": (
        """
from concurrent.futures import ThreadPoolExecutor, as_completed, wait
def task(n):
    if n == 2:
        raise ValueError('two')
    return n
with ThreadPoolExecutor(2) as pool:
    futures = {pool.submit(task, n): n for n in range(4)}
    seen = sorted((futures[f], str(f.exception() or f.result())) for f in as_completed(futures))
    done, left = wait(futures)
try:
    list(ThreadPoolExecutor(2).map(task, range(4)))
except ValueError as error:
    seen.append(str(error))
seen, len(done), len(left)
""",
        "([(0, '0'), (1, '1'), (2, 'two'), (3, '3'), 'two'], 4, 0)",
    ),
    "a pool in a pool": (
        """
from concurrent.futures import ThreadPoolExecutor
def inner(n):
    return n + 1
def outer(n):
    with ThreadPoolExecutor(2) as pool:
        return sum(pool.map(inner, range(n)))
with ThreadPoolExecutor(2) as pool:
    sums = list(pool.map(outer, range(4)))
sums
""",
        "[0, 1, 3, 6]",
    ),
    "a task waits for another of its pool": (
        """
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(2)
def outer():
    return pool.submit(pow, 2, 5).result() + 1
pool.submit(outer).result()
""",
        "33",
    ),
    "an initializer for each worker": (
        """
import threading
from concurrent.futures import ThreadPoolExecutor
own, made, barrier = threading.local(), [], threading.Barrier(2)
def prepare(name):
    own.name = name
    made.append(name)
def task(n):
    barrier.wait()
    return own.name, n
with ThreadPoolExecutor(2, initializer=prepare, initargs=('x',)) as pool:
    out = list(pool.map(task, range(2)))
out, made
""",
        "([('x', 0), ('x', 1)], ['x', 'x'])",
    ),
    "an initializer that fails": (
        """
import logging
from concurrent.futures import ThreadPoolExecutor, BrokenExecutor
logging.disable(logging.CRITICAL)
pool = ThreadPoolExecutor(1, initializer=lambda: 1 / 0)
try:
    pool.submit(abs, -1).result()
except BrokenExecutor as error:
    found = type(error).__name__
logging.disable(logging.NOTSET)
found
""",
        "'BrokenThreadPool'",
    ),
    "sys.exit in a task": (
        """
import sys
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(1) as pool:
    future = pool.submit(sys.exit, 3)
    after = pool.submit(abs, -1)
type(future.exception()).__name__, future.exception().code, after.result()
""",
        "('SystemExit', 3, 1)",
    ),
    "sys.exit in a thread": (
        """
import sys, threading
thread = threading.Thread(target=sys.exit, args=(3,))
thread.start()
thread.join()
'on'
""",
        "'on'",
    ),
    "futures that are cancelled": (
        """
import threading
from concurrent.futures import ThreadPoolExecutor
go = threading.Event()
pool = ThreadPoolExecutor(1)
first = pool.submit(go.wait)
import time; time.sleep(0.01)
second = pool.submit(abs, -1)
states = [first.running(), second.cancel(), first.cancel()]
go.set()
pool.shutdown()
states, first.result(), second.cancelled()
""",
        "([True, True, False], True, True)",
    ),
    "a result that comes too late": (
        """
import time
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(1) as pool:
    future = pool.submit(time.sleep, 0.1)
    try:
        future.result(timeout=0.01)
    except TimeoutError:
        late = True
late, future.done()
""",
        "(True, True)",
    ),
    "callbacks of a future": (
        """
from concurrent.futures import ThreadPoolExecutor
seen = []
with ThreadPoolExecutor(2) as pool:
    for n in range(3):
        pool.submit(abs, -n).add_done_callback(lambda f: seen.append(f.result()))
sorted(seen)
""",
        "[0, 1, 2]",
    ),
    "a coroutine run from another thread": (
        """
import asyncio, threading
async def double(n):
    await asyncio.sleep(0.01)
    return n * 2
loop = asyncio.new_event_loop()
thread = threading.Thread(target=loop.run_forever)
thread.start()
futures = [asyncio.run_coroutine_threadsafe(double(n), loop) for n in range(3)]
out = [future.result() for future in futures]
loop.call_soon_threadsafe(loop.stop)
thread.join()
loop.close()
out
""",
        "[0, 2, 4]",
    ),
    "a thread asks the loop of the main thread": (
        """
import asyncio
async def double(n):
    await asyncio.sleep(0.01)
    return n * 2
def work(loop):
    return [asyncio.run_coroutine_threadsafe(double(n), loop).result() for n in range(3)]
async def main():
    return await asyncio.to_thread(work, asyncio.get_running_loop())
asyncio.run(main())
""",
        "[0, 2, 4]",
    ),
    "a loop in each thread": (
        """
import asyncio, threading
out = {}
async def work(n):
    await asyncio.sleep(0.01 * (3 - n))
    out[n] = asyncio.current_task() is not None
threads = [threading.Thread(target=lambda n=n: asyncio.run(work(n))) for n in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sorted(out.items())
""",
        "[(0, True), (1, True), (2, True)]",
    ),
    "tasks and threads together": (
        """
import asyncio, time
async def main():
    before = time.monotonic()
    sleeps = [asyncio.to_thread(time.sleep, 0.2) for _ in range(3)]
    out = await asyncio.gather(*sleeps, asyncio.sleep(0.2, 'x'))
    return out, time.monotonic() - before < 0.5
asyncio.run(main())
""",
        "([None, None, None, 'x'], True)",
    ),
    "numbers of threads": (
        """
import threading
seen = []
def work():
    me = threading.current_thread()
    seen.append((me.ident == threading.get_ident(), me.native_id == threading.get_native_id()))
thread = threading.Thread(target=work)
before = thread.native_id, thread.ident
thread.start(); thread.join()
before, seen, isinstance(thread.native_id, int), threading.active_count()
""",
        "((None, None), [(True, True)], True, 1)",
    ),
    "raw threads and locks": (
        """
import _thread
done, seen = _thread.allocate_lock(), []
done.acquire()
def work(n):
    seen.append((n, _thread.get_ident() != main))
    done.release()
main = _thread.get_ident()
_thread.start_new_thread(work, (1,))
with done:
    pass
seen, done.locked(), isinstance(done, _thread.LockType)
""",
        "([(1, True)], False, True)",
    ),
    "raw locks in turn": (
        """
import _thread
a, b, log = _thread.allocate_lock(), _thread.allocate_lock(), []
end = [_thread.allocate_lock() for _ in range(2)]
for lock in (a, b, *end): lock.acquire()
def turn(mine, other, name, done):
    for _ in range(2):
        mine.acquire(); log.append(name); other.release()
    done.release()
_thread.start_new_thread(turn, (a, b, 'a', end[0]))
_thread.start_new_thread(turn, (b, a, 'b', end[1]))
a.release()
for lock in end: lock.acquire()
log
""",
        "['a', 'b', 'a', 'b']",
    ),
    "a thread that starts threads": (
        """
import threading
out = []
def leaf(n): out.append(n)
def branch(n):
    threads = [threading.Thread(target=leaf, args=(n * 10 + m,)) for m in range(2)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    out.append(n)
threads = [threading.Thread(target=branch, args=(n,)) for n in range(1, 3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sorted(out)
""",
        "[1, 2, 10, 11, 20, 21]",
    ),
    "waits in comprehensions and expressions": (
        """
import queue, threading
line, out = queue.Queue(1), []
def consume():
    out.append([line.get() for _ in range(2)])
    out.append({line.get(): line.get() for _ in range(2)})
    out.append(sum(line.get() for _ in range(2)) + line.get())
    out.append(f'{line.get()}-{line.get()}')
thread = threading.Thread(target=consume)
thread.start()
for n in range(11): line.put(n)
thread.join()
out
""",
        "[[0, 1], {2: 3, 4: 5}, 21, '9-10']",
    ),
    "closures, defaults, decorators and lambdas": (
        """
import functools, queue, threading
line, out = queue.Queue(1), []
def twice(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs), function(*args, **kwargs)
    return wrapper
def make(tag, *, extra=0):
    count = 0
    @twice
    def take(plus=1):
        nonlocal count
        count += 1
        return tag, line.get() + plus + extra, count
    return take
thread = threading.Thread(target=lambda: out.append((make('a')(), (lambda: line.get())())))
thread.start()
for n in range(3): line.put(n)
thread.join()
out
""",
        "[((('a', 1, 1), ('a', 2, 2)), 2)]",
    ),
    "methods, super, properties and private names": (
        """
import queue, threading
line = queue.Queue(1)
class Base:
    def __init__(self, source):
        self.__source = source
        self.first = source.get()
    def take(self):
        return self.__source.get()
    @classmethod
    def make(cls, source): return cls(source)
class Child(Base):
    def __init__(self, source):
        super().__init__(source)
        self.seen = []
    def take(self):
        got = super().take()
        self.seen.append(got)
        return got
    def __call__(self):
        return [self.take(), self.take()]
out = []
class Worker(threading.Thread):
    def run(self):
        child = Child.make(line)
        out.append((child.first, child(), child.seen))
worker = Worker()
worker.start()
for n in range(3): line.put(n)
worker.join()
out
""",
        "[(0, [1, 2], [1, 2])]",
    ),
    "errors, finally, loops with else, and managers": (
        """
import contextlib, queue, threading
line, log = queue.Queue(1), []
class Manager:
    def __enter__(self): log.append(('enter', line.get())); return self
    def __exit__(self, kind, error, trace):
        log.append(('exit', kind and kind.__name__))
        return kind is KeyError
def early():
    with Manager():
        try:
            return line.get()
        finally:
            log.append('finally')
def work():
    with Manager():
        raise KeyError(line.get())
    for n in range(2):
        with Manager() as manager, contextlib.suppress(ZeroDivisionError):
            if n: continue
            1 / 0
    else:
        log.append('else')
    log.append(early())
    try:
        with Manager():
            raise ValueError('out')
    except ValueError as error:
        log.append(str(error))
thread = threading.Thread(target=work)
thread.start()
for n in range(7): line.put(n)
thread.join()
log
""",
        "[('enter', 0), ('exit', 'KeyError'), ('enter', 2), ('exit', None), ('enter', 3), "
        "('exit', None), 'else', ('enter', 4), 'finally', ('exit', None), 5, ('enter', 6), "
        "('exit', 'ValueError'), 'out']",
    ),
    "StopIteration passes through a thread's functions": (
        """
import threading, queue
line, out = queue.Queue(1), []
def advance(iterator):
    line.get()
    return next(iterator)
def work():
    iterator = iter([1])
    try:
        while True:
            out.append(advance(iterator))
    except StopIteration:
        out.append('end')
thread = threading.Thread(target=work)
thread.start()
for n in range(2): line.put(n)
thread.join()
out
""",
        "[1, 'end']",
    ),
    "a dining table": (
        """
import threading, time
forks, meals = [threading.Lock() for _ in range(5)], [0] * 5
def dine(n):
    first, second = sorted((n, (n + 1) % 5))
    for _ in range(3):
        with forks[first], forks[second]:
            time.sleep(0.001)
            meals[n] += 1
threads = [threading.Thread(target=dine, args=(n,)) for n in range(5)]
for thread in threads: thread.start()
for thread in threads: thread.join()
meals
""",
        "[3, 3, 3, 3, 3]",
    ),
    "readers and a writer": (
        """
import threading
class Shared:
    def __init__(self):
        self.changed, self.readers, self.value = threading.Condition(), 0, 0
    def read(self):
        with self.changed: self.readers += 1
        value = self.value
        with self.changed:
            self.readers -= 1
            if not self.readers: self.changed.notify_all()
        return value
    def write(self, value):
        with self.changed:
            while self.readers: self.changed.wait()
            self.value = value
shared, seen = Shared(), []
threads = [threading.Thread(target=lambda: seen.append(shared.read())) for _ in range(3)]
threads.append(threading.Thread(target=shared.write, args=(7,)))
for thread in threads: thread.start()
for thread in threads: thread.join()
len(seen), shared.value
""",
        "(3, 7)",
    ),
    "a queue by priority": (
        """
import queue, threading
work, out = queue.PriorityQueue(), []
for n in (3, 1, 2): work.put(n)
def take():
    while True:
        try: out.append(work.get(timeout=0.05))
        except queue.Empty: return
thread = threading.Thread(target=take)
thread.start()
thread.join()
out
""",
        "[1, 2, 3]",
    ),
    "context variables of each thread": (
        """
import contextvars, threading, time
var, seen = contextvars.ContextVar('var', default=0), []
def work(n):
    var.set(n)
    time.sleep(0.01)
    seen.append(var.get() == n)
threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
seen, var.get()
""",
        "([True, True], 0)",
    ),
    "an exception that is handled while others run": (
        """
import sys, threading, time
seen = []
def work(n):
    try:
        raise ValueError(n)
    except ValueError:
        time.sleep(0.01)
        seen.append(sys.exc_info()[1].args[0] == n)
        try:
            raise
        except ValueError as error:
            seen.append(error.args == (n,))
threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
seen
""",
        "[True, True, True, True]",
    ),
    "exit codes of processes": (
        """
import multiprocessing, sys
def fail(): sys.stderr = None; raise ValueError
def main():
    out = []
    for target, args in ((abs, (1,)), (sys.exit, (3,)), (sys.exit, ())):
        process = multiprocessing.Process(target=target, args=args)
        before = process.exitcode
        process.start()
        process.join()
        out.append((before, process.exitcode))
    return out
main()
""",
        "[(None, 0), (None, 3), (None, 0)]",
    ),
    "a process that is ended": (
        """
import multiprocessing, time
process = multiprocessing.Process(target=time.sleep, args=(100,))
process.start()
alive = process.is_alive()
process.terminate()
process.join()
alive, process.is_alive(), process.exitcode
""",
        "(True, False, -15)",
    ),
    "a pool of processes with an initializer and a late result": (
        """
import multiprocessing, operator
from multiprocessing.pool import ThreadPool
made, called = [], []
with ThreadPool(2, made.append, (1,)) as pool:
    result = pool.apply_async(pow, (2, 3), callback=called.append)
    out = [result.get(timeout=5), pool.map(abs, range(-3, 0)), list(pool.imap(abs, [-1, 2]))]
    out += [pool.starmap(pow, [(2, 2)]), sorted(pool.imap_unordered(abs, [-1, 2]))]
    failed = pool.apply_async(operator.truediv, (1, 0))
    failed.wait()
    out.append(failed.successful())
out, made[:1], called
""",
        "([8, [3, 2, 1], [1, 2], [4], [1, 2], False], [1], [8])",
    ),
    "a scheduler of events in a thread": (
        """
import sched, threading, time
log = []
def work():
    plan = sched.scheduler(time.monotonic, time.sleep)
    plan.enter(0.02, 1, log.append, ('b',))
    plan.enter(0.01, 1, log.append, ('a',))
    plan.run()
thread = threading.Thread(target=work)
thread.start()
thread.join()
log
""",
        "['a', 'b']",
    ),
    "a generator that waits in a thread": (
        """
import queue, threading
line, out = queue.Queue(1), []
def items():
    while (item := line.get()) is not None:
        yield item
def produce():
    for n in range(4): line.put(n)
    line.put(None)
def consume():
    for item in items(): out.append(item)
threads = [threading.Thread(target=consume), threading.Thread(target=produce)]
for thread in threads: thread.start()
for thread in threads: thread.join()
out
""",
        "[0, 1, 2, 3]",
    ),
    "generators, delegation and managers that wait": (
        """
import contextlib, queue, threading
line, log = queue.Queue(1), []
@contextlib.contextmanager
def manage():
    log.append(line.get())
    try:
        yield 'inside'
    finally:
        log.append(line.get())
def inner():
    while (item := line.get()) is not None:
        sent = yield item
        if sent:
            log.append(sent)
    return 'returned'
def outer():
    yield (yield from inner())
def work():
    with manage() as inside:
        log.append(inside)
    with contextlib.ExitStack() as stack:
        stack.enter_context(manage())
    for item in outer():
        log.append(item)
    generator = inner()
    log.extend([next(generator), generator.send('sent')])
    generator.close()
thread = threading.Thread(target=work)
thread.start()
for item in [0, 1, 2, 3, 4, 5, None, 6, 7]: line.put(item)
thread.join()
log
""",
        "[0, 'inside', 1, 2, 3, 4, 5, 'returned', 'sent', 6, 7]",
    ),
    "match, assert, exception groups and annotations": (
        """
import queue, threading
line, log = queue.Queue(1), []
def work():
    while True:
        match line.get():
            case {'key': value} if value > line.get(): log.append(('big', value))
            case [first, *rest]: log.append((first, rest, line.get()))
            case None: break
            case other: log.append(other)
    try:
        raise ExceptionGroup('group', [ValueError(1)])
    except* ValueError:
        log.append(line.get())
    number: int = line.get()
    log.append(number if line.get() else -number)
    assert line.get() == 'a', line.get()
    del log[line.get()]
thread = threading.Thread(target=work)
thread.start()
for item in [{'key': 2}, 1, [1, 2], 'z', 'w', None, 'group', 5, False, 'a', 0]: line.put(item)
thread.join()
log
""",
        "[(1, [2], 'z'), 'w', 'group', -5]",
    ),
    "three hundred threads wait for one event": (
        """
import threading
count, lock, go = 0, threading.Lock(), threading.Event()
def work():
    global count
    go.wait()
    with lock:
        count += 1
threads = [threading.Thread(target=work) for _ in range(300)]
for thread in threads: thread.start()
go.set()
for thread in threads: thread.join()
count
""",
        "300",
    ),
    "deep recursion in a thread": (
        """
import threading, time
out = []
def depth(n):
    if n == 0:
        time.sleep(0)
        return 0
    return 1 + depth(n - 1)
def endless(n):
    time.sleep(0) if n == 0 else None
    return endless(n + 1)
def work():
    out.append(depth(600))
    try:
        endless(1)
    except RecursionError:
        out.append('too deep')
thread = threading.Thread(target=work)
thread.start()
thread.join()
out
""",
        "[600, 'too deep']",
    ),
    "processes over queues": (
        """
import queue, threading
from multiprocessing.dummy import Process, Queue
def square(source, target):
    for number in iter(source.get, None):
        target.put(number * number)
source, target = Queue(), Queue()
processes = [Process(target=square, args=(source, target)) for _ in range(2)]
for process in processes: process.start()
for number in range(5): source.put(number)
for _ in processes: source.put(None)
for process in processes: process.join()
sorted(target.get() for _ in range(5)), [process.exitcode for process in processes]
""",
        "([0, 1, 4, 9, 16], [0, 0])",
    ),
    "an asynchronous generator over a queue of threads": (
        """
import asyncio, queue, threading
line, out = queue.Queue(1), []
async def items():
    for _ in range(3):
        yield await asyncio.to_thread(line.get)
async def collect():
    async for item in items():
        out.append(item)
thread = threading.Thread(target=lambda: asyncio.run(collect()))
thread.start()
for n in range(3): line.put(n)
thread.join()
out
""",
        "[0, 1, 2]",
    ),
    "the first of several futures": (
        """
import time
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
pool = ThreadPoolExecutor(3)
futures = [pool.submit(time.sleep, n / 10) for n in (3, 1, 2)]
done, left = wait(futures, return_when=FIRST_COMPLETED)
found = [futures.index(each) for each in done], len(left)
pool.shutdown(wait=False)
found, [future.result() for future in futures]
""",
        "(([1], 2), [None, None, None])",
    ),
}
