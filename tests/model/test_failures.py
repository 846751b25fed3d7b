"""Every misfortune over a real connection, and the tables behind them."""

from __future__ import annotations

import datetime
import socket
import ssl

import pytest
from tests.model.fake_server import DIALECTS, FakeServer, endpoint, failed
from tests.model.misfortunes import MISFORTUNES

from tallystick.model import failures
from tallystick.model import failures as complaint
from tallystick.model.endpoint import Dialect
from tallystick.model.port import ModelReason

NOW = datetime.datetime(2026, 1, 1, 12, 0, 0, tzinfo=datetime.UTC)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("name", MISFORTUNES)
def test_every_misfortune_has_its_reason(server: FakeServer, dialect: Dialect, name: str) -> None:
    misfortune = MISFORTUNES[name]
    server.always(misfortune.does)

    error = failed(endpoint(server, dialect, **misfortune.endpoint))

    assert (error.reason, error.kind, error.billed) == (
        misfortune.reason,
        misfortune.kind,
        misfortune.billed,
    )
    assert misfortune.says in error.message
    assert error.retry_after_ms == misfortune.retry_after_ms
    assert error.message.startswith("fake:m at 127.0.0.1:")
    assert "\n" not in error.message
    assert error.__cause__ is error.__context__ is None
    assert len(server.seen) == 1


def test_where_nothing_listens_nothing_was_sent_and_the_message_says_where() -> None:
    with FakeServer() as gone:
        where = endpoint(gone)

    error = failed(where)

    assert (error.reason, error.kind, error.billed) == ("network_error", "transient", False)
    assert f"nothing listens at {where.address}" in error.message


def test_a_name_that_nobody_has_is_said_to_be_unknown() -> None:
    wrapped = OSError("connect failed")
    wrapped.__context__ = socket.gaierror(-2, "Name or service not known")

    error = failures.unreachable(wrapped, address="nobody.example:443")

    assert (error.reason, error.kind, error.billed) == ("network_error", "transient", False)
    assert "the name of nobody.example:443 is unknown" in error.message


def test_speaking_tls_to_a_plain_server_is_explained(server: FakeServer) -> None:
    error = failed(endpoint(server, base_url=server.url.replace("http:", "https:")))

    assert (error.reason, error.billed) == ("network_error", False)
    assert "check http or https" in error.message


def test_a_certificate_nobody_vouches_for_is_no_matter_of_trying_again() -> None:
    cause = ssl.SSLCertVerificationError(1, "self-signed")
    cause.verify_message = "self-signed certificate"
    wrapped = OSError("connect failed")
    wrapped.__cause__ = ExceptionGroup("attempts", [cause])

    error = failures.unreachable(wrapped, address="example.com:443")

    assert (error.kind, error.billed) == ("terminal", False)
    assert "SSL_CERT_FILE" in error.message


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b'{"error": {"code": "context_length_exceeded", "message": "x"}}', "context_overflow"),
        (
            b'{"error": {"message": "This model\'s maximum context length is 4096 tokens."}}',
            "context_overflow",
        ),
        (
            b'{"error":{"code":400,"message":"request (6030 tokens) exceeds the available context '
            b'size (4096 tokens)","type":"exceed_context_size_error"}}',
            "context_overflow",
        ),
        (
            b'{"type":"error","error":{"type":"invalid_request_error",'
            b'"message":"prompt is too long: 208310 tokens > 200000 maximum"}}',
            "context_overflow",
        ),
        (b'{"error": {"code": "content_policy_violation"}}', "content_policy"),
        (b'{"object":"error","message":"max_tokens must be at least 1"}', "invalid_request"),
        (b'{"error":{"message":"Your credit balance is too low"}}', "auth_failure"),
        (b'[{"error": {"code": 400, "message": "API key not valid"}}]', "invalid_request"),
        (b'{"detail": [{"msg": "field required"}]}', "invalid_request"),
        (b'{"error": "model requires more system memory"}', "invalid_request"),
        (b"just text", "invalid_request"),
        (b"[" * 60_000, "invalid_request"),
        (b"\xff\xfe\x00", "invalid_request"),
        (b"", "invalid_request"),
    ],
)
def test_a_400_is_read_for_what_it_means(body: bytes, reason: ModelReason) -> None:
    error = failures.of_status(400, {}, body, now=NOW)

    assert error.reason == reason
    assert error.billed is False


def test_every_status_has_a_reason_and_only_five_are_free() -> None:
    found = {
        status: failures.of_status(status, {}, b"", now=NOW)
        for status in (100, 199, *range(300, 600), 600, 999)
    }

    assert all(error.status == status for status, error in found.items())
    free = {status for status, error in found.items() if not error.billed}
    assert free == {400, 401, 403, 404, 429}


@pytest.mark.parametrize(
    ("status", "message", "reason"),
    [
        (401, "your context window", "auth_failure"),
        (429, "the context window of content_filter", "rate_limit"),
        (503, "prompt is too long", "server_error"),
        (500, "prompt is too long", "context_overflow"),
        (403, "content_policy", "content_policy"),
    ],
)
def test_words_count_only_where_servers_mean_them(
    status: int, message: str, reason: ModelReason
) -> None:
    assert failures.of_status(status, {}, message.encode(), now=NOW).reason == reason


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"retry-after": "3"}, 3_000),
        ({"retry-after": "0.5"}, 500),
        ({"retry-after-ms": "1250", "retry-after": "9"}, 1_250),
        ({"retry-after": "Thu, 01 Jan 2026 12:00:30 GMT"}, 30_000),
        ({"retry-after": "Thu, 01 Jan 2026 11:00:00 GMT"}, 0),
        ({"retry-after": "-5"}, 0),
        ({"retry-after": "1e300"}, 3_600_000),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "1, 2"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "Thu, 99 Foo 2026 99:99:99 GMT"}, None),
        ({"retry-after": "9" * 10_000}, 3_600_000),
        ({}, None),
    ],
)
def test_retry_after_is_believed_up_to_an_hour(
    headers: dict[str, str], expected: int | None
) -> None:
    assert complaint.retry_after_ms(headers, now=NOW) == expected


def test_a_servers_own_words_are_one_short_line_without_control_characters() -> None:
    said = "first \x1b[31mred\u202e\u200b \ud800 line " + "x" * 1_000 + "\nsecond line"
    body = b'{"error": {"message": ' + repr(said).encode("ascii", "backslashreplace") + b"}}"
    body = body.replace(b"'", b'"').replace(b"\\x1b", b"\\u001b").replace(b"\\ud800", b"")

    message = failures.of_status(500, {}, body, now=NOW).message

    assert "first [31mred line xxx" in message
    assert "second" not in message
    assert len(message) < 400


@pytest.mark.parametrize(
    ("error", "reason", "kind"),
    [
        ({"type": "overloaded_error"}, "server_error", "transient"),
        ({"type": "invalid_request_error", "message": "x"}, "invalid_request", "terminal"),
        ({"code": 429, "message": "x"}, "rate_limit", "transient"),
        ({"code": 502, "message": "x"}, "server_error", "transient"),
        ({"code": "insufficient_quota", "type": "rate_limit_error"}, "rate_limit", "terminal"),
        ({"code": "insufficient_quota"}, "rate_limit", "terminal"),
        ({"code": "rate_limit_exceeded"}, "rate_limit", "transient"),
        ({"code": 99999999999}, "server_error", "transient"),
        ("words", "server_error", "transient"),
        (None, "server_error", "transient"),
        ([], "server_error", "transient"),
        (7, "server_error", "transient"),
    ],
)
def test_an_error_in_a_stream_is_billed_whatever_it_is(
    error: object, reason: ModelReason, kind: str
) -> None:
    found = failures.of_error_value(error)

    assert (found.reason, found.kind, found.billed) == (reason, kind, True)
