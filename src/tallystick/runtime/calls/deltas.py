"""Pass on the text of a reply while it comes, to whoever started the run.

Rule: a delta is shown and nothing else. Nothing is decided by it, it has no place in the ledger,
and no other process sees it. What counts is the reply, once it is recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from tallystick.model.port import Heard


class TextDelta(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="event_type", tag="text_delta"
):
    """A piece of a reply that has arrived and is not recorded yet.

    It belongs to the model call `intent` of a run: that of a turn, or the one of a program at the
    place `item` of its batch. `chars` is how many characters of the reply have come so far, with
    these.
    """

    run: str
    call: Literal["turn", "query"]
    intent: int
    item: int = 0
    text: str
    chars: int


# Called with each piece of each reply, on the event loop of the run. It must not wait.
HearDelta = Callable[[TextDelta], None]


def hear_nothing(delta: TextDelta) -> None:
    """Take a delta, and do nothing with it."""


def heard_of(
    hear: HearDelta, run: str, call: Literal["turn", "query"], intent: int, *, item: int = 0
) -> Heard:
    """Return what a model calls with the pieces of one reply. It passes them to `hear` as deltas.

    If `hear` raises, it is not called again for this reply: a display must not end a call that is
    paid for.
    """
    if hear is hear_nothing:
        return lambda text: None
    chars = 0
    failed = False

    def heard(text: str) -> None:
        nonlocal chars, failed
        chars += len(text)
        if failed or not text:
            return
        try:
            hear(TextDelta(run=run, call=call, intent=intent, item=item, text=text, chars=chars))
        except Exception:
            failed = True

    return heard
