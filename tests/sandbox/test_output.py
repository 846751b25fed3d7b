"""Program output: inline up to the cap, whole in a file beyond it."""

import resource
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.wasm_session import TestSession

from tallystick.sandbox.output import OutputOverflow, OutputStream, ProgramOutput


def stream(path: Path, cap: int, **more: Any) -> OutputStream:
    return OutputStream(inline_max=cap, place=lambda: path / "out", **more)


def test_exactly_at_the_cap_nothing_is_cut(tmp_path: Path) -> None:
    out = stream(tmp_path, 10)
    out.write(b"123456789\n")

    assert (out.text(), out.truncated, out.path) == ("123456789\n", False, None)


def test_beyond_the_cap_the_whole_is_in_a_file_and_the_inline_text_ends_at_a_line(
    tmp_path: Path,
) -> None:
    out = stream(tmp_path, 12)
    for line in (b"first\n", b"second\n", b"third\n"):
        out.write(line)

    assert out.text() == ("first\n[output cut: 19 bytes in all; the whole is kept in a file]\n")
    assert (tmp_path / "out").read_bytes() == b"first\nsecond\nthird\n"
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600


@given(chunks=st.lists(st.binary(max_size=40), max_size=12), cap=st.integers(0, 100))
def test_the_file_holds_every_byte_in_order(
    chunks: list[bytes], cap: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("out")
    out = stream(folder, cap)

    for chunk in chunks:
        out.write(chunk)
    out.text()

    whole = b"".join(chunks)
    assert out.bytes_total == len(whole)
    if len(whole) > cap:
        assert (folder / "out").read_bytes() == whole
    else:
        assert not (folder / "out").exists()


def test_a_file_that_cannot_be_written_is_said_and_the_inline_part_stays(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("")
    out = OutputStream(inline_max=6, place=lambda: tmp_path / "blocked" / "out")
    out.write(b"first\nsecond\n")

    assert out.text().startswith("first\n[output cut: 13 bytes in all; the rest is lost: ")
    assert out.path is None


def test_a_file_that_fills_its_disk_is_removed(tmp_path: Path) -> None:
    """What is in it is lost anyway, and others need its room."""
    limit, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    out = stream(tmp_path, 6)
    out.write(b"first\nsecond\n")
    assert (tmp_path / "out").exists()
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, most))
    try:
        for _ in range(20):
            out.write(b"x" * 10_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, most))

    assert "the rest is lost: File too large" in out.text()
    assert (out.path, list(tmp_path.iterdir())) == (None, [])


def test_a_stream_that_is_not_captured_is_counted_and_not_kept(tmp_path: Path) -> None:
    out = stream(tmp_path, 2, keep=False)
    out.write(b"12345")

    assert (out.text(), out.bytes_total, out.truncated) == ("", 5, False)
    assert list(tmp_path.iterdir()) == []


def test_the_total_counts_both_streams_and_keeps_what_fits(tmp_path: Path) -> None:
    output = ProgramOutput(
        stdout=OutputStream(inline_max=100, place=lambda: tmp_path / "o"),
        stderr=OutputStream(inline_max=100, place=lambda: tmp_path / "e"),
        bytes_max=6,
    )
    output.write(1, b"1234")

    with pytest.raises(OutputOverflow) as overflow:
        output.write(2, b"5678")

    assert overflow.value.total == 8
    assert (output.stdout.text(), output.stderr.text()) == ("1234", "56")


def test_a_program_that_prints_much_gets_a_file_for_each_stream(session: TestSession) -> None:
    program = (
        "import sys\nfor n in range(50):\n    print('o', n)\n    print('e', n, file=sys.stderr)"
    )

    result = session.run(program, max_output_bytes=100)
    again = session.run(program, max_output_bytes=100)

    assert result.succeeded
    assert result.output_truncated
    assert result.output_file_path is not None
    assert Path(result.output_file_path).read_text() == "".join(f"o {n}\n" for n in range(50))
    stderr_path = result.metadata["stderr_file_path"]
    assert isinstance(stderr_path, str)
    assert Path(stderr_path).read_text() == "".join(f"e {n}\n" for n in range(50))
    assert again.output_file_path != result.output_file_path
    assert len(result.stdout) < 300


def test_output_that_is_not_text_is_shown_and_kept_as_bytes(session: TestSession) -> None:
    result = session.run("import os\nos.write(1, b'\\xff\\xfe!')")

    assert result.stdout == "\ufffd\ufffd!"


def test_surrogates_are_escaped(session: TestSession) -> None:
    assert session.run("print('\\ud800')").stdout == "\\ud800\n"


def test_streams_that_are_not_captured_are_empty(session: TestSession) -> None:
    result = session.run("print('x')", context={"capture_stdout": False})

    assert (result.stdout, result.charge.output_bytes) == ("", 2)
