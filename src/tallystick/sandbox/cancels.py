"""What can be cancelled by a token, while it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from tallystick.core.errors import UsageError

__all__ = ["Cancels"]


class Cancels:
    """The programs of a sandbox that somebody can end by a token."""

    def __init__(self) -> None:
        self._by_token: dict[str, Callable[[], None]] = {}

    def cancel(self, cancellation_token: str) -> bool:
        """End what runs with this token in its context. Says whether there was anything."""
        cancel = self._by_token.get(cancellation_token)
        if cancel is not None:
            cancel()
        return cancel is not None

    def cancellable(
        self, token: str | None, cancel: Callable[[], None]
    ) -> contextlib.AbstractContextManager[None]:
        """Let `cancel` be called by a token for a while."""
        return contextlib.nullcontext() if token is None else self._registered(token, cancel)

    @contextlib.contextmanager
    def _registered(self, token: str, cancel: Callable[[], None]) -> Iterator[None]:
        if token in self._by_token:
            raise UsageError(f"cancellation token {token!r} is in use by another program")
        self._by_token[token] = cancel
        try:
            yield
        finally:
            del self._by_token[token]
