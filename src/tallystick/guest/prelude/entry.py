"""The guest's one export: take bytes from the host, do what `kind` says, write a result.

This file and `tallystick_guest` run under CPython inside WebAssembly. They are imported once, while
the image is built; every session starts from a copy of that moment. So whatever a program can be
made to lose (a patched `json.dumps`, an emptied `sys.modules`) must have been bound before.
"""

import sys

import wit_world

import tallystick_guest.library.clock  # noqa: F401 - before the parts that keep `time.sleep`
from tallystick_guest import archive, cell, inventory, loop, streams, threads, violations, wire
from tallystick_guest.library import exits, hashes, processes

inventory.preload()
archive.install()
threads.install()
processes.install()
loop.install()
hashes.install()
violations.install()
exits.install()
cell.call_at_end(exits.run)

_BOOT, _RUN, _BIND, _WHEEL = range(4)
_take = wire.take_bytes
_emit = wire.emit_result
_boot, _run, _bind, _add_wheel = cell.boot, cell.run, cell.bind, archive.add_wheel
_failure = cell.failure_of


class WitWorld(wit_world.WitWorld):
    def run(self, kind: int, length: int) -> int:
        payload = _take(length)
        try:
            if kind == _RUN:
                result = _run(payload)
            elif kind == _BOOT:
                result = _boot(payload)
            elif kind == _BIND:
                result = _bind(payload)
            elif kind == _WHEEL:
                result = {"modules": _add_wheel(payload)}
            else:
                return 2
        except BaseException as error:
            result = _failure(error)
        _emit(result)
        return 0


# What is left in `sys.modules` is what a program can import by name; our own parts are not for it.
for _name in [name for name in sys.modules if name.split(".")[0] == "tallystick_guest"]:
    del sys.modules[_name]
sys.modules.pop("zones", None)
archive.settle()
streams.settle()
cell.settle()
