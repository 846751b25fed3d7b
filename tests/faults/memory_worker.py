"""Remembers and erases notes, to be killed anywhere: `memory_worker.py WORK PATH NAME`.

After each thing that is acknowledged it says so on its output, in one write.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

from tallystick.memory.forget import forget
from tallystick.memory.note import NewNote
from tallystick.memory.remember import remember, remember_all
from tallystick.memory.store import blocks
from tallystick.memory.store.records import ForgetStrategy
from tallystick.memory.store.sqlite import SqliteMemory

SECRET = "zanzibar"


def tell(*words: str) -> None:
    os.write(1, (" ".join(words) + "\n").encode())


def insert(memory: SqliteMemory, name: str) -> None:
    """Remember note after note, now and then several, or one that ends another, until killed."""
    for number in itertools.count():
        if number % 7 == 3:
            news = [_note(f"{name} {number} {n}") for n in range(5)]
            tell("kept", *(made.id for made in remember_all(memory, news)))
        else:
            key = "k" if number % 5 == 2 else None
            tell("kept", remember(memory, _note(f"{name} {number}", key=key)).id)


def erase(memory: SqliteMemory, name: str) -> None:
    """Remember a few, and erase one of them."""
    made = [remember(memory, _note(f"{name} {number}")).id for number in range(3)]
    tell("kept", *made)
    secret = remember(memory, _note(f"{SECRET} {name} " + f"{SECRET} " * 600)).id
    tell("secret", secret)
    forget(memory, [secret], actor=None, strategy=ForgetStrategy.HARD_DELETE)
    tell("erased", secret)


def index(memory: SqliteMemory, name: str) -> None:
    """Do the same among more notes, with blocks of an index that are made before and after."""
    # Only this one needs the extra `memory`.
    from tallystick.memory.recall.index import StandingIndex

    blocks.SMALL, blocks.LARGE = 4, 8
    standing = StandingIndex(memory)
    made = [remember(memory, _note(f"{name} {number}")).id for number in range(3)]
    tell("kept", *made)
    secret = remember(memory, _note(f"{SECRET} {name} " + f"{SECRET} " * 600)).id
    tell("secret", secret)
    standing.keep()
    more = remember_all(memory, [_note(f"{name} and {number}") for number in range(9)])
    tell("kept", *(each.id for each in more))
    standing.keep()
    forget(memory, [secret], actor=None, strategy=ForgetStrategy.HARD_DELETE)
    tell("erased", secret)
    standing.keep()
    with memory.reading() as db:
        assert len(blocks.stored_blocks(db)) == 2
    tell("indexed")


def _note(text: str, key: str | None = None) -> NewNote:
    return NewNote(agent_id="ada", content=text, key=key, thread_id="t")


if __name__ == "__main__":
    work = {"insert": insert, "erase": erase, "index": index}[sys.argv[1]]
    with SqliteMemory(Path(sys.argv[2]), busy_seconds=60) as opened:
        work(opened, sys.argv[3])
