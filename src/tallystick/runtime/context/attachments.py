"""A run's attachments: what it keeps, what its programs find in them, its pictures, its replay.

Everything a record refers to is kept here first and committed in the transaction that writes the
record. Programs reach what the run printed (`outputs`) and, where they are granted it, the
attachments of the session (`attachments.put`, `get`, `ls`).
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tallystick.attachments.media import HEAD_BYTES, described
from tallystick.attachments.port import (
    AttachmentError,
    AttachmentNotFound,
    Chunks,
    Declared,
    Persistence,
    Reference,
    Source,
    Transaction,
)
from tallystick.attachments.session import Batch, SessionAttachments
from tallystick.core.errors import CapabilityDenied, LedgerError, UsageError
from tallystick.core.machine.prompt import Image, Message
from tallystick.core.machine.state import KeptText, Output
from tallystick.core.records import AttachmentRef, RunEnded
from tallystick.ledger.port import Also
from tallystick.sandbox.host import HeldText, HostFunction
from tallystick.sandbox.output import remove_output
from tallystick.sandbox.snapshot import SNAPSHOT_TYPE
from tallystick.sandbox.text import HostText

READ, WRITE = "attachments.read", "attachments.write"
# What is longer is not written into a record.
INLINE_BYTES_MAX = 65_536
PUT_BYTES_MAX = 4_000_000
PUT_COUNT_MAX = 1_000
PUT_BYTES_TOTAL_MAX = 64_000_000
_GET_BYTES_MAX = 16_000_000
_STR_BYTES_MAX = 4_000_000
_TEXTS_OPEN_MAX = 64
_PIECE_BYTES = 1 << 20
_TEXT_TYPES = ("text/", "application/json")
# What was printed before, by its place; and the keys of such texts that are no attachments.
_OUTPUT, _KEPT = "outputs.get", "kept:"
# Calls whose answers are made again from the records of their queries.
_QUERIES = frozenset({"llm_query", "llm_query_batched", "rlm_query", "rlm_query_batched"})


def is_pure(name: str, *, ok: bool) -> bool:
    """Whether an answer follows from the request and what the run has kept otherwise.

    What bytes say never changes; whether they were there at the time does, so that a text was not
    found is written down.
    """
    return name in _QUERIES or (ok and name.startswith(("text.", _OUTPUT)))


class CallingProgram(Protocol):
    """The call of a program, as far as it says what was printed before."""

    @property
    def outputs(self) -> tuple[Output, ...]: ...


class RunAttachments:
    """The attachments of one run, in its session."""

    def __init__(
        self,
        held: SessionAttachments,
        *,
        grants: Sequence[str] = (),
        snapshots: SessionAttachments | None = None,
    ) -> None:
        self._held = held
        self._snapshots = snapshots
        self._snapshot_taken: str | None = None
        self._grants = frozenset(grants)
        self._guard = threading.Lock()
        self._texts: OrderedDict[str, HostText] = OrderedDict()
        self._uncommitted: list[str] = []
        self._batches: list[Batch] = []
        self._put_bytes = 0
        self._puts = 0

    # -- keeping -------------------------------------------------------------------------------

    def batch(self) -> Batch:
        """Several to be kept together with the next records."""
        batch = self._held.batch()
        with self._guard:
            self._batches.append(batch)
        return batch

    def keep(
        self, source: Source, *, media_type: str | None = None, label: str | None = None
    ) -> AttachmentRef:
        """Keep bytes that the next records refer to."""
        ref = self._held.put(source, media_type=media_type, label=label)
        with self._guard:
            self._uncommitted.append(ref.id)
        return ref

    def keep_output(self, path: Path, *, label: str) -> AttachmentRef:
        """Keep what a program printed into a file, and do away with the file."""
        with path.open("rb") as file:
            ref = self.keep(file, media_type="text/plain", label=label)
        remove_output(path)
        return ref

    def references(self) -> Sequence[Reference]:
        """Everything that the session of the run holds."""
        return self._held.references()

    def keep_snapshot(self, pieces: Iterable[bytes]) -> AttachmentRef | None:
        """Keep the interpreter, where programs cannot see it. Only the last is kept."""
        if self._snapshots is None:
            return None
        ref = self._snapshots.put(iter(pieces), media_type=SNAPSHOT_TYPE, label="of a run")
        with self._guard:
            self._snapshot_taken = ref.id
        return ref

    def read_snapshot(self, ref: AttachmentRef) -> Chunks:
        """A snapshot of this run. Raises `AttachmentNotFound` for one that was not kept."""
        if self._snapshots is None:
            raise AttachmentNotFound(id=ref.id)
        return self._snapshots.chunks(ref.id)

    def run_over(self, ended: RunEnded | None) -> None:
        """Let go of what only a resume would need, once there is nothing to resume."""
        if self._snapshots is None or ended is None or ended.stop != "answered":
            return
        with contextlib.suppress(AttachmentError, LedgerError):
            if self._snapshots.references():
                self._snapshots.delete_all()

    def share(self, refs: Sequence[AttachmentRef]) -> None:
        """Hold what another session keeps, from the next records on."""
        self._held.intend(refs)
        with self._guard:
            self._uncommitted.extend(ref.id for ref in refs)

    def to_commit(self) -> Also | None:
        """What the transaction that writes the next records has to commit, if anything."""
        with self._guard:
            ids, self._uncommitted = self._uncommitted, []
            batches, self._batches = self._batches, []
            taken, self._snapshot_taken = self._snapshot_taken, None
        if not ids and not batches and taken is None:
            return None

        def also(within: Transaction) -> None:
            for batch in batches:
                batch.commit(within)
            if ids:
                self._held.commit(ids, within=within)
            if taken is not None and self._snapshots is not None:
                self._snapshots.commit([taken], within=within)
                for each in self._snapshots.references(within=within):
                    if each.ref.id != taken:
                        self._snapshots.delete(each.ref.id, within=within)

        return also

    # -- reading -------------------------------------------------------------------------------

    def read(self, ref: AttachmentRef) -> bytes:
        """All of it, checked."""
        return self._held.read(ref.id)

    def text(self, id: str) -> HostText:
        """An attachment as text. Its bytes are checked once, then read as they are asked for."""
        with self._guard:
            if id in self._texts:
                self._texts.move_to_end(id)
                return self._texts[id]
        with self._held.local(id) as path:
            if path is None:
                text = HostText(self._held.read(id))
            else:
                with self._held.chunks(id) as chunks:
                    for _ in chunks:
                        pass
                text = HostText.open(path)
        return self._remember(id, text)

    def _remember(self, key: str, text: HostText) -> HostText:
        with self._guard:
            self._texts[key] = text
            while len(self._texts) > _TEXTS_OPEN_MAX:
                self._texts.popitem(last=False)
        return text

    @property
    def durable(self) -> bool:
        """Whether what is kept has a file of its own, if it is long."""
        return self._held.persistence is Persistence.DURABLE

    def own_text(self, ref: AttachmentRef) -> HostText | None:
        """The text of what was kept just now, from its own file; None if it has none."""
        try:
            with self._held.local(ref.id) as path:
                return None if path is None else HostText.open(path)
        except AttachmentNotFound:
            return None  # It waits in memory for its transaction.

    def find_text(self, key: str, asking: CallingProgram) -> HostText:
        """A text that a program names: what the run printed, or what it was granted to read."""
        for place, each in enumerate(asking.outputs if key.startswith(_KEPT) else ()):
            if isinstance(each, KeptText) and key == f"{_KEPT}{place}":
                return self._kept_text(key, each)
        printed = {each.id for each in asking.outputs if isinstance(each, AttachmentRef)}
        if key not in printed and READ not in self._grants:
            raise CapabilityDenied(capability=READ, what="this text")
        return self.text(key)

    def _kept_text(self, key: str, kept: KeptText) -> HostText:
        """A text that left the prompt. Where it stands in `outputs`, it stays."""
        with self._guard:
            if key in self._texts:
                return self._texts[key]
        return self._remember(key, HostText(kept.text.encode("utf-8", "replace")))

    # -- for programs --------------------------------------------------------------------------

    def functions(self) -> list[HostFunction]:
        """What programs call; those of `attachments` need their grants."""
        made: list[tuple[str, Callable[..., Any], str]] = [
            ("outputs.count", lambda asking: len(asking.outputs), ""),
            (_OUTPUT, self._output, ""),
            ("attachments.put", self.put, WRITE),
            ("attachments.get", self.get, READ),
            ("attachments.ls", self.ls, READ),
        ]
        return [
            HostFunction(
                name=name,
                function=function,
                needs=needs,
                # What was printed depends on which program asks, and is at hand.
                local=name.startswith("out"),
                handed=name.startswith("out"),
            )
            for name, function, needs in made
        ]

    def _output(self, asking: CallingProgram, place: int) -> HeldText | str:
        if type(place) is not int or not 0 <= place < len(asking.outputs):
            raise UsageError(f"there are {len(asking.outputs)} kept outputs")
        found = asking.outputs[place]
        if isinstance(found, AttachmentRef):
            return _handle(found)
        raw = found.text.encode("utf-8", "replace")
        if len(raw) <= INLINE_BYTES_MAX:
            return raw.decode()
        return HeldText(key=f"{_KEPT}{place}", bytes=len(raw), name=found.label)

    def put(
        self, data: object, label: str | None = None, media_type: str | None = None
    ) -> dict[str, object]:
        """Keep text or bytes beyond this run; returns its id, media type and size."""
        raw = _to_bytes(data)
        if len(raw) > PUT_BYTES_MAX:
            raise UsageError(
                f"{len(raw):,} bytes; at most {PUT_BYTES_MAX:,} in one put: keep it in parts"
            )
        with self._guard:
            if self._puts >= PUT_COUNT_MAX:
                raise UsageError(f"a run keeps at most {PUT_COUNT_MAX:,} attachments")
            if self._put_bytes + len(raw) > PUT_BYTES_TOTAL_MAX:
                raise UsageError(f"a run keeps at most {PUT_BYTES_TOTAL_MAX:,} bytes")
            self._puts += 1
            self._put_bytes += len(raw)
        ref = self.keep(raw, media_type=_text_or_none(media_type), label=_text_or_none(label))
        return _as_dict(ref)

    def get(self, id: object) -> str | bytes | HeldText:
        """The text or the bytes of an attachment, by its id; a very long text as one to slice."""
        ref = self._held.reference(_id_of(id)).ref
        if ref.media_type.startswith(_TEXT_TYPES):
            if ref.byte_len > _STR_BYTES_MAX:
                return _handle(ref)
            return self._held.read(ref.id).decode("utf-8", "replace")
        if ref.byte_len > _GET_BYTES_MAX:
            raise UsageError(f"{ref.byte_len:,} bytes; at most {_GET_BYTES_MAX:,} in one get")
        return self._held.read(ref.id)

    def ls(self) -> list[dict[str, object]]:
        """What this session keeps: id, media type, size and label of each."""
        kept = [each.ref for each in self._held.references()]
        # The interpreter that a session's run went on with is not a program's to read.
        return [_as_dict(each) for each in kept if each.media_type != SNAPSHOT_TYPE]


def described_bytes(data: bytes, *, media_type: str, label: str) -> AttachmentRef:
    """Return the reference that keeping these bytes would give, without keeping them."""
    declared = Declared(media_type=media_type, label=label)
    id = hashlib.sha256(data).hexdigest()
    return described(id=id, byte_len=len(data), head=data[:HEAD_BYTES], declared=declared)


def _handle(ref: AttachmentRef) -> HeldText:
    return HeldText(key=ref.id, bytes=ref.byte_len, name=ref.label or ref.id[:12])


def _as_dict(ref: AttachmentRef) -> dict[str, object]:
    made: dict[str, object] = msgspec.to_builtins(ref)
    return made


def _id_of(given: object) -> str:
    """An id, or what `put` and `ls` gave."""
    found = given.get("id") if isinstance(given, dict) else given
    if not isinstance(found, str):
        raise UsageError(f"an attachment is named by its id, not by {type(given).__name__}")
    return found


def _to_bytes(data: object) -> bytes:
    if isinstance(data, str):
        return data.encode("utf-8", "surrogatepass")
    if isinstance(data, bytes):
        return data
    raise UsageError(f"text or bytes can be kept, not {type(data).__name__}")


def _text_or_none(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise UsageError(f"text is needed, not {type(value).__name__}")


# Pictures of a request, read from the attachments where the request leaves, and nowhere before.


def with_pictures(
    messages: tuple[Message, ...], read: Callable[[AttachmentRef], bytes]
) -> tuple[Message, ...]:
    """The messages with the bytes of every picture. One that is missing fails the request."""
    return tuple(
        msgspec.structs.replace(each, images=tuple(_read(image, read) for image in each.images))
        if each.images
        else each
        for each in messages
    )


def _read(image: Image, read: Callable[[AttachmentRef], bytes]) -> Image:
    if image.ref is None or image.data:
        return image
    return Image(media_type=image.ref.media_type, data=read(image.ref), ref=image.ref)
