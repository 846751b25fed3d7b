"""The way out of a box: what the proxy lets through and refuses, and that it records both."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.escape.process.boxes import made_sandbox, opened

from tallystick.core.errors import UsageError
from tallystick.sandbox.process.proxy import (
    Attempt,
    BadRequest,
    NetworkGrant,
    is_public,
    parse_head,
)
from tallystick.sandbox.process.sandbox import ProcessSandbox

pytestmark = pytest.mark.slow

_FETCH = """
import os, socket, urllib.error, urllib.request
def fetch(url):
    try:
        return urllib.request.urlopen(url, timeout=5).read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode().strip()
    except OSError as error:
        return type(error).__name__
def tunnel(target):
    with socket.create_connection(('127.0.0.1', 3128)) as made:
        made.sendall(f'CONNECT {target} HTTP/1.1\\r\\n\\r\\n'.encode())
        head = made.recv(4096).decode()
        if ' 200 ' not in head:
            return head.split('\\r\\n')[0]
        made.sendall(b'GET / HTTP/1.1\\r\\n\\r\\n')
        return made.recv(4096).decode().rpartition('\\r\\n')[2]
"""


@pytest.fixture(scope="module")
def sandbox() -> Iterator[ProcessSandbox]:
    made = made_sandbox(spares=0)
    yield made
    asyncio.run(made.close())


class Served:
    """A host that answers with `here` and keeps what it was sent."""

    def __init__(self, listening: socket.socket) -> None:
        self.port: int = listening.getsockname()[1]
        self.asked: list[bytes] = []
        self._listening = listening

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                with connection:
                    self.asked.append(connection.recv(65_536))
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhere")


@contextmanager
def served() -> Iterator[Served]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        made = Served(listening)
        thread = threading.Thread(target=made.serve, daemon=True)
        thread.start()
        yield made
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def test_a_listed_host_is_reached_another_is_refused_and_both_are_recorded(
    sandbox: ProcessSandbox,
) -> None:
    seen: list[Attempt] = []
    asked: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"]

    with served() as there:
        listed = frozenset({f"listed.test:{there.port}"})
        grant = NetworkGrant(allow=listed, private=listed)
        with opened(sandbox, network=grant, record=seen.append, resolve=resolve) as session:
            session.value(_FETCH)
            urls = [f"http://{host}:{there.port}/a?b" for host in ("listed.test", "other.test")]
            found = session.value(f"[fetch({urls[0]!r}), fetch({urls[1]!r})]")
            through = session.value(
                f"[tunnel('listed.test:{there.port}'), tunnel('listed.test:1')]"
            )
            direct = session.value(
                f"import errno\n[socket.socket().connect_ex(('127.0.0.1', {there.port})) =="
                " errno.ECONNREFUSED]"
            )

    assert found == "['here', (403, 'the host is not on the list')]"
    assert through == "['here', 'HTTP/1.1 403 Forbidden']"
    assert direct == "[True]"
    assert [(each.method, each.host, each.outcome, each.address) for each in seen] == [
        ("GET", "listed.test", "allowed", "127.0.0.1"),
        ("GET", "other.test", "refused", None),
        ("CONNECT", "listed.test", "allowed", "127.0.0.1"),
        ("CONNECT", "listed.test", "refused", None),
    ]
    assert asked == ["listed.test", "listed.test"]
    assert there.asked[0].startswith(b"GET /a?b HTTP/1.1\r\nhost: listed.test:")


def test_a_name_that_comes_to_mean_a_private_address_is_refused(sandbox: ProcessSandbox) -> None:
    seen: list[Attempt] = []
    answers = iter([["93.184.216.34", "10.0.0.7"], ["169.254.169.254"], ["::1"], []])
    grant = NetworkGrant(allow=frozenset({"rebound.test:80"}))

    with opened(
        sandbox, network=grant, record=seen.append, resolve=lambda host, port: next(answers)
    ) as session:
        session.value(_FETCH)
        found = session.value("[fetch('http://rebound.test/')[0] for _ in range(4)]")

    assert found == "[403, 403, 403, 502]"
    assert [each.why for each in seen] == [
        "10.0.0.7 is not a public address",
        "169.254.169.254 is not a public address",
        "::1 is not a public address",
        "the name has no address",
    ]


@pytest.mark.slow
def test_what_fails_after_it_was_allowed_is_told_as_well(sandbox: ProcessSandbox) -> None:
    seen: list[Attempt] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    entry = frozenset({f"gone.test:{port}"})

    with opened(
        sandbox,
        network=NetworkGrant(allow=entry, private=entry),
        record=seen.append,
        resolve=lambda host, port: ["127.0.0.1"],
    ) as session:
        session.value(_FETCH)
        assert session.value(f"fetch('http://gone.test:{port}/')[0]") == "502"

    assert [each.outcome for each in seen] == ["allowed", "failed"]


def test_only_streams_can_be_had_and_names_are_not_found_inside(sandbox: ProcessSandbox) -> None:
    with opened(sandbox, network=NetworkGrant(allow=frozenset())) as session:
        session.value(_FETCH)
        program = (
            "def tried(f):\n    try: return f() and 'done'\n    except OSError: return 'refused'\n"
            "[tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM)),"
            " tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW)),"
            " tried(lambda: socket.getaddrinfo('listed.test', 80)),"
            " tried(lambda: socket.create_connection(('169.254.169.254', 80), 1)),"
            " fetch('http://169.254.169.254/latest/meta-data/')[0]]"
        )

        assert session.value(program) == "['refused', 'refused', 'refused', 'refused', 403]"


@pytest.mark.slow
def test_a_second_request_on_a_connection_is_not_passed_on(sandbox: ProcessSandbox) -> None:
    with served() as there:
        entry = frozenset({f"listed.test:{there.port}"})
        with opened(
            sandbox,
            network=NetworkGrant(allow=entry, private=entry),
            resolve=lambda host, port: ["127.0.0.1"],
        ) as session:
            url = f"http://listed.test:{there.port}"
            session.value(
                "import socket\nwith socket.create_connection(('127.0.0.1', 3128)) as made:\n"
                f"    made.sendall(b'GET {url}/one HTTP/1.1\\r\\n\\r\\n'"
                f" b'GET {url}/two HTTP/1.1\\r\\nHost: other.test\\r\\n\\r\\n')\n"
                "    made.recv(4096)"
            )

    assert len(there.asked) == 1
    assert b"/one" in there.asked[0]
    assert b"two" not in there.asked[0]
    assert b"other.test" not in there.asked[0]


# -- what is hostile -------------------------------------------------------------------------------

NOT_PUBLIC = [
    "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1",
    "169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.1", "198.18.0.1", "224.0.0.1",
    "240.0.0.1", "255.255.255.255", "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1",
    "fd00:ec2::254", "ff02::1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe",
    "2002:a00:1::", "::7f00:1", "2001:db8::1", "", "localhost", "1.2.3", "2852039166", "0x7f.1",
]  # fmt: skip


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_that_is_not_public_is_known(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "1.1.1.1", "2606:4700::1111"])
def test_an_address_that_is_public_is_known(address: str) -> None:
    assert is_public(address)


@given(st.integers(0, 2**32 - 1))
def test_an_address_is_as_public_as_what_it_maps_to(number: int) -> None:
    plain = ipaddress.IPv4Address(number)

    assert is_public(f"::ffff:{plain}") == is_public(str(plain))


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"GET / HTTP/1.1",
        b"GET http://a HTTP/2.0",
        b"get http://a/ HTTP/1.1",
        b"GET  http://a/ HTTP/1.1",
        b"GET https://a/ HTTP/1.1",
        b"GET file:///etc/passwd HTTP/1.1",
        b"GET http://user@a/ HTTP/1.1",
        b"GET http://a:0/ HTTP/1.1",
        b"GET http://a:99999/ HTTP/1.1",
        b"GET http://a#b HTTP/1.1",
        b"GET http://a\\@b/ HTTP/1.1",
        b"GET http://a/\nb HTTP/1.1",
        b"GET http:///x HTTP/1.1",
        b"GET http://.a/ HTTP/1.1",
        b"CONNECT a HTTP/1.1",
        b"CONNECT a:443:1 HTTP/1.1",
        b"CONNECT [::1 HTTP/1.1",
        b"CONNECT [zz]:1 HTTP/1.1",
        b"GET http://a/ HTTP/1.1\r\n folded: x",
        b"GET http://a/ HTTP/1.1\r\nname : x",
        b"GET http://a/ HTTP/1.1\r\nx: a\nb: c",
        b"GET http://a/ HTTP/1.1\r\nTransfer-Encoding: chunked",
        b"POST http://a/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2",
        b"POST http://a/ HTTP/1.1\r\nContent-Length: -1",
        b"POST http://a/ HTTP/1.1\r\nContent-Length: 0x10",
    ],
)
def test_a_head_in_any_other_spelling_is_refused(head: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_head(head)


@given(st.binary(max_size=200))
def test_no_bytes_make_the_reader_do_anything_but_refuse_or_read(head: bytes) -> None:
    for given_head in (head, b"GET http://" + head, b"GET http://a/ HTTP/1.1\r\n" + head):
        with suppress(BadRequest):
            read = parse_head(given_head)
            assert 0 < read.port < 65_536
            assert read.host
            assert read.forwarded.count(b"\r\n\r\n") <= 1


def test_hosts_are_compared_in_one_spelling() -> None:
    grant = NetworkGrant(allow=frozenset({"api.test:443", "*.files.test:443"}))

    assert parse_head(b"CONNECT API.Test.:443 HTTP/1.1").host == "api.test"
    assert grant.allows("api.test", 443)
    assert grant.allows("a.b.files.test", 443)
    assert not grant.allows("files.test", 443)
    assert not grant.allows("api.test", 80)
    assert not grant.allows("api.test.evil.test", 443)
    assert not grant.allows("notfiles.test", 443)


@pytest.mark.parametrize(
    "entry",
    ["", "a", ":1", "a:", "a:0", "a:99999", "a:x", "A:1", "http://a:1", "a*:1", "*.*.a:1", "a/b:1"],
)
def test_a_grant_that_is_none_is_an_error(entry: str) -> None:
    with pytest.raises(UsageError, match="network"):
        NetworkGrant(allow=frozenset({entry}))


def test_what_is_private_must_be_allowed_as_well() -> None:
    with pytest.raises(UsageError, match="private"):
        NetworkGrant(allow=frozenset(), private=frozenset({"a:1"}))
