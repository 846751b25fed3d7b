"""`atexit` in a session: what a program registers is called when that program ends.

The interpreter itself never ends in a way that a program could see, so waiting for that would call
nothing. What the standard library registered while the image was made is dropped: it would close
down modules that the next program still uses.
"""

import atexit
import weakref

run = atexit._run_exitfuncs


def install() -> None:
    """Forget what was registered so far. Called once, while the image is made."""
    atexit._clear()
    # A finalizer runs when its object goes, which may be programs later. It must not be called at
    # the end of the program that happened to make the first one.
    weakref.finalize._registered_with_atexit = True
