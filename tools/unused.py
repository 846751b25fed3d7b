"""Find what nothing uses: definitions of the package that only tests reach.

It reads the sources and follows names from what is reachable: the commands, the public names, what
the docs name, and what tools and benches use. A name reaches every definition that it may mean. So
what is found here is used by nothing, and what is not found may still be unused. By rule, these
count as used:

- methods with two underscores, and those that a protocol in use has
- methods that a base class from elsewhere may call, such as those of a visitor of syntax trees
- functions that a decorator hands to something else, such as a command
- what is in a module that a sandbox runs, or that is passed as a value and has a name that is asked
- what a message tells users to call

`testing/` is for tests, and the guest is a program of its own; neither is read.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.public import PACKAGE, public_modules, public_names
from tools.surfaces import SURFACES

ROOT = PACKAGE.parents[1]
_NOT_READ = ("testing/", "guest/")
# A sandbox runs these modules as programs.
_RUN_INSIDE = ("tallystick.sandbox.process.inside", "tallystick.bridge.inside")
# Decorators that leave a function what it is. Any other may call it, or put it somewhere.
_PLAIN = {
    *("abstractmethod", "asynccontextmanager", "cache", "cached_property", "classmethod"),
    *("contextmanager", "dataclass", "lru_cache", "overload", "property", "setter"),
    *("staticmethod", "wraps"),
}
_CALL = re.compile(r"(\w+)\(\)")
_CODE = re.compile(r"^```python\n.*?^```|`[^`\n]+`", re.S | re.M)
_GENERATED = re.compile(r"<!-- generated: .*?<!-- end of generated: .*?-->", re.S)


@dataclass(frozen=True, order=True)
class Place:
    """A definition: its module, and its name in it, with the class in front if it is a method."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module.removeprefix('tallystick.')}: {self.name}"


@dataclass
class Module:
    """One module: what it defines, what it imports by which name, and its other statements."""

    name: str
    definitions: dict[str, list[ast.stmt]] = field(default_factory=lambda: defaultdict(list))
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)
    own: list[ast.AST] = field(default_factory=list)


def unused() -> list[Place]:
    """List the definitions that nothing uses, in the order of their modules."""
    tree = _Tree()
    tree.follow()
    return sorted(tree.all - tree.used)


class _Tree:
    """The definitions of the package, and those that were reached."""

    def __init__(self) -> None:
        self.modules = {each.name: each for each in _modules()}
        self.methods: dict[str, list[Place]] = defaultdict(list)
        self.all: set[Place] = set()
        self.used: set[Place] = set()
        self._seen: set[str] = set()
        self._asked: set[str] = set()
        # Modules that are passed as values: whoever has one may ask for any of its names.
        self._values: set[str] = set()
        self._waiting: list[tuple[Module, ast.AST]] = []
        for module in self.modules.values():
            for name in module.definitions:
                self.all.add(Place(module.name, name))
                if "." in name:
                    self.methods[name.rpartition(".")[2]].append(Place(module.name, name))

    def follow(self) -> None:
        """Reach everything from the roots."""
        for name in filter(_is_root, self.modules):
            self._module(name)
        for name in self.modules:
            if name.startswith(_RUN_INSIDE):
                self._whole(name)
        for public in public_modules():
            for name in public_names(public):
                self._import(public, name)
        for name in _documented():
            self._attribute(name)
        for outside in _outside():
            self._waiting += [(outside, each) for each in outside.own]
        while self._waiting:
            self._references(*self._waiting.pop())

    def _whole(self, name: str) -> None:
        self._module(name)
        for each in self.modules[name].definitions:
            self._use(Place(name, each))

    def _module(self, name: str) -> None:
        if name in self.modules and name not in self._seen:
            self._seen.add(name)
            module = self.modules[name]
            self._waiting += [(module, each) for each in module.own]

    def _import(self, module: str, name: str) -> None:
        """Reach a name of a module, also through modules that only pass it on."""
        self._module(module)
        found = self.modules.get(module)
        if found is None:
            return
        if name in found.definitions:
            self._use(Place(module, name))
        elif name in found.imported:
            self._import(*found.imported[name])
        else:
            self._value(f"{module}.{name}" if name else module)

    def _value(self, name: str) -> None:
        """Reach a module that is passed as a value, or named in a text to be imported."""
        self._module(name)
        if name in self.modules and name not in self._values:
            self._values.add(name)
            for each in self._asked & self.modules[name].definitions.keys():
                self._use(Place(name, each))

    def _use(self, place: Place) -> None:
        if place in self.used:
            return
        self.used.add(place)
        self._module(place.module)
        module = self.modules[place.module]
        for node in module.definitions[place.name]:
            if isinstance(node, ast.ClassDef):
                self._use_class(module, node)
            else:
                self._waiting.append((module, node))

    def _use_class(self, module: Module, node: ast.ClassDef) -> None:
        methods = [each for each in node.body if _is_function(each)]
        rest = [each for each in node.body if not _is_function(each)]
        around = [*node.bases, *node.keywords, *node.decorator_list, *rest]
        self._waiting += [(module, each) for each in around]
        found = getattr(importlib.import_module(module.name), node.name)
        if getattr(found, "_is_protocol", False):
            for each in methods:
                self._attribute(_name_of(each))
        called = _called_from_elsewhere(found)
        for each in methods:
            name = _name_of(each)
            visits = name.startswith("visit_") and "generic_visit" in called
            if name in called | self._asked or _is_dunder(name) or visits or _is_handed_on(each):
                self._use(Place(module.name, f"{node.name}.{name}"))

    def _attribute(self, name: str) -> None:
        """Reach every method of this name whose class is used, now or later."""
        if name in self._asked:
            return
        self._asked.add(name)
        for place in self.methods.get(name, ()):
            if Place(place.module, place.name.rpartition(".")[0]) in self.used:
                self._use(place)
        for module in list(self._values):
            if name in self.modules[module].definitions:
                self._use(Place(module, name))

    def _references(self, module: Module, node: ast.AST) -> None:
        for each in ast.walk(node):
            match each:
                case ast.Name(id=name):
                    self._name(module, name)
                case ast.Attribute(attr=name, value=value):
                    self._attribute(name)
                    if isinstance(value, ast.Name) and value.id in module.imported:
                        source, what = module.imported[value.id]
                        self._import(f"{source}.{what}" if what else source, name)
                case ast.Constant(value=str(text)):
                    self._text(module, text)
                case ast.Call(func=ast.Name(id="cast"), args=[ast.Constant(value=str(port)), _]):
                    self._foreign_port(port)
                case ast.ImportFrom(module=str(source)):
                    self._module(source)

    def _name(self, module: Module, name: str) -> None:
        if name in module.definitions:
            self._use(Place(module.name, name))
        elif name in module.imported:
            self._import(*module.imported[name])

    def _text(self, module: Module, text: str) -> None:
        """Reach what a text names: an attribute, an annotation in quotes, a module, a call."""
        if text.isidentifier():
            self._attribute(text)
            self._name(module, text)
        elif text.startswith("tallystick."):
            self._value(text)
        else:
            for name in _CALL.findall(text):
                self._attribute(name)

    def _foreign_port(self, port: str) -> None:
        """Reach the methods of a port of another package, as which an object is passed."""
        source, _, name = port.rpartition(".")
        if source and not source.startswith("tallystick"):
            for each in dir(getattr(importlib.import_module(source), name.partition("[")[0], None)):
                self._attribute(each)


# -- modules ---------------------------------------------------------------------------------------


def _modules() -> Iterator[Module]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if not path.relative_to(PACKAGE).as_posix().startswith(_NOT_READ):
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            yield _read(path, ".".join(parts[:-1] if parts[-1] == "__init__" else parts))


def _outside() -> Iterator[Module]:
    """Yield what uses the package and is no test."""
    for folder in ("bench", "tools"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            found = _read(path, str(path.relative_to(ROOT)))
            found.own += [each for nodes in found.definitions.values() for each in nodes]
            found.definitions.clear()
            yield found


def _read(path: Path, name: str) -> Module:
    module = Module(name)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for each in ast.walk(tree):
        match each:
            case ast.ImportFrom(module=str(source)) if source.startswith("tallystick"):
                for alias in each.names:
                    module.imported[alias.asname or alias.name] = (source, alias.name)
            case ast.Import(names=names):
                for alias in names:
                    if alias.asname and alias.name.startswith("tallystick"):
                        module.imported[alias.asname] = (alias.name, "")
    for statement in _statements(tree.body):
        _define(module, statement)
    return module


def _define(module: Module, node: ast.stmt) -> None:
    constant = _constant(node)
    if isinstance(node, ast.ClassDef) or _is_function(node):
        name = _name_of(node)
        module.definitions[name].append(node)
        if _is_handed_on(node) or _is_dunder(name):
            module.own.append(ast.Name(id=name))
    elif constant is not None:
        module.definitions[constant].append(node)
    elif not _is_check_of_types(node):
        module.own.append(node)
    if isinstance(node, ast.ClassDef):
        for each in filter(_is_function, node.body):
            module.definitions[f"{node.name}.{_name_of(each)}"].append(each)


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, with the conditions and bodies of `if` and `try`."""
    for each in body:
        if isinstance(each, ast.If):
            yield ast.Expr(each.test)
            yield from _statements([*each.body, *each.orelse])
        elif isinstance(each, ast.Try):
            handlers = [inside for handler in each.handlers for inside in handler.body]
            yield from _statements([*each.body, *handlers, *each.orelse, *each.finalbody])
        elif not isinstance(each, ast.Import | ast.ImportFrom):
            yield each


# -- rules -----------------------------------------------------------------------------------------


def _is_function(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _name_of(node: ast.stmt) -> str:
    name: str = node.name  # type: ignore[attr-defined]
    return name


def _is_dunder(name: str) -> bool:
    # Notebooks call methods with one underscore at both ends.
    return name.startswith("_") and name.endswith("_")


def _constant(node: ast.stmt) -> str | None:
    """Return the name of a constant; None for any other statement."""
    target: ast.expr | None = None
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        target = node.target
    if not isinstance(target, ast.Name) or target.id.startswith("__") or target.id == "_":
        return None
    return None if _is_check_of_types(node) else target.id


def _is_check_of_types(node: ast.stmt) -> bool:
    """Return True for a line that has type checkers compare a class with a port."""
    if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
        return False
    compares = ast.unparse(node.annotation).startswith(("type[", "tuple[type["))
    return compares and node.target.id.startswith("_")


def _called_from_elsewhere(found: type) -> frozenset[str]:
    """Return the names that bases from outside of the package have: their methods call them."""
    own = found.__module__.partition(".")[0]
    foreign = [each for each in inspect.getmro(found) if each.__module__.partition(".")[0] != own]
    return frozenset(name for base in foreign for name in dir(base))


def _is_handed_on(node: ast.stmt) -> bool:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return any(_last(each) not in _PLAIN for each in decorators)


def _last(node: ast.AST) -> str:
    """Return the last name of an expression: `c` of `a.b.c`, `a.b.c(…)` and `c[…]`."""
    match node:
        case ast.Call(func=inside) | ast.Subscript(value=inside):
            return _last(inside)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


def _is_root(name: str) -> bool:
    started = ("tallystick", "tallystick.__main__", "tallystick.cli.main")
    return name in started or name.startswith("tallystick.cli.commands.")


@functools.cache
def _documented() -> frozenset[str]:
    """Return the names in code of pages that people wrote, and those in the table of surfaces."""
    found: set[str] = set()
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *_folders()]:
        for code in _CODE.findall(_GENERATED.sub("", page.read_text(encoding="utf-8"))):
            found.update(re.findall(r"\w+", code))
    for row in SURFACES:
        found.update(part for name in row.all_names for part in name.partition("(")[0].split("."))
    return frozenset(found)


def _folders() -> Iterator[Path]:
    for folder in ("concepts", "guides", "reference"):
        yield from (ROOT / "docs" / folder).glob("*.md")


if __name__ == "__main__":
    for each in unused():
        print(each)
