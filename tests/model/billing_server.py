"""The fake server with a bill: what each request costs, counted where it arrives.

It bills at most a token for each byte of text it was sent, for the frame around each message, and
the cap that the request names. What it answers is anything: a good reply, a report of usage that is
none, or a misfortune; who was billed is told by a word in the request.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from random import Random
from typing import Literal, get_args

from tests.model import fake_server as fake
from tests.model.fake_server import Behaviour, Seen, Step
from tests.model.misfortunes import MISFORTUNES

from tallystick.model.endpoint import Dialect

WHO = re.compile(r"run ([0-9a-z-]+)\b")
NANO_IN, NANO_OUT = 1_000, 4_000
PRICES = {"fake:*": {"input": "1", "output": "4"}}
_ABSENT: dict[str, object] = {}
# By the names of either format.
_MISREPORTS: tuple[dict[str, object] | None, ...] = (
    None,
    _ABSENT,
    {"prompt_tokens": 0, "completion_tokens": 0, "input_tokens": 0, "output_tokens": 0},
    {"prompt_tokens": -3, "completion_tokens": -1, "input_tokens": -3, "output_tokens": -1},
    {"prompt_tokens": 10**30, "completion_tokens": 1, "input_tokens": 10**30, "output_tokens": 1},
)


# What a server reports that is not what it billed. `start` is said when a stream starts, and never
# again; `swapped` has the counts of input and output exchanged; `halved` has half of both, and
# `halved parts` the true total beside them, which OpenAI's format has and Anthropic's has not.
Lie = Literal["start", "swapped", "halved", "halved parts"]
LIES: tuple[Lie, ...] = get_args(Lie)


def known_by_client(lie: Lie, dialect: Dialect) -> bool:
    """Whether a client can tell that such a report is not true."""
    return lie in ("start", "swapped") or (lie == "halved parts" and dialect == "openai")


class Bill:
    """What a server was asked and what it billed, by who asked. Called in the server's thread.

    With a `lie`, every request is billed the most it can be, and no report is true.
    """

    def __init__(
        self,
        seed: int,
        *,
        reply: Callable[[str, Seen], str],
        misfortunes: float = 0.3,
        lie: Lie | None = None,
    ) -> None:
        self._chance = Random(seed)
        self._lie = lie
        self._reply = reply
        self._misfortunes = misfortunes
        self._guard = threading.Lock()
        self.nano: Counter[str] = Counter()
        self.requests = 0
        self.replies = 0

    def __call__(self, seen: Seen) -> Iterable[Step]:
        with self._guard:
            return self._behaviour(seen)(seen)

    @property
    def total(self) -> int:
        return sum(self.nano.values())

    def _behaviour(self, seen: Seen) -> Behaviour:
        self.requests += 1
        who = whose(seen)
        chance = self._chance
        if chance.random() < self._misfortunes:
            found = MISFORTUNES[chance.choice(list(MISFORTUNES))]
            if found.billed and chance.random() < 0.8:
                self._bill(who, seen)
            return found.does
        self.replies += 1
        tokens_in, tokens_out = self._bill(who, seen)
        if self._lie is not None:
            return self._false(self._lie, who, seen, tokens_in, tokens_out)
        usage: dict[str, object] | None = _report(seen, tokens_in, tokens_out)
        stream, last = chance.choice([None, False]), True
        if chance.random() < 0.1:
            usage = chance.choice([*_MISREPORTS, usage])
            # A report that could be true, and comes too early to be.
            stream, last = None, False
        return fake.ok(self._reply(who, seen), usage=usage, stream=stream, report_last=last)

    def _false(self, lie: Lie, who: str, seen: Seen, tokens_in: int, tokens_out: int) -> Behaviour:
        text = self._reply(who, seen)
        if lie == "start":
            return fake.ok(text, usage=_report(seen, tokens_in, tokens_out), report_last=False)
        if lie == "swapped":
            return fake.ok(text, usage=_report(seen, tokens_out, tokens_in))
        usage = _report(seen, max(1, tokens_in // 2), max(1, tokens_out // 2))
        if lie == "halved parts" and seen.dialect == "openai":
            usage["total_tokens"] = tokens_in + tokens_out
        return fake.ok(text, usage=usage)

    def _bill(self, who: str, seen: Seen) -> tuple[int, int]:
        most_in, most_out = sent_tokens_max(seen), int(seen.json["max_tokens"])
        tokens_in = self._chance.choice([1, max(1, most_in // 4), most_in])
        tokens_out = self._chance.choice([1, max(1, most_out // 4), most_out])
        if self._lie is not None:
            tokens_in, tokens_out = most_in, most_out
        self.nano[who] += tokens_in * NANO_IN + tokens_out * NANO_OUT
        return tokens_in, tokens_out


def _report(seen: Seen, tokens_in: int, tokens_out: int) -> dict[str, object]:
    if seen.dialect == "openai":
        return {"prompt_tokens": tokens_in, "completion_tokens": tokens_out}
    return {"input_tokens": tokens_in, "output_tokens": tokens_out}


def texts_of(seen: Seen) -> list[str]:
    """Every text of a request, of either format."""
    said = seen.json
    texts = [said["system"]] if "system" in said else []
    for message in said["messages"]:
        content = message["content"]
        texts += [content] if isinstance(content, str) else [part["text"] for part in content]
    return texts


def sent_tokens_max(seen: Seen) -> int:
    """A token for a byte, four for each message and three for all, as OpenAI counts."""
    return sum(len(text.encode()) + 4 for text in texts_of(seen)) + 3


def whose(seen: Seen) -> str:
    found = [WHO.search(text) for text in texts_of(seen)]
    return next(each.group(1) for each in found if each is not None)


def is_turn(seen: Seen) -> bool:
    """Whether the run itself asks, and not one of its programs."""
    return "system" in seen.json or seen.json["messages"][0]["role"] == "system"
