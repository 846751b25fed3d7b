"""Encrypted connections: certificates, tunnels through proxies, and which proxy is used."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.model import fake_server as fake
from tests.model.fake_server import KEY, REQUEST

from tallystick.model.endpoint import Endpoint, Secret
from tallystick.model.http import HttpModel, proxy_for
from tallystick.model.port import ModelError

_NAMES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*_NAMES, "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate and its key in one file, for 127.0.0.1 and api.example.com."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName(
        [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("api.example.com")]
    )
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path / "certificate.pem"
    path.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return path


def _server_side(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


class _Heads:
    """The requests that came, without their bodies, and the connections to close."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.connections = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def close(self) -> None:
        for writer in self.writers:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@contextlib.asynccontextmanager
async def _server(certificate: Path, heads: _Heads) -> AsyncIterator[int]:
    """An encrypted server that answers every request. Yields its port."""
    said = fake.openai_body(fake.TEXT, finish="stop", usage=None, model="m")
    # Longer than one read, so that the pieces of it are put together.
    body = json.dumps({**said, "padding": "x" * 600_000}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.connections += 1
        heads.writers.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                asked = await reader.readuntil(b"\r\n\r\n")
                heads.seen.append(asked)
                length = asked.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
                await reader.readexactly(int(length))
                writer.write(head % len(body) + body)

    context = _server_side(certificate)
    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]
        await heads.close()


@contextlib.asynccontextmanager
async def _proxy(heads: _Heads, to: int, context: ssl.SSLContext | None) -> AsyncIterator[int]:
    """A proxy that makes every tunnel to one port of this machine. Yields its own."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.seen.append(await reader.readuntil(b"\r\n\r\n"))
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", to)
        heads.writers += writer, far_writer
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]
        await heads.close()


def _endpoint(base_url: str) -> Endpoint:
    return Endpoint(
        provider="p", dialect="openai", base_url=base_url, model="m", key=Secret(KEY), stream=False
    )


async def _asked(base_url: str, times: int = 1) -> list[str]:
    model = HttpModel(_endpoint(base_url))
    try:
        return [(await model.ask(REQUEST)).text for _ in range(times)]
    finally:
        await model.close()


def test_a_server_with_a_certificate_that_the_environment_names_is_asked(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    heads = _Heads()

    async def main() -> list[str]:
        async with _server(certificate, heads) as port:
            return await _asked(f"https://127.0.0.1:{port}/v1")

    assert asyncio.run(main()) == [fake.TEXT]
    assert KEY.encode() in heads.seen[0]


def test_a_certificate_that_nobody_vouches_for_is_refused_before_the_key_is_sent(
    certificate: Path,
) -> None:
    heads = _Heads()

    async def main() -> ModelError:
        async with _server(certificate, heads) as port:
            with pytest.raises(ModelError) as caught:
                await _asked(f"https://127.0.0.1:{port}/v1")
            return caught.value

    error = asyncio.run(main())

    assert (error.reason, error.kind, error.billed) == ("network_error", "terminal", False)
    assert "SSL_CERT_FILE" in error.message
    assert heads.seen == []


@pytest.mark.parametrize("encrypted_proxy", [False, True])
def test_a_tunnel_is_used_again_and_its_proxy_reads_neither_key_nor_prompt(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, encrypted_proxy: bool
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    if encrypted_proxy:
        # The proxy's own certificate is looked for among those that certifi carries.
        monkeypatch.setattr("certifi.where", lambda: str(certificate))
    server_heads, proxy_heads = _Heads(), _Heads()

    async def main() -> list[str]:
        context = _server_side(certificate) if encrypted_proxy else None
        async with (
            _server(certificate, server_heads) as port,
            _proxy(proxy_heads, port, context) as proxy_port,
        ):
            scheme = "https" if encrypted_proxy else "http"
            proxy = f"{scheme}://me:pass%20word@127.0.0.1:{proxy_port}"
            monkeypatch.setenv("HTTPS_PROXY", proxy)
            return await _asked("https://api.example.com/v1", 3)

    assert asyncio.run(main()) == [fake.TEXT] * 3
    (tunnel,) = proxy_heads.seen
    assert tunnel.startswith(b"CONNECT api.example.com:443 HTTP/1.1\r\n")
    assert b"Basic bWU6cGFzcyB3b3Jk" in tunnel
    assert KEY.encode() not in tunnel
    assert (len(server_heads.seen), server_heads.connections) == (3, 1)
    assert b"\r\nhost: api.example.com\r\n" in server_heads.seen[0].lower()


@pytest.mark.parametrize(
    ("environment", "base_url", "expected"),
    [
        ({}, "https://api.example.com/v1", None),
        ({"HTTPS_PROXY": "http://p:1"}, "https://api.example.com/v1", "http://p:1"),
        ({"HTTPS_PROXY": "p:1"}, "https://api.example.com/v1", "http://p:1"),
        ({"ALL_PROXY": "http://a:1"}, "https://api.example.com/v1", "http://a:1"),
        ({"HTTPS_PROXY": "http://p:1", "ALL_PROXY": "http://a:1"}, "https://e.com", "http://p:1"),
        ({"HTTP_PROXY": "http://p:1"}, "https://api.example.com/v1", None),
        ({"NO_PROXY": "*"}, "https://api.example.com/v1", None),
        ({"NO_PROXY": "x.com, example.com"}, "https://api.example.com/v1", None),
        ({"NO_PROXY": "example.com"}, "https://example.com/v1", None),
        ({"NO_PROXY": "example.com"}, "https://anexample.com/v1", "http://p:1"),
        ({"NO_PROXY": ".example.com"}, "https://api.example.com/v1", None),
        ({"NO_PROXY": ".example.com"}, "https://example.com/v1", "http://p:1"),
        ({"NO_PROXY": "EXAMPLE.com"}, "https://api.example.com/v1", None),
        ({"NO_PROXY": "example.com:8443"}, "https://example.com:8443/v1", None),
        ({"NO_PROXY": "example.com:8443"}, "https://example.com/v1", "http://p:1"),
        ({"NO_PROXY": "https://example.com"}, "https://example.com/v1", None),
        ({"NO_PROXY": "https://example.com"}, "https://api.example.com/v1", "http://p:1"),
        ({"NO_PROXY": "http://example.com"}, "https://example.com/v1", "http://p:1"),
        ({"NO_PROXY": "10.1.2.3"}, "https://10.1.2.3/v1", None),
        ({"NO_PROXY": "2.3"}, "https://10.1.2.3/v1", None),
        ({"NO_PROXY": "10.1.2.3"}, "https://10.1.2.4/v1", "http://p:1"),
        ({"NO_PROXY": "10.1.0.0/16"}, "https://10.1.2.3/v1", "http://p:1"),
        ({"NO_PROXY": "fd00::1"}, "https://[fd00::1]/v1", None),
        ({"NO_PROXY": " , ,"}, "https://example.com/v1", "http://p:1"),
    ],
)
def test_the_environment_says_which_proxy_is_used(
    environment: dict[str, str],
    base_url: str,
    expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "NO_PROXY" in environment:
        environment = {"HTTPS_PROXY": "http://p:1", **environment}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert proxy_for(_endpoint(base_url)) == expected


def test_a_list_of_exceptions_that_cannot_be_read_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", "example.com:port")

    with pytest.raises(ModelError) as caught:
        asyncio.run(_asked("https://example.com/v1"))

    assert (caught.value.reason, caught.value.billed) == ("network_error", False)
    assert "NO_PROXY" in caught.value.message
