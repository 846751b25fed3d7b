"""Replies to host calls: a failure always has bytes that the guest can read."""

from __future__ import annotations

import msgspec

from tallystick.sandbox.host import error_reply


def test_half_of_a_pair_in_the_message_of_a_tool_is_replaced() -> None:
    reply = error_reply(ValueError("a\ud83db"))

    assert reply[:1] == b"1"
    assert msgspec.json.decode(reply[1:])["message"] == "ValueError: a?b"
