"""Count the tokens of a prompt: an upper bound to reserve by, and an estimate to show.

Rule 1: a bound is never below the provider's own count, as far as providers have published how they
count. It needs no tokenizer, so it holds for models whose tokenizer is not public.
Rule 2: every figure has a label. An estimate is for people, and is never used for a reservation.
Rule 3: nothing here opens a file or a connection, except `FileTokenizer.from_file`.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from tallystick.core.errors import UsageError
from tallystick.core.machine.prompt import Image, Message
from tallystick.model.endpoint import Dialect

# counted: by the model's own tokenizer; estimated: for display; bounded: not more than this;
# reported: by the server, after the call.
FigureLabel = Literal["counted", "estimated", "bounded", "reported"]
ImageSize = tuple[int, int]
# Returns width and height of a picture from its bytes, or None if they cannot be read.
SizeOf = Callable[[Image], ImageSize | None]


class TokenFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A number of tokens, and what kind of number it is."""

    tokens: int
    label: FigureLabel


class Tokenizer(Protocol):
    """A model's own tokenizer."""

    def count(self, text: str) -> int:
        """Return the tokens of a text, without what a template adds."""
        ...


# -- text ---------------------------------------------------------------------------------------
#
# A byte-level tokenizer has a token for each of the 256 bytes, and every merge makes the count
# smaller: the bytes of a text are a bound. Two things can put more in than the bytes:
#
# 1. Normalising first. Qwen's tokenizer.json has the normalizer NFC, SentencePiece's default is
#    NFKC. NFC makes up to three times the bytes of a text (U+1D160), NFKC up to eleven (U+FDFA).
#    So the longest of the forms counts.
# 2. Marks for words and capitals. Claude's tokenizer writes where a word begins and ends and which
#    letters are capitals, and spells the letters small. Anthropic has not published it; ctok 1.3,
#    which rebuilds it from recorded counts (2.3 million texts, none of them counted too low), takes
#    5 tokens for the 3 bytes of "_ZZ". Words of small ASCII letters fit into their bytes, since
#    each of these letters has a token with either mark. Beyond that: one for each ASCII capital
#    and each sign beside a space; three (begin, end, capital) for each run of other letters and
#    each other character. 400,000 counts of random patterns of all scripts stayed below this.
#
# For ordinary text the bound is a tenth above the bytes. The alternative was a fixed multiple of
# the bytes of every text, without any of these rules; it would have to be more than two.

# The class of every byte: C a capital, s a sign, a space, or x for all others.
_SIGNS = b"!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
_CLASSES = bytes(
    ord(
        "C" if 65 <= each <= 90 else "s" if each in _SIGNS else " " if each in b"\x00\t\n " else "x"
    )
    for each in range(256)
)
_FORMS: tuple[Literal["NFC", "NFKC"], ...] = ("NFC", "NFKC")
# A run of letters is a word until the script changes: ideographs, Hangul and everything above
# U+FFFF end a word of other letters. Each letter names a range, by its end; a full stop is a
# character that counts alone.
_SCRIPTS = (
    (0x3000, "a"), (0x3400, "b"), (0xA000, "c"), (0xAC00, "d"), (0xD7A4, "e"),
    (0xE000, "f"), (0xFB00, "g"), (0x10000, "h"), (0x110000, "i"),
)  # fmt: skip
_MARKED = re.compile(r"a+|b+|c+|d+|e+|f+|g+|h+|i+|\.")
_MARKS = 3

# What a chat template puts around each message, and once around all of them. OpenAI's own count
# has 4 and 3 (its cookbook, "How to count tokens"); a message costs 11 more than its text on
# Claude Opus 4.7 (ctok); ChatML and the templates of Llama 3 take 5 each. Some templates write a
# text of their own: that of Llama 3.1 has about 20 tokens, that of gpt-oss about 60.
_MESSAGE_TOKENS = 16
_REQUEST_TOKENS = 96


def text_tokens_max(text: str) -> int:
    """Return an upper bound of the tokens of a text, for every known tokenizer."""
    # Cached, because a run sends the same messages in every turn.
    return _known_bound(text) if len(text) <= _KNOWN_CHARS_MAX else _bound(text)


def _bound(text: str) -> int:
    data = _encode(text)
    most = len(data) + _marks(data)
    if text.isascii():
        return most
    for form in _FORMS:
        shaped = unicodedata.normalize(form, text)
        longest = max(len(_encode(shaped)), len(_encode(shaped.lower())))
        words = _MARKS * len(_MARKED.findall(shaped.translate(_KINDS)))
        most = max(most, longest + words + _marks(_encode(shaped)))
    return most


_KNOWN_CHARS_MAX = 8_192
_known_bound = functools.lru_cache(maxsize=1_024)(_bound)


class _Kinds(dict[int, str]):
    """The class of each character for `_MARKED`, computed when it is first needed."""

    def __missing__(self, code: int) -> str:
        kind = "."
        if code < 0x80:
            kind = " "
        elif chr(code).isalpha():
            kind = next(letter for end, letter in _SCRIPTS if code < end)
        self[code] = kind
        return kind


_KINDS = _Kinds()


def _encode(text: str) -> bytes:
    # Half of a surrogate pair is three bytes, as is the character that servers put in its place.
    return text.encode("utf-8", "surrogatepass")


def _marks(data: bytes) -> int:
    """Return how many tokens the ASCII part of a text may need beyond its bytes."""
    classes = data.translate(_CLASSES)
    spaced = classes.count(b"s ") + classes.count(b" s") - classes.count(b" s ")
    return classes.count(b"C") + spaced


# Long runs of letters and digits are keys, hashes and base64, which have no words in them.
_DENSE = re.compile(rb"[A-Za-z0-9+/=_-]{20,}")
_DENSE_DIGITS = 8
_NUMBER = re.compile(rb"[0-9]{1,3}[^\sA-Za-z0-9]?")


def text_tokens_estimated(text: str) -> int:
    """Return about as many tokens as a tokenizer with 200,000 words makes.

    A token is four bytes of prose or code, three digits, or one and a half characters of base64.
    Against o200k_base: within 5 % on English, Python, logs, CSV and base64, a quarter too low on
    JSON of numbers, up to twice too high on scripts of two and three bytes.
    """
    dense = 0

    def remove_dense(found: re.Match[bytes]) -> bytes:
        nonlocal dense
        run = found.group()
        if _digits(run) * _DENSE_DIGITS < len(run):
            return run
        dense += len(run)
        return b""

    rest = _DENSE.sub(remove_dense, _encode(text))
    numbers = _NUMBER.findall(rest)
    ends = sum(1 for each in numbers if not each[-1:].isdigit())
    prose = len(rest) - sum(len(each) for each in numbers)
    return _ceil_div(prose, 4) + len(numbers) + ends + _ceil_div(2 * dense, 3)


def _digits(run: bytes) -> int:
    return len(run) - len(run.translate(None, b"0123456789"))


# -- pictures -----------------------------------------------------------------------------------
#
# Anthropic (platform.claude.com, "Vision", "Coordinates and bounding boxes"): one token for each
# 28 by 28 pixels begun, after a picture was made smaller to at most 4,784 tokens (2,576 pixels on
# its long side); up to 2025, width × height / 750. The larger of the two counts.
#
# OpenAI (developers.openai.com, "Images and vision"): two rules, and the model decides which.
# Patches: 32 by 32 pixels begun, times a factor of at most 2.46 (the nano models); GPT-5.6 makes
# nothing smaller if `detail` is left out, as it is here. Tiles: of 512 by 512, after the picture
# was fitted into 2,048 by 2,048 and its short side into 768; 85 and 170 for each tile, or 2,833
# and 5,667 with gpt-4o-mini. What is made smaller first costs at most what it would cost whole.
#
# Other makers behind OpenAI's format: Pixtral takes a token for each 16 by 16 pixels and one for
# each row; Gemini 3 takes up to 2,240 for a picture of any size.
#
# A picture whose size cannot be read may be as long as any context: a longer request is refused,
# and not billed. The longest that genai-prices 0.2.1 knows of a model that sees is 2,000,000.

_CLAUDE_PATCH, _CLAUDE_TOKENS_MAX, _CLAUDE_PIXELS = 28, 4_784, 750
_PATCH, _FACTOR_HUNDREDTHS = 32, 246
_TILE, _LONG_MAX, _SHORT_MAX = 512, 2_048, 768
_TILE_RULE, _TILE_RULE_4O_MINI = (85, 170), (2_833, 5_667)
_FINE_PATCH, _ANY_SIZE_TOKENS = 16, 2_240
_UNREADABLE_TOKENS = 2_000_000
# Names may have their provider (openai:gpt-4o) or maker (openai/gpt-4o) before them.
_OPENAI_MODEL = re.compile(r"(?:^|[:/])(?:gpt-|chatgpt-|codex-|computer-use-|o[0-9])")
_4O_MINI = re.compile(r"(?:^|[:/])gpt-4o-mini")
# The estimate for a picture that cannot be read, for display: the cost of an ordinary one.
_ESTIMATED: dict[Dialect, int] = {"openai": 1_536, "anthropic": 1_568}
# The tokens that a template puts around a picture.
_IMAGE_FRAME = 8


def image_tokens_max(size: ImageSize | None, *, dialect: Dialect, model: str) -> int:
    """Return the most tokens that a picture of `size` pixels costs; None is an unknown size.

    An unknown size counts as the largest picture, for the format of OpenAI as 2,000,000 tokens.
    """
    if dialect == "anthropic":
        return _IMAGE_FRAME + _claude_tokens(size)
    if size is None:
        return _UNREADABLE_TOKENS
    width, height = size
    name = model.lower()
    base, each = _TILE_RULE_4O_MINI if _4O_MINI.search(name) else _TILE_RULE
    by_tiles = base + each * _tiles(width, height)
    by_patches = _ceil_div(_patches(width, height, _PATCH) * _FACTOR_HUNDREDTHS, 100)
    tokens = max(by_tiles, by_patches)
    if not _OPENAI_MODEL.search(name):
        rows = _ceil_div(height, _FINE_PATCH)
        tokens = max(tokens, _patches(width, height, _FINE_PATCH) + rows, _ANY_SIZE_TOKENS)
    return _IMAGE_FRAME + tokens


def _claude_tokens(size: ImageSize | None) -> int:
    if size is None:
        return _CLAUDE_TOKENS_MAX
    width, height = size
    by_pixels = _ceil_div(width * height, _CLAUDE_PIXELS)
    return min(_CLAUDE_TOKENS_MAX, max(_patches(width, height, _CLAUDE_PATCH), by_pixels))


def _patches(width: int, height: int, side: int) -> int:
    return _ceil_div(width, side) * _ceil_div(height, side)


def _tiles(width: int, height: int) -> int:
    long, short = max(width, height), min(width, height)
    return _ceil_div(min(long, _LONG_MAX), _TILE) * _ceil_div(min(short, _SHORT_MAX), _TILE)


def _ceil_div(amount: int, each: int) -> int:
    return -(-amount // each)


# -- whole prompts ------------------------------------------------------------------------------


def input_bound(
    messages: tuple[Message, ...],
    *,
    dialect: Dialect,
    model: str,
    size_of: SizeOf,
    tokenizer: Tokenizer | None = None,
) -> TokenFigure:
    """Return an upper bound of the tokens of a prompt, with what templates add.

    With the model's own tokenizer the text is counted, and only what the template adds is bounded.
    Pictures are bounded in either case, so a prompt with one is never `counted`. `size_of` is
    called once for each picture.
    """
    count = text_tokens_max if tokenizer is None else tokenizer.count
    pictures = [image for message in messages for image in message.images]
    tokens = _REQUEST_TOKENS + sum(_MESSAGE_TOKENS + count(each.text) for each in messages)
    tokens += sum(
        image_tokens_max(size_of(image), dialect=dialect, model=model) for image in pictures
    )
    counted = tokenizer is not None and not pictures
    return TokenFigure(tokens=tokens, label="counted" if counted else "bounded")


def input_estimate(
    messages: tuple[Message, ...], *, dialect: Dialect, size_of: SizeOf
) -> TokenFigure:
    """Return about how many tokens a prompt has: to show before a call, never to reserve by."""
    tokens = sum(4 + text_tokens_estimated(each.text) for each in messages)
    for message in messages:
        tokens += sum(_image_estimated(image, dialect, size_of) for image in message.images)
    return TokenFigure(tokens=tokens, label="estimated")


def _image_estimated(image: Image, dialect: Dialect, size_of: SizeOf) -> int:
    size = size_of(image)
    if size is None:
        return _ESTIMATED[dialect]
    return _claude_tokens(size) if dialect == "anthropic" else _patches(*size, _PATCH)


# -- tokenizers ---------------------------------------------------------------------------------


class FileTokenizer:
    """A model's tokenizer.json, read by the engine of the extra `tokens`.

    tiktoken was rejected: it downloads its tables at the first use, and nothing here may connect.
    """

    def __init__(self, engine: Any) -> None:  # noqa: ANN401  (the engine has no types)
        self._engine = engine

    @classmethod
    def from_file(cls, path: Path | str) -> FileTokenizer:
        """Load a tokenizer.json file.

        Raise `UsageError` if it cannot be read, is no such file, or the extra is not installed.
        """
        path = Path(path).expanduser()
        if importlib.util.find_spec("tokenizers") is None:
            raise UsageError("a tokenizer file needs an extra: pip install 'tallystick[tokens]'")
        tokenizers: Any = importlib.import_module("tokenizers")
        try:
            engine = tokenizers.Tokenizer.from_str(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror or error}") from error
        except Exception as error:
            # The engine raises bare exceptions only.
            raise UsageError(f"{path} is not a tokenizer.json file") from error
        # The file may say to cut or pad every text to one length.
        engine.no_truncation()
        engine.no_padding()
        # Most servers read the names of control tokens in a text as text, which is more tokens.
        engine.encode_special_tokens = True
        return cls(engine)

    def count(self, text: str) -> int:
        """Return the tokens of a text, without the special tokens around it.

        It is never cut or padded.
        """
        whole = text.encode("utf-8", "replace").decode("utf-8")
        return len(self._engine.encode(whole, add_special_tokens=False).ids)


_: type[Tokenizer] = FileTokenizer
