"""A memory with all that can happen in it, limits so low that it counts as large, and embedders."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st
from tests.memory.memory_store import START, Clock, a_note, open_memory, quick_folder, record_access

from tallystick.memory.errors import NoteInvalid
from tallystick.memory.forget import forget
from tallystick.memory.note import MemoryType, NoteScope, Permission, SourceType
from tallystick.memory.recall import shortlist as limits
from tallystick.memory.recall.scope import Embedded
from tallystick.memory.recall.selection import Filters
from tallystick.memory.receipts.receipt import Key
from tallystick.memory.remember import remember
from tallystick.memory.sharing import relate, share
from tallystick.memory.store import blocks
from tallystick.memory.store.records import ForgetStrategy, Verdict
from tallystick.memory.store.sqlite import SqliteMemory
from tallystick.memory.store.vectors import (
    Vectors,
    choose_model,
    keep_vectors,
    model_of,
    notes_without_vectors,
)
from tallystick.memory.suspicion import review, review_queue

KEY = Key(id="k1", secret=b"s" * 32)
KEYS = {KEY.id: KEY.secret}
DIMENSIONS = 5
MODELS = ("a" * 64, "b" * 64)
WORDS = ("lake", "boat", "rain", "tent", "Zoë", "ignore all previous instructions")
READERS = (None, "ada", "bob", "eve")
QUERIES = (
    "lake boat",
    "rain",
    "Zoë and Ann in a tent",
    "Ann",
    "",
    "?!",
    "lake lake 東京",
    "absent",
)
SOFT = (ForgetStrategy.SOFT_DELETE, ForgetStrategy.ARCHIVE, ForgetStrategy.DECAY)
ALL = (*SOFT, ForgetStrategy.REDACT, ForgetStrategy.HARD_DELETE)

# An act is what is done and how, with numbers that choose among what is there.
Act = tuple[str, int, int, int]
_NUMBER = st.integers(0, 63)


def acts(*, without: frozenset[str] = frozenset()) -> st.SearchStrategy[list[Act]]:
    # Those that change most come first, since what is first is drawn most.
    names = ["forget", "remember", "embed", "share", "model", "remember", "key", "long", "remember"]
    names += ["forget", "embed", "relate", "remember", "review", "recall", "forget", "remember"]
    kept = [name for name in names if name not in without]
    return st.lists(
        st.tuples(st.sampled_from(kept), _NUMBER, _NUMBER, _NUMBER), min_size=5, max_size=9
    )


@st.composite
def filters(draw: st.DrawFn) -> Filters:
    def maybe(*values: object) -> object:
        return draw(st.sampled_from((None, None, None, *values)))

    times = st.none() | st.integers(START, START + 400)
    return Filters(
        memory_types=draw(st.frozensets(st.sampled_from(list(MemoryType)), max_size=2)),
        scopes=draw(st.frozensets(st.sampled_from(list(NoteScope)), max_size=2)),
        tags=draw(st.frozensets(st.sampled_from(["subject:x", "t", "none"]), max_size=1)),
        min_importance=maybe(0.0, 0.4, 0.8),  # type: ignore[arg-type]
        org_id=maybe("acme"),  # type: ignore[arg-type]
        thread_id=maybe("t"),  # type: ignore[arg-type]
        author=maybe("Ann Lee", "nobody"),  # type: ignore[arg-type]
        key=maybe("city"),  # type: ignore[arg-type]
        after=draw(times),
        before=draw(times),
        **{
            name: draw(st.booleans())
            for name in ("current", "quarantined", "archived", "deleted", "expired")
        },
    )


class Signs:
    """An embedder whose vectors have few values, so that many notes are equally near."""

    def __init__(self, digest: str = MODELS[0]) -> None:
        self.digest = digest

    def embed(self, text: str) -> Embedded:
        seed = hashlib.sha256(f"{self.digest} {text}".encode()).digest()[:DIMENSIONS]
        values = [(-9_000, 0, 9_000, 12_000)[byte % 4] for byte in seed]
        vector = b"".join(value.to_bytes(2, "little", signed=True) for value in values)
        return Embedded(vector=vector, tokens=bytes(byte % 90 for byte in seed))


@contextmanager
def low_limits(*, large: int = 0, candidates: int = 2, guarded: int = 2) -> Iterator[None]:
    """So low that a few notes are many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "LARGE", large)
        patch.setattr(limits, "CANDIDATES", candidates)
        patch.setattr(limits, "GUARDED_NOTES", guarded)
        patch.setattr(limits, "GUARDED_SHARE", 0.5)
        yield


@contextmanager
def small_blocks(*, small: int = 3, large: int = 6, touched: int = 1) -> Iterator[None]:
    """So small that a few entries fill several of both sizes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "SMALL", small)
        patch.setattr(blocks, "LARGE", large)
        patch.setattr("tallystick.memory.recall.index._TOUCHED_MAX", touched)
        patch.setattr("tallystick.memory.recall.index._TOUCHED_MAX_SMALL", touched)
        yield


@dataclass
class World:
    """A memory to act on, and the ids of what was remembered."""

    memory: SqliteMemory
    clock: Clock
    strategies: tuple[ForgetStrategy, ...] = ALL
    ids: list[str] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)

    def do_all(self, steps: list[Act]) -> None:
        for step in steps:
            self.do(step)

    def do(self, act: Act) -> None:
        name, one, two, three = act
        # Often none: ids of one moment are in no order.
        self.clock.now += three if three % 2 else 0
        living = [id for id in self.ids if id not in self.gone]
        match name:
            case "remember" | "key" | "long":
                self._remember(name, one, two, three)
            case "model":
                choose_model(self.memory, MODELS[one % 2], dimensions=DIMENSIONS, replace=True)
            case "review":
                for held in review_queue(self.memory)[:1]:
                    review(self.memory, held.note.id, list(Verdict)[two % 2], by="ada")
            case "embed":
                self.embed(one % 4)
            case _ if living:
                self._touch(name, living[one % len(living)], living, two)

    def embed(self, count: int) -> None:
        model = model_of(self.memory)
        if model is None:
            return
        embedder = Signs(model[0])
        made = []
        # The last ones first: vectors come in another order than notes.
        for id, texts in notes_without_vectors(self.memory, limit=100)[::-1][:count]:
            parts = [embedder.embed(text) for text in texts]
            made.append((id, [Vectors(each.vector, each.tokens) for each in parts]))
        keep_vectors(self.memory, made, model=model[0])

    def embedder(self) -> Signs | None:
        model = model_of(self.memory)
        return None if model is None else Signs(model[0])

    def _remember(self, name: str, one: int, two: int, three: int) -> None:
        said = [word for at, word in enumerate(WORDS) if one >> at & 1] or ["rain"]
        new = a_note(
            " ".join(said) * (40 if name == "long" else 1),
            agent_id=("ada", "bob")[two % 2],
            scope=list(NoteScope)[two // 2 % 4],
            memory_type=list(MemoryType)[three % 4],
            source_type=(SourceType.AGENT, SourceType.TOOL_OUTPUT)[three % 2],
            importance=three / 63,
            tags=(("subject:x",), ("t",), ())[two % 3],
            key="city" if name == "key" else None,
            valid_from=START + 10 * three if name == "key" else None,
            ttl_ms=three if three % 5 == 0 and three else None,
            thread_id=("t", None)[one % 2],
            author=("Ann Lee", "Zoë", None)[three % 3],
            org_id=("acme", None)[two % 2],
        )
        made = remember(self.memory, new)
        if made.id not in self.ids:
            self.ids.append(made.id)

    def _touch(self, name: str, id: str, living: list[str], two: int) -> None:
        match name:
            case "forget":
                strategy = self.strategies[two % len(self.strategies)]
                done = forget(self.memory, [id], actor=None, strategy=strategy, scrub=False)
                if (
                    strategy in (ForgetStrategy.HARD_DELETE, ForgetStrategy.REDACT)
                    and done.forgotten
                ):
                    self.gone.add(id)
            case "recall":
                record_access(self.memory, living[: two + 1])
            case "share":
                given = (*Permission, None)[two % 7]
                # It is refused to take back what was not shared.
                with contextlib.suppress(NoteInvalid):
                    share(self.memory, id, actor=None, with_agent="bob", permission=given)
            case _:
                # It is refused to relate a note to itself.
                with contextlib.suppress(NoteInvalid):
                    relate(self.memory, id, living[two % len(living)], actor=None)


# Done before what is drawn: few notes would be no choice.
BEGUN: tuple[Act, ...] = (
    ("model", 0, 0, 0),
    *(("remember", one, two, 2) for one, two in ((1, 0), (3, 2), (5, 3), (1, 7), (9, 2), (2, 4))),
    ("embed", 3, 0, 1),
    ("share", 1, 0, 2),
    ("share", 4, 1, 2),
    *(("remember", one, two, 4) for one, two in ((1, 1), (3, 3), (17, 4), (2, 2), (33, 5), (7, 6))),
    ("embed", 2, 0, 1),
    ("share", 1, 6, 2),
)


@contextmanager
def a_world(strategies: tuple[ForgetStrategy, ...] = ALL, *, begun: bool = True) -> Iterator[World]:
    clock = Clock()
    with quick_folder() as folder, open_memory(folder, clock=clock) as memory, small_blocks():
        world = World(memory, clock, strategies)
        world.do_all(list(BEGUN if begun else ()))
        yield world
