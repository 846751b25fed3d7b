"""Endpoints and keys: what is refused before anything is sent, and what is never shown."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import msgspec
import pytest

from tallystick.core.errors import UsageError
from tallystick.model.endpoint import REDACTED, Endpoint, Secret, scrub, without_key

KEY = "sk-proj-AbCdEf0123456789"


def at(base_url: str = "https://api.example.com/v1", **changes: Any) -> Endpoint:
    settings: dict[str, Any] = {"provider": "p", "dialect": "openai", "model": "m"}
    return Endpoint(**(settings | {"base_url": base_url} | changes))


# -- addresses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base_url", "kept", "origin"),
    [
        (
            "https://api.example.com/v1/",
            "https://api.example.com/v1",
            "https://api.example.com:443",
        ),
        ("HTTPS://API.Example.com.", "https://api.example.com", "https://api.example.com:443"),
        (" http://localhost:8080 ", "http://localhost:8080", "http://localhost:8080"),
        ("http://[::1]:1234/v1", "http://[::1]:1234/v1", "http://[::1]:1234"),
    ],
)
def test_an_address_is_kept_in_one_form(base_url: str, kept: str, origin: str) -> None:
    assert (at(base_url).base_url, at(base_url).origin) == (kept, origin)


@pytest.mark.parametrize(
    ("base_url", "why"),
    [
        ("", "does not begin with http"),
        ("api.example.com/v1", "does not begin with http"),
        ("ftp://api.example.com", "does not begin with http"),
        ("file:///etc/passwd", "does not begin with http"),
        ("https://", "has no host"),
        ("https:///v1", "has no host"),
        ("https://user:password@api.example.com", "user name or password"),
        ("https://user@api.example.com", "user name or password"),
        ("https://api.example.com/v1?key=password", "query or fragment"),
        ("https://api.example.com/v1#password", "query or fragment"),
        ("https://api.example.com:port", "is not a URL"),
        ("https://api.example.com:99999", "is not a URL"),
        ("https://api.example.com:0", "port 0"),
        ("https://[::1", "is not a URL"),
        ("https://api example.com", "no host name"),
        ("https://ex\u00e4mple.com", "no host name"),
        ("https://api.example.com/\u00e4", "not ASCII"),
    ],
)
def test_an_address_that_is_none_is_refused_without_showing_it(base_url: str, why: str) -> None:
    with pytest.raises(UsageError) as caught:
        at(base_url)

    assert why in str(caught.value)
    assert "password@" not in str(caught.value)
    assert "key=password" not in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"dialect": "french"},
        {"provider": ""},
        {"model": ""},
        {"model": "a\nb"},
        {"model": "x" * 201},
        {"connect_seconds": 0},
        {"silence_seconds": -1.0},
        {"total_seconds": float("nan")},
        {"total_seconds": float("inf")},
        {"concurrency": 0},
        {"concurrency": 2_000},
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        at(**changes)


def test_a_run_records_provider_and_model() -> None:
    assert at(provider="local", model="qwen").name == "local:qwen"


# -- keys and where they go ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "127.0.0.1",
        "[::1]",
        "10.0.0.7",
        "192.168.1.20",
        "172.16.0.1",
        "100.64.0.9",
        "169.254.1.1",
        "[fd00::1]",
        "[::ffff:192.168.1.1]",
        "ollama",
        "gpu.local",
        "host.docker.internal",
    ],
)
def test_a_key_may_go_unencrypted_to_a_private_host(host: str) -> None:
    assert at(f"http://{host}:8000/v1", key=Secret(KEY)).is_private


@pytest.mark.parametrize(
    "host",
    [
        "api.example.com",
        "8.8.8.8",
        "[2606:4700::1111]",
        "[::ffff:8.8.8.8]",
        "localhost.example.com",
    ],
)
def test_a_key_may_not_go_unencrypted_anywhere_else_unless_that_is_allowed(host: str) -> None:
    with pytest.raises(UsageError, match="use https, or allow plain http"):
        at(f"http://{host}/v1", key=Secret(KEY))

    assert at(f"http://{host}/v1", key=Secret(KEY), allow_plain_http=True).key
    assert at(f"http://{host}/v1").key is None


def test_a_key_is_bound_to_the_address_it_was_set_for() -> None:
    bound = at(key=Secret(KEY))

    assert bound.key_origin == "https://api.example.com:443"
    with pytest.raises(UsageError, match=r"is for https://api\.example\.com:443 and is not sent"):
        dataclasses.replace(bound, base_url="https://evil.example.com/v1")
    with pytest.raises(UsageError, match="is not sent to"):
        at("https://api.example.com:8443", key=Secret(KEY), key_origin="https://api.example.com")
    assert dataclasses.replace(bound, base_url="https://api.example.com/v2").key == bound.key


@pytest.mark.parametrize("value", ["", " ", "a b", "a\n", "a\r\nx-evil: 1", "k\u00e4y", "a\x00"])
def test_a_key_that_cannot_be_a_header_is_refused_without_showing_it(value: str) -> None:
    with pytest.raises(UsageError) as caught:
        Secret(value)

    assert not value.strip() or value not in str(caught.value)


def test_a_key_is_in_no_repr_no_pickle_and_no_encoding() -> None:
    secret = Secret(KEY)
    bound = at(key=secret)

    shown = [repr(secret), str(secret), f"{secret}", f"{secret!r:>40}", repr(bound), str(bound)]
    shown += [repr(dataclasses.asdict(bound)), repr(copy.deepcopy(bound)), repr([secret])]

    assert all(KEY not in each for each in shown)
    with pytest.raises(TypeError):
        pickle.dumps(bound)
    with pytest.raises(TypeError):
        msgspec.json.encode(secret)
    assert copy.copy(secret) is copy.deepcopy(secret) is secret
    assert secret == Secret(KEY) != Secret("other")
    assert secret != KEY


# -- scrubbing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("nothing here", "nothing here"),
        (f"key {KEY}.", f"key {REDACTED}."),
        (f"Bearer {KEY}, {KEY}", f"Bearer {REDACTED}, {REDACTED}"),
        (f"key {KEY.upper()}", f"key {REDACTED}"),
        (f"begins {KEY[:9]}***", f"begins {REDACTED}***"),
        (f"ends ***{KEY[-8:]}", f"ends ***{REDACTED}"),
        (f"short {KEY[:7]}***", f"short {KEY[:7]}***"),
        (KEY + KEY, REDACTED * 2),
        (KEY.encode().hex(), REDACTED),
    ],
)
def test_a_key_and_its_parts_are_taken_out(text: str, left: str) -> None:
    assert scrub(text, Secret(KEY)) == left


def test_a_word_as_a_key_is_taken_out_whole_and_a_letter_is_no_secret() -> None:
    assert scrub("key lm-x9 refused", Secret("lm-x9")) == f"key {REDACTED} refused"
    assert scrub("xylophone", Secret("x")) == "xylophone"
    assert scrub("anything", None) == "anything"


def test_of_a_reply_only_the_whole_key_is_taken_out() -> None:
    secret = Secret("tallystick-local")

    assert without_key("tallystick is local", secret) == "tallystick is local"
    assert without_key("use tallystick-local", secret) == f"use {REDACTED}"
    assert without_key("ask ollama", Secret("ollama")) == "ask ollama"
    assert without_key("any", None) == "any"
