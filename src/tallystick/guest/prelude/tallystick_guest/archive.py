"""Modules kept as bytes inside the image, and wheels that the host adds to a session.

After the build there is no file system. The standard library lies here compressed: its source, for
tracebacks and for a second import of what the image has imported already, and the code of the rest,
which is unpacked on first import. A wheel's files are added to the same tables when a session is
opened. Modules that the prelude has changed are not run again: a reload puts them back as they
were when the image was made.
"""

import importlib.abc
import importlib.metadata
import importlib.resources.abc
import importlib.util
import io
import marshal
import os
import posixpath
import re
import sys
import zipfile
import zlib

_STANDARD, _WHEEL = "<stdlib>/", "<wheel>/"
_SKIPPED = frozenset(
    "test tests __pycache__ idlelib tkinter turtledemo ensurepip lib2to3 site-packages lib-dynload "
    "curses multiprocessing ctypes config".split()
)

_code: dict[str, bytes] = {}  # standard modules that are not imported yet: zlib of marshal
_standard: dict[str, tuple[bool, str, bytes]] = {}  # is a package, path, zlib of the source
_source: dict[str, tuple[bool, bytes, str]] = {}  # wheel modules: is a package, text, path
_files: dict[str, bytes] = {}  # every file of every wheel, by its path


class _Loader(importlib.abc.InspectLoader):
    """Imports from the two tables."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name in _source:
            package, _, where = _source[name]
            origin = _WHEEL + where
        elif name in _standard:
            package, origin, _ = _standard[name]
        else:
            return None
        spec = importlib.util.spec_from_loader(name, self, origin=origin, is_package=package)
        spec.has_location = True
        if package:
            spec.submodule_search_locations = [posixpath.dirname(origin)]
        return spec

    def is_package(self, name: str) -> bool:
        return (_source.get(name) or _standard[name])[0]

    def get_source(self, name: str) -> str | None:
        if name in _source:
            return importlib.util.decode_source(_source[name][1])
        if name in _standard:
            return importlib.util.decode_source(zlib.decompress(_standard[name][2]))
        return None

    def get_code(self, name: str) -> object:
        if name in _source:
            return compile(_source[name][1], _WHEEL + _source[name][2], "exec", dont_inherit=True)
        if name in _code:
            return marshal.loads(zlib.decompress(_code[name]))
        _, path, source = _standard[name]
        return compile(zlib.decompress(source), path, "exec", dont_inherit=True)

    def exec_module(self, module: object) -> None:
        exec(self.get_code(module.__spec__.name), module.__dict__)

    def get_data(self, path: str) -> bytes:
        found = _files.get(path.removeprefix(_WHEEL))
        if found is None:
            raise FileNotFoundError(path)
        return found

    def get_resource_reader(self, name: str) -> object:
        return _Resources(posixpath.dirname(_source[name][2])) if name in _source else None

    def find_distributions(self, context: object) -> list[object]:
        wanted = None if context.name is None else _normal(context.name)
        found = [
            _Distribution(posixpath.dirname(path))
            for path in sorted(_files)
            if path.endswith(".dist-info/METADATA")
        ]
        return [each for each in found if wanted in (None, each.key())]


class _Restorer(importlib.abc.Loader):
    """Gives modules that the prelude has changed as they were when the image was made."""

    def __init__(self) -> None:
        self._contents: dict[str, dict[str, object]] = {}
        self._specs: dict[str, object] = {}

    def keep(self, name: str, module: object) -> None:
        """Keep the content of a module."""
        content = {key: each for key, each in vars(module).items() if key not in _OF_IMPORT}
        self._contents[name], self._specs[name] = content, module.__spec__

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        if name not in self._contents:
            return None
        made = self._specs[name]
        origin = None if made is None else made.origin
        search = self._contents[name].get("__path__")
        spec = importlib.util.spec_from_loader(
            name, self, origin=origin, is_package=search is not None
        )
        if search is not None:
            spec.submodule_search_locations = [*search]
        return spec

    def create_module(self, spec: object) -> object:
        return None

    def exec_module(self, module: object) -> None:
        vars(module).update(self._contents[module.__spec__.name])

    def get_source(self, name: str) -> str | None:
        return _loader.get_source(name)


_OF_IMPORT = frozenset({"__spec__", "__loader__", "__cached__", "__builtins__"})
_loader, _restorer = _Loader(), _Restorer()
_before: dict[str, dict[str, object]] = {}


def _note_modules() -> None:
    """Note what modules hold before the prelude changes any, to find those that it changes."""
    for name, module in list(sys.modules.items()):
        _before.setdefault(name, dict(vars(module)))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


class _Distribution(importlib.metadata.Distribution):
    """What `importlib.metadata` reads of an added wheel."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def key(self) -> str:
        return _normal(self._folder.split("-")[0])

    def read_text(self, filename: str) -> str | None:
        found = _files.get(f"{self._folder}/{filename}")
        return None if found is None else found.decode("utf-8", "replace")

    def locate_file(self, path: object) -> object:
        return _Path(str(path))


class _Path(importlib.resources.abc.Traversable):
    """A file or folder of a wheel."""

    def __init__(self, path: str) -> None:
        self._path = path

    @property
    def name(self) -> str:
        return posixpath.basename(self._path)

    def is_file(self) -> bool:
        return self._path in _files

    def is_dir(self) -> bool:
        return any(path.startswith(self._path + "/") for path in _files)

    def iterdir(self) -> object:
        head = self._path + "/"
        names = {path[len(head) :].split("/")[0] for path in _files if path.startswith(head)}
        return iter([_Path(head + name) for name in sorted(names)])

    def joinpath(self, *parts: object) -> "_Path":
        return _Path(posixpath.normpath(posixpath.join(self._path, *map(str, parts))))

    __truediv__ = joinpath

    def open(self, mode: str = "r", encoding: str = "utf-8", errors: str = "strict") -> object:
        if self._path not in _files:
            raise FileNotFoundError(self._path)
        raw = io.BytesIO(_files[self._path])
        return raw if "b" in mode else io.TextIOWrapper(raw, encoding or "utf-8", errors)

    def __str__(self) -> str:
        return _WHEEL + self._path


class _Resources(importlib.resources.abc.TraversableResources):
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def files(self) -> _Path:
        return _Path(self._folder)


def _store(folder: str, prefix: str) -> None:
    for name in sorted(os.listdir(folder)):
        path = f"{folder}/{name}"
        if name.endswith(".py"):
            package = name == "__init__.py"
            module = prefix.rstrip(".") if package else prefix + name[:-3]
            if module:
                _store_module(module, path, package=package)
        elif name not in _SKIPPED and "." not in name and os.path.isdir(path):
            _store(path, prefix + name + ".")


def _store_module(name: str, path: str, *, package: bool) -> None:
    with open(path, "rb") as file:
        text = file.read()
    made = sys.modules.get(name)
    if made is None:
        tail = "/__init__.py" if package else ".py"
        path = _STANDARD + name.replace(".", "/") + tail
        code = compile(text, path, "exec", dont_inherit=True)
        _code[name] = zlib.compress(marshal.dumps(code), 9)
    elif getattr(made, "__file__", None) == path:
        # Its own loader reads a file that is not there any more.
        made.__loader__ = made.__spec__.loader = _loader
    _standard[name] = (package, path, zlib.compress(text, 9))


def install() -> None:
    """Store the standard library, and serve it. Called once, while the image is made."""
    # `os` is frozen and its path leads nowhere during the build; argparse is an ordinary file.
    import argparse

    _store(os.path.dirname(argparse.__file__), "")
    _note_modules()
    sys.meta_path.append(_loader)


def settle() -> None:
    """Keep the modules that were changed since. Called once, when all parts are in place."""
    for name, module in list(sys.modules.items()):
        now, before = vars(module), _before.get(name)
        if name in _NOT_KEPT or name.partition(".")[0] in _NOT_KEPT:
            continue
        changed = before is None or any(now.get(key) is not before[key] for key in before)
        if changed or module.__spec__ is None:
            _restorer.keep(name, module)
    sys.meta_path.insert(0, _restorer)


_NOT_KEPT = frozenset({"__main__", "builtins", "sys", "entry", "wit_world", "tallystick_guest"})
_note_modules()


def add_wheel(data: bytes) -> list[str]:
    """Make a wheel's modules importable and return their names."""
    names = []
    with zipfile.ZipFile(io.BytesIO(data)) as wheel:
        for path in wheel.namelist():
            if path.endswith("/"):
                continue
            _files[path] = text = wheel.read(path)
            head = path.split("/")[0]
            if path.endswith(".py") and not head.endswith((".dist-info", ".data")):
                package = posixpath.basename(path) == "__init__.py"
                name = (posixpath.dirname(path) if package else path[:-3]).replace("/", ".")
                if name:
                    _source[name] = (package, text, path)
                    names.append(name)
    _add_namespaces()
    importlib.invalidate_caches()
    return names


def _add_namespaces() -> None:
    """A folder of modules without `__init__.py` is a package too."""
    for name in list(_source):
        while "." in name:
            name = name.rpartition(".")[0]
            if name not in _source:
                _source[name] = (True, b"", name.replace(".", "/") + "/__init__.py")
