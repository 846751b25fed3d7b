"""Load the recorded replies of a real model to the demonstration's question."""

from __future__ import annotations

from importlib.resources import files

import msgspec

from tallystick.core.records import AskModel, ModelReplied

FILE = "recording.json"


class Recording(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requests by their digests, and the replies. `model` is the name that the digests contain."""

    version: int
    made_with: str
    model: str
    question: str
    temperature: float | None
    corpus_sha256: str
    exchanges: tuple[tuple[AskModel, ModelReplied], ...]


def recording() -> Recording:
    """Return the recording that ships with the package. It is read again by each call."""
    body = files("tallystick.demo").joinpath(FILE).read_bytes()
    return msgspec.json.decode(body, type=Recording)
