"""Programs that ask what time it is, where they are, and for chance that was not given to them."""
# ruff: noqa: E501 - a program is read by its own lines, not by ours.

from tests.escape.case import TRIED, Case, gives

PROBES = [
    gives("the time", "import time\nint(time.time())", "1767225600"),
    gives("the date", "import datetime\ndatetime.date.today().isoformat()", "'2026-01-01'"),
    gives(
        "every clock",
        (
            "import time\n[c for c in ('time', 'monotonic', 'perf_counter') "
            "if not 0 <= getattr(time, c)() <= 1767225601]"
        ),
        "[]",
    ),
    gives(
        "a sleep takes no time",
        "import time\na = time.time()\ntime.sleep(10**6)\nround(time.time() - a)",
        "1000000",
    ),
    gives(
        "a loop is not timed by the host",
        (
            "import time\na = time.perf_counter_ns()\nsum(range(1_000_000))\ntime.perf_counter_ns() - a"
        ),
        "1000",
    ),
    gives("the process", "import os\nos.getpid(), os.cpu_count()", "(42, 1)"),
    gives(
        "the platform",
        ("import platform\nplatform.uname()[:3], platform.node()"),
        "(('wasi', '(none)', '0.0.0'), '(none)')",
    ),
    gives("the executable", "import sys\nsys.executable, sys.prefix", "('', '/python')"),
    gives(
        "chance is the session's own",
        (
            "import random, secrets, uuid, os\nlen({random.random(), secrets.token_hex(), uuid.uuid4(), os.urandom(9)})"
        ),
        "4",
    ),
    gives("the network card", "import uuid\nuuid.getnode() >> 40 & 1", "1"),
    gives("the time zone", "import time\ntime.tzname, time.timezone", "(('UTC', 'UTC'), 0)"),
    gives(
        "load and usage",
        TRIED
        + (
            "import os\n[tried(getattr(os, n, None)) for n in ('getloadavg', 'getlogin', 'getuid', 'times')]"
            "[1:3]"
        ),
        "['TypeError', 'TypeError']",
    ),
    gives("addresses are the guest's", "id(object()) < 2**32", "True"),
    Case(
        name="a thread's clock",
        program="import time\ntime.thread_time() >= 0",
        stops=("finished",),
        kinds=("", "OSError", "AttributeError", "RuntimeError"),
    ),
]
