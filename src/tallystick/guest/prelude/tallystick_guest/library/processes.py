"""The parts of `multiprocessing` that hold shared things: managers, values, arrays and pipes.

There is one process, so what is shared is simply the same object. A value that crosses a pipe is
pickled, as it would be: the other end gets a copy.
"""

import array
import pickle
import queue
import sys
import threading
import types

# How many bytes a character array has is given by its text, not by its type code.
_CHARACTERS = "c"
_CODES = "bBhHiIlLqQfdu"


def _check_code(code: object) -> str:
    if not isinstance(code, str):
        raise TypeError(f"a type code such as 'i' or 'd' is needed, not {code!r}: no ctypes here")
    if code != _CHARACTERS and (len(code) != 1 or code not in _CODES):
        raise TypeError(f"bad typecode (must be one of c, {', '.join(_CODES)})")
    return code


class RawValue:
    """One number of a fixed type, or one byte, in `value`."""

    def __init__(self, typecode_or_type: str, *args: object) -> None:
        self._code = _check_code(typecode_or_type)
        start = args[0] if args else ("\0" if self._code == "u" else 0)
        self._held: object = b"\0"
        if self._code == _CHARACTERS:
            self.value = start if args else b"\0"
        else:
            self._held = array.array(self._code, [start])

    @property
    def value(self) -> object:
        return self._held if self._code == _CHARACTERS else self._held[0]

    @value.setter
    def value(self, value: object) -> None:
        if self._code != _CHARACTERS:
            self._held[0] = value
        elif isinstance(value, bytes) and len(value) == 1:
            self._held = value
        else:
            raise TypeError("one character bytes, bytearray, or an integer in range(256) expected")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._code!r}: {self.value!r}>"


class RawArray:
    """Numbers of one type, or bytes with `value` and `raw`, of a length that stays."""

    def __init__(self, typecode_or_type: str, size_or_initializer: object) -> None:
        self._code = _check_code(typecode_or_type)
        start = size_or_initializer
        if isinstance(start, int):
            if start < 0:
                raise ValueError("Array length must be >= 0")
            start = bytes(start) if self._code == _CHARACTERS else [self._zero()] * start
        characters = self._code == _CHARACTERS
        self._held = bytearray(start) if characters else array.array(self._code, start)

    def _zero(self) -> object:
        return "\0" if self._code == "u" else 0

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> object:
        return (self[place] for place in range(len(self._held)))

    def __getitem__(self, key: object) -> object:
        found = self._held[key]
        if self._code == _CHARACTERS:
            return bytes(found) if isinstance(key, slice) else bytes([found])
        return list(found) if isinstance(key, slice) else found

    def __setitem__(self, key: object, value: object) -> None:
        if isinstance(key, slice):
            size = len(range(*key.indices(len(self._held))))
            if len(value) != size:
                raise ValueError("Can only assign sequence of same size")
            if self._code != _CHARACTERS:
                value = array.array(self._code, value)
        elif self._code == _CHARACTERS and isinstance(value, bytes):
            (value,) = value
        self._held[key] = value

    def __getattr__(self, name: str) -> object:
        if self.__dict__.get("_code") == _CHARACTERS:
            if name == "raw":
                return bytes(self._held)
            if name == "value":
                return bytes(self._held).partition(b"\0")[0]
        raise AttributeError(name)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in ("raw", "value") or self._code != _CHARACTERS:
            object.__setattr__(self, name, value)
            return
        if len(value) > len(self._held):
            raise ValueError("byte string too long")
        end = b"\0" if name == "value" and len(value) < len(self._held) else b""
        self._held[: len(value) + len(end)] = value + end

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._code!r}: {self[:]!r}>"


class _Locked:
    """What a shared value or array has beside its content."""

    def _set_lock(self, lock: object) -> None:
        object.__setattr__(self, "_lock", threading.RLock() if lock in (True, None) else lock)

    def get_lock(self) -> object:
        return self._lock

    def get_obj(self) -> object:
        return self

    def acquire(self, *args: object, **kwargs: object) -> bool:
        return self._lock.acquire(*args, **kwargs)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> object:
        return self._lock.__enter__()

    def __exit__(self, *exc: object) -> None:
        self._lock.__exit__(*exc)


class Synchronized(_Locked, RawValue):
    """A value with its lock."""


class SynchronizedArray(_Locked, RawArray):
    """An array with its lock."""


def make_value(typecode_or_type: str, *args: object, lock: object = True) -> object:
    """Make what `multiprocessing.Value` makes."""
    if lock is False:
        return RawValue(typecode_or_type, *args)
    made = Synchronized(typecode_or_type, *args)
    made._set_lock(lock)
    return made


def make_array(
    typecode_or_type: str, size_or_initializer: object, *, lock: object = True
) -> object:
    """Make what `multiprocessing.Array` makes."""
    if lock is False:
        return RawArray(typecode_or_type, size_or_initializer)
    made = SynchronizedArray(typecode_or_type, size_or_initializer)
    made._set_lock(lock)
    return made


class Namespace(types.SimpleNamespace):
    """Attributes that are shared."""

    def __repr__(self) -> str:
        shown = [f"{name}={value!r}" for name, value in self.__dict__.items() if name[:1] != "_"]
        return f"Namespace({', '.join(shown)})"


class _Proxied:
    """What a manager's object has beside its content."""

    def _getvalue(self) -> object:
        return self.copy()


class DictProxy(_Proxied, dict):
    """A manager's dictionary."""


class ListProxy(_Proxied, list):
    """A manager's list."""


class _ManagedValue:
    """A manager's value: any object, not only a number."""

    def __init__(self, typecode: object, value: object, lock: object = True) -> None:
        self.value = value

    def get(self) -> object:
        return self.value

    def set(self, value: object) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Value({self.value!r})"


class BaseManager:
    """A manager whose objects live in this interpreter."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.address = None

    @classmethod
    def register(cls, typeid: str, callable: object = None, *args: object, **kw: object) -> None:
        """Add a method that makes something with `callable`."""

        def make(self: object, *args: object, **kwargs: object) -> object:
            return callable(*args, **kwargs)

        if callable is not None:
            setattr(cls, typeid, make)

    def start(self, initializer: object = None, initargs: tuple = ()) -> None:
        if initializer is not None:
            initializer(*initargs)

    def shutdown(self) -> None:
        """Do nothing: there is no server to stop."""

    def join(self, timeout: float | None = None) -> None:
        """Return: there is no server to wait for."""

    def __enter__(self) -> "BaseManager":
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()


class SyncManager(BaseManager):
    """What `multiprocessing.Manager()` returns."""


def _make_manager_types(package: types.ModuleType) -> None:
    made = {name: getattr(package, name) for name in _AS_OUTSIDE}
    made |= {
        "dict": DictProxy,
        "list": ListProxy,
        "Namespace": Namespace,
        "Value": _ManagedValue,
        "Array": lambda typecode, sequence, lock=True: array.array(typecode, sequence),
    }
    for name, make in made.items():
        SyncManager.register(name, make)


_AS_OUTSIDE = (
    "Lock RLock Event Condition Semaphore BoundedSemaphore Barrier Queue JoinableQueue Pool".split()
)


def make_manager() -> SyncManager:
    """Make what `multiprocessing.Manager` makes."""
    return SyncManager()


class Connection:
    """One end of a pipe."""

    def __init__(self, incoming: queue.Queue, outgoing: queue.Queue, way: str) -> None:
        self._incoming, self._outgoing = incoming, outgoing
        self.readable, self.writable = "r" in way, "w" in way
        self._next: list[bytes | None] = []
        self.closed = False

    def _check(self, *, able: bool, what: str) -> None:
        if self.closed:
            raise OSError("handle is closed")
        if not able:
            raise OSError(f"connection is {what}-only")

    def send(self, obj: object) -> None:
        self.send_bytes(pickle.dumps(obj))

    def send_bytes(self, buf: object, offset: int = 0, size: int | None = None) -> None:
        self._check(able=self.writable, what="read")
        view = memoryview(buf).cast("B")[offset:]
        self._outgoing.put(bytes(view if size is None else view[:size]))

    def recv(self) -> object:
        return pickle.loads(self.recv_bytes())

    def recv_bytes(self, maxlength: int | None = None) -> bytes:
        self._check(able=self.readable, what="write")
        found = self._next.pop() if self._next else self._incoming.get()
        if found is None:
            self._next.append(None)
            raise EOFError
        if maxlength is not None and len(found) > maxlength:
            raise OSError("got more data than the maximum length")
        return found

    def poll(self, timeout: float | None = 0.0) -> bool:
        self._check(able=self.readable, what="write")
        if not self._next:
            try:
                wait = {} if timeout is None else {"timeout": max(0.0, timeout)}
                self._next.append(self._incoming.get(**wait))
            except queue.Empty:
                return False
        return True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self.writable:
                self._outgoing.put(None)

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def make_pipe(duplex: bool = True) -> tuple[Connection, Connection]:
    """Make what `multiprocessing.Pipe` makes."""
    one, other = queue.Queue(), queue.Queue()
    if duplex:
        return Connection(one, other, "rw"), Connection(other, one, "rw")
    return Connection(one, other, "r"), Connection(other, one, "w")


def _add_module(name: str, **names: object) -> None:
    whole = f"multiprocessing.{name}"
    for each in names.values():
        each.__module__ = whole
    module = types.ModuleType(whole, "An inline stand-in: this sandbox has one process.")
    module.__dict__.update(names)
    module.__all__ = sorted(names)
    sys.modules[whole] = module
    setattr(sys.modules["multiprocessing"], name, module)


def install() -> None:
    """Add these to `multiprocessing`. Called once, after its other parts are in place."""
    package = sys.modules["multiprocessing"]
    _make_manager_types(package)
    values = {"Value": make_value, "Array": make_array, "RawValue": RawValue, "RawArray": RawArray}
    names = {**values, "Manager": make_manager, "Pipe": make_pipe}
    for function, name in ((make_value, "Value"), (make_array, "Array")):
        function.__name__ = function.__qualname__ = name
    make_manager.__name__ = make_manager.__qualname__ = "Manager"
    make_pipe.__name__ = make_pipe.__qualname__ = "Pipe"
    for each in (package, package.dummy):
        each.__dict__.update(names)
        each.__all__ = sorted({*each.__all__, *names})
    _add_module(
        "managers",
        BaseManager=BaseManager,
        SyncManager=SyncManager,
        Namespace=Namespace,
        DictProxy=DictProxy,
        ListProxy=ListProxy,
    )
    _add_module("sharedctypes", **values)
    _add_module("connection", Connection=Connection, Pipe=make_pipe)
