"""What a run's ledger says of its session: which one, and the interpreter it went on with.

A run names the image and holds it itself. So replay, resume and fork load the same one, whatever
became of the session since.
"""

from __future__ import annotations

import msgspec

from tallystick.core.attachment import AttachmentRef

__all__ = ["CONTEXT_VARIABLES", "SessionGiven"]

# What programs call the context variables of their session.
CONTEXT_VARIABLES = "context_variables"


class SessionGiven(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The session of a run, as it stood when the run began.

    `image` is the interpreter that it goes on with, None for a fresh one, and `run` the run that
    had left it. `told` is what the model is told of earlier runs, `has` of what programs find.
    """

    session: str
    image: AttachmentRef | None = None
    run: str | None = None
    told: str = ""
    has: str = ""
