"""How a model call whose outcome nobody knew is settled, as was decided about it."""

from __future__ import annotations

from tallystick.core.billing import AttemptCancelled, AttemptReplied
from tallystick.core.charge import Reserved, Settled
from tallystick.model.port import ModelReply
from tallystick.runtime.doubts import Decision
from tallystick.runtime.teller import Teller, Terms

__all__ = ["ABANDONED", "settled_doubt"]

ABANDONED = "its outcome is unknown and it was not made again"
_NEVER_ARRIVED = "it never arrived"
_MADE_AGAIN = "its outcome is unknown; it is made again"


def settled_doubt(
    teller: Teller, terms: Terms, reserved: Reserved | None, found: ModelReply | Decision
) -> tuple[Settled, str]:
    """How a call that was in doubt is settled, and what is said of it where it has no reply."""
    reserved = reserved or Reserved(tokens_in=0, tokens_out=0)
    if isinstance(found, ModelReply):
        return teller.recovered(terms, reserved, AttemptReplied(usage=found.usage)), ""
    sent = found is not Decision.AGAIN
    settled = teller.recovered(terms, reserved, AttemptCancelled(sent=sent))
    said = {
        Decision.AGAIN: _NEVER_ARRIVED,
        Decision.RETRY: _MADE_AGAIN,
        Decision.ABANDON: ABANDONED,
    }
    return settled, said[found]
