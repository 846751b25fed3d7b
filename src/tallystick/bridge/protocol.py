"""Read and write what goes over the bridge: requests in one spelling only, replies and errors.

The head of a request is accepted only as we would write it ourselves: one length, given as a
number, no chunks, no folded lines. A head that could be read in two ways is refused, and the
connection ends with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from tallystick.core.charge import ModelUsage
from tallystick.core.errors import TallystickError
from tallystick.interop.error_codes import ERROR_CODES, ErrorCode, entry_of
from tallystick.sandbox.http_head import MalformedHead, RequestHead, read_request_head

_HEADERS_MAX = 100
_PATH_CHARS_MAX = 2_001
_MESSAGE_CHARS_MAX = 2_000
_REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 402: "Payment Required",
    404: "Not Found", 405: "Method Not Allowed", 408: "Request Timeout", 410: "Gone",
    411: "Length Required", 413: "Content Too Large", 429: "Too Many Requests",
    431: "Request Header Fields Too Large", 500: "Internal Server Error", 501: "Not Implemented",
    502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout",
}  # fmt: skip
_STATUSES: Mapping[str, int] = {
    "BatchSizeTooLarge": 413,
    "Cancelled": 410,
    "CommandParseFailed": 400,
    "ConfigError": 400,
    "ExecutionTimeout": 504,
    "InvalidSessionToken": 401,
    "LlmCallFailed": 502,
    "LlmNotConfigured": 503,
    "NotSupported": 501,
    "RecursionDepthExceeded": 402,
    "TimeBudgetExceeded": 402,
    "TokenBudgetExceeded": 402,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeQuery:
    """One question.

    The run decides about fields that are None. `cap` is the token's limit of a reply.
    """

    prompt: str
    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    cap: int | None = None


class _Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    prompt: str
    model: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None


class _Batch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    queries: list[_Query]


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeLeft:
    """The tokens and the time that the run has left.

    A field is None if the run has no such limit, or if what is left is unknown.
    """

    tokens: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeAnswer:
    """The answer of a model.

    `tokens_used` is what the run was charged, including attempts that failed; `figures` says where
    that comes from. `usage` is the provider's report of the reply as it came.
    """

    response: str
    tokens_used: int
    left: BridgeLeft
    usage: ModelUsage | None = None
    figures: str = "reported"
    cut: bool = False


class BridgeRefused(TallystickError):
    """A request that got no answer, with its row of the table of errors and an HTTP status.

    `tokens_used` is what was charged all the same. `left` is None where it is not known.
    """

    code = "refused.bridge"

    def __init__(
        self,
        name: str,
        message: str,
        *,
        status: int | None = None,
        retry_after_ms: int | None = None,
        tokens_used: int = 0,
        left: BridgeLeft | None = None,
    ) -> None:
        super().__init__(message)
        self.entry: ErrorCode = ERROR_CODES[name]
        self.status = _STATUSES.get(name, 500) if status is None else status
        self.retry_after_ms = retry_after_ms
        self.tokens_used = tokens_used
        self.left = left


def refusal_of(error: BaseException) -> BridgeRefused:
    """Return any error as a refusal; one that is a refusal already is returned as it is.

    Of an error that is not ours, only the class is shown; of a cancel, its own text.
    """
    if isinstance(error, BridgeRefused):
        return error
    entry = entry_of(error)
    known = isinstance(error, TallystickError) or entry.name == "Cancelled"
    said = str(error) if known else f"the host failed ({type(error).__name__})"
    return BridgeRefused(entry.name, said or entry.name)


# -- requests ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BridgeHead:
    """The head of a request. `length` is None where none is given."""

    method: str
    path: str
    token: str | None
    length: int | None
    keep_alive: bool
    expects: bool

    def __repr__(self) -> str:
        """Return the request line without the token."""
        return f"BridgeHead({self.method} {self.path})"


def parse_head(raw: bytes) -> BridgeHead:
    """Read a head up to its empty line, which is left out.

    Raise `BridgeRefused` if it is malformed, ambiguous or too long, or needs what is not supported.
    """
    if raw.count(b"\r\n") > _HEADERS_MAX:
        raise BridgeRefused("ConfigError", f"at most {_HEADERS_MAX} headers", status=431)
    try:
        return _bridge_head(read_request_head(raw))
    except MalformedHead as error:
        raise BridgeRefused("CommandParseFailed", str(error)) from None


def _bridge_head(head: RequestHead) -> BridgeHead:
    if not head.target.startswith("/") or len(head.target) > _PATH_CHARS_MAX:
        raise MalformedHead("the request line is malformed")
    if head.values(b"transfer-encoding"):
        raise BridgeRefused(
            "NotSupported",
            "Transfer-Encoding is not supported; send the body with its Content-Length",
        )
    tokens = head.values(b"x-session-token")
    connection = b",".join(head.values(b"connection")).lower()
    return BridgeHead(
        method=head.method,
        path=head.target,
        # Two tokens count as none: it is unknown which one is meant.
        token=tokens[0].decode("latin-1") if len(tokens) == 1 else None,
        length=head.length(),
        keep_alive=head.is_http_1_1 and b"close" not in connection,
        expects=head.is_http_1_1 and _is_expecting(head.values(b"expect")),
    )


def _is_expecting(given: Sequence[bytes]) -> bool:
    """Return True if the client waits for `100 Continue`.

    Raise `BridgeRefused` for any other expectation.
    """
    if any(each.lower() != b"100-continue" for each in given):
        raise BridgeRefused("NotSupported", "Expect: only 100-continue is known")
    return bool(given)


def read_query(body: bytes) -> BridgeQuery:
    """Read the body of a `/query`.

    Raise `BridgeRefused` if it is not JSON, has an unknown field or a value out of range.
    """
    return _check_query(_decode(body, _query), "")


def read_batch(body: bytes, *, most: int) -> list[BridgeQuery]:
    """Read the body of a `/query_batched`.

    Raise `BridgeRefused` as `read_query` does, or if it has more than `most` queries.
    """
    queries = _decode(body, _batch).queries
    if len(queries) > most:
        raise BridgeRefused(
            "BatchSizeTooLarge", f"{len(queries):,} queries in a batch; at most {most:,}"
        )
    return [_check_query(each, f"queries[{number}].") for number, each in enumerate(queries)]


_query = msgspec.json.Decoder(_Query)
_batch = msgspec.json.Decoder(_Batch)
_Body = TypeVar("_Body", _Query, _Batch)


def _decode(body: bytes, decoder: msgspec.json.Decoder[_Body]) -> _Body:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise BridgeRefused("ConfigError", str(error)[:_MESSAGE_CHARS_MAX]) from None
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        said = str(error)[:_MESSAGE_CHARS_MAX]
        raise BridgeRefused("CommandParseFailed", f"the body is not JSON: {said}") from None


def _check_query(query: _Query, where: str) -> BridgeQuery:
    given = query.temperature
    if given is not None and not (math.isfinite(given) and given >= 0):
        raise BridgeRefused("ConfigError", f"{where}temperature: a number from 0 up, not {given}")
    if query.max_tokens is not None and query.max_tokens < 1:
        raise BridgeRefused("ConfigError", f"{where}max_tokens: at least 1, not {query.max_tokens}")
    return BridgeQuery(
        prompt=query.prompt,
        model=query.model,
        temperature=given,
        max_tokens=query.max_tokens,
    )


# -- replies -----------------------------------------------------------------------------------


def reply_bytes(
    status: int, body: Mapping[str, object], *, keep_alive: bool, retry_after_ms: int | None = None
) -> bytes:
    """Return a whole reply. `retry_after_ms` is rounded up to seconds, at least 1, for HTTP."""
    raw = msgspec.json.encode(body)
    head = [
        f"HTTP/1.1 {status} {_REASONS.get(status, 'Status')}",
        "Content-Type: application/json",
        f"Content-Length: {len(raw)}",
        f"Connection: {'keep-alive' if keep_alive else 'close'}",
    ]
    if retry_after_ms is not None:
        head.append(f"Retry-After: {max(1, -(-retry_after_ms // 1000))}")
    return "\r\n".join([*head, "", ""]).encode() + raw


def query_body(answer: BridgeAnswer, *, time_ms: int) -> dict[str, object]:
    """Return the body of the reply to a `/query`."""
    return {
        "response": answer.response,
        "tokens_used": answer.tokens_used,
        "time_ms": time_ms,
        **_left_fields(answer.left),
        "figures": answer.figures,
        "cut": answer.cut,
        "usage": answer.usage,
    }


def batch_body(
    outcomes: Sequence[tuple[BridgeAnswer | BridgeRefused, int]], left: BridgeLeft, *, time_ms: int
) -> dict[str, object]:
    """Return the body of the reply to a `/query_batched`: each outcome in order, with its time.

    `Err` is a text of at most 2,000 characters, as the protocol has it; the same index of `errors`
    has its kind, or null for an answer. Refused queries count in the total of tokens.
    """
    responses: list[dict[str, object]] = []
    errors: list[dict[str, object] | None] = []
    for outcome, took_ms in outcomes:
        if isinstance(outcome, BridgeRefused):
            responses.append({"Err": str(outcome)[:_MESSAGE_CHARS_MAX]})
            errors.append(_error(outcome))
        else:
            responses.append({"Ok": query_body(outcome, time_ms=took_ms)})
            errors.append(None)
    return {
        "responses": responses,
        "total_tokens_used": sum(each.tokens_used for each, _ in outcomes),
        "total_time_ms": time_ms,
        **_left_fields(left),
        "errors": errors,
    }


def error_body(error: BridgeRefused) -> dict[str, object]:
    """Return the body of the reply to a request that was refused or failed.

    Its message has at most 2,000 characters. What is left is in it only if the error knows it.
    """
    body: dict[str, object] = {"error": _error(error)}
    if error.left is not None:
        body |= _left_fields(error.left)
    return body


def _error(error: BridgeRefused) -> dict[str, object]:
    body: dict[str, object] = {
        "type": error.entry.name,
        "code": error.entry.code,
        "message": str(error)[:_MESSAGE_CHARS_MAX],
        "retryable": error.entry.retryable,
    }
    if error.tokens_used:
        body["tokens_used"] = error.tokens_used
    if error.retry_after_ms is not None:
        body["retry_after_ms"] = error.retry_after_ms
    return body


def _left_fields(left: BridgeLeft) -> dict[str, object]:
    return {"tokens_remaining": left.tokens, "time_remaining_ms": left.time_ms}
