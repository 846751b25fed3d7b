"""Inputs: what `-f` takes, and one clear line for what it does not."""

from pathlib import Path

import pytest

from tallystick.core.errors import UsageError
from tallystick.inputs import files
from tallystick.inputs.layout import STR_BYTES_MAX, layout_of
from tallystick.inputs.reading import describe_encodings, read_inputs, wants_stdin


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


# -- names -------------------------------------------------------------------------------------


def variables(*named: str) -> list[tuple[str, str]]:
    return [(each.variable, Path(each.name).name) for each in read_inputs(named)]


def test_a_name_makes_a_variable_of_a_file_a_directory_or_a_pattern(folder: Path) -> None:
    assert variables(f"one={folder}/a.txt", f"rest={folder}/sub", f"{folder}/b.log") == [
        ("one", "a.txt"),
        ("rest", "c.txt"),
        ("context", "b.log"),
    ]
    assert variables(f"texts={folder}/**/*.txt") == [("texts", "a.txt"), ("texts", "c.txt")]
    assert variables(f"context={folder}/a.txt") == [("context", "a.txt")]


def test_the_same_file_is_taken_once_in_each_variable(folder: Path) -> None:
    a = f"{folder}/a.txt"

    assert variables(f"x={a}", f"x={a}", f"y={a}") == [("x", "a.txt"), ("y", "a.txt")]
    layout = layout_of(read_inputs([f"x={a}", f"y={a}"]))
    assert layout.values == {"x": "first", "y": "first"}


def test_a_file_with_an_equals_sign_in_its_name_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for name in ("day=1", "day=2"):
        (folder / name).mkdir()
        (folder / name / "x=y.txt").write_text("found")
    (folder / "one=two.txt").write_text("found")
    (folder / "two.txt").write_text("another")

    assert variables("one=two.txt") == [("context", "one=two.txt")]
    assert variables("day=1") == [("context", "x=y.txt")]
    assert len(variables("day=*/x=y.txt")) == 2
    assert variables("days=day=1/x=y.txt") == [("days", "x=y.txt")]
    assert variables(f"{folder}/day=1/x=y.txt") == [("context", "x=y.txt")]


def test_standard_input_can_have_a_name() -> None:
    (given,) = read_inputs(["notes=-"], stdin=b"piped")

    assert (given.variable, given.name, given.text.slice(0, 9)) == ("notes", "stdin", "piped")
    assert wants_stdin(["a.txt", "notes=-"])
    assert not wants_stdin(["a.txt", "notes=a-"])


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("print={}/a.txt", "print is taken"),
        ("class={}/a.txt", "class is taken"),
        ("my-data={}/a.txt", "'my-data' is no name for a variable"),
        ("={}/a.txt", "'' is no name for a variable"),
        ("notes=", "an empty name"),
        ("notes={}/none.txt", "none.txt: no such file"),
        ("no-notes={}/none.txt", "none.txt: no such file"),
    ],
)
def test_a_name_that_cannot_be_is_one_clear_line(folder: Path, named: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        read_inputs([named.format(folder)])

    assert "\n" not in str(refused.value)


# -- empty and mixed ---------------------------------------------------------------------------


def test_an_empty_file_among_others_is_an_empty_text(folder: Path) -> None:
    (folder / "0.txt").touch()

    layout = layout_of(read_inputs([str(folder)]))

    (held,) = layout.values.values()
    assert isinstance(held, dict)
    assert list(held.values()) == ["", "first", "second", "third"]
    assert "print(line)" in layout.contexts[0].sample


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", b"\xff\xfe"])
def test_nothing_but_empty_files_is_one_clear_line(tmp_path: Path, data: bytes) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_bytes(data)

    with pytest.raises(UsageError, match="all 2 files are empty"):
        read_inputs([str(tmp_path)])
    with pytest.raises(UsageError, match=r"a.txt: empty; there is nothing to read in it"):
        read_inputs([f"x={tmp_path}/a.txt"])


def test_files_in_many_encodings_are_one_corpus_of_text(tmp_path: Path) -> None:
    encodings = {"a.txt": "cp1252", "b.txt": "utf-16", "c.txt": "utf-8", "d.txt": "utf-8-sig"}
    for name, encoding in encodings.items():
        (tmp_path / name).write_bytes("größer als über\n".encode(encoding))

    inputs = read_inputs([str(tmp_path)])

    assert [each.encoding for each in inputs] == ["cp1252", "utf-16-le", "", "utf-8-sig"]
    assert {each.text.slice(0, 99) for each in inputs} == {"größer als über\n"}
    assert describe_encodings(inputs) == [
        f"{tmp_path}/a.txt: not UTF-8; read as cp1252",
        f"{tmp_path}/b.txt: not UTF-8; read as utf-16-le",
    ]


def test_many_files_that_are_not_utf_8_are_told_in_one_line(tmp_path: Path) -> None:
    for place in range(9):
        (tmp_path / f"{place}.txt").write_bytes("größer\n".encode("cp1252"))
    (tmp_path / "x.txt").write_bytes("größer, naïve\n".encode() * 4 + b"\xe9")

    assert describe_encodings(read_inputs([str(tmp_path)])) == [
        "10 files are not UTF-8 and were decoded: 9 cp1252, 1 utf-8, damaged"
    ]


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-8-sig", "utf-32-be"])
def test_a_long_file_is_decoded_by_stream_into_a_text_nobody_changes(
    tmp_path: Path, encoding: str
) -> None:
    text = "größer als über, line after line\n" * 70_000
    path = tmp_path / "long.txt"
    path.write_bytes(text.encode(encoding))

    (given,) = read_inputs([str(path)])
    path.write_text("changed")

    assert given.path is None
    assert given.text.read_raw(0, 1 << 24) == text.encode()


def test_a_long_file_that_changes_while_it_is_read_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "long.txt"
    path.write_bytes(("line after line\n" * 70_000).encode("utf-16"))
    found = files.encoding_of

    def change_after(pieces: files.Pieces, *, name: str) -> str:
        encoding = found(pieces, name=name)
        path.write_bytes(b"\xff\xfe" + b"\x00\xd8" * 3)
        return encoding

    monkeypatch.setattr(files, "encoding_of", change_after)

    with pytest.raises(UsageError, match="it changed while it was read"):
        read_inputs([str(path)])


def test_a_picture_cannot_be_a_variable(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(
        b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\1\0\0\0\1\x08\0\0\0\0:~\x9bU"
    )
    (tmp_path / "a.txt").write_text("text")

    with pytest.raises(UsageError, match="a picture, which is in no variable"):
        read_inputs([f"logo={tmp_path}/a.png"])
    assert len(read_inputs([f"both={tmp_path}"])) == 2
