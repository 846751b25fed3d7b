"""A private directory for the sockets of bridges, and the client beside them."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["CLIENT", "BridgeFolder"]

CLIENT = "ask.py"
_SOURCE = Path(__file__).with_name("bridge_client.py")


@dataclass(slots=True)
class BridgeFolder:
    """A private directory for sockets, and the client beside them. Made when it is needed."""

    _path: Path | None = field(default=None)

    @property
    def path(self) -> Path:
        if self._path is None:
            # Short: the path of a socket has at most a hundred bytes.
            self._path = Path(tempfile.mkdtemp(prefix="tally-"))
            shutil.copyfile(_SOURCE, self._path / CLIENT)
            (self._path / CLIENT).chmod(0o644)
            # Programs of root's boxes are nobody's: they pass through, and list nothing.
            self._path.chmod(0o711)
        return self._path

    def close(self) -> None:
        path, self._path = self._path, None
        if path is not None:
            shutil.rmtree(path, ignore_errors=True)
