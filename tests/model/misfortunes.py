"""Everything that can go wrong with a server, and what is to be made of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.model import fake_server as fake
from tests.model.fake_server import Behaviour, End

from tallystick.core.charge import FailureKind
from tallystick.model.port import ModelReason


@dataclass(frozen=True)
class Misfortune:
    """What the server does; what the attempt comes to; what the message says."""

    does: Behaviour
    reason: ModelReason
    kind: FailureKind
    billed: bool
    says: str
    retry_after_ms: int | None = None
    endpoint: dict[str, Any] = field(default_factory=dict)


def _terminal(does: Behaviour, reason: ModelReason, says: str, *, billed: bool) -> Misfortune:
    return Misfortune(does, reason, "terminal", billed, says)


def _transient(does: Behaviour, reason: ModelReason, says: str, **more: Any) -> Misfortune:
    return Misfortune(does, reason, "transient", more.pop("billed", True), says, **more)


_OVERFLOW = {"type_": "invalid_request_error", "name": "context_length_exceeded"}

MISFORTUNES: dict[str, Misfortune] = {
    "400": _terminal(fake.status(400, "bad field"), "invalid_request", "bad field", billed=False),
    "400 overflow": _terminal(
        fake.status(400, "prompt is too long", **_OVERFLOW),
        "context_overflow",
        "longer context",
        billed=False,
    ),
    "400 policy": _terminal(
        fake.status(400, "Output blocked by content filtering policy", name="content_filter"),
        "content_policy",
        "refuses to answer",
        billed=False,
    ),
    "401": _terminal(fake.status(401, "Invalid API key"), "auth_failure", "the key", billed=False),
    "401, then silence": Misfortune(
        lambda seen: [fake.head(401, content_length=99) + b'{"error', End.STALL],
        "auth_failure",
        "terminal",
        False,
        "the key",
        endpoint={"silence_seconds": 0.1},
    ),
    "403": _terminal(fake.status(403, "not yours"), "auth_failure", "not yours", billed=False),
    "404": _terminal(
        fake.status(404, "no model m"), "model_unavailable", "model's name", billed=False
    ),
    "408": _transient(fake.status(408, "slow"), "timeout", "answered 408"),
    "409": _transient(fake.status(409, "busy"), "server_error", "answered 409"),
    "413": _terminal(fake.status(413, "big"), "context_overflow", "ask for less", billed=True),
    "418": _terminal(fake.status(418, "a teapot"), "unknown", "a teapot", billed=True),
    "422": _terminal(fake.status(422, "odd"), "invalid_request", "answered 422", billed=True),
    "429": _transient(
        fake.status(429, "slow down"), "rate_limit", "ask fewer at once", billed=False
    ),
    "429 retry-after": _transient(
        fake.status(429, "slow down", retry_after="0.05"),
        "rate_limit",
        "too many requests",
        billed=False,
        retry_after_ms=50,
    ),
    "429 quota": _terminal(
        fake.status(429, "You exceeded your current quota", type_="insufficient_quota"),
        "rate_limit",
        "quota",
        billed=False,
    ),
    "500": _transient(fake.status(500, "oops"), "server_error", "answered 500"),
    "501": _terminal(fake.status(501, "never"), "server_error", "cannot do", billed=True),
    "503": _transient(
        fake.status(503, "loading", retry_after_ms="40"),
        "server_error",
        "answered 503",
        retry_after_ms=40,
    ),
    "529": _transient(fake.status(529, "overloaded"), "server_error", "answered 529"),
    "redirect": _terminal(
        fake.redirect("https://elsewhere.example/v1?a=b"),
        "model_unavailable",
        "redirects to elsewhere.example are not followed",
        billed=True,
    ),
    "html": _terminal(fake.html(), "model_unavailable", "most end in /v1", billed=True),
    "html 502": _transient(fake.html(502), "server_error", "an HTML page"),
    "wrong type": _terminal(
        fake.wrong_type(), "model_unavailable", "application/octet-stream", billed=True
    ),
    "empty": _transient(fake.empty(), "server_error", "an empty body"),
    "malformed": _transient(fake.malformed(), "server_error", "not JSON"),
    "no reply in it": _transient(fake.no_choices(), "server_error", "answered with no c"),
    "stalled stream": _transient(
        fake.stalled(), "timeout", "nothing for 0.1 s", endpoint={"silence_seconds": 0.1}
    ),
    "never answers": _transient(
        fake.silence(), "timeout", "nothing for 0.1 s", endpoint={"silence_seconds": 0.1}
    ),
    "slow trickle": _transient(
        fake.trickle(), "timeout", "after 0.15 s", endpoint={"total_seconds": 0.15}
    ),
    "cut stream": _transient(fake.cut(), "network_error", "without its end marker"),
    "cut in a chunk": _transient(fake.cut_in_a_chunk(), "network_error", "connection broke"),
    "reset in a stream": _transient(fake.reset_in_a_stream(), "network_error", "connection broke"),
    "reset": _transient(fake.reset(), "network_error", "connection broke"),
    "hangs up": _transient(fake.hang_up(), "network_error", "connection broke"),
    "huge stream": _terminal(fake.huge(), "server_error", "lower cap", billed=True),
    "huge body": _terminal(fake.huge_body(), "server_error", "more bytes than", billed=True),
    "compressed": _terminal(
        fake.whole(b"\x1f\x8b", content_encoding="gzip"),
        "server_error",
        "turn compression off",
        billed=True,
    ),
    "compressed 401": _terminal(
        fake.whole(b"\x1f\x8b", status=401, content_encoding="gzip"),
        "auth_failure",
        "answered 401; check the key",
        billed=False,
    ),
    "error in a stream": _transient(
        fake.in_stream({"type": "overloaded_error", "message": "Overloaded"}),
        "server_error",
        "Overloaded",
    ),
    "limit in a stream": _transient(
        fake.in_stream({"type": "rate_limit_error", "message": "Slow"}), "rate_limit", "Slow"
    ),
}
