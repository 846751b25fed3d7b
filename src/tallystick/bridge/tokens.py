"""Issue and check the tokens of the bridge: who may ask, for what, and until when.

A token is 32 random bytes without a meaning. Only its digest is kept, so that the book cannot
reveal tokens. A token that was issued under another may never do more than that one, ends with it
at the latest, and is one level deeper: depth counts the tokens above it, not those in use.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from tallystick.core.errors import InvalidLimit, UsageError

TOKEN_BYTES = 32
# 30 minutes, as long as a session lasts by default.
TTL_MS = 1_800_000
# The default depth of a run.
_DEPTH_MAX = 10
# All tokens have one length; a text longer than this is not hashed.
_TEXT_CHARS_MAX = 256
_NOBODY = bytes(hashlib.sha256().digest_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScope:
    """The owner of a token and what may be asked with it.

    `models` are those that may be asked for by name, None for any that the run has; the run's own
    is asked without a name. `depth` is how many runs are above the one that asks.
    """

    session: str
    run: str = ""
    program: int = 0
    models: frozenset[str] | None = None
    tokens_out_max: int | None = None
    depth: int = 0
    depth_max: int = _DEPTH_MAX


@dataclass(eq=False, kw_only=True)
class Grant:
    """The rights of a token, without the token."""

    scope: TokenScope
    expires_at: float
    digest: bytes
    parent: Grant | None = None
    revoked: bool = False

    def __repr__(self) -> str:
        """Return the session and the run, without the digest: that would identify the token."""
        return f"Grant(session={self.scope.session!r}, run={self.scope.run!r})"

    def holds(self, now: float) -> bool:
        """Return True if the grant is valid at `now`: not expired, and not revoked."""
        return not self.revoked and now < self.expires_at

    def is_under(self, other: Grant) -> bool:
        """Return True if this is the other grant, or was issued under it."""
        at: Grant | None = self
        while at is not None:
            if at is other:
                return True
            at = at.parent
        return False


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A token, to be given to the program that shall ask, and its grant."""

    text: str
    grant: Grant

    def __repr__(self) -> str:
        """Return the grant without the token: shown texts may be kept."""
        return f"IssuedToken({self.grant!r})"


class TokenBook:
    """The tokens that are valid. `clock` is in seconds and never goes back."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._grants: dict[bytes, Grant] = {}

    def __len__(self) -> int:
        return len(self._grants)

    def issue(
        self, scope: TokenScope, *, ttl_ms: int = TTL_MS, parent: Grant | None = None
    ) -> IssuedToken:
        """Make a token. Under `parent` it may do no more than that, whatever is asked for.

        Expired tokens are forgotten. Raise `UsageError` if the scope has no session, or if the
        parent is not valid or of another session. Raise `InvalidLimit` for a limit that is not a
        whole number of at least its minimum.
        """
        _check(scope, ttl_ms)
        now = self._clock()
        self._forget(now)
        expires_at = now + ttl_ms / 1000
        if parent is not None:
            if not parent.holds(now):
                raise UsageError("the token above the new one is not valid any more")
            scope = _narrow(scope, parent.scope)
            expires_at = min(expires_at, parent.expires_at)
        text = secrets.token_urlsafe(TOKEN_BYTES)
        grant = Grant(scope=scope, expires_at=expires_at, digest=_digest(text), parent=parent)
        self._grants[grant.digest] = grant
        return IssuedToken(text, grant)

    def find(self, text: str | None, *, session: str | None = None) -> Grant | None:
        """Return the grant of a valid token, of that session if one is named; otherwise None."""
        if text is None or len(text) > _TEXT_CHARS_MAX:
            return None
        digest = _digest(text)
        # Look up the digest: the time of the look-up then reveals nothing about existing tokens.
        grant = self._grants.get(digest)
        same = hmac.compare_digest(digest, _NOBODY if grant is None else grant.digest)
        if grant is None or not same or not grant.holds(self._clock()):
            return None
        if session is not None and grant.scope.session != session:
            return None
        return grant

    def revoke(self, grant: Grant) -> list[Grant]:
        """End a token and all under it. Return those that ended; repeating it is harmless."""
        ended = [each for each in self._grants.values() if each.is_under(grant)]
        for each in ended:
            each.revoked = True
            del self._grants[each.digest]
        grant.revoked = True
        return ended

    def _forget(self, now: float) -> None:
        self._grants = {key: each for key, each in self._grants.items() if each.holds(now)}


def _narrow(scope: TokenScope, above: TokenScope) -> TokenScope:
    """Return a scope restricted to what the scope above it allows, at least one level deeper.

    Raise `UsageError` if the two are of different sessions.
    """
    if scope.session != above.session:
        raise UsageError("a token under another must have the same session")
    models = scope.models
    if above.models is not None:
        models = above.models if models is None else models & above.models
    caps = [each for each in (scope.tokens_out_max, above.tokens_out_max) if each is not None]
    return replace(
        scope,
        models=models,
        tokens_out_max=min(caps, default=None),
        depth=max(scope.depth, above.depth + 1),
        depth_max=min(scope.depth_max, above.depth_max),
    )


def _check(scope: TokenScope, ttl_ms: int) -> None:
    if not scope.session:
        raise UsageError("a token needs a session")
    least: dict[str, tuple[object, int]] = {
        "ttl_ms": (ttl_ms, 1),
        "depth": (scope.depth, 0),
        "depth_max": (scope.depth_max, 0),
    }
    if scope.tokens_out_max is not None:
        least["tokens_out_max"] = (scope.tokens_out_max, 1)
    for field, (given, minimum) in least.items():
        if isinstance(given, bool) or not isinstance(given, int) or given < minimum:
            raise InvalidLimit(field=field, given=given, why=f"a whole number from {minimum} up")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
