"""The tree keeps its shape: small packages, modules that open with a sentence, nothing built."""

import ast
import functools
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(
    path.relative_to(ROOT)
    for root in ("src", "tools")
    for path in (ROOT / root).rglob("*.py")
    if "_image" not in path.parts and "__pycache__" not in path.parts
)
MODULES_MAX = 14
BYTES_MAX = 1 << 20

# A path that exists on one machine only. A relative or longer path may contain these words.
ONE_MACHINE = re.compile(r"(^|[^a-z.])/(work|root)/", re.MULTILINE)


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(encoding="utf-8"))


def files_in_git() -> list[Path]:
    """List what a commit of everything here would hold: tracked files and those not ignored."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listing.returncode != 0:
        pytest.skip("this copy is not a git checkout")
    names = listing.stdout.decode().split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def declared_names(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return None


def by_kind(name: str) -> tuple[bool, bool, str]:
    """Order as the linter does: constants, then classes, then functions."""
    return not name.isupper(), not name[0].isupper(), name


@pytest.mark.parametrize("folder", sorted({path.parent for path in MODULES}), ids=str)
def test_a_package_has_at_most_14_modules(folder: Path) -> None:
    modules = [path for path in MODULES if path.parent == folder and path.name != "__init__.py"]

    assert len(modules) <= MODULES_MAX


def test_only_packages_declare_what_they_export() -> None:
    # The guest and the tools that build it are not imported by the package.
    declaring = [
        path
        for path in MODULES
        if "guest" not in path.parts and path.name != "__init__.py"
        if declared_names(tree_of(path)) is not None
    ]

    assert declaring == []


def test_every_module_opens_with_a_sentence() -> None:
    opened = {path: (ast.get_docstring(tree_of(path)) or "").partition("\n")[0] for path in MODULES}

    assert [path for path, line in opened.items() if not line.endswith(".")] == []


def test_exported_names_are_sorted_and_exist_once() -> None:
    exported = {path: declared_names(tree_of(path)) or [] for path in MODULES}

    assert [
        path for path, names in exported.items() if names != sorted({*names}, key=by_kind)
    ] == []


def test_there_are_modules_to_look_at() -> None:
    assert MODULES


def test_no_file_in_git_is_large_or_binary() -> None:
    unfit = [
        path.relative_to(ROOT)
        for path in files_in_git()
        if path.stat().st_size > BYTES_MAX or b"\0" in path.read_bytes()
    ]

    assert unfit == []


def test_no_file_in_git_names_a_path_of_one_machine() -> None:
    named = [
        f"{path.relative_to(ROOT)}: {match.group().strip()}"
        for path in files_in_git()
        for match in ONE_MACHINE.finditer(path.read_text(encoding="utf-8", errors="replace"))
    ]

    assert named == []


def test_every_package_has_its_place_in_the_layers() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = config["tool"]["importlinter"]["contracts"]
    layers = next(contract for contract in contracts if contract["type"] == "layers")
    placed = set(re.findall(r"\w+", " ".join(layers["layers"])))

    packages = {path.parent.name for path in (ROOT / "src/tallystick").glob("*/__init__.py")}

    assert layers["exhaustive"]
    assert packages <= placed
