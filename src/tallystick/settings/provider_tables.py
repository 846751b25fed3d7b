"""Check what the settings of a provider add to each request: headers, a query, body fields.

Nothing that a run depends on can be set here: the model, the prompt, the limit of a reply and the
key come from elsewhere, and what would raise the cost of a call above its reservation is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tallystick.core.errors import UsageError
from tallystick.core.json_text import canonical

_CHARS_MAX = 4_000
_ENTRIES_MAX = 32
_HEADER = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_QUERY = re.compile(r"[\w.~-]{1,64}")
# Set by the transport, or by the key.
_OUR_HEADERS = frozenset(
    {
        *("host", "content-length", "content-type", "content-encoding", "transfer-encoding"),
        *("connection", "accept", "accept-encoding", "te", "trailer", "upgrade", "expect"),
        *("x-client-request-id", "anthropic-version"),
    }
)
# Set by the request, or able to raise its cost above what was reserved for it.
_OUR_FIELDS = frozenset(
    {
        *("model", "messages", "system", "stream", "stream_options", "temperature", "n"),
        *("max_tokens", "max_completion_tokens", "best_of", "tools", "functions", "tool_choice"),
        *("web_search_options", "modalities", "audio", "store"),
    }
)
_KEY_HEADERS = ("authorization", "api-key", "x-api-key", "x-goog-api-key", "proxy-authorization")


def header_table(given: Mapping[str, object]) -> str:
    """Return headers as JSON text. A value `$NAME` stands for a variable of the environment.

    Raise `UsageError` for a name that is set elsewhere or is none, for a key that is written out,
    for a value that is no line of ASCII, and for too many.
    """
    found: dict[str, str] = {}
    for name, value in given.items():
        key = name.lower()
        if not _HEADER.fullmatch(key) or key in _OUR_HEADERS:
            raise UsageError(f"the header {name[:80]!r} cannot be set")
        if not isinstance(value, str) or not value.isascii() or not value.isprintable():
            raise UsageError(f"the header {name[:80]!r} needs a line of ASCII text")
        if (key in _KEY_HEADERS or key.endswith(("-key", "-token"))) and not value.startswith("$"):
            raise UsageError(
                f"the header {name[:80]!r}: a key does not belong in a file; put it in an "
                f'environment variable, and write "$NAME"'
            )
        found[key] = value
    return _bounded(found)


def query_table(given: Mapping[str, object]) -> str:
    """Return a query as JSON text.

    Raise `UsageError` for a name or a value that is no text, and for too many.
    """
    for name, value in given.items():
        if not _QUERY.fullmatch(name) or not isinstance(value, str) or not value.isprintable():
            raise UsageError(f"the query {name[:80]!r} needs a name and a line of text")
    return _bounded(given)


def body_table(given: Mapping[str, object]) -> str:
    """Return fields of a body as JSON text.

    Raise `UsageError` for one that is set by each request or could raise its cost, for a value
    that JSON has not, and for too many.
    """
    for name in given:
        if name in _OUR_FIELDS:
            raise UsageError(
                f"the field {name[:80]!r} is set by each request, and not by a setting"
            )
    return _bounded(given)


def _bounded(given: Mapping[str, object]) -> str:
    try:
        text = canonical(given).decode() if given else ""
    except (TypeError, ValueError):
        raise UsageError(
            "a table of texts, numbers, booleans, lists and tables is needed"
        ) from None
    if len(given) > _ENTRIES_MAX or len(text) > _CHARS_MAX:
        raise UsageError(f"at most {_ENTRIES_MAX} entries, {_CHARS_MAX:,} characters")
    return text
