"""Find the JSON value in a reply of a model, which may have words around it."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from typing import Any

from tallystick.core.json_text import finite_float, refuse_constant
from tallystick.core.schema.words import as_list

# A value is searched for at this many places of a reply, and in this many characters.
_STARTS_MAX = 8
_EMBEDDED_CHARS_MAX = 200_000
_FENCED = re.compile(r"```[a-zA-Z]*\n(.*?)```", re.DOTALL)
_YES, _NO = frozenset({"yes", "true"}), frozenset({"no", "false"})
_BARE_NUMBER = re.compile(
    r"(?<![\w.])-?(?:[1-9]\d{0,2}(?:,\d{3})+|0|[1-9]\d{0,30})(?:\.\d{1,30})?(?![\w]|\.\d)"
)
_WORD = re.compile(r"[A-Za-z]+")


def json_in_reply(text: str, schema: Mapping[str, Any]) -> object:
    """Return the JSON value in a reply, not yet compared with the schema.

    Tried in this order: the whole text, each block in a fence, what the type of the schema allows,
    an object or a list inside prose. A boolean may be `yes` or `no` as the first word, and a number
    the only one in the first 200,000 characters. If the schema wants only a string, or has an
    `enum`, it is the whole text without quotes at its ends. Raise `ValueError` if there is none.
    """
    # A model asked for a yes or a number often writes it bare, with a word around it. Text that is
    # JSON as it stands goes first: it needs no guess. An object inside prose goes last, because
    # brackets stand in prose for other reasons too.
    kinds = as_list(schema.get("type", []))
    for part in (text.strip(), *(each.strip() for each in _FENCED.findall(text))):
        try:
            return json.loads(part, parse_constant=refuse_constant, parse_float=finite_float)
        except (ValueError, RecursionError):
            continue
    if "boolean" in kinds:
        first = _WORD.search(text)
        word = first[0].lower() if first else ""
        if word in _YES or word in _NO:
            return word in _YES
    if kinds in (["integer"], ["number"]):
        numbers = {
            each.replace(",", "") for each in _BARE_NUMBER.findall(text[:_EMBEDDED_CHARS_MAX])
        }
        if len(numbers) == 1:
            return json.loads(numbers.pop(), parse_float=finite_float)
    if kinds == ["string"] or "enum" in schema:
        return text.strip().strip("\"'")
    return _first_json_value(text)


def _first_json_value(text: str) -> object:
    """Return the JSON object or list that begins at one of the first eight brackets of a text.

    Only its first 200,000 characters are read. Raise `ValueError` if none begins there.
    """
    decoder = json.JSONDecoder(parse_constant=refuse_constant, parse_float=finite_float)
    text = text[:_EMBEDDED_CHARS_MAX]
    for match in itertools.islice(re.finditer(r"[\[{]", text), _STARTS_MAX):
        try:
            return decoder.raw_decode(text, match.start())[0]
        except (ValueError, RecursionError):
            continue
    raise ValueError("the reply holds no JSON value")
