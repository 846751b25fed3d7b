"""Programs that use too much together: memory of many processes or of none, and too many tasks.

Each stays within what one process may have.
"""
# ruff: noqa: E501 - a program is read by its own lines, not by ours.

from tests.escape.process.case import MIB, python, shell

_LIMIT = 256 * MIB
_HELD = {"limits": {"memory_bytes": _LIMIT}, "stops": ("memory",), "wall_ms": 10_000}
_FEW = {"limits": {"memory_bytes": 64 * MIB}, "stops": ("memory",), "wall_ms": 10_000}
_TIMED = {"stops": ("wall",), "wall_ms": 500}
_FORK = "def fork():\n    try: return os.fork()\n    except OSError: return -1\n"
_FILL = "def fill(m, size):\n    for at in range(0, size, 4096): m[at] = 1\n"
_WAIT = "\nimport time\ntime.sleep(20)"

MEMORY = [
    python(
        "twelve processes",
        f"{_FILL}for _ in range(12):\n    if os.fork() == 0:\n        fill(bytearray(120 << 20), 120 << 20); import time; time.sleep(20){_WAIT}",
        **_HELD,
    ),
    python(
        "shared memory",
        f"import mmap\n{_FILL}held = []\nfor _ in range(36):\n    held.append(mmap.mmap(-1, 100 << 20)); fill(held[-1], 100 << 20){_WAIT}",
        **_HELD,
    ),
    python(
        "shared memory that no process shows",
        f"import mmap\nheld = []\nfor _ in range(36):\n    held.append(mmap.mmap(-1, 100 << 20)); held[-1].write(bytes(100 << 20)); held[-1].madvise(mmap.MADV_DONTNEED){_WAIT}",
        **_HELD,
    ),
    python(
        "shared memory of which one page is kept",
        "libc.mmap.restype = ctypes.c_void_p\nfor _ in range(36):\n    at = libc.mmap(None, ctypes.c_size_t(100 << 20), 3, 0x21, -1, 0)\n    ctypes.memset(at, 1, 100 << 20)\n    libc.munmap(ctypes.c_void_p(at + 4096), ctypes.c_size_t((100 << 20) - 4096))"
        + _WAIT,
        **_HELD,
    ),
    python(
        "shared memory of many processes",
        f"import mmap\n{_FILL}for _ in range(20):\n    if os.fork() == 0:\n        m = mmap.mmap(-1, 60 << 20); fill(m, 60 << 20); import time; time.sleep(20){_WAIT}",
        **_HELD,
    ),
    python(
        "huge pages of many processes",
        f"import mmap\nfor _ in range(12):\n    if os.fork() == 0:\n        m = mmap.mmap(-1, 120 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); m.madvise(mmap.MADV_HUGEPAGE); ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(m)), 1, 120 << 20); import time; time.sleep(20){_WAIT}",
        **_HELD,
    ),
    python(
        "daemons",
        f"{_FILL}for _ in range(12):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork(): os._exit(0)\n        fill(bytearray(120 << 20), 120 << 20); import time; time.sleep(20){_WAIT}",
        **_HELD,
    ),
    python(
        "what a fork shares, written by all",
        f"{_FILL}held = bytearray(120 << 20); fill(held, 120 << 20)\nfor _ in range(8):\n    if os.fork() == 0: fill(held, 120 << 20); import time; time.sleep(20){_WAIT}",
        **_HELD,
    ),
    python(
        "buffers of sockets",
        f"import socket\nfor _ in range(8):\n    if os.fork() == 0: break\nheld = []\ntry:\n    while True:\n        pair = socket.socketpair(); pair[0].setblocking(False); held.append(pair)\n        try:\n            while True: pair[0].send(bytes(65536))\n        except BlockingIOError: pass\nexcept OSError: pass{_WAIT}",
        **_HELD,
    ),
    python(
        "buffers of sockets whose writer is closed",
        f"import socket\nfor _ in range(8):\n    if os.fork() == 0: break\nheld = []\ntry:\n    while True:\n        a, b = socket.socketpair(); a.setblocking(False); held.append(b)\n        try:\n            while True: a.send(bytes(65536))\n        except BlockingIOError: a.close()\nexcept OSError: pass{_WAIT}",
        **_HELD,
    ),
    python(
        "buffers of pipes",
        f"for _ in range(20):\n    if os.fork() == 0: break\ntry:\n    while True:\n        a, b = os.pipe(); os.set_blocking(b, False)\n        try: os.write(b, bytes(65536))\n        except BlockingIOError: pass\nexcept OSError: pass{_WAIT}",
        **_FEW,
    ),
    python(
        "files of the memory disk",
        f"open('/dev/shm/a', 'wb').write(bytes(30 << 20)); open('/tmp/a', 'wb').write(bytes(30 << 20)); held = bytearray(30 << 20)\n{_FILL}fill(held, 30 << 20){_WAIT}",
        **_FEW,
    ),
    shell(
        "a command's children",
        'for n in $(seq 12); do python3 -c "x = bytearray(120 << 20); import time; time.sleep(20)" & done; wait',
        **_HELD,
    ),
]

# What holds memory that belongs to no process, and is refused before there is any.
REFUSED_MEMORY = [
    python("memory of System V", "print(call(29, 0, 1 << 20, 0o1600))", "EPERM"),
    python("a file of memory", "print(call(319, b'x', 0))", "EPERM"),
    python("secret memory", "print(call(447, 0))", "EPERM"),
    python(
        "huge pages of the pool",
        "libc.mmap.restype = ctypes.c_void_p\nprint([call(9, 0, 2 << 20, 3, flags, -1, 0) for flags in (0x40022, 0x40021)])",
        "['EPERM', 'EPERM']",
    ),
    python("huge pages for itself", "print(call(157, 41, 0, 0, 0, 0))", "EPERM"),
    python(
        "a huge page",
        "import mmap\nm = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS); m.madvise(mmap.MADV_HUGEPAGE); m.write(bytes(8 << 20))\nprint({line.split()[1] for line in open('/proc/self/smaps') if line.startswith('AnonHugePages')})",
        "{'0'}",
    ),
    python("messages of System V", "print(call(68, 0, 0o1600))", "EPERM"),
    python(
        "a shared mapping of zeros",
        "import mmap\nfd = os.open('/dev/zero', os.O_RDWR)\nprint(tried(mmap.mmap, fd, 4096)); print(os.read(fd, 3))",
        "OSError",
        "b'\\x00\\x00\\x00'",
    ),
]

TASKS = [
    python("forks", f"{_FORK}while True: fork()", **_TIMED),
    python("a session each", f"{_FORK}while True:\n    if fork() == 0: os.setsid()", **_TIMED),
    python(
        "forks that end at once",
        f"{_FORK}for _ in range(40):\n    if fork() == 0: break\nwhile True:\n    if fork() == 0: os._exit(0)",
        **_TIMED,
    ),
    python(
        "parents that end at once",
        f"{_FORK}for _ in range(30):\n    if fork() == 0: break\nelse:\n    import time; time.sleep(20)\nwhile True:\n    if fork() > 0: os._exit(0)",
        **_TIMED,
    ),
    python(
        "each lets the others go on",
        f"import signal\n{_FORK}while True:\n    fork()\n    try: os.kill(-1, signal.SIGCONT)\n    except OSError: pass",
        **_TIMED,
    ),
    python(
        "stopped, and deaf to signals",
        f"import signal\n{_FORK}for n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nfor _ in range(60):\n    if fork() == 0: os.kill(os.getpid(), signal.SIGSTOP)\nwhile True: fork()",
        **_TIMED,
    ),
    python(
        "threads that never wait",
        "import threading\ndef spin():\n    while True: pass\nwhile True:\n    try: threading.Thread(target=spin).start()\n    except RuntimeError: pass",
        **_TIMED,
    ),
    python(
        "daemons",
        f"{_FORK}while True:\n    if fork() == 0:\n        os.setsid()\n        if fork(): os._exit(0)",
        **_TIMED,
    ),
    shell("the classic, of bash", ":(){ :|:& };:; sleep 20", **_TIMED),
    shell("vfork", "while :; do for n in 1 2 3 4 5 6 7 8; do /bin/true & done; done", **_TIMED),
]
