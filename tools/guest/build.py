"""Builds the guest: a directory of Python in, `guest.wasm` and `guest.json` out.

Rule 1: the image holds the prelude and the standard library, and nothing of the builder's own
environment.
Rule 2: what is written has been validated, imports three host functions and no more, and exports
everything it can change.
Rule 3: two builds of the same input are equal to the byte, whoever makes them, where and when; the
digest of a guest says which guest it is. Unless an input has changed, nothing is done.

This module and those it imports need the standard library, `wasmtime`, `componentize-py` and
`tzdata` only, because they also run where the package itself is not installed yet.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import wasmtime

from tools.guest.componentize import APP, GuestBuildError, componentize, prelude_files
from tools.guest.link import link_guest
from tools.guest.wasm.binary import I32, BadWasm
from tools.guest.wasm.merge import Merged
from tools.guest.wasm.module import FunctionType, Kind, SignatureIndex
from tools.guest.wasm.numbering import HOST, Part

__all__ = [
    "FORMAT",
    "IMAGE",
    "PRELUDE",
    "GuestBuildError",
    "GuestManifest",
    "build_guest",
    "check_guest",
    "inputs_digest",
    "main",
    "read_manifest",
]

FORMAT = 1
_HERE = Path(__file__).parent
_GUEST = _HERE.parents[1] / "src" / "tallystick" / "guest"
PRELUDE = _GUEST / "prelude"
IMAGE = _GUEST / "_image"

_GUEST_WASM = "guest.wasm"
_GUEST_JSON = "guest.json"
_TOOLS = ("componentize-py", "wasmtime", "tzdata")
_HOST_FUNCTIONS = {
    "call": FunctionType((I32, I32, I32, I32), (I32,)),
    "take": FunctionType((I32,), ()),
    "stdio": FunctionType((I32, I32, I32), ()),
}
_NAMED_STATE = frozenset(
    {"clock", "deadline", "rng", "stack_pointer", "memory_pages_max", "grow_refused"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestManifest:
    """What `guest.json` says about the `guest.wasm` beside it."""

    format: int
    inputs: str
    sha256: str
    # Exported mutable globals, in order: with memory, the whole state of a guest.
    state: tuple[str, ...]


def build_guest(
    out: Path, *, prelude: Path = PRELUDE, compiler: Callable[[Path], bytes] = componentize
) -> GuestManifest:
    """Build the guest into `out`, or return at once if what is there has the same inputs."""
    inputs = inputs_digest(prelude)
    manifest = read_manifest(out)
    if manifest is not None and manifest.inputs == inputs and _whole(out, manifest):
        return manifest
    merged = _link(compiler(prelude))
    check_guest(merged)
    manifest = GuestManifest(
        format=FORMAT,
        inputs=inputs,
        sha256=hashlib.sha256(merged.data).hexdigest(),
        state=merged.state,
    )
    out.mkdir(parents=True, exist_ok=True)
    # Two files cannot be replaced at once. If we stop between the two, or another build gets in
    # between, the digest in the manifest does not fit, and the next build starts over.
    _write(out / _GUEST_WASM, merged.data)
    _write(out / _GUEST_JSON, (json.dumps(asdict(manifest), indent=2) + "\n").encode())
    return manifest


def read_manifest(out: Path) -> GuestManifest | None:
    """Read the manifest in `out`; None if there is no guest of this format there."""
    try:
        fields = json.loads((out / _GUEST_JSON).read_text(encoding="utf-8"))
        manifest = GuestManifest(**{**fields, "state": tuple(fields["state"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None
    present = (out / _GUEST_WASM).is_file()
    return manifest if present and manifest.format == FORMAT else None


def _whole(out: Path, manifest: GuestManifest) -> bool:
    data = (out / _GUEST_WASM).read_bytes()
    return hashlib.sha256(data).hexdigest() == manifest.sha256


def inputs_digest(prelude: Path = PRELUDE) -> str:
    """Digest all that goes into a build: the prelude, these modules, the versions of the tools."""
    digest = hashlib.sha256(f"format {FORMAT}\n".encode())
    files = [(f"prelude/{name}", path) for name, path in _prelude_files(prelude)]
    modules = sorted((path.relative_to(_HERE).as_posix(), path) for path in _HERE.rglob("*.py"))
    files += [(f"build/{name}", path) for name, path in modules]
    for name, path in files:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{name}\0{content}\n".encode())
    for tool in _TOOLS:
        digest.update(f"{tool}\0{_version(tool)}\n".encode())
    return digest.hexdigest()


def check_guest(merged: Merged) -> None:
    """Refuse a module that is not the guest the host expects."""
    config = wasmtime.Config()
    config.wasm_exceptions = True
    try:
        wasmtime.Module.validate(wasmtime.Engine(config), merged.data)
        guest = Part.of("guest", merged.data)
    except (wasmtime.WasmtimeError, BadWasm) as error:
        first = str(error).splitlines()[0]
        raise GuestBuildError(f"the merged module is not valid: {first}") from error
    if _imports(guest) != {(HOST, name, kind) for name, kind in _HOST_FUNCTIONS.items()}:
        raise GuestBuildError(f"the guest imports {', '.join(sorted(map(str, guest.links)))}")
    exports = {(export.name, export.kind) for export in guest.module.exports}
    state = {(name, Kind.GLOBAL) for name in merged.state}
    if exports != {("memory", Kind.MEMORY), ("run", Kind.FUNCTION)} | state:
        raise GuestBuildError(f"the guest exports {', '.join(sorted(name for name, _ in exports))}")
    missing = _NAMED_STATE.difference(merged.state)
    if missing:
        raise GuestBuildError(f"the guest has no state named {', '.join(sorted(missing))}")
    if merged.unseen_writes:
        raise GuestBuildError(
            f"{len(merged.unseen_writes)} instructions change what a snapshot cannot carry; "
            f"the first: {merged.unseen_writes[0]}"
        )


def _imports(guest: Part) -> set[tuple[str, str, FunctionType | None]]:
    types = guest.module.types
    return {
        (
            each.module,
            each.name,
            types[each.type.index] if isinstance(each.type, SignatureIndex) else None,
        )
        for each in guest.module.imports
    }


def _prelude_files(prelude: Path) -> Iterator[tuple[str, Path]]:
    if not (prelude / f"{APP}.py").is_file():
        raise GuestBuildError(f"no {APP}.py in {prelude}")
    yield from prelude_files(prelude)


def _version(tool: str) -> str:
    try:
        return version(tool)
    except PackageNotFoundError:
        raise GuestBuildError(f"{tool} is not installed, and the guest is built with it") from None


def _link(component: bytes) -> Merged:
    try:
        return link_guest(component)
    except BadWasm as error:
        raise GuestBuildError(f"the component cannot be merged: {error}") from error


def _write(path: Path, content: bytes) -> None:
    """Write under another name, then rename: a reader sees all of it or none."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the guest from the command line."""
    parser = argparse.ArgumentParser(description="Build the guest.")
    parser.add_argument("--out", type=Path, default=IMAGE, help="where to write it")
    parser.add_argument("--prelude", type=Path, default=PRELUDE, help="what to put in it")
    options = parser.parse_args(arguments)
    try:
        manifest = build_guest(options.out, prelude=options.prelude)
    except GuestBuildError as error:
        print(f"guest: {error}", file=sys.stderr)
        return 1
    print(f"guest: {options.out / _GUEST_WASM} {manifest.sha256[:12]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
