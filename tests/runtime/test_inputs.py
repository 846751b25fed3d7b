"""Inputs: what `-f` takes, and one clear line for what it does not."""

from pathlib import Path

import pytest

from tallystick.core.errors import UsageError
from tallystick.runtime.inputs import STR_BYTES_MAX, layout_of, read_inputs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_text("first")
    (tmp_path / "b.log").write_text("second")
    (tmp_path / ".hidden").write_text("secret")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.txt").write_text("third")
    return tmp_path


def names(*named: str) -> list[str]:
    return [Path(each.name).name for each in read_inputs(named)]


def test_a_file_a_directory_and_a_pattern(folder: Path) -> None:
    assert names(str(folder / "a.txt")) == ["a.txt"]
    assert names(str(folder)) == ["a.txt", "b.log", "c.txt"]
    assert names(str(folder / "**" / "*.txt")) == ["a.txt", "c.txt"]


def test_the_same_file_is_taken_once(folder: Path) -> None:
    assert names(str(folder / "a.txt"), str(folder)) == ["a.txt", "b.log", "c.txt"]


def test_standard_input() -> None:
    (given,) = read_inputs(["-"], stdin=b"piped")

    assert given.text.slice(0, 9) == "piped"


def test_one_text_is_a_str_and_several_are_a_dictionary(folder: Path) -> None:
    one = layout_of(read_inputs([str(folder / "a.txt")])).values
    many = layout_of(read_inputs([str(folder)])).values

    assert one == {"context": "first"}
    assert isinstance(many["context"], dict)
    assert list(many["context"].values()) == ["first", "second", "third"]


def test_long_texts_stay_on_the_host(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("x" * (STR_BYTES_MAX + 1))

    layout = layout_of(read_inputs([str(tmp_path / "long")]))
    values, texts = layout.values, layout.texts

    assert values == {}
    assert list(texts) == ["context"]


def test_a_short_text_is_shown_whole_and_a_long_one_by_head_middle_and_tail(
    tmp_path: Path,
) -> None:
    (tmp_path / "short").write_text("all of it")
    (tmp_path / "long").write_text("HEAD" + "x" * 5_000 + "MIDDLE" + "x" * 5_000 + "TAIL")

    (short,) = layout_of(read_inputs([str(tmp_path / "short")])).contexts
    (long,) = layout_of(read_inputs([str(tmp_path / "long")])).contexts

    assert "whole:\nall of it\n" in short.sample
    assert short.whole
    assert "HEAD" in long.sample
    assert "MIDDLE" in long.sample
    assert "TAIL" in long.sample
    assert len(long.sample) < 1_500
    assert not long.whole


@pytest.mark.parametrize(
    ("make", "named", "says"),
    [
        (lambda p: None, "nosuch.txt", "no such file"),
        (lambda p: None, "*.nosuch", "no file matches"),
        (lambda p: (p / "bin").write_bytes(b"a\0b"), "bin", "neither text nor a picture"),
        (lambda p: (p / "empty").touch(), "empty", "empty"),
        (lambda p: (p / "none").mkdir(), "none", "no files"),
        (lambda p: (p / "broken").symlink_to(p / "gone"), "broken", "No such file"),
    ],
)
def test_what_cannot_be_read_is_one_clear_line(
    tmp_path: Path, make: object, named: str, says: str
) -> None:
    make(tmp_path)  # type: ignore[operator]

    with pytest.raises(UsageError, match=says) as refused:
        read_inputs([str(tmp_path / named)])

    assert "\n" not in str(refused.value)


def test_a_device_is_not_read() -> None:
    with pytest.raises(UsageError, match="regular file"):
        read_inputs(["/dev/zero"])


def test_a_link_that_leads_out_of_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("secret")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "ok.txt").write_text("fine")
    (tmp_path / "inside" / "link.txt").symlink_to(tmp_path / "outside.txt")

    with pytest.raises(UsageError, match="leads out of"):
        read_inputs([str(tmp_path / "inside")])
