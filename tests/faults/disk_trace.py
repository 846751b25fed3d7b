"""What a process does to one directory, recorded by strace: every change, in order, with its bytes.

A change has a beginning and an end, since threads overlap: places in the trace, counted in lines. A
call that changes the directory in a way that is not modelled raises `NotModelled`; a recording that
left something out would prove nothing.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

__all__ = [
    "ROOT_NODE",
    "Change",
    "Cut",
    "Named",
    "NotModelled",
    "Said",
    "Synced",
    "Wrote",
    "record",
]

# The directory itself. Every other file and directory gets a number when it is made.
ROOT_NODE = 0
_TRACED = (
    "openat,open,creat,close,lseek,write,pwrite64,writev,pwritev,pwritev2,ftruncate,truncate,"
    "fallocate,rename,renameat,renameat2,unlink,unlinkat,mkdir,mkdirat,rmdir,link,linkat,symlink,"
    "symlinkat,chdir,fchdir,fsync,fdatasync,sync,syncfs,sync_file_range,msync,mmap,"
    "copy_file_range,sendfile,splice,dup,dup2,dup3"
)
_STRING_BYTES_MAX = 16 << 20
_LINE = re.compile(r"(\d+)\s+(?:(\w+)\((.*)|<\.\.\. (\w+) resumed>(.*))")
_RESULT = re.compile(r"(.*)\)\s+= (-?\d+|0x[0-9a-f]+)(?:<([^>]*)>)?")
_UNFINISHED = " <unfinished ...>"
_TOKEN = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?|(-?\w+)<([^>]*)>(?:\(deleted\))?|([^,\s"]+)')


class NotModelled(Exception):
    """A call that changed the directory in a way that the model does not know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrote:
    """Bytes that were put into a file."""

    begun: int
    ended: int
    node: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A file that was given a length."""

    begun: int
    ended: int
    node: int
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Names that changed, all at once: the directory, the name, and what it stands for now.

    `node` is the directory that must be synced for it to last. `made` is what was new by it.
    """

    begun: int
    ended: int
    node: int
    names: tuple[tuple[int, str, int | None], ...]
    made: int | None = None
    folder: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """A file or directory of which everything that was done before is on the disk now."""

    begun: int
    ended: int
    node: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the process wrote to its output: an acknowledgement."""

    begun: int
    ended: int
    text: str


Change = Wrote | Cut | Named | Synced | Said


def record(
    command: Sequence[str], *, root: Path, trace: Path, cwd: Path, env: Mapping[str, str]
) -> list[Change]:
    """Run a command to its good end, and return what it did to `root`, which must be empty."""
    root = root.resolve()
    assert not list(root.iterdir())
    strace = ["strace", "-f", "-y", "-xx", "-s", str(_STRING_BYTES_MAX), "-e", f"trace={_TRACED}"]
    done = subprocess.run(
        [*strace, "-o", str(trace), *command],
        cwd=cwd,
        env=dict(env),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    with trace.open(encoding="ascii", errors="replace") as lines:
        reader = _Reader(PurePosixPath(root), cwd=PurePosixPath(cwd.resolve()))
        for place, line in enumerate(lines):
            reader.line(place, line.rstrip("\n"))
    return sorted(reader.changes, key=lambda change: change.begun)


@dataclass(slots=True)
class _Open:
    """An open file: what it is, where the next write goes."""

    node: int
    at: int = 0
    appends: bool = False


@dataclass(frozen=True, slots=True)
class _Call:
    """One call with its arguments: texts and paths of descriptors as bytes, the rest as words."""

    name: str
    begun: int
    ended: int
    arguments: list[tuple[str, bytes]]
    result: int
    result_path: str

    def word(self, place: int) -> str:
        return self.arguments[place][0]

    def data(self, place: int) -> bytes:
        return self.arguments[place][1]

    def descriptor(self, place: int = 0) -> int:
        return int(self.word(place))


@dataclass
class _Reader:
    """Follows names and descriptors through a trace. All threads share them."""

    root: PurePosixPath
    cwd: PurePosixPath
    changes: list[Change] = field(default_factory=list)
    _begun: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    _nodes: dict[PurePosixPath, int] = field(default_factory=dict)
    _folders: set[int] = field(default_factory=lambda: {ROOT_NODE})
    _sizes: dict[int, int] = field(default_factory=dict)
    _open: dict[int, _Open] = field(default_factory=dict)
    _made: int = ROOT_NODE

    def __post_init__(self) -> None:
        self._nodes[self.root] = ROOT_NODE

    def line(self, place: int, line: str) -> None:
        found = _LINE.match(line)
        if found is None:
            return  # A signal, or an end.
        thread, name, rest, resumed, tail = found.groups()
        begun = place
        if resumed is not None:
            begun, name, head = self._begun.pop(thread)
            rest = head + tail
        elif rest.endswith(_UNFINISHED):
            self._begun[thread] = (place, name, rest.removesuffix(_UNFINISHED))
            return
        ended = _RESULT.match(rest)
        if ended is None:
            return  # The process was gone before it returned.
        result = int(ended[2], 0)
        if result >= 0:
            arguments = [_argument(each) for each in _TOKEN.finditer(ended[1])]
            path = _text(ended[3] or "").decode("utf-8", "surrogateescape")
            self._call(_Call(name, begun, place, arguments, result, path))

    def _call(self, call: _Call) -> None:
        match call.name:
            case "openat" | "open" | "creat":
                self._opened(call)
            case "close":
                self._open.pop(call.descriptor(), None)
            case "chdir" | "fchdir":
                self.cwd = self._path(call, 0)
            case "mkdir" | "mkdirat" | "unlink" | "unlinkat" | "rmdir":
                self._made_or_removed(call)
            case "rename" | "renameat" | "renameat2":
                self._renamed(call)
            case "write" if call.descriptor() == 1:
                text = call.data(1).decode()
                self.changes.append(Said(begun=call.begun, ended=call.ended, text=text))
            case "mmap":
                self._mapped(call)
            case "lseek" | "write" | "pwrite64" | "ftruncate" | "fsync" | "fdatasync":
                held = self._open.get(call.descriptor())
                if held is not None:
                    self._used(call, held)
            case _:
                self._refuse_inside(call)

    def _opened(self, call: _Call) -> None:
        at = 0 if call.name != "openat" else 1
        path = self._path(call, at)
        flags = call.word(at + 1).split("|")
        if not self._inside(path):
            return
        node = self._nodes.get(path)
        if node is None:
            if "O_CREAT" not in flags:
                raise NotModelled(f"{path} was opened and nobody made it")
            node = self._new(call, path)
        elif "O_TRUNC" in flags:
            self._cut(call, node, 0)
        self._open[call.result] = _Open(node, appends="O_APPEND" in flags)

    def _new(self, call: _Call, path: PurePosixPath, *, folder: bool = False) -> int:
        self._made += 1
        self._nodes[path] = node = self._made
        if folder:
            self._folders.add(node)
        parent = self._nodes[path.parent]
        self.changes.append(
            Named(
                begun=call.begun,
                ended=call.ended,
                node=parent,
                names=((parent, path.name, node),),
                made=node,
                folder=folder,
            )
        )
        return node

    def _made_or_removed(self, call: _Call) -> None:
        path = self._path(call, 1 if call.name.endswith("at") else 0)
        if not self._inside(path):
            return
        if call.name.startswith("mkdir"):
            self._new(call, path, folder=True)
            return
        del self._nodes[path]
        parent = self._nodes[path.parent]
        names = ((parent, path.name, None),)
        self.changes.append(Named(begun=call.begun, ended=call.ended, node=parent, names=names))

    def _renamed(self, call: _Call) -> None:
        whole = call.name == "rename"
        old, new = self._path(call, 0 if whole else 1), self._path(call, 1 if whole else 3)
        if not self._inside(old) and not self._inside(new):
            return
        node = self._nodes.pop(old)
        if node in self._folders:
            raise NotModelled(f"the directory {old} was renamed")
        self._nodes[new] = node
        before, after = self._nodes[old.parent], self._nodes[new.parent]
        names = ((before, old.name, None), (after, new.name, node))
        self.changes.append(Named(begun=call.begun, ended=call.ended, node=after, names=names))

    def _used(self, call: _Call, held: _Open) -> None:
        match call.name:
            case "lseek":
                held.at = call.result
            case "write":
                if held.appends:
                    held.at = self._sizes.get(held.node, 0)
                self._wrote(call, held.node, held.at)
                held.at += call.result
            case "pwrite64":
                self._wrote(call, held.node, int(call.word(3)))
            case "ftruncate":
                self._cut(call, held.node, int(call.word(1)))
            case _:
                self.changes.append(Synced(begun=call.begun, ended=call.ended, node=held.node))

    def _wrote(self, call: _Call, node: int, offset: int) -> None:
        data = call.data(1)[: call.result]
        assert len(data) == call.result, f"the trace has lost bytes of a {call.name}"
        self._sizes[node] = max(self._sizes.get(node, 0), offset + len(data))
        self.changes.append(
            Wrote(begun=call.begun, ended=call.ended, node=node, offset=offset, data=data)
        )

    def _cut(self, call: _Call, node: int, length: int) -> None:
        self._sizes[node] = length
        self.changes.append(Cut(begun=call.begun, ended=call.ended, node=node, length=length))

    def _mapped(self, call: _Call) -> None:
        """Memory over a file: only the index of a log, which nobody believes after a crash."""
        shared = "MAP_SHARED" in call.word(3) and "PROT_WRITE" in call.word(2)
        path = PurePosixPath(call.data(4).decode("utf-8", "surrogateescape"))
        if shared and self._inside(path) and not path.name.endswith("-shm"):
            raise NotModelled(f"{path} is written through memory")

    def _refuse_inside(self, call: _Call) -> None:
        """Calls that are traced only to be sure that nobody makes them here."""
        for place, (_, data) in enumerate(call.arguments):
            if data and self._inside(self._path(call, place)):
                raise NotModelled(f"{call.name} of {data[:80].decode(errors='replace')}")
        if call.name in ("sync", "syncfs"):
            raise NotModelled(call.name)

    def _path(self, call: _Call, place: int) -> PurePosixPath:
        """A path as it was given; one that is relative begins at the directory before it."""
        given = PurePosixPath(call.data(place).decode("utf-8", "surrogateescape"))
        if given.is_absolute():
            return given
        if place and call.word(place - 1):
            return PurePosixPath(call.data(place - 1).decode("utf-8", "surrogateescape")) / given
        return self.cwd / given

    def _inside(self, path: PurePosixPath) -> bool:
        return path == self.root or self.root in path.parents


def _argument(token: re.Match[str]) -> tuple[str, bytes]:
    text, cut, descriptor, path, word = token.groups()
    if cut:
        raise NotModelled("a text in the trace is cut short")
    if descriptor is not None:
        return descriptor, _text(path)
    return word or "", _text(text or "")


def _text(escaped: str) -> bytes:
    """The bytes of a text in hexadecimal, as -xx has it; what is in none is as it stands."""
    if not escaped.startswith("\\x"):
        return escaped.encode()
    return bytes.fromhex(escaped.replace("\\x", ""))
