"""Store and read the attachments of one run, and give its programs access to them.

Everything that a record refers to is stored here first, and committed in the transaction that
writes the record. Programs can read earlier outputs of the run (`outputs`). With grants they can
also use the other attachments of the run (`attachments.put`, `get`, `ls`).
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

from tallystick.attachments.media import HEAD_BYTES, reference_to
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
# A longer text is not written into a record.
INLINE_BYTES_MAX = 65_536
PUT_BYTES_MAX = 4_000_000
PUT_COUNT_MAX = 1_000
PUT_BYTES_TOTAL_MAX = 64_000_000
_GET_BYTES_MAX = 16_000_000
_STR_BYTES_MAX = 4_000_000
_TEXTS_OPEN_MAX = 64
_TEXT_TYPES = ("text/", "application/json")
# The function for earlier outputs, and the prefix of the keys of those that are no attachments.
_OUTPUT, _KEPT = "outputs.get", "kept:"
# Calls whose answers replay computes again from the records of their queries.
_QUERIES = frozenset({"llm_query", "llm_query_batched", "rlm_query", "rlm_query_batched"})


def is_pure(name: str, *, ok: bool) -> bool:
    """Return True if replay can compute this answer again, from attachments or model calls.

    `ok` is False for an answer that is an error. Such an answer is recorded by its digest only. A
    failed read of a text is recorded in full: bytes never change, but whether they existed at that
    time may.
    """
    return name in _QUERIES or (ok and name.startswith(("text.", _OUTPUT)))


class CallingProgram(Protocol):
    """The part of a program's call that holds the earlier outputs of the run."""

    @property
    def outputs(self) -> tuple[Output, ...]: ...


class RunAttachments:
    """The attachments of one run, under the holder that the run names in its start.

    Methods that store or read raise `AttachmentError` if the store fails. Reading raises
    `AttachmentNotFound` for what the run does not hold, and `AttachmentCorrupt` for damaged bytes.
    """

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

    # -- storing -------------------------------------------------------------------------------

    def batch(self) -> Batch:
        """Return a batch for attachments that are all committed with the next records."""
        batch = self._held.batch()
        with self._guard:
            self._batches.append(batch)
        return batch

    def keep(
        self, source: Source, *, media_type: str | None = None, label: str | None = None
    ) -> AttachmentRef:
        """Store bytes, and commit them with the next records, which refer to them.

        Until then a crash leaves only an intent, and the bytes can be collected.
        """
        ref = self._held.put(source, media_type=media_type, label=label)
        with self._guard:
            self._uncommitted.append(ref.id)
        return ref

    def keep_output(self, path: Path, *, label: str) -> AttachmentRef:
        """Store the output that a program printed into a file, and remove the file.

        Raise `OSError` if the file cannot be read. If storing fails, the file stays.
        """
        with path.open("rb") as file:
            ref = self.keep(file, media_type="text/plain", label=label)
        remove_output(path)
        return ref

    def references(self) -> Sequence[Reference]:
        """Return the rows of all attachments that the holder of the run has."""
        return self._held.references()

    def keep_snapshot(self, pieces: Iterable[bytes]) -> AttachmentRef | None:
        """Store a snapshot of the interpreter, which programs cannot see. Only the last is kept.

        The earlier ones are released when the next records are committed. Return None if the run
        has no place for snapshots.
        """
        if self._snapshots is None:
            return None
        ref = self._snapshots.put(iter(pieces), media_type=SNAPSHOT_TYPE, label="of a run")
        with self._guard:
            self._snapshot_taken = ref.id
        return ref

    def read_snapshot(self, ref: AttachmentRef) -> Chunks:
        """Return a snapshot of this run, in pieces.

        Raise `AttachmentNotFound` if it was not kept.
        """
        if self._snapshots is None:
            raise AttachmentNotFound(id=ref.id)
        return self._snapshots.chunks(ref.id)

    def run_over(self, ended: RunEnded | None) -> None:
        """Release the snapshots of an answered run, which only a resume would need.

        Other runs keep theirs. Errors are ignored: the bytes then stay until the run is removed.
        """
        if self._snapshots is None or ended is None or ended.stop != "answered":
            return
        with contextlib.suppress(AttachmentError, LedgerError):
            if self._snapshots.references():
                self._snapshots.delete_all()

    def share(self, refs: Sequence[AttachmentRef]) -> None:
        """Hold attachments of another holder too. They are committed with the next records."""
        self._held.intend(refs)
        with self._guard:
            self._uncommitted.extend(ref.id for ref in refs)

    def to_commit(self) -> Also | None:
        """Return the function that commits everything stored since the last call; None for nothing.

        The transaction that writes the next records calls it. What it returns is not returned
        again, so the caller has to use it.
        """
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
                # Only the last snapshot is kept: release the others in the same transaction.
                self._snapshots.commit([taken], within=within)
                for each in self._snapshots.references(within=within):
                    if each.ref.id != taken:
                        self._snapshots.delete(each.ref.id, within=within)

        return also

    # -- reading -------------------------------------------------------------------------------

    def read(self, ref: AttachmentRef) -> bytes:
        """Return all bytes of an attachment, checked against its digest."""
        return self._held.read(ref.id)

    def text(self, id: str) -> HostText:
        """Return an attachment as text. Its bytes are checked once, and read when they are needed.

        The last 64 texts stay open. Raise `AttachmentNotFound` if the run does not hold it.
        """
        with self._guard:
            if id in self._texts:
                self._texts.move_to_end(id)
                return self._texts[id]
        with self._held.local(id) as path:
            if path is None:
                text = HostText(self._held.read(id))
            else:
                # Reading it once as chunks checks the digest. Reads from the file are not checked.
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
        """True if the attachments are on disk, where a long one has a file of its own."""
        return self._held.persistence is Persistence.DURABLE

    def own_text(self, ref: AttachmentRef) -> HostText | None:
        """Return the text of an attachment that was just stored; None if it has no file yet.

        Its bytes are not checked against the digest: this run has just written them.
        """
        try:
            with self._held.local(ref.id) as path:
                return None if path is None else HostText.open(path)
        except AttachmentNotFound:
            return None  # It is still in memory, until its transaction.

    def find_text(self, key: str, asking: CallingProgram) -> HostText:
        """Return a text that a program names: an earlier output, or an attachment.

        The key of an earlier output that is no attachment is `kept:` and its place. Raise
        `CapabilityDenied` for an attachment that is no output without the grant `attachments.read`,
        and `AttachmentNotFound` if the run does not hold it.
        """
        for place, each in enumerate(asking.outputs if key.startswith(_KEPT) else ()):
            if isinstance(each, KeptText) and key == f"{_KEPT}{place}":
                return self._kept_text(key, each)
        printed = {each.id for each in asking.outputs if isinstance(each, AttachmentRef)}
        if key not in printed and READ not in self._grants:
            raise CapabilityDenied(capability=READ, what="this text")
        return self.text(key)

    def _kept_text(self, key: str, kept: KeptText) -> HostText:
        """Return a text that was taken out of the prompt. Its place in `outputs` never changes."""
        with self._guard:
            if key in self._texts:
                return self._texts[key]
        return self._remember(key, HostText(kept.text.encode("utf-8", "replace")))

    # -- for programs --------------------------------------------------------------------------

    def functions(self) -> list[HostFunction]:
        """Return the functions for programs. Those of `attachments` need grants."""
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
                # The outputs depend on the program that calls, and need no wait.
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

    # The docstrings of `put`, `get` and `ls` are shown to programs and recorded with each run.

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
            # Counted before the bytes are stored: parallel puts must not pass the limit together.
            # A put that then fails counts too.
            self._puts += 1
            self._put_bytes += len(raw)
        ref = self.keep(raw, media_type=_text_or_none(media_type), label=_text_or_none(label))
        return _as_dict(ref)

    def get(self, id: object) -> str | bytes | HeldText:
        """The text or the bytes of an attachment, by its id; a very long text as one to slice."""  # noqa: D401 (read by models)
        ref = self._held.reference(_id_of(id)).ref
        if ref.media_type.startswith(_TEXT_TYPES):
            if ref.byte_len > _STR_BYTES_MAX:
                return _handle(ref)
            return self._held.read(ref.id).decode("utf-8", "replace")
        if ref.byte_len > _GET_BYTES_MAX:
            raise UsageError(f"{ref.byte_len:,} bytes; at most {_GET_BYTES_MAX:,} in one get")
        return self._held.read(ref.id)

    def ls(self) -> list[dict[str, object]]:
        """What this session keeps: id, media type, size and label of each."""  # noqa: D401 (read by models)
        kept = [each.ref for each in self._held.references()]
        # Programs must not read the interpreter state with which a run in a session began.
        return [_as_dict(each) for each in kept if each.media_type != SNAPSHOT_TYPE]


def described_bytes(data: bytes, *, media_type: str, label: str) -> AttachmentRef:
    """Return the reference that keeping these bytes would give, without keeping them."""
    declared = Declared(media_type=media_type, label=label)
    id = hashlib.sha256(data).hexdigest()
    return reference_to(id=id, byte_len=len(data), head=data[:HEAD_BYTES], declared=declared)


def _handle(ref: AttachmentRef) -> HeldText:
    return HeldText(key=ref.id, bytes=ref.byte_len, name=ref.label or ref.id[:12])


def _as_dict(ref: AttachmentRef) -> dict[str, object]:
    made: dict[str, object] = msgspec.to_builtins(ref)
    return made


def _id_of(given: object) -> str:
    """Return an id, given as such or as a dictionary that `put` or `ls` returned.

    Raise `UsageError` for anything else.
    """
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


# -- pictures -----------------------------------------------------------------------------------
#
# The bytes of a picture are read just before its request is sent. Until then a message has only the
# reference.


def with_pictures(
    messages: tuple[Message, ...], read: Callable[[AttachmentRef], bytes]
) -> tuple[Message, ...]:
    """Return the messages with the bytes of every picture.

    `read` returns the bytes of a reference. Its error for a missing picture is not caught, so the
    request fails.
    """
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
