"""An interpreter that comes back: the live instance, its last checkpoint, and the journal since.

The instance is the namespace. It is dropped whenever a program is ended from outside, and made
again when it is next needed: from the checkpoint if there is one, else from the guest's image, then
by the journal. Everything here runs in a program thread, one call at a time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from tallystick.core.errors import GuestBroken, SnapshotMismatch, UsageError
from tallystick.sandbox.host import Answer
from tallystick.sandbox.port import HostNames, Limits
from tallystick.sandbox.snapshot import PAGE_BYTES, Image
from tallystick.sandbox.wasm import report
from tallystick.sandbox.wasm.abi import BadPointer
from tallystick.sandbox.wasm.engine import ENGINE
from tallystick.sandbox.wasm.instance import BIND, BOOT, RUN, WASM_PAGE_BYTES, Ended, Instance
from tallystick.sandbox.wasm.journal import Entry, Journal
from tallystick.sandbox.wasm.pages import changed_pages, put_pages

if TYPE_CHECKING:
    from tallystick.sandbox.wasm.sandbox import WasmSandbox

__all__ = ["Namespace", "Prepared"]

# Bounds for our own calls into the guest. It runs code that an earlier program may have patched, so
# it is held like any program: beyond these it is not preparing anything.
_HOUSEKEEPING_FUEL = 100_000_000_000
_HOUSEKEEPING_SECONDS = 20.0
_RESULT_BYTES_MAX = 4 * 1024 * 1024
_RESULT = 3


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot carries beside the memory."""

    seed: int
    clock_ns: int
    names: HostNames = HostNames()
    windows: tuple[tuple[int, int, int], ...] = ()


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What the guest says after a call of our own. Its word: only the types are checked."""

    windows: tuple[tuple[int, int, int], ...] = ()
    modules: tuple[str, ...] | None = None
    message: str = ""


_prepared = msgspec.json.Decoder(Prepared).decode


class Namespace:
    """The state of one session."""

    def __init__(self, sandbox: WasmSandbox, *, seed: int, clock_ns: int) -> None:
        self._sandbox = sandbox
        self._kept = _Kept(seed=seed, clock_ns=clock_ns)
        self._instance: Instance | None = None
        self._checkpoint: Image | None = None
        self._journal = Journal()
        self._closed = False
        self._seconds_max = _HOUSEKEEPING_SECONDS
        self.interrupted = False

    @property
    def windows(self) -> Sequence[tuple[int, int, int]]:
        """Where the guest gathers its output: (stream, address, size)."""
        return self._kept.windows

    def prepared(self, limits: Limits, names: HostNames, *, seconds_max: float) -> Instance:
        """A living instance with these names bound and these limits set."""
        self._seconds_max = min(seconds_max, _HOUSEKEEPING_SECONDS)
        if self._journal.long:
            self.checkpoint()
        instance = self.living()
        if names.key != self._kept.names.key:
            self.call(BIND, report.names_payload(self._kept.names, names))
            # The values are in the guest now; only their names are still needed.
            listed = msgspec.structs.replace(names, values=dict.fromkeys(names.values))
            self._kept = msgspec.structs.replace(self._kept, names=listed)
        instance.set_memory_max(limits.memory_bytes)
        instance.set("grow_refused", 0)
        return instance

    def ran(self, payload: bytes, *, limits: Limits, fuel: int, answers: Sequence[Answer]) -> None:
        """Note a program that ended by itself, so that it can be run again."""
        self._journal.append(
            Entry(
                kind=RUN,
                payload=payload,
                memory_bytes_max=limits.memory_bytes,
                request_bytes_max=limits.request_bytes,
                fuel_limit=limits.fuel,
                fuel=fuel,
                answers=answers,
            )
        )

    def living(self) -> Instance:
        """The instance, made again if the last program was ended from outside."""
        if self._closed:
            raise UsageError("the session is closed")
        if self._instance is None:
            self._instance = self._made()
        return self._instance

    def drop(self) -> None:
        """Give up the instance; the namespace stays as the last checkpoint and the journal say."""
        instance, self._instance = self._instance, None
        if instance is not None:
            instance.close()

    def call(self, kind: int, payload: bytes) -> Prepared:
        """Call the guest on our own account: it may ask nothing of the host, and must not fail."""
        return self._call(self.living(), kind, payload)

    def checkpoint(self) -> Image:
        """Copy what differs from the guest's image; the journal starts afresh from there."""
        instance = self.living()
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
        """Become what the image says. Refused by name for another guest or engine."""
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
            kept = msgspec.json.decode(image.session, type=_Kept)
        except msgspec.MsgspecError as error:
            raise SnapshotMismatch(f"the snapshot's session cannot be read: {error}") from error
        self.drop()
        self._checkpoint, self._kept = image, kept
        self._journal.clear()

    def close(self) -> None:
        self._closed = True
        self.drop()
        self._journal.clear()
        self._checkpoint = None

    # -- making --------------------------------------------------------------------------------

    def _made(self) -> Instance:
        instance = self._sandbox.new_instance()
        try:
            if self._checkpoint is not None:
                self._put(instance, self._checkpoint)
            else:
                instance.set("clock", self._kept.clock_ns)
                instance.set("rng", _signed(_spread(self._kept.seed)))
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
        answered = self._call(instance, BOOT, report.names_payload(HostNames(), HostNames()))
        self._kept = msgspec.structs.replace(self._kept, windows=answered.windows)

    def _put(self, instance: Instance, image: Image) -> None:
        instance.grow_to(image.memory_bytes)
        put_pages(base=instance.base, indices=image.indices, pages=image.pages)
        for name, value in image.state.items():
            instance.set(name, value)

    def _call(self, instance: Instance, kind: int, payload: bytes) -> Prepared:
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
            prepared = _prepared(said[0])
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
                fuel_limit=_HOUSEKEEPING_FUEL,
                fuel=instance.fuel_used(),
            )
        )
        return prepared


def _check_image(image: Image, *, state: Sequence[str], memory_bytes_max: int) -> None:
    """Refuse pages that would be written outside the guest, whatever store they come from."""
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
    """Spread a seed over 64 bits, so that small seeds do not begin alike."""
    return (seed * 0x9E3779B97F4A7C15 + 0xD1B54A32D192ED03) & 0xFFFF_FFFF_FFFF_FFFF


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
