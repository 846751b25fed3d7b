"""Parts written as text, merged, and run."""

import wasmtime
from tests.guest.wat import assemble
from tools.guest.wasm.merge import Merged, merge
from tools.guest.wasm.numbering import Part, Target


def part(label: str, text: str) -> Part:
    return Part.of(label, assemble(f"(module {text})"))


def merged(*parts: Part, keep: dict[str, Target] | None = None, grow: str = "") -> Merged:
    """Merge, keeping every export of the last part unless told otherwise."""
    last = parts[-1]
    if keep is None:
        keep = {each.name: Target(last.label, each.name) for each in last.module.exports}
    label, _, name = grow.partition(".")
    return merge(parts, keep=keep, grow=Target(label, name) if grow else None)


class Running:
    """A merged module, instantiated."""

    def __init__(self, data: bytes) -> None:
        config = wasmtime.Config()
        config.wasm_exceptions = True
        engine = wasmtime.Engine(config)
        self.store = wasmtime.Store(engine)
        module = wasmtime.Module(engine, data)
        self.exports = wasmtime.Instance(self.store, module, []).exports(self.store)

    def call(self, name: str, *arguments: int) -> object:
        function = self.exports[name]
        assert isinstance(function, wasmtime.Func)
        return function(self.store, *arguments)

    def value(self, name: str) -> object:
        found = self.exports[name]
        assert isinstance(found, wasmtime.Global)
        return found.value(self.store)
