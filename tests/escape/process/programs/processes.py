"""Programs that multiply, stay, reach for other processes, or use everything up."""
# ruff: noqa: E501 - a program is read by its own lines, not by ours.

from tests.escape.process.case import MIB, python, shell

_WALL = ("wall",)

FORK_BOMBS = [
    shell("the classic", ":(){ :|:& };:; sleep 20", stops=_WALL, wall_ms=250),
    shell("a loop of subshells", "while :; do (sleep 20 &) ; done", stops=_WALL, wall_ms=250),
    python(
        "fork in a loop",
        "while True:\n    try: os.fork()\n    except OSError: pass",
        stops=_WALL,
        wall_ms=300,
    ),
    python(
        "fork, and the parent goes",
        "import time\nfor n in range(10**6):\n    try:\n        if os.fork(): os._exit(0)\n    except OSError: time.sleep(0.001)",
        stops=("trap", "wall"),
        wall_ms=250,
    ),
    # Its own end is that the next thread is refused. It was also seen to hang in the start of one, in
    # the box of an ordinary user, and to be ended by its time. Neither may let it have 200.
    python(
        "threads without end",
        "import threading, time\nmade = 0\ntry:\n    while made < 200:\n        threading.Thread(target=time.sleep, args=(20,), daemon=True).start(); made += 1\n    print('ESCAPED')\nexcept RuntimeError: print('refused')",
        stops=("finished", "wall"),
    ),
    shell(
        "a bomb left behind",
        "bomb() { bomb | bomb & }; bomb 2>/dev/null; echo left",
        stops=("finished", "wall"),
        wall_ms=300,
    ),
    shell(
        "nohup and disown",
        "for n in 1 2 3; do nohup sleep 300 >/dev/null 2>&1 & disown; done; echo left",
        "left",
    ),
]

BACKGROUND = [
    shell("a plain background child", "sleep 300 & echo left", "left"),
    shell("a session of its own", "setsid sleep 300 & echo left", "left"),
    shell("a daemon, twice forked", "(setsid bash -c '(sleep 300 &)' &) ; echo left", "left"),
    shell(
        "deaf to every signal", "(trap '' HUP INT TERM QUIT PIPE; sleep 300) & echo left", "left"
    ),
    shell("one that starts itself again", "(while :; do sleep 300; done) & echo left", "left"),
    python(
        "a daemon of Python",
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork(): os._exit(0)\n    import time; time.sleep(300)\nprint('left')",
        "left",
    ),
    python(
        "one whose death signal is off",
        "import subprocess\nlibc.prctl(1, 0); subprocess.Popen(['sleep', '300'], start_new_session=True)\nprint('left')",
        "left",
    ),
    shell("holding the output open", "(sleep 300; echo ESCAPED) & exit 0"),
    shell("waiting for a time-out to pass", "sleep 300 & sleep 300", stops=_WALL, wall_ms=200),
    shell(
        "at and cron",
        "(echo 'echo ESCAPED' | at now || crontab -l || echo refused) 2>&1",
        "refused",
    ),
    shell("systemd-run", "systemd-run --user true 2>&1 && echo ESCAPED; echo over", "over"),
]

SIGNALS = [
    shell("kill everything", "kill -9 -1; echo over"),
    shell(
        "kill the first process",
        "kill -9 1; kill -TERM 1; kill -SEGV 1; sleep 0.05; kill -0 1 2>/dev/null; ls -d /proc/1 >/dev/null 2>&1; echo over",
        "over",
    ),
    python(
        "stop the first process",
        "import signal\nprint(tried(os.kill, 1, signal.SIGSTOP)); print('over')",
        "over",
    ),
    python(
        "every process number",
        "import signal\nmine = {os.getpid(), os.getppid()}\nhit = 0\nfor pid in range(2, 40000):\n    if pid in mine: continue\n    try: os.kill(pid, 0); hit += 1\n    except OSError: pass\nprint('seen', hit < 10)",
        "seen True",
    ),
    python(
        "the process group of the host",
        "print(tried(os.killpg, 0 or os.getppid(), 0)); print(os.getsid(0) == 0 or os.getpgrp() >= 0)",
        "True",
    ),
    python(
        "pidfd of the first process",
        "import signal\nfd = call(434, 1, 0)\nprint('refused' if isinstance(fd, str) else call(424, fd, 9, 0, 0)); print('over')",
        "over",
    ),
    python(
        "its own parent",
        "import signal\nos.kill(os.getppid(), signal.SIGSTOP); print('stopped')",
        "stopped",
    ),
    python(
        "stopping itself",
        "import signal\nos.kill(os.getpid(), signal.SIGSTOP)",
        stops=_WALL,
        wall_ms=200,
    ),
    python(
        "ignoring the end",
        "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass",
        stops=_WALL,
        wall_ms=200,
    ),
]

PTRACE = [
    python("attach to the first process", "print(call(101, 16, 1, 0, 0))", "EPERM"),
    python("attach to its parent", "print(call(101, 16, os.getppid(), 0, 0))", "EPERM"),
    python("ask to be traced", "print(call(101, 0, 0, 0, 0))", "EPERM"),
    python("read another's memory", "print(call(310, 1, 0, 0, 0, 0, 0))", "EPERM"),
    python("write another's memory", "print(call(311, 1, 0, 0, 0, 0, 0))", "EPERM"),
    python(
        "the memory file of the first process", "print(tried(open, '/proc/1/mem', 'r+b'))", "Error"
    ),
    python(
        "take a descriptor from another",
        "fd = call(434, os.getppid(), 0)\nprint(call(438, fd if isinstance(fd, int) else 0, 3, 0))",
        "EPERM",
    ),
    shell("strace", "strace -p 1 2>&1; echo over", "over"),
]

SETUID = [
    shell(
        "a set-user-id program of the system",
        "for p in su sudo passwd mount newgrp; do command -v $p >/dev/null && timeout 2 $p -c 'id -u' </dev/null 2>/dev/null | grep -qx 0 && echo ESCAPED; done; echo over",
        "over",
    ),
    shell(
        "a set-user-id copy of its own",
        "cp /bin/bash b && chmod 6755 b && ./b -p -c 'id -u' | grep -qx 0 && echo ESCAPED; echo over",
        "over",
    ),
    python(
        "setuid to root",
        "print([tried(os.setuid, 0), tried(os.setgid, 0), tried(os.setresuid, 0, 0, 0)])",
        "['PermissionError', 'PermissionError', 'PermissionError']",
    ),
    python("groups", "print(tried(os.setgroups, [0]))", "PermissionError"),
    python(
        "capabilities",
        "print([line.split()[1] for line in open('/proc/self/status') if line.startswith('Cap')])",
        "['" + "', '".join(["0" * 16] * 5) + "']",
    ),
    python(
        "new privileges", "print(libc.prctl(38, 0, 0, 0, 0), libc.prctl(39, 0, 0, 0, 0))", "-1 1"
    ),
    python("the keeping of capabilities", "print(call(157, 28, 0, 0, 0, 0))", "EPERM"),
    python(
        "file capabilities",
        "open('c', 'w').close()\nprint(tried(os.setxattr, 'c', 'security.capability', b'\\x01\\x00\\x00\\x02' + b'\\xff' * 16))",
        "PermissionError",
    ),
    python(
        "own the file of another",
        "print(tried(os.chown, '/etc/passwd', 1000, 1000), tried(os.chown, '.', 0, 0))",
        "Error",
    ),
]

EXHAUSTION = [
    python("memory", "x = []\nwhile True: x.append(bytearray(16 << 20))", stops=("memory",)),
    python(
        "memory of children",
        "import subprocess, sys\nprint(subprocess.run(['bash', '-c', 'x=a; while :; do x=$x$x; done'], capture_output=True).returncode != 0)",
        "True",
        wall_ms=20_000,
        limits={"memory_bytes": 128 * MIB},
    ),
    shell("output", "yes", stops=("output",), limits={"output_bytes": MIB}),
    python(
        "both streams",
        "import sys\nwhile True: sys.stdout.write('x' * 4096); sys.stderr.write('y' * 4096)",
        stops=("output",),
        limits={"output_bytes": MIB},
    ),
    python(
        "open files",
        "made = []\ntry:\n    while True: made.append(os.open('/dev/null', 0))\nexcept OSError as error: print('refused', len(made) < 2000)\nfor fd in made: os.close(fd)",
        "refused True",
    ),
    python(
        "raising its own limits",
        "import resource\nprint([tried(resource.setrlimit, kind, (2**40, 2**40)) for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE)])",
        "['ValueError', 'ValueError', 'ValueError', 'ValueError']",
    ),
    python(
        "a core dump",
        "import subprocess\nsubprocess.run(['bash', '-c', 'kill -SEGV $$']); print(any('core' in n for n in os.listdir('.')))",
        "False",
    ),
    shell("a loop", "while :; do :; done", stops=_WALL, wall_ms=200),
    python(
        "locked memory",
        "import mmap\nmade = mmap.mmap(-1, 1 << 24)\nprint(libc.mlockall(3) != 0)",
        "True",
    ),
]

INTERPRETER = [
    python("ends at once", "os._exit(7)", stops=("trap",)),
    python("a segmentation fault", "ctypes.string_at(0)", stops=("trap",)),
    python("becomes another program", "os.execv('/bin/true', ['true'])", stops=("trap",)),
    python("closes every descriptor", "os.closerange(0, 1024)", stops=("trap",)),
    python(
        "writes into every descriptor",
        "for fd in range(3, 64):\n    try: os.write(fd, b'\\xff' * 4096)\n    except OSError: pass\nwhile True: pass",
        stops=("trap", "wall"),
        wall_ms=250,
    ),
    python(
        "a forged result",
        "import struct, json\nbody = json.dumps({'ok': True, 'value': 'forged'}).encode()\nfor fd in range(3, 64):\n    try: os.write(fd, struct.pack('<BI', 5, len(body)) + body)\n    except OSError: pass\nwhile True: pass",
        stops=("finished", "trap", "wall"),
        wall_ms=250,
    ),
    python(
        "a result of four gigabytes",
        "import struct\nfor fd in range(3, 64):\n    try: os.write(fd, struct.pack('<BI', 5, 2**32 - 1))\n    except OSError: pass\nwhile True: pass",
        stops=("trap",),
        wall_ms=2_000,
    ),
    python(
        "a request of four gigabytes",
        "import struct\nfor fd in range(3, 64):\n    try: os.write(fd, struct.pack('<BI', 3, 2**32 - 1) + b'x' * 100)\n    except OSError: pass\nwhile True: pass",
        stops=("trap", "wall"),
        wall_ms=300,
    ),
    python(
        "hands descriptors to the keeper",
        "import array, json, socket, stat\nfor fd in range(3, 64):\n    try:\n        if not stat.S_ISSOCK(os.fstat(fd).st_mode): continue\n        with socket.socket(fileno=os.dup(fd)) as made:\n            if made.type == socket.SOCK_SEQPACKET:\n                made.sendmsg([json.dumps({'idle': 1, 'problem': 'forged', 'dropped': 1}).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0] * 8))])\n    except OSError: pass\nprint('over')",
        stops=("finished", "trap"),
    ),
    python(
        "replaces what runs it",
        "import gc, sys, types\nfor module in [m for m in gc.get_objects() if isinstance(m, types.ModuleType) and 'interpreter' in m.__name__]:\n    module.__dict__.clear()\nprint('over')",
        stops=("finished", "trap"),
    ),
]
