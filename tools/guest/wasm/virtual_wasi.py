"""The world as the guest's C library sees it: the outside functions, written as WebAssembly text.

Nothing here reaches the host but `stdio`. Time, chance and waiting are computed inside the
module, from globals the host sets before a run, so the same globals give the same run:

- `clock`: nanoseconds. Each reading adds a microsecond, so time passes without anybody's help.
- `deadline`: when the last timer that was asked for is due. Waiting for it moves `clock` there.
- `rng`: the state of the random numbers.
- `memory_pages_max`, `grow_refused`: the limit on memory, and how often it was met.

There is one `deadline`, so of several timers waited for together the last one made counts.

A function that no program should be able to reach is `unreachable`, a trap: files need a
directory to start from and sockets need to be created, and neither is given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tools.guest.wasm.binary import VALUE_TYPES, BadWasm
from tools.guest.wasm.flatten import OUTSIDE_MEMORY, OUTSIDE_PLAIN, Outside, Plan
from tools.guest.wasm.module import FunctionType
from tools.guest.wasm.numbering import HOST, Target

__all__ = [
    "BODIES",
    "CLOCK",
    "CLOCK_START_NS",
    "CLOCK_TICK_NS",
    "DEADLINE",
    "ENTRY",
    "GROW",
    "GROW_REFUSED",
    "MEMORY_PAGES_MAX",
    "PAGES_MAX",
    "RNG",
    "RUN",
    "WatModule",
    "entry_module",
    "virtual_wasi",
]

ENTRY = "entry"
CLOCK_START_NS = 1_700_000_000_000_000_000
CLOCK_TICK_NS = 1_000
PAGES_MAX = 65_536

CLOCK = Target(OUTSIDE_PLAIN, "clock")
DEADLINE = Target(OUTSIDE_PLAIN, "deadline")
RNG = Target(OUTSIDE_MEMORY, "rng")
MEMORY_PAGES_MAX = Target(OUTSIDE_MEMORY, "memory_pages_max")
GROW_REFUSED = Target(OUTSIDE_MEMORY, "grow_refused")
GROW = Target(OUTSIDE_MEMORY, "grow")
RUN = Target(ENTRY, "run")

# Handles. A resource is only ever one of these, so the numbers can be fixed.
_STDIN, _STDOUT, _STDERR, _NETWORK = 0, 1, 2, 3
_READY, _TIMER = 8, 9


@dataclass(frozen=True, slots=True)
class WatModule:
    """A module in the text format, and the label it is to be merged under."""

    label: str
    text: str


def virtual_wasi(plan: Plan) -> tuple[WatModule, WatModule]:
    """Write the outside functions: first those without memory, then those with it."""
    plain = [each for each in plan.outside if each.target.label == OUTSIDE_PLAIN]
    memory = [each for each in plan.outside if each.target.label == OUTSIDE_MEMORY]
    reallocs = sorted({each.realloc for each in memory if each.realloc is not None}, key=str)
    numbers = {target: number for number, target in enumerate(reallocs)}
    return (
        WatModule(OUTSIDE_PLAIN, _module([_PLAIN_STATE, *_functions(plain, {})])),
        WatModule(
            OUTSIDE_MEMORY,
            _module([_imports(plan.memory, reallocs), _MEMORY_STATE, *_functions(memory, numbers)]),
        ),
    )


def entry_module(plan: Plan, run_type: FunctionType) -> WatModule:
    """Write the function `run`: the exported one, then what must be called after it.

    Done inside the module, the host cannot forget the second call and does not pay for it.
    """
    lines = [f"(import {_quoted(plan.run)} (func $run {_signature(run_type)}))"]
    arguments = " ".join(f"(local.get {i})" for i in range(len(run_type.parameters)))
    body = f"(call $run {arguments})"
    if plan.post_return is not None:
        results = FunctionType(run_type.results, ())
        lines.append(f"(import {_quoted(plan.post_return)} (func $after {_signature(results)}))")
        if len(run_type.results) != 1:
            raise BadWasm(f"run gives {len(run_type.results)} results, not 1")
        kind = VALUE_TYPES[run_type.results[0]]
        body = (
            f"(local $result {kind}) (call $after (local.tee $result {body})) (local.get $result)"
        )
    lines.append(f'(func (export "run") {_signature(run_type)} {body})')
    return WatModule(ENTRY, _module(lines))


def _module(lines: Iterable[str]) -> str:
    return "(module\n" + "\n".join(lines) + "\n)\n"


def _quoted(target: Target) -> str:
    return f"{_string(target.label)} {_string(target.name)}"


def _string(text: str) -> str:
    """Quote a name. It comes from a file, so it could otherwise say more than a name does."""
    safe = (
        chr(byte) if 0x20 <= byte < 0x7F and byte not in b'"\\' else f"\\{byte:02x}"
        for byte in text.encode()
    )
    return '"' + "".join(safe) + '"'


def _signature(kind: FunctionType) -> str:
    parameters = " ".join(f"(param {VALUE_TYPES[each]})" for each in kind.parameters)
    return parameters + " " + " ".join(f"(result {VALUE_TYPES[each]})" for each in kind.results)


_PLAIN_STATE = f"""
(global $clock (export "clock") (mut i64) (i64.const {CLOCK_START_NS}))
(global $deadline (export "deadline") (mut i64) (i64.const 0))

;; Read the clock: it has moved on a little since the last time.
(func $tick (export "tick") (result i64)
  (global.set $clock (i64.add (global.get $clock) (i64.const {CLOCK_TICK_NS})))
  (global.get $clock))

;; Wait for the timer: time jumps to its deadline, unless that has passed.
(func $wake (export "wake")
  (if (i64.gt_u (global.get $deadline) (global.get $clock))
    (then (global.set $clock (global.get $deadline)))))
"""


def _imports(memory: Target, reallocs: Sequence[Target]) -> str:
    lines = [
        f'(import "{OUTSIDE_PLAIN}" "clock" (global $clock (mut i64)))',
        f'(import "{OUTSIDE_PLAIN}" "deadline" (global $deadline (mut i64)))',
        f'(import "{OUTSIDE_PLAIN}" "tick" (func $tick (result i64)))',
        f'(import "{OUTSIDE_PLAIN}" "wake" (func $wake))',
        f'(import "{HOST}" "stdio" (func $stdio (param i32 i32 i32)))',
        f"(import {_quoted(memory)} (memory 0))",
    ]
    lines += [
        f"(import {_quoted(target)} (func $realloc{number} (param i32 i32 i32 i32) (result i32)))"
        for number, target in enumerate(reallocs)
    ]
    return "\n".join(lines)


# Random numbers are splitmix64: 64 bits of state, so the host can hold and set all of it. Whoever
# knows the state knows what follows; nothing made in a guest is a secret.
#
# `grow` stands in for every `memory.grow` of the guest. A limit the host sets on the store would
# do the same, but then the guest could not tell that it was met, and a run that met it could not
# be told from one that was given less.
_MEMORY_STATE = f"""
(global $rng (export "rng") (mut i64) (i64.const 0))
(global $memory_pages_max (export "memory_pages_max") (mut i32) (i32.const {PAGES_MAX}))
(global $grow_refused (export "grow_refused") (mut i32) (i32.const 0))

(func $random (result i64) (local $z i64)
  (global.set $rng (i64.add (global.get $rng) (i64.const 0x9E3779B97F4A7C15)))
  (local.set $z (global.get $rng))
  (local.set $z (i64.mul
    (i64.xor (local.get $z) (i64.shr_u (local.get $z) (i64.const 30)))
    (i64.const 0xBF58476D1CE4E5B9)))
  (local.set $z (i64.mul
    (i64.xor (local.get $z) (i64.shr_u (local.get $z) (i64.const 27)))
    (i64.const 0x94D049BB133111EB)))
  (i64.xor (local.get $z) (i64.shr_u (local.get $z) (i64.const 31))))

(func $grow (export "grow") (param $pages i32) (result i32)
  (if (i64.gt_u
        (i64.add (i64.extend_i32_u (memory.size)) (i64.extend_i32_u (local.get $pages)))
        (i64.extend_i32_u (global.get $memory_pages_max)))
    (then
      (global.set $grow_refused (i32.add (global.get $grow_refused) (i32.const 1)))
      (return (i32.const -1))))
  (memory.grow (local.get $pages)))
"""


def _functions(outside: Iterable[Outside], reallocs: dict[Target, int]) -> list[str]:
    lines = []
    for each in outside:
        body = _body(each)
        if "$realloc" in body:
            if each.realloc is None:
                raise BadWasm(f"{each.target} is given no way to allocate")
            body = body.replace("$realloc", f"$realloc{reallocs[each.realloc]}")
        # The last parameter of a function with a result in memory is where to write it.
        last = len(each.type.parameters) - 1
        if "$result" in body and last < 0:
            raise BadWasm(f"{each.target} is given no place for its result")
        body = body.replace("$result", str(last))
        name = _string(each.target.name)
        lines.append(f"(func (export {name}) {_signature(each.type)}\n  {body})")
    return lines


def _body(each: Outside) -> str:
    if each.function.startswith("[resource-drop]"):
        return ""
    return BODIES.get(f"{each.interface}#{each.function}", "(unreachable)")


# A result<_, error>: one byte says which, and the payload is aligned behind it.
_OK = "(i32.store8 (local.get $result) (i32.const 0))"
_EMPTY_LIST = (
    "(i32.store (local.get $result) (i32.const 4))"
    " (i32.store offset=4 (local.get $result) (i32.const 0))"
)
_NONE = "(i32.store8 (local.get $result) (i32.const 0))"


def _error(code: int) -> str:
    return (
        "(i32.store8 (local.get $result) (i32.const 1))"
        f" (i32.store8 offset=4 (local.get $result) (i32.const {code}))"
    )


_CLOSED = _error(1)  # stream-error.closed
_ACCESS_DENIED = _error(1)  # error-code.access-denied, second in the sockets' list.
_WRITE = f"(call $stdio (local.get 0) (local.get 1) (local.get 2)) {_OK}"

_WALL_NOW = """(local $now i64)
  (local.set $now (call $tick))
  (i64.store (local.get $result) (i64.div_u (local.get $now) (i64.const 1000000000)))
  (i32.store offset=8 (local.get $result)
    (i32.wrap_i64 (i64.rem_u (local.get $now) (i64.const 1000000000))))"""

# A list of bytes, filled eight at a time from one random number.
_RANDOM_BYTES = """(local $list i32) (local $at i32) (local $length i32) (local $bits i64)
  (local.set $length (i32.wrap_i64 (local.get 0)))
  (local.set $list
    (call $realloc (i32.const 0) (i32.const 0) (i32.const 1) (local.get $length)))
  (loop $next
    (if (i32.lt_u (local.get $at) (local.get $length))
      (then
        (if (i32.eqz (i32.and (local.get $at) (i32.const 7)))
          (then (local.set $bits (call $random))))
        (i32.store8 (i32.add (local.get $list) (local.get $at))
          (i32.wrap_i64 (local.get $bits)))
        (local.set $bits (i64.shr_u (local.get $bits) (i64.const 8)))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $next))))
  (i32.store (local.get $result) (local.get $list))
  (i32.store offset=4 (local.get $result) (local.get $length))"""

# The parameters are a list of handles and its length; the result lists the positions of those
# that are ready. Streams are always ready, so with one in the list nothing is waited for; timers
# are then ready only if they are due. Without a stream, time jumps and every timer is ready.
_POLL = f"""(local $list i32) (local $at i32) (local $ready i32)
  (local.set $list
    (call $realloc (i32.const 0) (i32.const 0) (i32.const 4)
      (i32.mul (local.get 1) (i32.const 4))))
  (block $waited
    (loop $next
      (if (i32.lt_u (local.get $at) (local.get 1))
        (then
          (br_if $waited (i32.eq (i32.const {_READY})
            (i32.load (i32.add (local.get 0) (i32.mul (local.get $at) (i32.const 4))))))
          (local.set $at (i32.add (local.get $at) (i32.const 1)))
          (br $next))))
    (call $wake))
  (local.set $at (i32.const 0))
  (loop $next
    (if (i32.lt_u (local.get $at) (local.get 1))
      (then
        (if (i32.or
              (i64.le_u (global.get $deadline) (global.get $clock))
              (i32.eq (i32.const {_READY})
                (i32.load (i32.add (local.get 0) (i32.mul (local.get $at) (i32.const 4))))))
          (then
            (i32.store
              (i32.add (local.get $list) (i32.mul (local.get $ready) (i32.const 4)))
              (local.get $at))
            (local.set $ready (i32.add (local.get $ready) (i32.const 1)))))
        (local.set $at (i32.add (local.get $at) (i32.const 1)))
        (br $next))))
  (i32.store (local.get $result) (local.get $list))
  (i32.store offset=4 (local.get $result) (local.get $ready))"""

# Function of WASI to body. `$result` stands for the last parameter, `$realloc` for the allocator
# the function was given; parameters have numbers. What is not listed is a trap.
BODIES: dict[str, str] = {
    "wasi:clocks/monotonic-clock#now": "(call $tick)",
    "wasi:clocks/monotonic-clock#resolution": f"(i64.const {CLOCK_TICK_NS})",
    "wasi:clocks/monotonic-clock#subscribe-instant": (
        f"(global.set $deadline (local.get 0)) (i32.const {_TIMER})"
    ),
    "wasi:clocks/monotonic-clock#subscribe-duration": (
        f"(global.set $deadline (i64.add (call $tick) (local.get 0))) (i32.const {_TIMER})"
    ),
    "wasi:clocks/wall-clock#now": _WALL_NOW,
    "wasi:clocks/wall-clock#resolution": (
        "(i64.store (local.get $result) (i64.const 0))"
        f" (i32.store offset=8 (local.get $result) (i32.const {CLOCK_TICK_NS}))"
    ),
    "wasi:io/poll#[method]pollable.block": (
        f"(if (i32.eq (local.get 0) (i32.const {_TIMER})) (then (call $wake)))"
    ),
    "wasi:io/poll#poll": _POLL,
    "wasi:random/random#get-random-bytes": _RANDOM_BYTES,
    # No variable, no argument, no directory: there is nothing to begin a path with.
    "wasi:cli/environment#get-environment": _EMPTY_LIST,
    "wasi:cli/environment#get-arguments": _EMPTY_LIST,
    "wasi:filesystem/preopens#get-directories": _EMPTY_LIST,
    # Streams are their own handles. No stream is a terminal.
    "wasi:cli/stdin#get-stdin": f"(i32.const {_STDIN})",
    "wasi:cli/stdout#get-stdout": f"(i32.const {_STDOUT})",
    "wasi:cli/stderr#get-stderr": f"(i32.const {_STDERR})",
    "wasi:cli/terminal-stdin#get-terminal-stdin": _NONE,
    "wasi:cli/terminal-stdout#get-terminal-stdout": _NONE,
    "wasi:cli/terminal-stderr#get-terminal-stderr": _NONE,
    "wasi:io/streams#[method]input-stream.read": _CLOSED,
    "wasi:io/streams#[method]input-stream.subscribe": f"(i32.const {_READY})",
    "wasi:io/streams#[method]output-stream.subscribe": f"(i32.const {_READY})",
    "wasi:io/streams#[method]output-stream.check-write": (
        f"{_OK} (i64.store offset=8 (local.get $result) (i64.const 65536))"
    ),
    "wasi:io/streams#[method]output-stream.write": _WRITE,
    "wasi:io/streams#[method]output-stream.blocking-write-and-flush": _WRITE,
    "wasi:io/streams#[method]output-stream.blocking-flush": _OK,
    # The network exists, but it lets nobody in: a program sees a refusal and not a trap.
    "wasi:sockets/instance-network#instance-network": f"(i32.const {_NETWORK})",
    "wasi:sockets/tcp-create-socket#create-tcp-socket": _ACCESS_DENIED,
    "wasi:sockets/udp-create-socket#create-udp-socket": _ACCESS_DENIED,
    "wasi:sockets/ip-name-lookup#resolve-addresses": _ACCESS_DENIED,
}
