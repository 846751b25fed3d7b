"""The builder: when it builds, what it refuses, and what it leaves behind."""

import dataclasses
import hashlib
import json
import marshal
import runpy
import zlib
from importlib import resources
from pathlib import Path

import pytest
import wasmtime
from tests.guest.wat import GUEST_COMPONENT, RunningGuest, assemble
from tools.guest import build
from tools.guest.build import IMAGE, build_guest, check_guest, inputs_digest, read_manifest
from tools.guest.componentize import GuestBuildError
from tools.guest.freeze import World, freeze
from tools.guest.link import HOST_INTERFACE, link_guest
from tools.guest.rewind import rewind
from tools.guest.wasm.binary import BadWasm
from tools.guest.wasm.merge import merge
from tools.guest.wasm.module import parse_module
from tools.guest.wasm.numbering import Part, Target
from tools.guest.zones import zones_files


class Compiler:
    """Stands in for componentize-py: gives a small component, and counts."""

    def __init__(self, text: str = GUEST_COMPONENT) -> None:
        self.component = assemble(text)
        self.calls = 0

    def __call__(self, prelude: Path) -> bytes:
        self.calls += 1
        return self.component


@pytest.fixture
def prelude(tmp_path: Path) -> Path:
    root = tmp_path / "prelude"
    (root / "inner").mkdir(parents=True)
    (root / "entry.py").write_text("import inner\n", encoding="utf-8")
    (root / "inner" / "__init__.py").write_text("", encoding="utf-8")
    return root


def test_a_build_writes_a_guest_and_a_manifest_that_fits_it(tmp_path: Path, prelude: Path) -> None:
    manifest = build_guest(tmp_path / "out", prelude=prelude, compiler=Compiler())

    data = (tmp_path / "out" / "guest.wasm").read_bytes()
    fields = json.loads((tmp_path / "out" / "guest.json").read_text(encoding="utf-8"))
    assert fields == {
        "format": 1,
        "inputs": inputs_digest(prelude),
        "sha256": hashlib.sha256(data).hexdigest(),
        "state": list(manifest.state),
    }
    assert read_manifest(tmp_path / "out") == manifest
    assert RunningGuest(data).run(3, 0) == 5


def test_nothing_else_is_left_beside_them(tmp_path: Path, prelude: Path) -> None:
    build_guest(tmp_path / "out", prelude=prelude, compiler=Compiler())

    assert {path.name for path in (tmp_path / "out").iterdir()} == {"guest.wasm", "guest.json"}


def test_a_build_with_the_same_inputs_does_nothing(tmp_path: Path, prelude: Path) -> None:
    compiler = Compiler()
    first = build_guest(tmp_path / "out", prelude=prelude, compiler=compiler)
    written = (tmp_path / "out" / "guest.wasm").stat().st_mtime_ns

    second = build_guest(tmp_path / "out", prelude=prelude, compiler=compiler)

    assert compiler.calls == 1
    assert first == second
    assert (tmp_path / "out" / "guest.wasm").stat().st_mtime_ns == written


def test_a_changed_input_is_built_again(tmp_path: Path, prelude: Path) -> None:
    compiler = Compiler()
    build_guest(tmp_path / "out", prelude=prelude, compiler=compiler)
    (prelude / "entry.py").write_text("import inner  # changed\n", encoding="utf-8")

    build_guest(tmp_path / "out", prelude=prelude, compiler=compiler)

    assert compiler.calls == 2


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"format": 1}',
        '{"format": 2, "inputs": "", "sha256": "", "state": []}',
    ],
)
def test_a_manifest_that_can_not_be_read_is_no_manifest(
    tmp_path: Path, prelude: Path, content: str
) -> None:
    compiler = Compiler()
    build_guest(tmp_path / "out", prelude=prelude, compiler=compiler)
    (tmp_path / "out" / "guest.json").write_text(content, encoding="utf-8")

    assert read_manifest(tmp_path / "out") is None
    build_guest(tmp_path / "out", prelude=prelude, compiler=compiler)
    assert compiler.calls == 2


def test_a_manifest_without_its_guest_is_no_manifest(tmp_path: Path, prelude: Path) -> None:
    build_guest(tmp_path / "out", prelude=prelude, compiler=Compiler())

    (tmp_path / "out" / "guest.wasm").unlink()

    assert read_manifest(tmp_path / "out") is None


def test_a_guest_that_is_not_the_one_in_the_manifest_is_built_again(
    tmp_path: Path, prelude: Path
) -> None:
    compiler = Compiler()
    manifest = build_guest(tmp_path / "out", prelude=prelude, compiler=compiler)
    (tmp_path / "out" / "guest.wasm").write_bytes(b"of another build")

    again = build_guest(tmp_path / "out", prelude=prelude, compiler=compiler)

    assert compiler.calls == 2
    assert again == manifest
    assert RunningGuest((tmp_path / "out" / "guest.wasm").read_bytes()).run(3, 0) == 5


def test_whoever_has_the_old_guest_open_keeps_it(tmp_path: Path, prelude: Path) -> None:
    build_guest(tmp_path / "out", prelude=prelude, compiler=Compiler())
    guest, other_name = tmp_path / "out" / "guest.wasm", tmp_path / "old.wasm"
    old = guest.read_bytes()
    other_name.hardlink_to(guest)
    (prelude / "entry.py").write_text("changed\n", encoding="utf-8")

    changed = GUEST_COMPONENT.replace("(i32.const 4096)", "(i32.const 8192)")
    build_guest(tmp_path / "out", prelude=prelude, compiler=Compiler(changed))

    assert guest.read_bytes() != old
    assert other_name.read_bytes() == old


def test_a_build_that_fails_leaves_what_was_there(tmp_path: Path, prelude: Path) -> None:
    manifest = build_guest(tmp_path / "out", prelude=prelude, compiler=Compiler())
    (prelude / "entry.py").write_text("changed\n", encoding="utf-8")

    with pytest.raises(GuestBuildError, match="the component cannot be merged: byte 0x0"):
        build_guest(tmp_path / "out", prelude=prelude, compiler=lambda _: b"not a component")

    assert read_manifest(tmp_path / "out") == manifest


def test_the_digest_sees_names_and_contents_and_not_caches(prelude: Path) -> None:
    first = inputs_digest(prelude)
    (prelude / "__pycache__").mkdir()
    (prelude / "__pycache__" / "entry.pyc").write_bytes(b"cache")
    assert inputs_digest(prelude) == first

    (prelude / "inner" / "more.py").write_text("", encoding="utf-8")
    second = inputs_digest(prelude)
    assert second != first

    (prelude / "inner" / "more.py").rename(prelude / "inner" / "other.py")
    assert inputs_digest(prelude) not in (first, second)


def test_the_digest_sees_the_versions_of_the_tools(
    prelude: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = inputs_digest(prelude)

    monkeypatch.setattr(build, "version", lambda tool: "0" if tool == "tzdata" else "1")

    assert inputs_digest(prelude) != before


def test_a_prelude_without_its_entry_is_refused(tmp_path: Path) -> None:
    with pytest.raises(GuestBuildError, match=r"no entry\.py in"):
        inputs_digest(tmp_path)


def test_the_command_says_in_one_line_why_it_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = build.main(["--out", str(tmp_path / "out"), "--prelude", str(tmp_path)])

    assert status == 1
    assert capsys.readouterr().err == f"guest: no entry.py in {tmp_path}\n"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            '(import "host" "take" (func $take',
            '(import "clock" "drop" (func $take',
            "the guest imports host.call, host.stdio",
        ),
        (
            "(i32.load8_u (i32.load (i32.const 16)))",
            "(block (result i32) (table.set $t (i32.const 0) (ref.null func)) (i32.const 0))",
            "1 instructions change what a snapshot cannot carry",
        ),
    ],
)
def test_a_guest_that_is_not_what_the_host_expects_is_refused(
    tmp_path: Path, prelude: Path, old: str, new: str, problem: str
) -> None:
    text = GUEST_COMPONENT.replace(old, new).replace(
        "(global $next", "(table $t 1 funcref) (global $next"
    )

    with pytest.raises(GuestBuildError, match=problem):
        build_guest(tmp_path / "out", prelude=prelude, compiler=Compiler(text))

    assert not (tmp_path / "out").exists()


def test_a_guest_with_a_host_function_of_its_own_is_refused() -> None:
    text = GUEST_COMPONENT.replace(
        '(export "take" (func (param "dst" u32)))',
        '(export "take" (func (param "dst" u32))) (export "more" (func))',
    )
    text = text.replace(
        '(import "clock" "now"', '(import "host" "more" (func)) (import "clock" "now"'
    )
    text = text.replace(
        '(export "stdio" (func $stdio))',
        '(export "stdio" (func $stdio)) (export "more" (func $more))',
    ).replace(
        "(core func $now", '(core func $more (canon lower (func $host "more"))) (core func $now'
    )

    with pytest.raises(GuestBuildError, match=r"the guest imports host\.call, host\.more"):
        check_guest(link_guest(assemble(text)))


def test_a_module_the_engine_does_not_take_is_refused() -> None:
    merged = link_guest(assemble(GUEST_COMPONENT))
    start, end = parse_module(merged.data).bodies[-1]
    # Two instructions that want a value where there is none, in place of whatever was there.
    data = merged.data[: start + 1] + b"\x1a" * (end - start - 2) + merged.data[end - 1 :]

    with pytest.raises(GuestBuildError, match="the merged module is not valid"):
        check_guest(dataclasses.replace(merged, data=data))


def test_a_guest_with_an_export_too_many_or_too_few_is_refused() -> None:
    merged = link_guest(assemble(GUEST_COMPONENT))

    with pytest.raises(GuestBuildError, match="the guest exports clock"):
        check_guest(dataclasses.replace(merged, state=merged.state[1:]))


def test_a_guest_without_a_state_the_host_sets_is_refused() -> None:
    part = Part.of("guest", link_guest(assemble(GUEST_COMPONENT)).data)
    names = [export.name for export in part.module.exports if export.name != "rng"]

    merged = merge([part], keep={name: Target("guest", name) for name in names})

    with pytest.raises(GuestBuildError, match="the guest has no state named rng"):
        check_guest(merged)


def test_zones_are_there_for_a_python_of_another_version(tmp_path: Path) -> None:
    for name, content in zones_files().items():
        (tmp_path / name).write_bytes(content)

    names = runpy.run_path(str(tmp_path / "zones.py"))

    zones = marshal.loads(zlib.decompress(names["ZONES"]))
    paris = resources.files("tzdata").joinpath("zoneinfo", "Europe", "Paris").read_bytes()
    assert zones["Europe/Paris"] == paris
    assert {"UTC", "America/New_York", "Asia/Tokyo"} <= set(zones)
    assert all(each.startswith(b"TZif") for each in zones.values())


@pytest.mark.skipif(not (IMAGE / "guest.wasm").is_file(), reason="the guest is not built")
def test_the_guest_of_this_package_has_the_imports_exports_and_state_it_should() -> None:
    manifest = read_manifest(IMAGE)
    assert manifest is not None
    data = (IMAGE / "guest.wasm").read_bytes()
    module = parse_module(data)

    assert hashlib.sha256(data).hexdigest() == manifest.sha256
    assert {(each.module, each.name) for each in module.imports} == {
        ("host", "call"),
        ("host", "take"),
        ("host", "stdio"),
    }
    assert {each.name for each in module.exports} == {"memory", "run", *manifest.state}
    assert {"clock", "deadline", "rng", "stack_pointer"} <= set(manifest.state)
    config = wasmtime.Config()
    config.wasm_exceptions = True
    wasmtime.Module.validate(wasmtime.Engine(config), data)


def test_a_component_whose_memory_was_not_saved_is_not_rewound() -> None:
    with pytest.raises(BadWasm, match="the memory before the start was not saved"):
        rewind(assemble(GUEST_COMPONENT), host_interface=HOST_INTERFACE)


def test_a_component_without_an_interpreter_to_start_is_refused() -> None:
    world = World(files={}, roots={}, environment={})

    with pytest.raises(BadWasm, match="the component exports "):
        freeze(assemble(GUEST_COMPONENT), world, app="entry", host_interface=HOST_INTERFACE)
