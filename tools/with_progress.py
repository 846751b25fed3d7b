"""Run a command, and print a line every few seconds for as long as it takes.

    python tools/with_progress.py COMMAND [ARGUMENT ...]

`make` uses it for the slow steps of the set-up, which say nothing themselves. It needs the standard
library only, since it also runs before anything is installed.
"""

from __future__ import annotations

import subprocess
import sys
import time

# A reader who sees nothing for five seconds starts to wonder.
SECONDS = 3.0


def run(command: list[str], *, every: float = SECONDS) -> int:
    """Run a command to its end, and return its exit code."""
    began = time.monotonic()
    with subprocess.Popen(command) as process:
        try:
            while True:
                try:
                    return process.wait(timeout=every)
                except subprocess.TimeoutExpired:
                    print(f"  {time.monotonic() - began:.0f} s", flush=True)
        except KeyboardInterrupt:
            process.wait()
            return 130


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
