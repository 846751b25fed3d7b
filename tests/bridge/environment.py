"""The environment of a program that asks over a bridge."""

from tallystick.bridge.server import ADDRESS
from tallystick.bridge.tokens import IssuedToken
from tallystick.sandbox.port import SESSION_TOKEN


def environment_of(address: str, token: IssuedToken) -> dict[str, str]:
    """Return the variables by which the client inside a program finds the bridge."""
    return {ADDRESS: address, SESSION_TOKEN: token.text}
