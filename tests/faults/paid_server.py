"""A provider that is paid and counts: model calls, effects, and what it can be asked afterwards.

What it replies follows from the request alone, so a call that is made again is answered as before,
and only the count tells. A request is received when its last byte has come.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from tests.faults.memory_script import MEMORY_PROGRAMS
from tests.faults.tree_script import FAMILY_PROGRAMS
from tests.model import fake_server as fake
from tests.model.fake_server import FakeServer, Seen, Step

from tallystick.testing.models import NANO_IN, NANO_OUT, block

KEY_HEADER = "x-client-request-id"
NOTHING: Mapping[str, bytes] = MappingProxyType({})
_PAUSE_SECONDS = 0.02
ITEMS = 5
GOAL = "Sort the items and enter what was found."
# Three turns: variables of one are used in the next, and everything that can be paid for is there.
PROGRAMS = (
    f"""
items = [f"item {{number}}" for number in range({ITEMS})]
note = attachments.put("a long note " * 7_000, label="note")
first = enter("alpha")
print(first, note["byte_len"])
""",
    """
sizes = llm_query_batched([f"How large is {item}?" for item in items])
total = sum(int(size) for size in sizes)
word = llm_query(f"Say {first} in a word.")
small = attachments.put(f"{total} {word}")
print(total, word)
""",
    """
second = enter(f"beta {total}")
last = llm_query(f"Say {second} in a word.")
text = attachments.get(note["id"])
FINAL(f"{first}, {second}, {word}, {last}, {total}, {len(text)}, {attachments.get(small['id'])}")
""",
)

# By what a run is asked to do.
_PLAYS = {GOAL: PROGRAMS, **FAMILY_PROGRAMS, **MEMORY_PROGRAMS}


class Held:
    """An answer that is kept back."""

    def __init__(self) -> None:
        self.arrived = threading.Event()
        self.released = threading.Event()

    @property
    def waits(self) -> bool:
        return self.arrived.is_set() and not self.released.is_set()

    def back(self, steps: Iterable[Step]) -> Iterable[Step]:
        self.arrived.set()
        while not self.released.is_set():
            yield _PAUSE_SECONDS
        yield from steps


class PaidServer(FakeServer):
    """Answers, counts what it received, and knows when nobody is connected."""

    def __init__(self) -> None:
        super().__init__()
        # What was paid for, by what it said; and the keys that it came with, in order.
        self.contents: Counter[str] = Counter()
        self.keys_of: dict[str, list[str]] = {}
        # In nano-dollars.
        self.billed = 0
        # What was replied, by the key it came with.
        self.replies: dict[str, bytes] = {}
        self._held: dict[int, Held] = {}
        self._quiet = threading.Condition()
        self._connected = 0
        self.always(self._answer)

    def __enter__(self) -> PaidServer:
        super().__enter__()
        return self

    @property
    def keys(self) -> list[str]:
        """The keys of everything that was paid for."""
        return [key for keys in self.keys_of.values() for key in keys]

    def forget(self, *, but: Mapping[str, bytes] = NOTHING) -> None:
        """Begin to count again. These replies can be asked for, by their keys."""
        self.wait_until_alone()
        self.seen.clear()
        self.contents.clear()
        self.keys_of.clear()
        self.billed = 0
        self.replies = dict(but)
        self._held.clear()

    def hold(self, number: int) -> Held:
        """Keep back what the n-th thing that is paid for is answered, until it is released."""
        self._held[number] = held = Held()
        return held

    def wait_until_alone(self) -> None:
        """What a dead process had sent is received, or it is known that the rest never comes.

        Whoever is kept waiting lives, and stays.
        """

        def alone() -> bool:
            waits = any(each.waits for each in self._held.values())
            return waits or not self._connected

        with self._quiet:
            assert self._quiet.wait_for(alone, timeout=10)

    async def _connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        self._count(1)
        try:
            await super()._connection(reader, writer, number)
        finally:
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._quiet:
            self._connected += change
            self._quiet.notify_all()

    def _answer(self, seen: Seen) -> Iterable[Step]:
        where = seen.path.rpartition("/")[2]
        if seen.method == "GET":
            found = self.replies.get(where)
            return fake.whole(found or b"{}", status=200 if found else 404)(seen)
        key = seen.headers.get(KEY_HEADER, "")
        content = f"{where} {hashlib.sha256(seen.body).hexdigest()[:16]}"
        self.contents[content] += 1
        self.keys_of.setdefault(content, []).append(key)
        held = self._held.get(self.contents.total())
        steps = self._paid(seen, where, key)
        return steps if held is None else held.back(steps)

    def _paid(self, seen: Seen, where: str, key: str) -> Iterable[Step]:
        if where == "effects":
            said = json.dumps({"entered": f"{seen.json['what']} entered"}).encode()
            self.replies[key] = said
            return fake.whole(said)(seen)
        text, usage = _reply(seen)
        self.billed += usage["prompt_tokens"] * NANO_IN + usage["completion_tokens"] * NANO_OUT
        self.replies[key] = json.dumps({"text": text, **usage}).encode()
        return fake.ok(text, usage=usage)(seen)


def _reply(seen: Seen) -> tuple[str, dict[str, int]]:
    """What a request is answered, which is all it says, and what it costs."""
    messages = seen.json["messages"]
    said = str(messages[-1]["content"])
    if messages[0]["role"] == "system":
        turn = sum(message["role"] == "assistant" for message in messages)
        text = block(_programs(str(messages[1]["content"]))[turn].strip())
    elif said.startswith("How large"):
        text = str(sum(map(ord, said)) % 100)
    else:
        text = said.split()[1].upper()
    sent = sum(len(str(message["content"])) for message in messages)
    return text, {"prompt_tokens": sent // 4, "completion_tokens": len(text) // 4 + 1}


def _programs(asked: str) -> tuple[str, ...]:
    """The programs of a run, by the message that says its task."""
    return next(programs for task, programs in _PLAYS.items() if f"The task: {task}" in asked)
