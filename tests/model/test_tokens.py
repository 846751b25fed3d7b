"""Counting tokens: the bound holds for tokenizers of every kind, and figures say what they are."""

from __future__ import annotations

import importlib.util
import itertools
import json
import unicodedata
from collections import Counter
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tallystick.core.errors import UsageError
from tallystick.core.machine.prompt import Image, Message
from tallystick.model.endpoint import Dialect
from tallystick.model.tokens import (
    FigureLabel,
    FileTokenizer,
    ImageSize,
    TokenFigure,
    image_tokens_max,
    input_bound,
    input_estimate,
    text_tokens_estimated,
    text_tokens_max,
)
from tallystick.testing.strategies import texts

needs_tokenizers = pytest.mark.skipif(
    importlib.util.find_spec("tokenizers") is None, reason="needs the extra tokens (tokenizers)"
)
PNG = Image(media_type="image/png", data=b"\x89PNG")
some_texts = texts(max_size=60)
# Patterns repeated, where a mistake of one token for each pattern adds up.
patterned = st.builds(lambda text, times: text * times, some_texts, st.integers(1, 20))
Form = Literal["NFC", "NFKC"]


class TinyBpe:
    """A byte-level tokenizer, trained: every byte is a token, and frequent neighbours merge."""

    def __init__(self, corpus: str, *, merges: int, form: Form | None = None) -> None:
        self.form = form
        self.merges: list[tuple[bytes, bytes]] = []
        pieces = self._bytes(corpus)
        for _ in range(merges):
            pairs = Counter(itertools.pairwise(pieces))
            if not pairs:
                break
            self.merges.append(max(pairs, key=lambda pair: (pairs[pair], pair)))
            pieces = self._merged(pieces, self.merges[-1])

    def count(self, text: str) -> int:
        pieces = self._bytes(text)
        for pair in self.merges:
            pieces = self._merged(pieces, pair)
        return len(pieces)

    def _bytes(self, text: str) -> list[bytes]:
        shaped = unicodedata.normalize(self.form, text) if self.form else text
        return [bytes([each]) for each in shaped.encode()]

    @staticmethod
    def _merged(pieces: list[bytes], pair: tuple[bytes, bytes]) -> list[bytes]:
        found: list[bytes] = []
        for piece in pieces:
            if found and (found[-1], piece) == pair:
                found[-1] += piece
            else:
                found.append(piece)
        return found


def messages(*said: str, images: tuple[Image, ...] = ()) -> tuple[Message, ...]:
    return tuple(Message(role="user", part="p", text=text, images=images) for text in said)


def sized(size: ImageSize | None) -> Any:
    return lambda data: size


def bound(said: tuple[Message, ...], **more: Any) -> TokenFigure:
    given_ = {"dialect": "openai", "model": "gpt-4o", "size_of": sized(None), **more}
    return input_bound(said, **given_)


# -- text ---------------------------------------------------------------------------------------


@given(text=patterned, corpus=some_texts, form=st.sampled_from([None, *get_args(Form)]))
@example(text="\U0001d160", corpus="", form="NFC")
@example(text="\ufdfa", corpus="", form="NFKC")
def test_no_byte_level_tokenizer_makes_more_tokens_than_the_bound(
    text: str, corpus: str, form: Form | None
) -> None:
    tokenizer = TinyBpe(corpus, merges=12, form=form)

    assert tokenizer.count(text) <= text_tokens_max(text)


def test_the_tokenizer_of_that_law_is_one_that_merges() -> None:
    trained = TinyBpe("the cat and the hat", merges=12)

    assert trained.count("the cat") < len("the cat")
    assert TinyBpe("", merges=0).count("the cat") == len("the cat")


# Counts of ctok 1.3.0 for one user message, the largest of its three families.
@pytest.mark.parametrize(
    ("pattern", "tokens"),
    [
        ("_ZZ", 111),
        ("7Zx", 92),
        ("7\u023a", 152),
        ("7\u0556", 132),
        ("\U0001d160", 252),
        ("~ ", 72),
        ("7ÉÉ", 152),
        ("u[ \t[", 131),
        ("~~9 ~~", 152),
        ("\u1d28\ucf86", 171),
        ("\ua2a0\ud20a", 151),
        ("\u018b\U00016f29", 191),
        ("\u24f3\u03da", 172),
    ],
)
def test_texts_that_claude_counts_above_their_bytes_are_within_the_bound(
    pattern: str, tokens: int
) -> None:
    text = pattern * 20

    assert len(text.encode()) < tokens <= bound(messages(text)).tokens - 96


@given(text=patterned)
@example(text="ÉⒶ\u0300猫のЖ" * 9)
def test_a_tokenizer_that_marks_words_and_capitals_stays_within_the_bound(text: str) -> None:
    assert marked_tokens(text) <= text_tokens_max(text) + 1


def marked_tokens(text: str) -> int:
    """Spell every word in small bytes between marks; only ASCII letters have a mark built in."""
    tokens = 0
    shaped = unicodedata.normalize("NFC", text)
    for is_word, run in itertools.groupby(shaped, str.isalpha):
        word = "".join(run)
        if not is_word:
            tokens += len(word.encode()) + 2 * sum(not each.isascii() for each in word)
        elif word.isascii():
            tokens += len(word) + min(2, sum(each.isupper() for each in word))
        else:
            tokens += max(len(word.encode()), len(word.lower().encode())) + 3
    return tokens


@given(text=st.text(st.sampled_from("abc xyz\n0123456789"), max_size=200))
def test_small_letters_and_digits_are_bounded_by_exactly_their_bytes(text: str) -> None:
    assert text_tokens_max(text) == len(text)


def test_the_bound_of_an_ordinary_text_is_a_tenth_above_its_bytes() -> None:
    text = Path(__file__).read_text(encoding="utf-8")

    assert text_tokens_max(text) < 1.15 * len(text.encode())


@given(one=some_texts, other=some_texts)
def test_a_longer_text_has_no_smaller_bound(one: str, other: str) -> None:
    # One apart, since two characters may become one where the texts meet.
    assert text_tokens_max(one + "\n" + other) >= max(text_tokens_max(one), text_tokens_max(other))


def test_half_of_a_surrogate_pair_counts_as_what_replaces_it() -> None:
    assert text_tokens_max("\ud800") == text_tokens_max("\ufffd") >= len("\ufffd".encode())


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        # Counts of o200k_base.
        ("Nothing is begun before its intent is on the ledger. " * 20, 221),
        ("184467,29,7710,5\n" * 50, 500),
        ("c29tZSBieXRlcyB0aGF0IG1lYW4gbm90aGluZw9wQzR6" * 20, 640),
    ],
)
def test_an_estimate_is_within_a_quarter_of_what_a_real_tokenizer_counts(
    text: str, tokens: int
) -> None:
    assert text_tokens_estimated(text) == pytest.approx(tokens, rel=0.25)


@given(text=some_texts)
def test_an_estimate_is_never_above_the_bound(text: str) -> None:
    # A digit followed by a sign is two tokens of two bytes, and so is the least of everything.
    assert text_tokens_estimated(text) <= text_tokens_max(text)


# -- pictures -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "model", "billed"),
    [
        # From OpenAI's own examples.
        ((1024, 1024), "gpt-4o", 765),
        ((2048, 4096), "gpt-4o", 1_105),
        ((1024, 1024), "gpt-4.1-mini", 1_659),
        ((1800, 2400), "gpt-4.1-nano", 3_572),
        # Reported by the service, without the text around them.
        ((128, 64), "gpt-4o-mini", 8_500),
        ((1024, 1024), "gpt-4o-mini", 2_833 + 4 * 5_667),
        ((1024, 1024), "openai:gpt-4o-mini", 2_833 + 4 * 5_667),
        ((1024, 1024), "openrouter:openai/gpt-4o-mini:free", 2_833 + 4 * 5_667),
        ((4000, 1474), "gpt-4.1-mini", 2_488),
        ((2049, 513), "gpt-4.1", 1_445),
        ((4032, 3024), "gpt-6-astra", 14_364),
        ((256, 256), "openai/gpt-5.5", 77),
        ((256, 256), "google/gemini-3-pro", 1_090),
        ((1024, 1024), "pixtral-large-latest", 4_160),
    ],
)
def test_a_picture_in_the_format_of_openai_costs_at_most_its_bound(
    size: ImageSize, model: str, billed: int
) -> None:
    assert billed <= image_tokens_max(size, dialect="openai", model=model)


@pytest.mark.parametrize(
    ("size", "billed"),
    [((1000, 1000), 1_334), ((1092, 1092), 1_590), ((2576, 1456), 4_784), ((200, 200), 64)],
)
def test_a_picture_in_the_format_of_anthropic_costs_at_most_its_bound(
    size: ImageSize, billed: int
) -> None:
    assert billed <= image_tokens_max(size, dialect="anthropic", model="claude-opus-4-7")


@given(
    width=st.integers(1, 9_000), height=st.integers(1, 9_000), model=st.sampled_from(["m", "o3"])
)
def test_a_picture_that_cannot_be_read_costs_as_much_as_any(
    width: int, height: int, model: str
) -> None:
    for dialect in get_args(Dialect):
        known = image_tokens_max((width, height), dialect=dialect, model=model)

        assert 0 < known <= image_tokens_max(None, dialect=dialect, model=model)


def test_only_the_model_that_counts_tiles_dearly_is_bounded_dearly() -> None:
    dear = image_tokens_max((512, 512), dialect="openai", model="gpt-4o-mini-2024-07-18")

    assert dear >= 2_833 + 5_667
    for model in ("gpt-4o", "openai:gpt-4o", "openrouter:openai/gpt-4o"):
        assert image_tokens_max((512, 512), dialect="openai", model=model) < 1_000


# -- whole prompts ------------------------------------------------------------------------------


def test_a_bound_holds_what_a_template_puts_around_each_message() -> None:
    alone, twice = bound(messages("hello")), bound(messages("hello", "hello"))

    assert alone.label == "bounded"
    # The cookbook's count: 3 for each message and 1 for its role, 3 for the reply.
    assert alone.tokens >= len("hello") + 4 + 3
    assert twice.tokens - alone.tokens >= len("hello") + 4


def test_with_the_models_tokenizer_the_text_is_counted() -> None:
    tokenizer = TinyBpe("hello hello hello", merges=20)

    counted = bound(messages("hello" * 100), tokenizer=tokenizer)

    assert counted.label == "counted"
    assert counted.tokens - bound(messages("")).tokens == tokenizer.count("hello" * 100) < 500


def test_a_prompt_with_a_picture_is_bounded_even_if_its_text_is_counted() -> None:
    seen = messages("hello", images=(PNG, PNG))

    figure = bound(seen, tokenizer=TinyBpe("", merges=0), size_of=sized((64, 64)))

    each = image_tokens_max((64, 64), dialect="openai", model="gpt-4o")
    assert figure.label == "bounded"
    assert figure.tokens == bound(messages("hello")).tokens + 2 * each


def test_the_size_of_each_picture_is_asked_for() -> None:
    asked: list[Image] = []

    def size_of(image: Image) -> ImageSize | None:
        asked.append(image)
        return None

    bound(messages("", images=(PNG,)), size_of=size_of)

    assert asked == [PNG]


def test_an_estimate_is_labelled_as_one_and_is_below_the_bound() -> None:
    said = messages("Which hosts failed twice in March?" * 30, images=(PNG,))
    for dialect in get_args(Dialect):
        for size in (None, (640, 480)):
            shown = input_estimate(said, dialect=dialect, size_of=sized(size))

            assert shown.label == "estimated"
            assert 300 < shown.tokens < bound(said, dialect=dialect, size_of=sized(size)).tokens


def test_labels_are_a_closed_set() -> None:
    assert get_args(FigureLabel) == ("counted", "estimated", "bounded", "reported")


# -- tokenizers in files ------------------------------------------------------------------------


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A byte-level tokenizer of the real engine, in a file that also says to cut every text."""
    tokenizers: Any = importlib.import_module("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=["<|end|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["hello world, hello ledger"] * 20, trainer)
    made.enable_truncation(4)
    made.enable_padding(length=50)
    path = tmp_path / "tokenizer.json"
    path.write_text(made.to_str(), encoding="utf-8")
    return path


@needs_tokenizers
def test_a_tokenizer_in_a_file_counts_all_of_a_text(trained: Path) -> None:
    tokenizer = FileTokenizer.from_file(trained)

    assert tokenizer.count("") == 0
    assert tokenizer.count("hello") < 5
    assert tokenizer.count("xyz" * 100) == 300


@needs_tokenizers
def test_the_name_of_a_control_token_is_text(trained: Path) -> None:
    assert FileTokenizer.from_file(trained).count("<|end|>") > 1


@needs_tokenizers
def test_a_real_byte_level_tokenizer_stays_within_the_bound(trained: Path) -> None:
    tokenizer = FileTokenizer.from_file(trained)

    @given(text=patterned)
    def law(text: str) -> None:
        assert tokenizer.count(text) <= text_tokens_max(text)

    law()


@needs_tokenizers
@pytest.mark.parametrize("content", ["", "{}", json.dumps({"model": {"type": "none"}})])
def test_a_file_that_holds_no_tokenizer_is_refused_by_name(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other.json"
    path.write_text(content, encoding="utf-8")

    with pytest.raises(UsageError, match=r"other\.json is not a tokenizer\.json file"):
        FileTokenizer.from_file(path)


@needs_tokenizers
def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.json: No such file"):
        FileTokenizer.from_file(tmp_path / "none.json")


def test_without_the_engine_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(UsageError, match=r"tallystick\[tokens\]"):
        FileTokenizer.from_file("tokenizer.json")
