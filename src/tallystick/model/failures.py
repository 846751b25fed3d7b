"""Map failed attempts to `ModelError`: a status, an error body, or a broken connection.

Rule 1: reasons are the port's closed set. A failure that no table here knows is `unknown`, never a
guess.
Rule 2: `billed` is False only for what was never sent and for the statuses that refuse before any
work (`_UNBILLED`). Anything that broke later may have been paid for.
Rule 3: a message is one line: what happened, then what to do. `http` puts the provider and address
before it, and removes the key from it.
"""

from __future__ import annotations

import datetime
import email.utils
import math
import socket
import ssl
import unicodedata
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from tallystick.core.charge import FailureKind, ModelUsage
from tallystick.model.port import ModelError, ModelReason

# Reading an error of a server: its message, its names for it, and when to ask again. Servers use a
# handful of shapes, but may send anything, so nothing in this part raises.


_SAID_CHARS_MAX = 300
_RETRY_AFTER_MS_MAX = 3_600_000
_UNSHOWN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def retry_after_ms(headers: Mapping[str, str], *, now: datetime.datetime) -> int | None:
    """Return the wait that the server asks for, in milliseconds, from 0 to an hour.

    Return None if neither `retry-after-ms` nor `retry-after` can be read. Names are in lower case.
    """
    wait_ms = _number(headers.get("retry-after-ms", ""))
    if wait_ms is None:
        stated = headers.get("retry-after", "")
        seconds = _number(stated)
        if seconds is None:
            seconds = _seconds_until(stated, now)
        wait_ms = None if seconds is None else seconds * 1000
    return None if wait_ms is None else round(min(max(wait_ms, 0.0), _RETRY_AFTER_MS_MAX))


def _number(text: str) -> float | None:
    try:
        value = float(text[:40])
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _seconds_until(text: str, now: datetime.datetime) -> float | None:
    try:
        then = email.utils.parsedate_to_datetime(text[:64])
    except (ValueError, IndexError, TypeError, OverflowError):
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=datetime.UTC)
    return (then - now).total_seconds()


def of_body(content_type: str, body: bytes) -> tuple[str, str]:
    """Return the message in an error's body, and the names that the error has there.

    The message is one line of at most 300 characters, "" if there is none, and "an HTML page" for
    HTML. The names, joined by spaces, are "" if the body is not JSON.
    """
    try:
        return of_value(msgspec.json.decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    text = body.decode("utf-8", "replace")
    if "html" in content_type.lower() or text.lstrip()[:1] == "<":
        return "an HTML page", ""
    return _first_line(text), ""


def of_value(value: object) -> tuple[str, str]:
    """Return message and names from `{"error": {...}}`, `{"error": "..."}`, `{"detail": ...}`.

    Three levels are read, and of a list the first value. Either is "" if there is none.
    """
    names: list[str] = []
    said = ""
    for _ in range(3):
        if isinstance(value, list) and value:
            value = value[0]
        if not isinstance(value, dict):
            break
        names += [str(value[key])[:80] for key in ("type", "code") if key in value]
        said = next(
            (value[key] for key in ("message", "detail") if isinstance(value.get(key), str)), said
        )
        value = value.get("error", value.get("detail"))
    if isinstance(value, str):
        said = said or value
    return _first_line(said), " ".join(names)


def _first_line(text: str) -> str:
    text = text[: 8 * _SAID_CHARS_MAX].strip()
    return one_line(text.partition("\n")[0])[:_SAID_CHARS_MAX]


def one_line(text: str) -> str:
    """Return a text in one line: each run of white space becomes one space.

    Control, format and private-use characters and lone surrogates are removed.
    """
    spaced = " ".join(text.split())
    return "".join(each for each in spaced if unicodedata.category(each) not in _UNSHOWN)


BODY_BYTES_MAX = 8 * 1024 * 1024
# Higher than for a body: each few characters of a streamed text come in hundreds of bytes of JSON.
STREAM_BYTES_MAX = 64 * 1024 * 1024
TEXT_CHARS_MAX = 2 * 1024 * 1024
# Only the message of an error is read.
ERROR_BYTES_MAX = 64 * 1024
_UNBILLED = frozenset({400, 401, 403, 404, 429})


class _Meaning(NamedTuple):
    reason: ModelReason
    advice: str
    kind: FailureKind | None = None


_KEY = "check the key, and that it may use this model"
_AGAIN = "the server may be able to answer later"
_BASE_URL = "the base URL is probably wrong: most end in /v1"
_SMALLER = "use a model with a longer context, or ask for less"
_NO_CREDIT = "the account has no credit left"
_STATUSES: dict[int, _Meaning] = {
    400: _Meaning("invalid_request", "the server does not take such requests for this model"),
    401: _Meaning("auth_failure", _KEY),
    402: _Meaning("auth_failure", _NO_CREDIT),
    403: _Meaning("auth_failure", _KEY),
    404: _Meaning("model_unavailable", "check the model's name, and the base URL: most end in /v1"),
    405: _Meaning("model_unavailable", _BASE_URL),
    408: _Meaning("timeout", _AGAIN),
    409: _Meaning("server_error", _AGAIN),
    410: _Meaning("model_unavailable", "check the model's name: this one is gone"),
    413: _Meaning("context_overflow", _SMALLER),
    422: _Meaning("invalid_request", "the server does not take such requests for this model"),
    429: _Meaning("rate_limit", "too many requests: wait, or ask fewer at once"),
}
_SERVER_ERROR = _Meaning("server_error", _AGAIN)
_BROKEN = _Meaning("server_error", "the server cannot do what it was asked", "terminal")
_OTHER = _Meaning("unknown", "this status is none that a model's server gives")

# Words that servers use for kinds of errors, in lower case, and the statuses with which they mean
# them. Sources: the references of OpenAI and Anthropic; the code of llama.cpp, vLLM and Ollama.
_WORDS: tuple[tuple[frozenset[int], tuple[str, ...], _Meaning], ...] = (
    (
        frozenset({400, 413, 422, 500}),
        (
            "context_length_exceeded",
            "prompt is too long",
            "exceed_context_size",
            "exceeds the available context size",
            "exceed context limit",
            "maximum context length",
            "context window",
            "input is too long",
        ),
        _Meaning("context_overflow", _SMALLER),
    ),
    (
        frozenset({400, 403, 422, 500}),
        (
            "content_filter",
            "content_policy",
            "responsibleaipolicyviolation",
            "content management policy",
            "content filtering policy",
        ),
        _Meaning("content_policy", "the provider refuses to answer this"),
    ),
    (
        frozenset({429}),
        ("insufficient_quota", "billing_hard_limit", "billing_not_active"),
        _Meaning("rate_limit", _NO_CREDIT, "terminal"),
    ),
    (frozenset({400}), ("credit balance", "billing_"), _Meaning("auth_failure", _NO_CREDIT)),
)
# An error inside a stream has no status of its own; these statuses correspond to its name.
_NAMES: dict[str, int] = {
    "api_error": 500,
    "authentication_error": 401,
    "billing_error": 402,
    "insufficient_quota": 429,
    "invalid_request_error": 400,
    "not_found_error": 404,
    "overloaded_error": 529,
    "permission_error": 403,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "request_too_large": 413,
    "server_error": 500,
    "timeout_error": 408,
    "unavailable_error": 503,
}


# -- errors from a server -----------------------------------------------------------------------


def of_status(
    status: int, headers: Mapping[str, str], body: bytes, *, now: datetime.datetime
) -> ModelError:
    """Return the error for a status other than success. Header names are in lower case.

    A redirect is an error too. `billed` is False for the statuses in `_UNBILLED`.
    """
    if 300 <= status < 400:
        return _redirect(status, headers.get("location", ""))
    said, names = of_body(headers.get("content-type", ""), body)
    meaning = _meaning(status, f"{names} {said}".lower())
    quote = f" ({said})" if said else ""
    return ModelError(
        reason=meaning.reason,
        message=f"answered {status}{quote}; {meaning.advice}",
        kind=meaning.kind,
        status=status,
        retry_after_ms=retry_after_ms(headers, now=now),
        billed=status not in _UNBILLED,
    )


def of_error_value(error: object) -> ModelError:
    """Return the error for one inside a stream, or in a body that came with a success status.

    It counts as billed. Without a known name or status in it, its status is 500.
    """
    said, names = of_value(error)
    status = next((_NAMES[each] for each in names.split() if each in _NAMES), None)
    if status is None:
        status = next((int(each) for each in names.split() if each in _CODES), 500)
    meaning = _meaning(status, f"{names} {said}".lower())
    return ModelError(
        reason=meaning.reason,
        message=f"broke off with an error ({said or 'without a message'}); {meaning.advice}",
        kind=meaning.kind,
        status=status,
        billed=True,
    )


def is_overload(error: ModelError) -> bool:
    """Return True if all requests to the provider should pause.

    That is so for a temporary rate limit, and for the statuses 503 and 529.
    """
    return error.kind == "transient" and (
        error.reason == "rate_limit" or error.status in (503, 529)
    )


def with_message(error: ModelError, *, message: str, usage: ModelUsage | None = None) -> ModelError:
    """Return the same error with another message, and without a cause.

    Its usage is dropped unless `usage` is given. A cause refers to the request with its key, or to
    what a server sent; a traceback would show it.
    """
    return ModelError(
        reason=error.reason,
        message=message,
        kind=error.kind,
        status=error.status,
        retry_after_ms=error.retry_after_ms,
        billed=error.billed,
        usage=usage,
    )


def wrong_content_type(content_type: str) -> ModelError:
    """Return the error for a success with a body of another type than a reply's. It is terminal."""
    shown = one_line(content_type.partition(";")[0])[:80] or "no content type"
    what = "an HTML page" if "html" in shown.lower() else f"a body of type {shown}"
    return ModelError(
        reason="model_unavailable", message=f"answered with {what}; {_BASE_URL}", status=200
    )


def malformed_reply(what: str) -> ModelError:
    """Return the error for a success that is no reply. Transient, and counts as billed."""
    return ModelError(reason="server_error", message=f"answered with {what}; {_AGAIN}", status=200)


def compressed_body() -> ModelError:
    """Return the error for a compressed reply. Terminal: the server would do it again."""
    return ModelError(
        reason="server_error",
        message="answered with a compressed body, though asked not to; turn compression off in "
        "the server, or in the proxy before it",
        kind="terminal",
        status=200,
    )


def content_refused(why: str, usage: ModelUsage) -> ModelError:
    """Return the error for a refusal to answer. Terminal; it has the usage if that was reported."""
    return ModelError(
        reason="content_policy",
        message=f"did not answer ({one_line(why)[:80]}); the provider refuses to answer this",
        status=200,
        usage=usage if usage.reported else None,
    )


def oversized_reply(what: str) -> ModelError:
    """Return the error for a reply that is too large. Terminal, and counts as billed."""
    return ModelError(
        reason="server_error",
        message=f"answered with {what}, and was cut off; set a lower cap for replies",
        kind="terminal",
        status=200,
    )


# -- errors of a connection ---------------------------------------------------------------------


def unreachable(error: BaseException, *, address: str) -> ModelError:
    """Return the error for a connection that could not be made, so nothing was sent.

    Not billed. Transient, except for a certificate that is not accepted.
    """
    kind: FailureKind = "transient"
    what = f"no connection to {address}; check the network, or the base URL"
    for cause in _causes(error):
        if isinstance(cause, ConnectionRefusedError):
            what = f"nothing listens at {address}; start the server, or mend the base URL"
        elif isinstance(cause, socket.gaierror):
            what = f"the name of {address} is unknown; check the base URL and the network"
        elif isinstance(cause, ssl.SSLCertVerificationError):
            kind = "terminal"
            what = (
                f"the certificate of {address} is not to be believed "
                f"({one_line(cause.verify_message)[:80]}); if it is your own, name it in "
                f"SSL_CERT_FILE"
            )
        elif isinstance(cause, ssl.SSLError):
            what = f"{address} does not speak TLS as it should; check http or https in the base URL"
        else:
            continue
        break
    return ModelError(reason="network_error", message=what, kind=kind, billed=False)


def not_sent(reason: ModelReason, message: str, *, kind: FailureKind | None = None) -> ModelError:
    """Return the error for an attempt that ended before anything left this machine. Not billed."""
    return ModelError(reason=reason, message=message, kind=kind, billed=False)


def broken_connection(what: str) -> ModelError:
    """Return the error for a connection that ended early. Transient, and counts as billed."""
    return ModelError(
        reason="network_error",
        message=f"{what}; what had come is not a reply, and asking again may help",
    )


def silence_timeout(seconds: float) -> ModelError:
    """Return the error for a server that sent nothing for too long. Transient, counts as billed."""
    return ModelError(
        reason="timeout",
        message=f"sent nothing for {seconds:g} s; the server is stuck, or needs a longer deadline",
    )


def total_timeout(seconds: float) -> ModelError:
    """Return the error for a reply that took too long. Transient, and counts as billed."""
    return ModelError(
        reason="timeout",
        message=f"had not answered whole after {seconds:g} s; ask for less, or allow more time",
    )


# -- parts --------------------------------------------------------------------------------------

_CODES = frozenset(str(status) for status in range(400, 600))


def _meaning(status: int, words: str) -> _Meaning:
    for statuses, known, meaning in _WORDS:
        if status in statuses and any(each in words for each in known):
            return meaning
    if status in _STATUSES:
        return _STATUSES[status]
    if status in (501, 505):
        return _BROKEN
    return _SERVER_ERROR if 500 <= status < 600 else _OTHER


def _redirect(status: int, location: str) -> ModelError:
    # Only the host is shown: the rest of the target may repeat parts of the request, or its key.
    _, _, rest = location.partition("://")
    host = one_line(rest.partition("/")[0].rpartition("@")[2])[:80] if rest else ""
    target = f" to {host}" if host else ""
    return ModelError(
        reason="model_unavailable",
        message=f"answered {status}: redirects{target} are not followed; set the base URL to the "
        f"server itself",
        status=status,
    )


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its causes and contexts, and the members of groups; at most 32."""
    found: list[BaseException] = [error]
    for _ in range(32):
        if not found:
            return
        each = found.pop(0)
        yield each
        if isinstance(each, BaseExceptionGroup):
            found.extend(each.exceptions)
        found.extend(cause for cause in (each.__cause__, each.__context__) if cause is not None)
