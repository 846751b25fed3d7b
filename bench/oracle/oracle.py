"""A model that reads by a table: it knows what a message means only if that message is before it.

One backend plays every part, as one model does in a run: it answers what it is asked about a text
(`Reader`), and it writes programs where it is asked for programs (`root.py`). It is handed requests
and nothing else; of the task it knows what messages mean, as one knows a language.

It has a price and a bill of its own, in whole nano-dollars, a latency that is counted and not
waited for, and faults at set rates. Everything is drawn from the seed and the prompt, so the same
prompt meets the same fate whatever else is going on.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field

from bench.oracle.tasks import BYTES_PER_TOKEN, LABELS, needle_pattern

from tallystick.core.charge import ModelUsage
from tallystick.core.machine.prompt import Message
from tallystick.model.port import Heard, Model, ModelError, ModelReply, ModelRequest

__all__ = [
    "JUDGE",
    "NAME",
    "SETTINGS",
    "WINDOW",
    "Curve",
    "Faults",
    "OracleModel",
    "Reader",
    "Setting",
    "Sight",
    "latency_ms",
    "tokens_of",
]

NAME = "oracle:table"
WINDOW = 2**18
# Around each message and around all of them, by OpenAI's own count.
_MESSAGE_TOKENS, _REQUEST_TOKENS = 4, 3
_PROGRAMS, _READS = "You solve a task by writing Python", "You are given data and a task"

# Asked of it by programs: which of some messages are of some kinds, by their orders.
JUDGE = 'Which of these messages are a {} or a {}? Give each as "ORDER kind".'
_JUDGE = re.compile(r'Which of these messages are a (\w+) or a (\w+)\? Give each as "ORDER kind"')
_COUNT = re.compile(r"How many (?:of these )?messages are a (\w+)\?")
_LEVEL = re.compile(r"How many lines have the level (\w+) and are of the service (\w+)\?")
_NEEDLE = re.compile(r"What is the clearance code of (\w+)\?")
_PAIRS = re.compile(r"the orders that have one (\w+) and one (\w+)\.")
_POST = re.compile(r"^Date: .*? \|\| Instance: (.*)$", re.MULTILINE)
_ORDER = re.compile(r"Order: (K-\d+) \|\|")
_LOG_LINE = re.compile(r"^\d{4}-\d\d-\d\d \S+ (\w+) (\w+): ", re.MULTILINE)
_CODE = re.compile(needle_pattern(r"(\w+)") + r"(\d+)")
_NO_ANSWER = "It is hard to say from what I see here."


# -- assumptions -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """How much of a prompt is overlooked: a share of all items, more for each doubling."""

    per_doubling: float
    from_tokens: int = 4_096

    def missed(self, tokens: int) -> float:
        """The chance that one item in a prompt of so many tokens is overlooked."""
        if tokens <= self.from_tokens:
            return 0.0
        kept = 1.0 - self.per_doubling
        return 1.0 - math.pow(kept, math.log2(tokens / self.from_tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How well a model reads, and its price: nano-dollars for a token."""

    curve: Curve
    nano_in: int = 250
    nano_out: int = 2_000


# `fading` loses 3 % with each doubling beyond 4,096 tokens: 9 % at 32K. That is mild: NoLiMa
# (arXiv 2502.05167) has GPT-4o at 95.7 % of its questions at 4K and at 69.7 % at 32K. `perfect`
# loses nothing at any length, which no model does; it is there so that the other cannot mislead.
# `flat` costs as much for a token of output as for one of input, which is least for programs.
# `tight` is `fading` under a cap that does not pay for all of it.
_FADING = Curve(per_doubling=0.03)
SETTINGS = {
    "fading": Setting(curve=_FADING),
    "perfect": Setting(curve=Curve(per_doubling=0.0)),
    "flat": Setting(curve=_FADING, nano_out=250),
    "tight": Setting(curve=_FADING),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How often things go wrong: for each item that is judged, and for each call."""

    wrong: float = 0.01
    # Refused with 429, which nobody bills; failed with 503, of which nobody knows what it cost.
    refused: float = 0.02
    failed: float = 0.001
    # Replies that do not answer, and replies cut off in the middle.
    garbled: float = 0.01
    cut: float = 0.005


def latency_ms(tokens_in: int, tokens_out: int) -> int:
    """How long a call would take: a round trip, reading, and writing."""
    return 400 + tokens_in // 50 + tokens_out * 12


def tokens_of(messages: tuple[Message, ...]) -> int:
    """What a prompt is billed as."""
    return _REQUEST_TOKENS + sum(_MESSAGE_TOKENS + _tokens(each.text) for each in messages)


def _tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN)


# -- reading -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Sight:
    """What is seen of one prompt: each item is overlooked, or taken for another, by chance."""

    draw: random.Random
    missed: float
    wrong: float

    def sees(self) -> bool:
        return self.draw.random() >= self.missed

    def errs(self) -> bool:
        return self.draw.random() < self.wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Answers from what stands in a text. `meanings` are of messages, word for word."""

    meanings: Mapping[str, str]
    setting: Setting
    faults: Faults

    def answer(self, text: str, draw: random.Random, *, tokens: int) -> str:
        """What is said to a prompt of so many tokens."""
        sight = Sight(draw, self.setting.curve.missed(tokens), self.faults.wrong)
        for asked, told in _ANSWERS:
            found = asked.search(text)
            if found is not None:
                return told(self, text, found, sight)
        return _NO_ANSWER

    def posts(self, text: str, sight: Sight) -> list[tuple[str | None, str]]:
        """The messages that are seen in a text: the order that each names, and its kind."""
        seen = []
        for line in _POST.finditer(text):
            if not sight.sees():
                continue
            order = _ORDER.search(line[0])
            seen.append((None if order is None else order[1], self._kind(line[1], sight)))
        return seen

    def _kind(self, said: str, sight: Sight) -> str:
        # Half a message is understood by nobody: a guess.
        kind = self.meanings.get(said) or sight.draw.choice(LABELS)
        return (
            sight.draw.choice([each for each in LABELS if each != kind]) if sight.errs() else kind
        )

    def count(self, text: str, asked: re.Match[str], sight: Sight) -> str:
        return f"{sum(kind == asked[1] for _, kind in self.posts(text, sight))}"

    def judged(self, text: str, asked: re.Match[str], sight: Sight) -> str:
        wanted = asked.groups()
        seen = self.posts(text, sight)
        return json.dumps([f"{order} {kind}" for order, kind in seen if order and kind in wanted])

    def pairs(self, text: str, asked: re.Match[str], sight: Sight) -> str:
        by_order: dict[str, list[str]] = {}
        for order, kind in self.posts(text, sight):
            if order:
                by_order.setdefault(order, []).append(kind)
        wanted = sorted(asked.groups())
        found = [order for order, both in by_order.items() if sorted(both) == wanted]
        return ", ".join(found) or "none"

    def level(self, text: str, asked: re.Match[str], sight: Sight) -> str:
        lines = [line.groups() for line in _LOG_LINE.finditer(text)]
        # One that is misread is taken for any other.
        seen = [
            sight.draw.choice(lines) if sight.errs() else line for line in lines if sight.sees()
        ]
        return f"{sum(line == asked.groups() for line in seen)}"

    def needle(self, text: str, asked: re.Match[str], sight: Sight) -> str:
        codes: dict[str, str] = dict(_CODE.findall(text))
        if asked[1] in codes and sight.sees() and not sight.errs():
            return codes[asked[1]]
        others = [code for name, code in codes.items() if name != asked[1]]
        return sight.draw.choice([*others, *["CANNOT"] * len(others)] or ["CANNOT"])


_Told = Callable[[Reader, str, re.Match[str], Sight], str]
_ANSWERS: tuple[tuple[re.Pattern[str], _Told], ...] = (
    (_JUDGE, Reader.judged),
    (_PAIRS, Reader.pairs),
    (_COUNT, Reader.count),
    (_LEVEL, Reader.level),
    (_NEEDLE, Reader.needle),
)


# -- the backend -------------------------------------------------------------------------------

# Writes a program: from the messages as they stand, with what a reader makes of a text.
Root = Callable[[tuple[Message, ...], Reader, random.Random], str]


@dataclass
class OracleModel:
    """The backend. `billed` is its bill for what it answered, `unknown` for what broke off."""

    reader: Reader
    root: Root
    seed: int
    name: str = NAME
    window: int = WINDOW
    calls: int = 0
    billed: int = 0
    unknown: int = 0
    _asked: Counter[str] = field(default_factory=Counter)

    def admitted(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def ask(self, request: ModelRequest, *, heard: Heard = lambda chars: None) -> ModelReply:
        messages = request.messages
        digest = hashlib.sha256("\0".join(each.text for each in messages).encode()).hexdigest()
        self._asked[digest] += 1
        self.calls += 1
        draw = random.Random(f"{self.seed}/{digest}/{self._asked[digest]}")
        tokens_in = tokens_of(messages)
        self._fail(draw, tokens_in)
        text, cut = self._reply(messages, draw, tokens_in), False
        if draw.random() < self.reader.faults.cut:
            text, cut = text[: len(text) // 2], True
        if _tokens(text) > request.tokens_out_max:
            text, cut = text[: request.tokens_out_max * BYTES_PER_TOKEN], True
        tokens_out = max(1, _tokens(text))
        setting = self.reader.setting
        self.billed += tokens_in * setting.nano_in + tokens_out * setting.nano_out
        usage = {"prompt_tokens": tokens_in, "completion_tokens": tokens_out}
        return ModelReply(
            text=text,
            usage=ModelUsage(tokens_in=tokens_in, tokens_out=tokens_out, reported=True, raw=usage),
            cut=cut,
        )

    async def close(self) -> None:
        """Nothing is held."""

    def _fail(self, draw: random.Random, tokens_in: int) -> None:
        faults, chance = self.reader.faults, draw.random()
        if chance < faults.refused:
            raise ModelError(reason="rate_limit", message="too many", status=429, billed=False)
        if chance < faults.refused + faults.failed:
            # Some servers bill what they had read by then, some do not.
            self.unknown += tokens_in * self.reader.setting.nano_in if draw.random() < 0.5 else 0
            raise ModelError(reason="server_error", message="overloaded", status=503)

    def _reply(self, messages: tuple[Message, ...], draw: random.Random, tokens_in: int) -> str:
        first = messages[0]
        if first.role == "system" and first.text.startswith(_PROGRAMS):
            return self.root(messages, self.reader, draw)
        if draw.random() < self.reader.faults.garbled:
            return _NO_ANSWER
        asked = messages[1] if first.role == "system" else first
        assert first.role != "system" or first.text.startswith(_READS)
        return self.reader.answer(asked.text, draw, tokens=tokens_in)


_: type[Model] = OracleModel
