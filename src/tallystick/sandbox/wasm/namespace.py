"""Keep the state of one interpreter, and rebuild it after a program was stopped from outside.

The instance holds the variables. A program that is stopped from outside leaves it in an unknown
state, so the instance is discarded. The next use loads the last checkpoint, or else the guest's
image. Then it runs the programs since then again, on their recorded answers (the journal).
Everything here runs in a program thread, one call at a time.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from ctypes import c_char_p, c_void_p, cast, memmove, string_at
from math import inf
from typing import TYPE_CHECKING

import msgspec

from tallystick.core.errors import GuestBroken, SandboxError, SnapshotMismatch, UsageError
from tallystick.sandbox.host import Answer, call_digest
from tallystick.sandbox.port import HostNames, Limits
from tallystick.sandbox.snapshot import PAGE_BYTES, Image
from tallystick.sandbox.wasm.engine import BadPointer
from tallystick.sandbox.wasm.execution import FUEL_MARGIN, names_payload, oversized_request
from tallystick.sandbox.wasm.image import ENGINE
from tallystick.sandbox.wasm.instance import BIND, BOOT, RUN, WASM_PAGE_BYTES, Ended, Instance

if TYPE_CHECKING:
    from tallystick.sandbox.wasm.sandbox import WasmSandbox


# Find the pages of a guest's memory that differ from its image, and write pages back.
#
# On Linux the kernel tells which pages of a private mapping were written: those that are present or
# swapped out, and no longer backed by the file. Only these are compared. On other systems, or if
# the kernel does not tell, all pages are compared. Only pages that differ are stored, so the
# snapshot is the same in both cases.


_PRESENT, _SWAPPED, _OF_FILE = 1 << 63, 1 << 62, 1 << 61
_ENTRY_BYTES = 8
_ZEROS = bytes(PAGE_BYTES)
_CHUNK_PAGES = 64


def changed_pages(*, base: int, size: int, image_base: int, image_size: int) -> list[int]:
    """Return the indices of the pages at `base` that differ from the image, in order.

    Beyond the end of the image, a page of zeros does not differ. Sizes are in bytes.
    """
    candidates: Iterable[int] | None = _written_pages(base, size // PAGE_BYTES)
    if candidates is None:
        candidates = _unequal_chunks(range(size // PAGE_BYTES), base, image_base, image_size)
    found = []
    for page in candidates:
        offset = page * PAGE_BYTES
        now = string_at(base + offset, PAGE_BYTES)
        then = string_at(image_base + offset, PAGE_BYTES) if offset < image_size else _ZEROS
        if now != then:
            found.append(page)
    return found


def put_pages(*, base: int, indices: Sequence[int], pages: Sequence[bytes]) -> None:
    """Write pages to the memory at `base`; neighbouring pages are written in one move.

    The caller checks that all of them are inside the memory.
    """
    for first, count in _neighbours(indices):
        data = b"".join(pages[first : first + count])
        source = cast(c_char_p(data), c_void_p)
        memmove(base + indices[first] * PAGE_BYTES, source, len(data))


def _written_pages(base: int, count: int) -> list[int] | None:
    """Return the pages of this mapping that were written, or None if the kernel does not tell."""
    if base % PAGE_BYTES:
        return None
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            file.seek(base // PAGE_BYTES * _ENTRY_BYTES)
            raw = file.read(count * _ENTRY_BYTES)
    except OSError:
        return None
    if len(raw) != count * _ENTRY_BYTES:
        return None
    entries = struct.unpack(f"<{count}Q", raw)
    return [
        page
        for page, entry in enumerate(entries)
        if entry & (_PRESENT | _SWAPPED) and not entry & _OF_FILE
    ]


def _unequal_chunks(pages: range, base: int, image_base: int, image_size: int) -> Iterator[int]:
    """Yield pages without those in chunks that are equal as a whole.

    One comparison of 256 KiB takes about as long as one of 4 KiB.
    """
    for first in range(0, len(pages), _CHUNK_PAGES):
        offset = first * PAGE_BYTES
        length = min(_CHUNK_PAGES, len(pages) - first) * PAGE_BYTES
        now = string_at(base + offset, length)
        if offset + length <= image_size:
            same = now == string_at(image_base + offset, length)
        elif offset >= image_size:
            same = not any(now)
        else:
            same = False
        if not same:
            yield from range(first, first + length // PAGE_BYTES)


def _neighbours(indices: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Yield the position and the length of each series of neighbouring indices."""
    first = 0
    for position in range(1, len(indices) + 1):
        ended = position == len(indices) or indices[position] != indices[position - 1] + 1
        if ended:
            yield first, position - first
            first = position


# The calls into an interpreter since its last checkpoint, so that they can be repeated.
#
# A program that is stopped from outside leaves its interpreter in an unknown state. Rejected: a
# copy of the memory before each program. Every program would pay for the few that are stopped.
# Instead, the state is rebuilt from the last checkpoint, by running the programs since then again
# on their recorded answers. Programs are deterministic, so this is sound, and their fuel is
# compared. Before a program, a checkpoint is taken if repeating its predecessors would cost more
# than copying pages.


# About a fifth of a second of guest time (a checkpoint of a typical session takes ten
# milliseconds), and a limit on the memory for recorded answers.
_FUEL_MAX = 1_500_000_000
_ANSWER_BYTES_MAX = 8 * 1024 * 1024


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One call into the guest that ended by itself, with the answers that it got."""

    kind: int
    payload: bytes
    memory_bytes_max: int
    request_bytes_max: int
    fuel: int
    answers: Sequence[Answer] = ()


class Journal:
    """The calls into the guest since the last checkpoint."""

    def __init__(self) -> None:
        self._entries: list[Entry] = []
        self._fuel = 0
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def long(self) -> bool:
        """True if a checkpoint is cheaper than repeating the entries, by their fuel and answers.

        Those are over 1,500,000,000 units, or over 8 MiB.
        """
        return self._fuel > _FUEL_MAX or self._bytes > _ANSWER_BYTES_MAX

    def append(self, entry: Entry) -> None:
        """Add a call that was made."""
        self._entries.append(entry)
        self._fuel += entry.fuel
        self._bytes += len(entry.payload) + sum(len(answer.reply) for answer in entry.answers)

    def clear(self) -> None:
        self._entries.clear()
        self._fuel = self._bytes = 0

    def replay(self, instance: Instance) -> None:
        """Repeat all entries in a fresh instance.

        Raise `SandboxError` if one fails, asks for something else, or uses other fuel.
        """
        for entry in self._entries:
            try:
                _repeat(instance, entry)
            except (Ended, BadPointer) as error:
                raise SandboxError(f"a program could not be run again: {error}") from error
            if instance.fuel_used() != entry.fuel:
                raise SandboxError("a program used other fuel when it was run again")


def _repeat(instance: Instance, entry: Entry) -> None:
    answers = iter(entry.answers)

    def serve(request: bytes) -> bytes:
        answer = next(answers, None)
        if answer is None or answer.request_sha256 != call_digest(request):
            raise SandboxError("a program asked for something else when it was run again")
        return answer.reply

    instance.on_call = serve
    instance.on_oversized = lambda length: serve(oversized_request(length))
    instance.request_bytes_max = entry.request_bytes_max
    instance.set_memory_max(entry.memory_bytes_max)
    if entry.kind == RUN:
        instance.set("grow_refused", 0)
    # The fuel that it used, and not its old limit: a program that diverges is stopped early.
    instance.invoke(entry.kind, entry.payload, fuel=entry.fuel + FUEL_MARGIN)


# The state of one interpreter: the live instance, its last checkpoint, and the journal since.


# Limits for our own calls into the guest. They run code that an earlier program may have patched,
# so they are limited like any program.
_HOUSEKEEPING_FUEL = 100_000_000_000
_HOUSEKEEPING_SECONDS = 20.0
_RESULT_BYTES_MAX = 4 * 1024 * 1024
_RESULT = 3


class _SessionData(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a snapshot beside the memory: seed, clock, bound names and output buffers."""

    seed: int
    clock_ns: int
    names: HostNames = HostNames()
    windows: tuple[tuple[int, int, int], ...] = ()


class GuestReply(msgspec.Struct, frozen=True, kw_only=True):
    """The guest's reply to one of our own calls. It is not trusted; only its types are checked."""

    windows: tuple[tuple[int, int, int], ...] = ()
    modules: tuple[str, ...] | None = None
    message: str = ""


_decode_reply = msgspec.json.Decoder(GuestReply).decode


class Namespace:
    """The state of one interpreter. Set `interrupted` to end a call of ours into the guest."""

    def __init__(self, sandbox: WasmSandbox, *, seed: int, clock_ns: int) -> None:
        self._sandbox = sandbox
        self._kept = _SessionData(seed=seed, clock_ns=clock_ns)
        self._instance: Instance | None = None
        self._checkpoint: Image | None = None
        self._journal = Journal()
        self._closed = False
        self._seconds_max = _HOUSEKEEPING_SECONDS
        self.interrupted = False

    @property
    def windows(self) -> Sequence[tuple[int, int, int]]:
        """The buffers in which the guest collects output: (stream, address, size)."""
        return self._kept.windows

    def prepare(self, limits: Limits, names: HostNames, *, seconds_max: float | None) -> Instance:
        """Return the live instance with these names bound and this memory limit set.

        Take a checkpoint first if the journal is long. Each own call into the guest may take
        `seconds_max`, and 20 s at most; None is no time limit, for a program that is run again: it
        was prepared once already. Raise `GuestBroken` if the interpreter cannot be prepared,
        `SandboxError` if it cannot be rebuilt, and `UsageError` if the session is closed.
        """
        self._seconds_max = inf if seconds_max is None else min(seconds_max, _HOUSEKEEPING_SECONDS)
        if self._journal.long:
            self.checkpoint()
        instance = self.live_instance()
        if names.key != self._kept.names.key:
            self.call(BIND, names_payload(self._kept.names, names))
            # The guest has the values now. Only their names are needed, to remove them later.
            listed = msgspec.structs.replace(names, values=dict.fromkeys(names.values))
            self._kept = msgspec.structs.replace(self._kept, names=listed)
        instance.set_memory_max(limits.memory_bytes)
        instance.set("grow_refused", 0)
        return instance

    def add_program(
        self, payload: bytes, *, limits: Limits, fuel: int, answers: Sequence[Answer]
    ) -> None:
        """Add a program that ended by itself to the journal, so that it can be run again."""
        self._journal.append(
            Entry(
                kind=RUN,
                payload=payload,
                memory_bytes_max=limits.memory_bytes,
                request_bytes_max=limits.request_bytes,
                fuel=fuel,
                answers=answers,
            )
        )

    def live_instance(self) -> Instance:
        """Return the live instance; rebuild it if it was dropped.

        Raise `UsageError` if the session is closed, and what `_rebuild` raises.
        """
        if self._closed:
            raise UsageError("the session is closed")
        if self._instance is None:
            self._instance = self._rebuild()
        return self._instance

    def drop(self) -> None:
        """Discard the instance. The next use rebuilds it from the checkpoint and the journal."""
        instance, self._instance = self._instance, None
        if instance is not None:
            instance.close()

    def call(self, kind: int, payload: bytes) -> GuestReply:
        """Call the guest for ourselves, without host calls, and add the call to the journal.

        Raise `GuestBroken` if the guest fails, asks the host, or replies with something else. The
        instance is dropped then. Raise as `live_instance` does.
        """
        return self._call(self.live_instance(), kind, payload)

    def checkpoint(self) -> Image:
        """Copy the pages that differ from the guest's image, clear the journal, return the copy.

        A dropped instance is rebuilt first. Raise as `live_instance` does.
        """
        instance = self.live_instance()
        pristine = self._sandbox.pristine
        size = instance.memory_size()
        indices = changed_pages(
            base=instance.base,
            size=size,
            image_base=pristine.base,
            image_size=pristine.memory_size(),
        )
        self._checkpoint = Image(
            guest=self._sandbox.guest.image.sha256,
            engine=ENGINE,
            memory_bytes=size,
            state=instance.state(),
            session=msgspec.json.encode(self._kept),
            indices=indices,
            pages=[instance.page(index) for index in indices],
        )
        self._journal.clear()
        return self._checkpoint

    def load(self, image: Image) -> None:
        """Replace the state by an image. It is loaded into an instance at the next use.

        Raise `SnapshotMismatch` if the image was made by another guest or engine, is damaged, or
        needs more memory than is allowed. The state is unchanged then.
        """
        guest = self._sandbox.guest.image
        if image.guest != guest.sha256:
            raise SnapshotMismatch(
                f"the snapshot was made by guest {image.guest[:12]}; "
                f"this is guest {guest.sha256[:12]}"
            )
        if image.engine != ENGINE:
            raise SnapshotMismatch(
                f"the snapshot was made by engine {image.engine!r}; this is {ENGINE!r}"
            )
        _check_image(image, state=guest.state, memory_bytes_max=self._sandbox.memory_bytes_max)
        try:
            kept = msgspec.json.decode(image.session, type=_SessionData)
        except msgspec.MsgspecError as error:
            raise SnapshotMismatch(f"the snapshot's session cannot be read: {error}") from error
        self.drop()
        self._checkpoint, self._kept = image, kept
        self._journal.clear()

    def close(self) -> None:
        """Free the instance and the checkpoint. Closing twice is harmless."""
        self._closed = True
        self.drop()
        self._journal.clear()
        self._checkpoint = None

    # -- making --------------------------------------------------------------------------------

    def _rebuild(self) -> Instance:
        """Return a new instance in the state of the checkpoint and the journal.

        Raise `GuestBroken` if a fresh guest does not start, and what `Journal.replay` raises.
        """
        instance = self._sandbox.new_instance()
        try:
            if self._checkpoint is not None:
                self._put(instance, self._checkpoint)
            else:
                instance.set("clock", self._kept.clock_ns)
                instance.set("rng", _as_signed(_spread(self._kept.seed)))
                if len(self._journal) == 0:
                    self._boot(instance)
                    return instance
            with self._sandbox.guest.ticker:
                self._journal.replay(instance)
        except BaseException:
            instance.close()
            raise
        return instance

    def _boot(self, instance: Instance) -> None:
        answered = self._call(instance, BOOT, names_payload(HostNames(), HostNames()))
        self._kept = msgspec.structs.replace(self._kept, windows=answered.windows)

    def _put(self, instance: Instance, image: Image) -> None:
        instance.grow_to(image.memory_bytes)
        put_pages(base=instance.base, indices=image.indices, pages=image.pages)
        for name, value in image.state.items():
            instance.set(name, value)

    def _call(self, instance: Instance, kind: int, payload: bytes) -> GuestReply:
        said: list[bytes] = [b""]
        ends_at = time.monotonic() + self._seconds_max

        def listen(handle: int, data: bytes) -> None:
            if handle == _RESULT and len(data) <= _RESULT_BYTES_MAX:
                said[0] = data

        def tick() -> str | None:
            return "interrupted" if self.interrupted or time.monotonic() > ends_at else None

        instance.refuse_calls()
        instance.on_stdio = listen
        instance.on_tick = tick
        memory_max = self._sandbox.memory_bytes_max
        instance.set_memory_max(memory_max)
        try:
            with self._sandbox.guest.ticker:
                instance.invoke(kind, payload, fuel=_HOUSEKEEPING_FUEL)
            prepared = _decode_reply(said[0])
        except (Ended, BadPointer, msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            self.drop()
            raise GuestBroken(
                f"the session's interpreter could not be prepared: {error}; "
                "an earlier program may have broken it"
            ) from error
        self._journal.append(
            Entry(
                kind=kind,
                payload=payload,
                memory_bytes_max=memory_max,
                request_bytes_max=0,
                fuel=instance.fuel_used(),
            )
        )
        return prepared


def _check_image(image: Image, *, state: Sequence[str], memory_bytes_max: int) -> None:
    """Raise `SnapshotMismatch` for pages that would be written outside of the guest's memory.

    Raise it too for an image that needs too much memory, or has other globals than the guest.
    Images are checked here because they may come from any store.
    """
    if image.memory_bytes > memory_bytes_max:
        raise SnapshotMismatch(
            f"the snapshot needs {image.memory_bytes:,} bytes of memory; "
            f"at most {memory_bytes_max:,} are allowed"
        )
    pages_max = image.memory_bytes // PAGE_BYTES
    fits = (
        image.memory_bytes % WASM_PAGE_BYTES == 0
        and len(image.indices) == len(image.pages)
        and all(0 <= index < pages_max for index in image.indices)
        and all(len(page) == PAGE_BYTES for page in image.pages)
        and list(image.indices) == sorted(set(image.indices))
        and set(image.state) == set(state)
    )
    if not fits:
        raise SnapshotMismatch("the snapshot's pages do not fit its own memory")


def _spread(seed: int) -> int:
    """Spread a seed over 64 bits, so that small seeds do not start with similar numbers."""
    return (seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) & 0xFFFF_FFFF_FFFF_FFFF


def _as_signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
