"""Write JSON in one canonical form, with a digest, and read the JSON of others strictly.

The limits of depth and of the length of numbers are set here, far below those of the interpreter.
So the result of reading follows from the text alone.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable

import msgspec

# Keys and fields sorted, no spaces, shortest form of numbers: equal values are equal bytes.
_encode = msgspec.json.Encoder(order="sorted").encode


def canonical(value: object) -> bytes:
    """Encode a value as canonical JSON. NaN and the infinities become `null`.

    Raise `TypeError` for a value that JSON has no form for, or keys that are no text. Raise
    `UnicodeEncodeError` for half of a character.
    """
    return _encode(value)


def digest(data: bytes) -> str:
    """Return the SHA-256 of bytes, in hex."""
    return hashlib.sha256(data).hexdigest()


# JSON that others wrote, read strictly: one value, its size and depth bounded, nothing ambiguous.


CHARS_MAX = 4_000_000
DEPTH_MAX = 64
_DIGITS_MAX = 1_000
_DEEP = f"it is nested deeper than {DEPTH_MAX} levels"
_SHOWN_CHARS_MAX = 80


def read_json(text: str, *, chars_max: int = CHARS_MAX) -> object:
    """Return the value that a text stands for. Raise `ValueError`, with the reason, if none.

    Also refused: NaN and Infinity, numbers that are too large or too long, a name that occurs twice
    in an object, and halves of characters. The text has at most `chars_max` characters and
    `DEPTH_MAX` levels.
    """
    if len(text) > chars_max:
        raise ValueError(f"it has {len(text):,} characters; at most {chars_max:,}")
    try:
        value: object = json.loads(
            text,
            parse_constant=refuse_constant,
            parse_float=finite_float,
            parse_int=_whole,
            object_pairs_hook=_object,
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error.msg} at character {error.pos + 1:,}") from None
    except RecursionError:
        raise ValueError(_DEEP) from None
    if text.count("[") + text.count("{") > DEPTH_MAX:
        _check_depth(value)
    if "\\u" in text or not text.isascii():
        _check_characters(value)
    return value


def short_json(value: object) -> str:
    """Return a value as JSON, cut to 80 characters with "..." at the end, for messages.

    Raise `TypeError` for a value that JSON has no form for.
    """
    text = json.dumps(value, ensure_ascii=False)
    cut = text if len(text) <= _SHOWN_CHARS_MAX else f"{text[: _SHOWN_CHARS_MAX - 3]}..."
    return cut.encode("utf-8", "replace").decode()


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(DEPTH_MAX):
        level = [each for held in level for each in _inside(held)]
    if any(isinstance(each, dict | list) for each in level):
        raise ValueError(_DEEP)


def _inside(held: object) -> Iterable[object]:
    """Return the values in a list or an object. Anything else has none."""
    if isinstance(held, dict):
        return held.values()
    return held if isinstance(held, list) else ()


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    made = dict(pairs)
    if len(made) < len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{short_json(twice)} stands twice in one object")
    return made


def _check_characters(value: object) -> None:
    waiting = [value]
    while waiting:
        held = waiting.pop()
        if isinstance(held, dict):
            waiting.extend(held)
            waiting.extend(held.values())
        elif isinstance(held, list):
            waiting.extend(held)
        elif isinstance(held, str) and any("\ud800" <= each <= "\udfff" for each in held):
            raise ValueError(f"{short_json(held)} holds half of a character")


def _whole(number: str) -> int:
    if len(number) > _DIGITS_MAX:
        raise ValueError(f"{number[:20]}... has {len(number):,} digits; at most {_DIGITS_MAX:,}")
    return int(number)


def finite_float(number: str) -> float:
    """Return the float that a number stands for. Raise `ValueError` if it is too large for one."""
    value = float(number)
    if math.isinf(value):
        raise ValueError(f"{number[:40]} is too large a number")
    return value


def refuse_constant(name: str) -> object:
    """Raise `ValueError` for NaN and Infinity, which are no JSON."""
    raise ValueError(f"{name} is no JSON value")
