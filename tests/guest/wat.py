"""A small component that is whole enough to become a guest, and a host to run it in."""

import weakref

import wasmtime

# The least a component must have to become a guest: a memory, a stack pointer, an allocator, the
# three host functions, WASI functions of both kinds, and a lifted `run` with something to call
# after it. A second function is lifted later, so that `run` is not the last one.
GUEST_COMPONENT = """
(component
  (import "tallystick:guest/host@1.0.0" (instance $host
    (export "call" (func
      (param "ptr" u32) (param "len" u32) (param "dst" u32) (param "cap" u32) (result u32)))
    (export "take" (func (param "dst" u32)))
    (export "stdio" (func (param "handle" u32) (param "ptr" u32) (param "len" u32)))))
  (import "wasi:io/poll@0.2.9" (instance $poll (export "pollable" (type (sub resource)))))
  (alias export $poll "pollable" (type $pollable))
  (import "wasi:clocks/monotonic-clock@0.2.9" (instance $clock
    (export "now" (func (result u64)))))
  (import "wasi:random/random@0.2.9" (instance $random
    (export "get-random-bytes" (func (param "len" u64) (result (list u8))))))

  ;; Calls that need memory go through a table, filled once the memory is there.
  (core module $shim
    (type $t (func (param i64 i32)))
    (table (export "$imports") 1 1 funcref)
    (func (export "0") (type $t)
      (call_indirect (type $t) (local.get 0) (local.get 1) (i32.const 0))))
  (core module $fixup
    (import "" "$imports" (table 1 1 funcref))
    (import "" "0" (func (param i64 i32)))
    (elem (i32.const 0) func 0))
  (core module $env
    (memory (export "memory") 1)
    (global (export "__stack_pointer") (mut i32) (i32.const 1024))
    (global (export "base") i32 (i32.const 64)))
  (core module $main
    (import "env" "memory" (memory 1))
    (import "env" "__stack_pointer" (global $sp (mut i32)))
    (import "env" "base" (global $base i32))
    (import "host" "call" (func $call (param i32 i32 i32 i32) (result i32)))
    (import "host" "take" (func $take (param i32)))
    (import "host" "stdio" (func $stdio (param i32 i32 i32)))
    (import "clock" "now" (func $now (result i64)))
    (import "clock" "drop" (func $drop (param i32)))
    (import "random" "bytes" (func $random (param i64 i32)))
    (global $next (mut i32) (i32.const 4096))
    (global $calls (mut i32) (i32.const 0))
    (data (global.get $base) "hello")
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (global.get $next)
      (global.set $next (i32.add (global.get $next) (local.get 3))))
    ;; kind 0: read the clock; 1: a random byte; 2: grow memory; 3: say hello; else: ask the host.
    (func (export "run") (param $kind i32) (param $length i32) (result i32)
      (global.set $sp (i32.sub (global.get $sp) (i32.const 16)))
      (block $end (result i32)
        (block $ask
          (block $hello
            (block $grow
              (block $chance
                (block $time (br_table $time $chance $grow $hello $ask (local.get $kind)))
                (call $drop (i32.const 8))
                (br $end (i32.wrap_i64 (i64.div_u (call $now) (i64.const 1000)))))
              (call $random (i64.const 9) (i32.const 16))
              (br $end (i32.load8_u (i32.load (i32.const 16)))))
            (br $end (memory.grow (local.get $length))))
          (call $stdio (i32.const 1) (global.get $base) (i32.const 5))
          (br $end (i32.const 5)))
        (call $take (i32.const 256))
        (call $call (i32.const 256) (local.get $length) (i32.const 512) (i32.const 16)))
      (global.set $sp (i32.add (global.get $sp) (i32.const 16))))
    (func (export "after") (param i32)
      (global.set $calls (i32.add (global.get $calls) (i32.const 1))))
    (func (export "other") (result i32) (i32.const 7))
    (func (export "never") (result i32) (global.get $calls)))

  (core instance $shim (instantiate $shim))
  (core instance $env (instantiate $env))
  (core func $call (canon lower (func $host "call")))
  (core func $take (canon lower (func $host "take")))
  (core func $stdio (canon lower (func $host "stdio")))
  (core func $now (canon lower (func $clock "now")))
  (core func $drop (canon resource.drop $pollable))
  (core instance $main (instantiate $main
    (with "env" (instance $env))
    (with "host" (instance
      (export "call" (func $call)) (export "take" (func $take)) (export "stdio" (func $stdio))))
    (with "clock" (instance (export "now" (func $now)) (export "drop" (func $drop))))
    (with "random" (instance (export "bytes" (func $shim "0"))))))
  (core func $bytes (canon lower (func $random "get-random-bytes")
    (memory (core memory $env "memory")) (realloc (core func $main "realloc"))))
  (core instance (instantiate $fixup (with "" (instance
    (export "$imports" (table $shim "$imports")) (export "0" (func $bytes))))))

  (func (export "run") (param "kind" u32) (param "length" u32) (result u32)
    (canon lift (core func $main "run") (post-return (core func $main "after"))))
  (func (export "other") (result u32) (canon lift (core func $main "other")))
)
"""


def assemble(text: str) -> bytes:
    return bytes(wasmtime.wat2wasm(text))


class RunningGuest:
    """A guest with a host that says 258 to every call, and what it was told."""

    def __init__(self, data: bytes) -> None:
        engine = wasmtime.Engine()
        self.store = wasmtime.Store(engine)
        self.said: list[tuple[int, bytes]] = []
        linker = wasmtime.Linker(engine)
        i32 = wasmtime.ValType.i32()
        linker.define_func("host", "call", wasmtime.FuncType([i32] * 4, [i32]), lambda *_: 258)
        linker.define_func("host", "take", wasmtime.FuncType([i32], []), lambda _: None)
        # Weak: wasmtime keeps a function until its store goes, and this one would keep the store.
        guest = weakref.proxy(self)
        linker.define_func(
            "host", "stdio", wasmtime.FuncType([i32] * 3, []), lambda *said: guest._stdio(*said)
        )
        self._exports = linker.instantiate(self.store, wasmtime.Module(engine, data)).exports(
            self.store
        )
        memory = self._exports["memory"]
        assert isinstance(memory, wasmtime.Memory)
        self.memory = memory

    def _stdio(self, handle: int, start: int, length: int) -> None:
        self.said.append((handle, bytes(self.memory.read(self.store, start, start + length))))

    def run(self, kind: int, length: int) -> int:
        function = self._exports["run"]
        assert isinstance(function, wasmtime.Func)
        result = function(self.store, kind, length)
        assert isinstance(result, int)
        return result

    def value(self, name: str) -> int:
        found = self._global(name).value(self.store)
        assert isinstance(found, int)
        return found

    def set(self, name: str, value: int) -> None:
        self._global(name).set_value(self.store, value)

    def _global(self, name: str) -> wasmtime.Global:
        found = self._exports[name]
        assert isinstance(found, wasmtime.Global)
        return found
