"""The virtual WASI, run on its own: each function is called and looked at from outside."""

import struct
from collections.abc import Iterable

import pytest
import wasmtime
from tests.guest.wat import assemble
from tools.guest.wasm.binary import I32, I64, BadWasm
from tools.guest.wasm.flatten import OUTSIDE_MEMORY, OUTSIDE_PLAIN, Outside, Plan
from tools.guest.wasm.module import FunctionType
from tools.guest.wasm.numbering import HOST, Target
from tools.guest.wasm.virtual_wasi import BODIES, entry_module, virtual_wasi

LIBC = """
(module
  (memory (export "memory") 2)
  (global $next (mut i32) (i32.const 32768))
  (func (export "realloc") (param i32 i32 i32 i32) (result i32)
    (global.get $next)
    (global.set $next (i32.add (global.get $next) (local.get 3)))))
"""
SECOND_NS = 1_000_000_000
START = 1_700_000_000 * SECOND_NS
RESULT = 1_024  # Where functions are told to write their results.

# As the guest's C library imports them: parameters, results, and whether memory comes with it.
PLAIN = {
    "wasi:cli/stdin#get-stdin": ((), (I32,)),
    "wasi:cli/stdout#get-stdout": ((), (I32,)),
    "wasi:cli/stderr#get-stderr": ((), (I32,)),
    "wasi:cli/exit#exit": ((I32,), ()),
    "wasi:clocks/monotonic-clock#now": ((), (I64,)),
    "wasi:clocks/monotonic-clock#resolution": ((), (I64,)),
    "wasi:clocks/monotonic-clock#subscribe-instant": ((I64,), (I32,)),
    "wasi:clocks/monotonic-clock#subscribe-duration": ((I64,), (I32,)),
    "wasi:io/poll#[method]pollable.block": ((I32,), ()),
    "wasi:io/poll#[resource-drop]pollable": ((I32,), ()),
    "wasi:io/streams#[method]input-stream.subscribe": ((I32,), (I32,)),
    "wasi:io/streams#[method]output-stream.subscribe": ((I32,), (I32,)),
    "wasi:sockets/instance-network#instance-network": ((), (I32,)),
    "wasi:sockets/tcp#[method]tcp-socket.subscribe": ((I32,), (I32,)),
}
WITH_MEMORY = {
    "wasi:cli/environment#get-arguments": ((I32,), ()),
    "wasi:cli/environment#get-environment": ((I32,), ()),
    "wasi:cli/terminal-stdin#get-terminal-stdin": ((I32,), ()),
    "wasi:cli/terminal-stdout#get-terminal-stdout": ((I32,), ()),
    "wasi:cli/terminal-stderr#get-terminal-stderr": ((I32,), ()),
    "wasi:clocks/wall-clock#now": ((I32,), ()),
    "wasi:clocks/wall-clock#resolution": ((I32,), ()),
    "wasi:filesystem/preopens#get-directories": ((I32,), ()),
    "wasi:filesystem/types#[method]descriptor.stat": ((I32, I32), ()),
    "wasi:io/poll#poll": ((I32, I32, I32), ()),
    "wasi:io/streams#[method]input-stream.read": ((I32, I64, I32), ()),
    "wasi:io/streams#[method]output-stream.blocking-flush": ((I32, I32), ()),
    "wasi:io/streams#[method]output-stream.blocking-write-and-flush": ((I32,) * 4, ()),
    "wasi:io/streams#[method]output-stream.check-write": ((I32, I32), ()),
    "wasi:io/streams#[method]output-stream.write": ((I32,) * 4, ()),
    "wasi:random/random#get-random-bytes": ((I64, I32), ()),
    "wasi:sockets/ip-name-lookup#resolve-addresses": ((I32,) * 4, ()),
    "wasi:sockets/tcp-create-socket#create-tcp-socket": ((I32, I32), ()),
    "wasi:sockets/udp-create-socket#create-udp-socket": ((I32, I32), ()),
}


def outside(label: str, name: str, kind: FunctionType, realloc: Target | None) -> Outside:
    interface, _, function = name.partition("#")
    target = Target(label, f"{name}@1")
    return Outside(
        target=target, interface=interface, function=function, type=kind, realloc=realloc
    )


def plan(functions: Iterable[Outside]) -> Plan:
    return Plan(
        parts=(),
        outside=tuple(functions),
        memory=Target("libc", "memory"),
        stack_pointer=Target("libc", "sp"),
        run=Target("libc", "run"),
        post_return=None,
    )


def whole_plan() -> Plan:
    realloc = Target("libc", "realloc")
    plain = [
        outside(OUTSIDE_PLAIN, name, FunctionType(*kind), None) for name, kind in PLAIN.items()
    ]
    memory = [
        outside(OUTSIDE_MEMORY, name, FunctionType(*kind), realloc)
        for name, kind in WITH_MEMORY.items()
    ]
    return plan([*plain, *memory])


class World:
    """The two modules, linked live around a memory."""

    def __init__(self) -> None:
        engine = wasmtime.Engine()
        self.store = wasmtime.Store(engine)
        self.said: list[tuple[int, bytes]] = []
        linker = wasmtime.Linker(engine)
        i32 = wasmtime.ValType.i32()
        linker.define_func(HOST, "stdio", wasmtime.FuncType([i32] * 3, []), self._stdio)
        plain, memory = virtual_wasi(whole_plan())
        self._exports: dict[str, object] = {}
        for label, text in [(plain.label, plain.text), ("libc", LIBC), (memory.label, memory.text)]:
            instance = linker.instantiate(self.store, wasmtime.Module(engine, assemble(text)))
            linker.define_instance(self.store, label, instance)
            exports = instance.exports(self.store)
            self._exports.update({name: exports[name] for name in exports})
        found = self._exports["memory"]
        assert isinstance(found, wasmtime.Memory)
        self.memory = found

    def _stdio(self, handle: int, start: int, length: int) -> None:
        self.said.append((handle, self.read(start, length)))

    def read(self, start: int, length: int) -> bytes:
        return bytes(self.memory.read(self.store, start, start + length))

    def write(self, start: int, content: bytes) -> None:
        self.memory.write(self.store, content, start)

    def result(self, form: str) -> tuple[int, ...]:
        return struct.unpack(form, self.read(RESULT, struct.calcsize(form)))

    def call(self, name: str, *arguments: int) -> int | None:
        function = self._exports[name if name == "grow" else f"{name}@1"]
        assert isinstance(function, wasmtime.Func)
        result = function(self.store, *arguments)
        assert result is None or isinstance(result, int)
        return result

    def value(self, name: str) -> int:
        found = self._exports[name]
        assert isinstance(found, wasmtime.Global)
        value = found.value(self.store)
        assert isinstance(value, int)
        return value

    def set(self, name: str, value: int) -> None:
        found = self._exports[name]
        assert isinstance(found, wasmtime.Global)
        found.set_value(self.store, value)

    def poll(self, *handles: int) -> list[int]:
        """Wait for some handles; give back the positions of those that are ready."""
        self.write(64, struct.pack(f"<{len(handles)}I", *handles))
        self.call("wasi:io/poll#poll", 64, len(handles), RESULT)
        start, count = self.result("<II")
        return list(struct.unpack(f"<{count}I", self.read(start, 4 * count)))


@pytest.fixture
def world() -> World:
    return World()


def test_every_function_that_has_a_body_is_looked_at_here() -> None:
    assert set(BODIES) <= set(PLAIN) | set(WITH_MEMORY)


def test_each_reading_of_the_clock_is_a_microsecond_later(world: World) -> None:
    readings = [world.call("wasi:clocks/monotonic-clock#now") for _ in range(3)]

    assert readings == [START + 1_000, START + 2_000, START + 3_000]
    assert world.value("clock") == START + 3_000


def test_the_host_can_set_the_clock_at_any_time(world: World) -> None:
    world.set("clock", 5 * SECOND_NS)

    assert world.call("wasi:clocks/monotonic-clock#now") == 5 * SECOND_NS + 1_000


def test_the_clock_on_the_wall_is_the_same_clock_in_seconds_and_nanoseconds(world: World) -> None:
    world.set("clock", 12 * SECOND_NS + 345_678_000)

    world.call("wasi:clocks/wall-clock#now", RESULT)

    assert world.result("<QI") == (12, 345_679_000)


def test_clocks_say_how_fine_they_are(world: World) -> None:
    world.call("wasi:clocks/wall-clock#resolution", RESULT)

    assert world.call("wasi:clocks/monotonic-clock#resolution") == 1_000
    assert world.result("<QI") == (0, 1_000)


def test_waiting_for_a_timer_moves_time_to_its_deadline(world: World) -> None:
    timer = world.call("wasi:clocks/monotonic-clock#subscribe-duration", 5 * SECOND_NS)
    assert timer is not None

    world.call("wasi:io/poll#[method]pollable.block", timer)

    assert world.value("deadline") == START + 1_000 + 5 * SECOND_NS
    assert world.value("clock") == world.value("deadline")


def test_a_deadline_that_has_passed_does_not_move_time_back(world: World) -> None:
    timer = world.call("wasi:clocks/monotonic-clock#subscribe-instant", 7)
    assert timer is not None

    world.call("wasi:io/poll#[method]pollable.block", timer)

    assert world.poll(timer) == [0]
    assert world.value("clock") == START


def test_polling_a_timer_alone_waits_for_it(world: World) -> None:
    timer = world.call("wasi:clocks/monotonic-clock#subscribe-duration", SECOND_NS)
    assert timer is not None

    assert world.poll(timer) == [0]
    assert world.value("clock") == START + 1_000 + SECOND_NS


def test_polling_a_stream_and_a_timer_does_not_wait(world: World) -> None:
    timer = world.call("wasi:clocks/monotonic-clock#subscribe-duration", SECOND_NS)
    stream = world.call("wasi:io/streams#[method]input-stream.subscribe", 0)
    assert timer is not None
    assert stream is not None

    assert world.poll(timer, stream, stream) == [1, 2]
    assert world.value("clock") == START + 1_000


def test_polling_a_stream_and_a_timer_that_is_due_gives_both(world: World) -> None:
    timer = world.call("wasi:clocks/monotonic-clock#subscribe-instant", START)
    stream = world.call("wasi:io/streams#[method]output-stream.subscribe", 1)
    assert timer is not None
    assert stream is not None

    assert world.poll(timer, stream) == [0, 1]


def test_blocking_on_a_stream_returns_at_once(world: World) -> None:
    world.call("wasi:clocks/monotonic-clock#subscribe-duration", SECOND_NS)
    stream = world.call("wasi:io/streams#[method]input-stream.subscribe", 0)
    assert stream is not None

    world.call("wasi:io/poll#[method]pollable.block", stream)

    assert world.value("clock") == START + 1_000


def splitmix(state: int) -> tuple[int, int]:
    mask = 2**64 - 1
    state = (state + 0x9E3779B97F4A7C15) & mask
    z = state
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return state, z ^ z >> 31


@pytest.mark.parametrize("length", [0, 1, 8, 9, 32])
def test_random_bytes_are_splitmix_over_the_seed(world: World, length: int) -> None:
    world.set("rng", 1234)
    state, expected = 1234, b""
    while len(expected) < length:
        state, number = splitmix(state)
        expected += number.to_bytes(8, "little")

    world.call("wasi:random/random#get-random-bytes", length, RESULT)
    start, count = world.result("<II")

    assert count == length
    assert world.read(start, count) == expected[:length]
    assert world.value("rng") % 2**64 == state


@pytest.mark.parametrize(
    "name",
    [
        "wasi:cli/environment#get-arguments",
        "wasi:cli/environment#get-environment",
        "wasi:filesystem/preopens#get-directories",
    ],
)
def test_there_are_no_arguments_variables_or_directories(world: World, name: str) -> None:
    world.write(RESULT, b"\xff" * 8)

    world.call(name, RESULT)

    assert world.result("<II")[1] == 0


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_no_stream_is_a_terminal(world: World, stream: str) -> None:
    world.write(RESULT, b"\xff")

    world.call(f"wasi:cli/terminal-{stream}#get-terminal-{stream}", RESULT)

    assert world.result("<B") == (0,)


def test_reading_the_input_says_that_it_is_closed(world: World) -> None:
    handle = world.call("wasi:cli/stdin#get-stdin")
    assert handle == 0

    world.call("wasi:io/streams#[method]input-stream.read", handle, 10, RESULT)

    assert world.result("<B3xB") == (1, 1)


@pytest.mark.parametrize("function", ["write", "blocking-write-and-flush"])
@pytest.mark.parametrize(("stream", "number"), [("stdout", 1), ("stderr", 2)])
def test_what_is_written_reaches_the_host(
    world: World, function: str, stream: str, number: int
) -> None:
    handle = world.call(f"wasi:cli/{stream}#get-{stream}")
    assert handle == number
    world.write(200, b"hello")
    world.write(RESULT, b"\xff")

    world.call(f"wasi:io/streams#[method]output-stream.{function}", handle, 200, 5, RESULT)

    assert world.said == [(number, b"hello")]
    assert world.result("<B") == (0,)


def test_output_is_never_full_and_always_flushed(world: World) -> None:
    world.write(RESULT, b"\xff" * 16)
    world.call("wasi:io/streams#[method]output-stream.check-write", 1, RESULT)
    assert world.result("<B7xQ") == (0, 65_536)

    world.write(RESULT, b"\xff")
    world.call("wasi:io/streams#[method]output-stream.blocking-flush", 1, RESULT)
    assert world.result("<B") == (0,)


def test_sockets_and_names_are_refused_and_not_traps(world: World) -> None:
    network = world.call("wasi:sockets/instance-network#instance-network")
    assert network is not None
    calls = {
        "wasi:sockets/tcp-create-socket#create-tcp-socket": (0, RESULT),
        "wasi:sockets/udp-create-socket#create-udp-socket": (0, RESULT),
        "wasi:sockets/ip-name-lookup#resolve-addresses": (network, 200, 3, RESULT),
    }

    for name, arguments in calls.items():
        world.write(RESULT, b"\0" * 8)
        world.call(name, *arguments)
        assert world.result("<B3xB") == (1, 1), name


def test_giving_up_a_handle_does_nothing(world: World) -> None:
    assert world.call("wasi:io/poll#[resource-drop]pollable", 9) is None


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("wasi:cli/exit#exit", (0,)),
        ("wasi:filesystem/types#[method]descriptor.stat", (3, RESULT)),
        ("wasi:sockets/tcp#[method]tcp-socket.subscribe", (3,)),
    ],
)
def test_what_no_program_should_reach_is_a_trap(
    world: World, name: str, arguments: tuple[int, ...]
) -> None:
    with pytest.raises(wasmtime.Trap) as caught:
        world.call(name, *arguments)

    assert caught.value.trap_code is wasmtime.TrapCode.UNREACHABLE


def test_memory_grows_while_it_stays_within_the_limit(world: World) -> None:
    world.set("memory_pages_max", 5)

    assert world.call("grow", 3) == 2
    assert world.call("grow", 0) == 5
    assert world.value("grow_refused") == 0


def test_a_growth_past_the_limit_is_refused_and_counted(world: World) -> None:
    world.set("memory_pages_max", 5)

    assert [world.call("grow", pages) for pages in (4, 100, -1)] == [-1, -1, -1]
    assert world.value("grow_refused") == 3
    assert world.memory.size(world.store) == 2


def test_unless_told_otherwise_the_limit_is_all_that_can_be_addressed(world: World) -> None:
    assert world.value("memory_pages_max") == 65_536


def test_a_growth_the_engine_refuses_is_not_counted_as_ours(world: World) -> None:
    world.store.set_limits(memory_size=3 * 65_536)

    assert world.call("grow", 4) == -1
    assert world.value("grow_refused") == 0


def test_a_function_that_must_allocate_and_can_not_is_refused() -> None:
    name = "wasi:random/random#get-random-bytes"
    lonely = outside(OUTSIDE_MEMORY, name, FunctionType((I64, I32), ()), None)

    with pytest.raises(BadWasm, match="is given no way to allocate"):
        virtual_wasi(plan([lonely]))


def test_a_function_with_a_result_and_no_place_for_it_is_refused() -> None:
    placeless = outside(OUTSIDE_MEMORY, "wasi:clocks/wall-clock#now", FunctionType((), ()), None)

    with pytest.raises(BadWasm, match="is given no place for its result"):
        virtual_wasi(plan([placeless]))


@pytest.mark.parametrize("name", ['x") (func (unreachable', "a\\b", "é\n", "\0"])
def test_a_name_can_not_say_more_than_a_name_does(name: str) -> None:
    strange = outside(OUTSIDE_PLAIN, f"{name}#f", FunctionType((), ()), None)

    module, _ = virtual_wasi(plan([strange]))

    exports = wasmtime.Module(wasmtime.Engine(), assemble(module.text)).exports
    assert f"{name}#f@1" in [each.name for each in exports]


def test_run_may_have_nothing_to_call_afterwards() -> None:
    module = entry_module(plan([]), FunctionType((I32, I64), (I64,)))

    (run,) = wasmtime.Module(wasmtime.Engine(), assemble(module.text)).imports

    assert (run.module, run.name) == ("libc", "run")
