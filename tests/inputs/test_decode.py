"""Encodings: any text comes out of its bytes, in one piece or in many, or one line says why not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tallystick.core.errors import UsageError
from tallystick.inputs import files
from tallystick.inputs.files import DAMAGED, Pieces, encoding_of, recode
from tallystick.runtime.context.inputs import UTF_8

# No NUL: text with one is no text. No mark: at the beginning it would be one.
texts = st.text(st.characters(exclude_characters="\0\ufeff", exclude_categories=["Cs"]), min_size=1)
sizes = st.integers(1, 9)
MARKED = ["utf-16", "utf-32", "utf-8-sig"]
SENTENCES = {
    "cp1252": "Die Größe der Straße beträgt 12 €. Müller prüft die Türen für Österreich.\n",
    "cp1250": "Zażółć gęślą jaźń. Proszę o sprawdzenie kodowania znaków w pliku.\n",
    "iso8859_2": "Zażółć gęślą jaźń. Proszę o sprawdzenie kodowania znaków w pliku.\n",
    "cp1251": "Привет, как дела? Это пример русского текста для проверки.\n",
    "koi8_r": "Привет, как дела? Это пример русского текста для проверки.\n",
    "cp1253": "Καλημέρα κόσμε, αυτό είναι ένα δείγμα κειμένου.\n",
    "cp1254": "Bu bir Türkçe metin örneğidir. Şişli'de güneşli bir gün.\n",
    "cp1255": "שלום עולם, זהו טקסט לדוגמה בעברית.\n",
    "cp1256": "مرحبا بالعالم، هذا نص تجريبي باللغة العربية.\n",
    "cp932": "これは日本語のテキストです。文字コードの検出を試みます。\n",
    "euc_jp": "これは日本語のテキストです。文字コードの検出を試みます。\n",
    "gb18030": "这是一个中文文本的例子\uff0c用于检测字符编码。\n",
    "big5": "這是一個中文文本的例子\uff0c用於檢測字符編碼。\n",
    "cp949": "이것은 한국어 텍스트의 예입니다. 문자 인코딩을 감지합니다.\n",
}  # fmt: skip


def in_pieces(data: bytes, size: int = 1 << 20) -> Pieces:
    def pieces() -> Iterator[bytes]:
        return (data[at : at + size] for at in range(0, len(data), size))

    return pieces


def read(data: bytes, size: int = 1 << 20) -> tuple[str, str]:
    """The encoding that was found, and the text."""
    pieces = in_pieces(data, size)
    encoding = encoding_of(pieces, name="a.txt")
    return encoding, b"".join(recode(pieces, encoding)).decode()


# -- laws --------------------------------------------------------------------------------------


@given(text=texts, encoding=st.sampled_from([*MARKED, "utf-8"]), size=sizes)
@example(text="\x1b\u4e00", encoding="utf-16", size=1)
def test_any_text_with_a_mark_or_in_utf_8_comes_out_the_same(
    text: str, encoding: str, size: int
) -> None:
    data = text.encode(encoding)

    assert read(data)[1] == text
    # A mark stands in the first piece, as it does in pieces of a megabyte.
    assert read(data, max(size, 4))[1] == text


@given(
    words=st.lists(st.sampled_from(["hello", "wörld", "12", "año"]), min_size=2, max_size=9),
    encoding=st.sampled_from(["utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]),
)
def test_latin_text_in_wide_characters_needs_no_mark(words: list[str], encoding: str) -> None:
    text = " ".join(words) + "\n"

    assert read(text.encode(encoding)) == (encoding, text)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("text", ["Привет мир и всё\n", "这是一个\n中文的文本\n", "שלום עולם\n"])
def test_other_scripts_in_wide_characters_need_no_mark(text: str, encoding: str) -> None:
    assert read((text * 20).encode(encoding)) == (encoding, text * 20)


@given(encoding=st.sampled_from(list(SENTENCES)), size=sizes, times=st.integers(1, 30))
def test_a_stream_of_pieces_is_decoded_as_the_whole(encoding: str, size: int, times: int) -> None:
    text = SENTENCES[encoding] * times
    data = text.encode(encoding)

    streamed = b"".join(recode(in_pieces(data, size), encoding))

    assert streamed.decode() == data.decode(encoding) == text


# -- older encodings ---------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 40])
@pytest.mark.parametrize("encoding", SENTENCES)
def test_an_older_encoding_is_known_by_how_its_text_looks(encoding: str, times: int) -> None:
    text = SENTENCES[encoding] * times

    assert read(text.encode(encoding)) == (encoding, text)


@pytest.mark.parametrize(
    "text",
    ["café\n", "Zoé", "Grüße aus Köln\n", "name,city\n" + "Ann,Rome\n" * 500 + "Zoé,Nîmes\n"],
)
def test_a_few_accents_are_enough(text: str) -> None:
    assert read(text.encode("cp1252")) == ("cp1252", text)


def test_the_first_letter_that_is_not_ascii_may_stand_far_behind() -> None:
    data = b"plain words\n" * 300_000 + "größer\n".encode("cp1252")

    encoding, text = read(data)

    assert encoding == "cp1252"
    assert text.endswith("größer\n")


def test_a_guess_that_does_not_hold_for_all_of_the_bytes_is_not_taken() -> None:
    # What is no character in cp1252 stands behind everything that was looked at.
    data = "größer als\n".encode("cp1252") * 12_000 + b"\x81\x8d\n"

    assert read(data)[0] != "cp1252"


# -- damage ------------------------------------------------------------------------------------


def test_utf_8_with_a_few_bytes_that_are_none_stays_as_it_is() -> None:
    data = "naïve façade, größer\n".encode() * 9 + b"caf\xe9\n"
    pieces = in_pieces(data)

    assert encoding_of(pieces, name="a.txt") == DAMAGED
    assert b"".join(recode(pieces, DAMAGED)) == data


def test_ascii_with_a_byte_that_stands_for_nothing_is_damaged() -> None:
    assert encoding_of(in_pieces(b"a line of a log\n" * 9 + b"\x81\n"), name="a.log") == DAMAGED


def test_a_mark_before_damaged_utf_8_is_left_out() -> None:
    pieces = in_pieces(b"\xef\xbb\xbfcaf\xe9")

    assert encoding_of(pieces, name="a.txt") == DAMAGED
    assert b"".join(recode(pieces, DAMAGED)) == b"caf\xe9"


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"a\0b", "neither text nor a picture"),
        (b"text\0with a NUL!", "neither text nor a picture"),
        (b"\0" * 64, "neither text nor a picture"),
        (bytes(range(256)) * 20, "neither text nor a picture"),
        (b"\x7fELF\2\1\1" + b"\0" * 9 + b"\3\0\x3e\0\1\0\0\0" * 20, "neither text nor a picture"),
        (b"\xff\xfea", "begins as utf-16-le"),
        (b"\xff\xfe\0\xd8a\0", "begins as utf-16-le"),
        (b"\xfe\xff\0a\0\0", "NUL"),
        (b"\0\0\xfe\xff\0\x11\0\0", "begins as utf-32-be"),
        (b"x\x81\x8d", "convert it to UTF-8"),
    ],
)
def test_what_cannot_be_decoded_is_one_clear_line(data: bytes, says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        encoding_of(in_pieces(data), name="a.bin")

    assert str(refused.value).startswith("a.bin: ")
    assert "\n" not in str(refused.value)


@given(data=st.binary(max_size=300))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    pieces = in_pieces(data)
    try:
        encoding = encoding_of(pieces, name="x")
    except UsageError:
        return

    text = b"".join(recode(pieces, encoding))
    if encoding != DAMAGED:
        text.decode()


def test_a_file_in_utf_8_needs_no_detector() -> None:
    program = (
        "import sys\n"
        "from tallystick.inputs.reading import read_inputs\n"
        "read_inputs(['-'], stdin='größer'.encode())\n"
        "read_inputs(['-'], stdin='größer'.encode('utf-16'))\n"
        "print('charset_normalizer' in sys.modules)\n"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)

    assert done.stdout == "False\n", done.stderr


def test_no_encoding_at_all_is_utf_8() -> None:
    assert encoding_of(in_pieces(b""), name="x") == UTF_8
    assert files.PIECE_BYTES >= 4
