"""A model that continues where a record ends, for runs that are cut off and resumed.

Its answers depend only on what is recorded: the n-th reply to a run is always the same, and so is
the n-th outcome of a call that a program makes. So a resumed run can be compared with one that was
never cut off.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tallystick.core.records import (
    DOUBTED,
    LEFT,
    ModelFailed,
    ModelReplied,
    QueryFailed,
    QueryReplied,
    Record,
)
from tallystick.model.port import ModelError
from tallystick.testing.models import Answer, ModelCall, ModelDouble, block

# In the key of a call that a program makes: the run, its intent, its place, perhaps the attempt.
_QUERY = re.compile(r".*-(\d+)\.(\d+)(-\d+)?")


@dataclass(frozen=True)
class Planned:
    """A reply, and how many attempts fail before it."""

    text: str
    failures: int = 0


def program(*lines: str, failures: int = 0) -> Planned:
    """Return a reply with a program of these lines."""
    return Planned(block("\n".join(lines)), failures)


LAST = program("FINAL(n)")


class Plan:
    """A script with these replies for the turns of a run, from where a record ends; then `LAST`.

    The first word of a program's prompt decides its answer: `fails N` comes after N transient
    failures, `never` always fails, `number` is no number at first, `long` has 100,000 characters.
    Any other prompt is answered with `said` and the prompt.
    """

    def __init__(self, replies: Sequence[Planned], recorded: Sequence[Record] = ()) -> None:
        self.replies = replies
        self._place = self._failures = 0
        self._outcomes: Counter[tuple[int, int]] = Counter()
        for record in recorded:
            if isinstance(record, ModelReplied):
                self.skip_reply()
            elif isinstance(record, ModelFailed):
                self._failures += record.reason not in (LEFT, DOUBTED)
            elif isinstance(record, QueryReplied):
                self._outcomes[record.intent, record.item] += 1
            elif isinstance(record, QueryFailed):
                known = record.reason not in (LEFT, DOUBTED)
                self._outcomes[record.intent, record.item] += known

    async def __call__(self, call: ModelCall) -> Answer:
        if not call.by_program:
            return self.turn(call)
        # Calls of a batch end in another order than they began.
        for _ in range(len(call.messages[0].text) * 7 % 5):
            await asyncio.sleep(0)
        return self.query(call)

    def skip_reply(self) -> None:
        """Continue after the next reply: it has reached the run in another way."""
        self.continue_at(self._place + 1)

    def continue_at(self, place: int) -> None:
        """Continue with the reply at this place, from 0."""
        self._place, self._failures = place, 0

    def count_outcome(self, intent: int, item: int) -> None:
        """Count one outcome of a call: it has reached the run in another way."""
        self._outcomes[intent, item] += 1

    def turn(self, call: ModelCall) -> Answer:
        """Return the next reply to a run, or a `ModelError` that is planned before it.

        After the last reply, it is `LAST`. Continue after a reply, and count a failure.
        """
        place = self._place
        planned = self.replies[place] if place < len(self.replies) else LAST
        if self._failures < planned.failures:
            self._failures += 1
            return ModelError(reason="server_error", message=f"not yet, {self._failures}")
        self.skip_reply()
        return planned.text

    def query(self, call: ModelCall) -> Answer:
        """Return the answer to a prompt of a program, which may be a `ModelError`.

        It is counted as one outcome of its call. The intent and the item are read from the key.
        """
        found = _QUERY.fullmatch(call.request.key)
        assert found is not None
        place = int(found[1]), int(found[2])
        before, self._outcomes[place] = self._outcomes[place], self._outcomes[place] + 1
        # Not the last message: one that repairs a reply comes after the question.
        prompt = call.messages[0].text
        if prompt.startswith("never"):
            return ModelError(reason="content_policy", message="not this")
        if prompt.startswith("fails") and before < int(prompt.split()[1]):
            return ModelError(reason="rate_limit", message="later", billed=before % 2 == 0)
        if prompt.startswith("number"):
            return str(len(prompt)) if before else "no number"
        return "long " * 20_000 if prompt.startswith("long") else f"said {prompt}"


def planned(
    replies: Sequence[Planned],
    recorded: Sequence[Record] = (),
    name: str = "fake:model",
    *,
    place: int = 0,
) -> ModelDouble:
    """Return a model that answers by a plan, from where the records end.

    A `place` over 0 is where it begins instead, whatever is recorded.
    """
    plan = Plan(replies, recorded)
    if place:
        plan.continue_at(place)
    return ModelDouble(plan, name=name)
