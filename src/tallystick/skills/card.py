"""Cards: what is known of a skill without reading its instructions."""

from __future__ import annotations

import msgspec

__all__ = ["Card"]


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One skill as a catalog sees it.

    `id` is `name`, or `namespace/name`. `source` is the layer it was found in. `short` is the text
    for a catalog with little room, `sha256` the digest of the file it was read from.
    `user_invocable` says whether a user may load it by name; `paths` are globs that it is for.
    """

    id: str
    name: str
    source: str
    description: str = ""
    when_to_use: str = ""
    short: str = ""
    disable_model_invocation: bool = False
    user_invocable: bool = True
    paths: tuple[str, ...] = ()
    allowed_tools: tuple[str, ...] | None = None
    sha256: str = ""
