"""The functions that programs of a run call on its memory: recall, score, cite, remember.

Rule 1: a recall is a read. On replay it is answered from the record, and the memory is not asked.
Rule 2: a note is remembered once, however often the call is repeated after a crash: the call's key
is the note's origin.
Rule 3: a run can cite only what it recalled. Its records have the ids of those notes.
Rule 4: a note is data. Programs read for one agent, write as that agent, and forget nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tallystick.core.errors import UsageError
from tallystick.core.ids import moment_ms, moment_text
from tallystick.core.records import HostAnswered, NotesTouched, Record
from tallystick.memory.memory import Memory
from tallystick.memory.note import MemoryType, SourceType
from tallystick.memory.recall.recall import Recalled
from tallystick.memory.recall.selection import Filters
from tallystick.memory.receipts.receipt import RecallReceipt, receipt_hash
from tallystick.memory.receipts.receipts import cite
from tallystick.runtime.calls.functions import RunFunction
from tallystick.runtime.calls.scope import Call

# The capability that `remember` needs.
WRITE = "memory.write"


class MemoryCalls:
    """The memory functions of one run. `records` are the run's records until now."""

    def __init__(self, memory: Memory, *, session_id: str, records: Iterable[Record] = ()) -> None:
        self._memory = memory
        self._session_id = session_id
        self._read_ids = [
            read_id
            for each in records
            if isinstance(each, HostAnswered) and each.memory is not None and each.memory.read_id
            for read_id in (each.memory.read_id, *each.memory.also)
        ]
        self._receipts: list[RecallReceipt] = []

    def functions(self) -> list[RunFunction]:
        """Return the functions with their policies. `remember` needs the grant `memory.write`."""
        return [
            RunFunction(
                function=self.recall,
                name="recall",
                policy="read",
                needs="",
                local=False,
                handed=True,
            ),
            RunFunction(function=self.score, name="score", policy="read", needs="", local=False),
            RunFunction(function=self.cite, name="cite", policy="read", needs="", local=False),
            RunFunction(
                function=self.remember,
                name="remember",
                policy="effect",
                needs=WRITE,
                local=False,
                idempotent=True,
                handed=True,
            ),
        ]

    def recall(
        self,
        call: Call,
        query: str,
        k: int = 10,
        *,
        tags: Sequence[str] = (),
        author: str | None = None,
        after: str | None = None,
        before: str | None = None,
        as_of: int | str | None = None,
    ) -> list[dict[str, Any]]:
        """Notes that fit the query, best first: dicts with id, content, score, at, author, tags.

        Example: for note in recall("customer address", k=5): print(note["content"])
        """  # noqa: D401 (read by models)
        _check_text("recall", query)
        if type(k) is not int:
            raise UsageError(f"recall: k is a number, not {type(k).__name__}")
        _check_texts("recall", "tags", tags)
        for what, given in (("author", author), ("after", after), ("before", before)):
            if given is not None:
                _check_text(f"recall: {what}", given)
        made = self._memory.recall(
            query,
            k,
            as_of=as_of,
            filters=Filters(
                tags=frozenset(tags),
                author=author,
                after=None if after is None else moment_ms(after),
                before=None if before is None else moment_ms(before),
            ),
        )
        receipt = made.receipt
        self._receipts.append(receipt)
        call.notes.append(
            NotesTouched(
                how="recalled",
                ids=tuple(hit.id for hit in made.hits),
                read_id=receipt.read_id,
                receipt_sha256=receipt_hash(receipt),
            )
        )
        return _rows_of(made)

    def score(self, id: str) -> float:
        """How much a note still matters, 0 to 1: its importance, age and use.

        Example: best = max(recall("rent"), key=lambda note: score(note["id"]))
        """
        _check_text("score", id)
        return self._memory.score(id)

    def cite(self, id: str) -> str:
        """A citation of a note that was recalled before, to put into the answer.

        Example: FINAL(f'{note["content"]} [{cite(note["id"])}]')
        """  # noqa: D401 (read by models)
        _check_text("cite", id)
        return cite(id, self._run_receipts()).text

    def remember(
        self,
        call: Call,
        content: str,
        *,
        key: str | None = None,
        tags: Sequence[str] = (),
        author: str | None = None,
        importance: float = 0.5,
        kind: str = "episodic",
        related_to: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Keep a note for later runs; a note with the same key takes the place of the one before.

        Example: remember("Ann moved to Bern in May", key="ann.home")
        """
        _check_text("remember", content)
        _check_texts("remember", "tags", tags)
        _check_texts("remember", "related_to", related_to)
        if kind not in {each.value for each in MemoryType}:
            raise UsageError(f"remember: kind is one of {', '.join(MemoryType)}")
        made = self._memory.remember(
            content,
            origin=call.name_outside,
            memory_type=kind,
            importance=importance,
            tags=list(tags),
            key=key,
            author=author,
            related_to=list(related_to),
            source_type=SourceType.MODEL_RESPONSE.value,
            session_id=self._session_id,
            created_by=self._memory.agent_id,
        )
        call.notes.append(NotesTouched(how="remembered", ids=(made.id,)))
        answer: dict[str, Any] = {"id": made.id}
        if made.sighted:
            answer["known"] = True
        if made.superseded:
            answer["superseded"] = list(made.superseded)
        if made.quarantine:
            answer["held_back"] = list(made.quarantine)
        return answer

    def _run_receipts(self) -> list[RecallReceipt]:
        """Return the receipts of this run's recalls. Those of its records are read on first use.

        Raise `ReceiptUnknown` if the memory does not have one of them.
        """
        known = {each.read_id for each in self._receipts}
        before = [each for each in dict.fromkeys(self._read_ids) if each not in known]
        self._receipts = [*map(self._memory.receipt, before), *self._receipts]
        # Cleared last: after an error, such as a locked file, the next call reads them again.
        self._read_ids.clear()
        return self._receipts


def merge_touched(touched: Sequence[NotesTouched]) -> NotesTouched | None:
    """Return one record of everything that one call did with notes, or None if it did nothing.

    Each id is named once. The receipt is that of the first recall; `also` has the others' ids.
    """
    recalls = [each for each in touched if each.how == "recalled"]
    first = next(iter([*recalls, *touched]), None)
    if first is None:
        return None
    return NotesTouched(
        how=first.how,
        ids=tuple(dict.fromkeys(id for each in touched for id in each.ids)),
        read_id=first.read_id,
        receipt_sha256=first.receipt_sha256,
        also=tuple(each.read_id for each in recalls[1:] if each.read_id is not None),
    )


def _rows_of(made: Recalled) -> list[dict[str, Any]]:
    rows = []
    for hit in made.hits:
        note = made.notes[hit.id]
        rows.append(
            {
                "id": hit.id,
                "content": note.content,
                "score": hit.score,
                "at": moment_text(note.created_at),
                "author": note.author or "",
                "tags": list(note.tags),
            }
        )
    return rows


def _check_texts(function: str, what: str, given: object) -> None:
    listed = isinstance(given, list | tuple) and all(isinstance(each, str) for each in given)
    if not listed:
        raise UsageError(f"{function}: {what} is a list of texts")


def _check_text(function: str, value: object) -> None:
    if not isinstance(value, str):
        raise UsageError(f"{function}: a text is needed, not {type(value).__name__}")
