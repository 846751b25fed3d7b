"""Draw functions for the reader's test of the code: name, signature and docstring, nothing else.

    python tools/readers.py [COMMIT] [--count 60] > draw.md

The seed is the hash of the commit, so a draw can be repeated and cannot be chosen. A first reader
sees only this list, and writes for each function what it returns, what it raises and what it
changes. A second reader compares that with the code. Draws and verdicts are kept in
`bench/results/readers/`.
"""

from __future__ import annotations

import argparse
import ast
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "tallystick"


def functions_in(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, header and docstring of every function of a module that has a docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))

    def visit(node: ast.AST, owner: str) -> Iterator[tuple[int, str, str]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                yield from visit(child, f"{owner}{child.name}.")
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                said = ast.get_docstring(child)
                if said is not None:
                    yield child.lineno, header_of(child, owner), said

    yield from visit(tree, "")


def header_of(node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str) -> str:
    """Return the signature of a function as a reader of the code sees it."""
    decorators = "".join(f"@{ast.unparse(each)} " for each in node.decorator_list)
    kind = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    return f"{decorators}{kind} {owner}{node.name}({ast.unparse(node.args)}){returns}"


def draw(seed: str, count: int) -> list[str]:
    """Return `count` functions as Markdown, spread over all packages."""
    by_package: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).parts
        # The guest is another program, read by models and not by callers.
        if parts[0] == "guest":
            continue
        package = parts[0] if len(parts) > 1 else "tallystick"
        for line, header, said in functions_in(path):
            place = f"{path.relative_to(ROOT)}:{line}"
            by_package.setdefault(package, []).append(
                f"### {place}\n\n```python\n{header}\n```\n\n{said}\n"
            )
    chance = random.Random(seed)
    for each in by_package.values():
        chance.shuffle(each)
    found: list[str] = []
    while len(found) < count and any(by_package.values()):
        for package in sorted(by_package):
            if by_package[package] and len(found) < count:
                found.append(by_package[package].pop())
    return found


def main() -> None:
    """Print a draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commit", nargs="?", default="HEAD")
    parser.add_argument("--count", type=int, default=60)
    asked = parser.parse_args()
    seed = subprocess.run(
        ["git", "rev-parse", asked.commit], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    print(f"# Draw at {seed}\n")
    print("\n".join(draw(seed, asked.count)))


if __name__ == "__main__":
    main()
