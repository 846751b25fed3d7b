"""The end of the session's clock: a sleep that would go past it is refused.

Python counts time in 64 bits of nanoseconds, which end in April 2262. A session's clock is moved by
sleeping, so one long sleep could leave it where nothing can read it any more. The host sets a clock
that is past the year 2260 back to its end before each program, so every program has a year left.
Import this module before all that keeps `time.sleep` for itself.
"""

import time

_END_SECONDS = 9_220_000_000  # 2262-03-04
_sleep, _time = time.sleep, time.time


def sleep(seconds: float, /) -> None:
    """Move the session's clock. It returns at once."""
    # What is not a number, or is less than nothing, is refused below as it always was.
    if isinstance(seconds, (int, float)) and _time() + seconds > _END_SECONDS:
        raise OverflowError(
            f"sleep({seconds!r}) would move the clock past the year 2262, where it ends"
        )
    _sleep(seconds)


time.sleep = sleep
