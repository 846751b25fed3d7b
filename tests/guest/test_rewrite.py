"""Function bodies, written by hand byte for byte where the assembler would not write them."""

import pytest
from tests.guest.parts import Running, merged, part
from tools.guest.wasm.binary import BadWasm
from tools.guest.wasm.rewrite import BodyRewriter, IndexMaps

# Every number becomes another one, so that one that was not renumbered is seen.
MAPS = IndexMaps(
    types=[200, 64],
    functions=[300, 301],
    tables=[5, 6],
    globals=[7, 130],
    tags=[9],
    element_base=20,
    element_count=2,
    segment_base=127,
    segment_count=2,
    has_memory=True,
)


def rewrite(code: bytes, *, grow: int | None = None) -> bytes:
    """Rewrite a body without locals, given without its end."""
    body = b"\x00" + code + b"\x0b"
    result = BodyRewriter(body, MAPS, grow=grow).rewrite(0, len(body))
    assert result.code[:1] + result.code[-1:] == b"\x00\x0b"
    return result.code[1:-1]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\x10\x01", b"\x10\xad\x02"),  # call
        (b"\x12\x00", b"\x12\xac\x02"),  # return_call
        (b"\x11\x01\x01", b"\x11\x40\x06"),  # call_indirect
        (b"\xd2\x00", b"\xd2\xac\x02"),  # ref.func
        (b"\x23\x01", b"\x23\x82\x01"),  # global.get
        (b"\x24\x00", b"\x24\x07"),  # global.set
        (b"\x25\x01", b"\x25\x06"),  # table.get
        (b"\x26\x00", b"\x26\x05"),  # table.set
        (b"\x08\x00", b"\x08\x09"),  # throw
        (b"\xfc\x08\x00\x00", b"\xfc\x08\x7f\x00"),  # memory.init
        (b"\xfc\x09\x01", b"\xfc\x09\x80\x01"),  # data.drop
        (b"\xfc\x0c\x01\x00", b"\xfc\x0c\x15\x05"),  # table.init
        (b"\xfc\x0d\x00", b"\xfc\x0d\x14"),  # elem.drop
        (b"\xfc\x0e\x00\x01", b"\xfc\x0e\x05\x06"),  # table.copy
        (b"\xfc\x0f\x01", b"\xfc\x0f\x06"),  # table.grow
        (b"\xfc\x10\x00", b"\xfc\x10\x05"),  # table.size
        (b"\xfc\x11\x01", b"\xfc\x11\x06"),  # table.fill
        (b"\x02\x00\x0b", b"\x02\xc8\x01\x0b"),  # block of a type
        (b"\x03\x01\x0b", b"\x03\xc0\x00\x0b"),  # a type that needs a second byte for its sign
        (b"\x04\x7b\x0b", b"\x04\x7b\x0b"),  # if that gives one value
        (
            b"\x1f\x01\x04\x00\x00\x07\x01\x00\x06\x02\x05\x03\x04\x0b",
            b"\x1f\xc0\x00\x04\x00\x09\x07\x01\x09\x06\x02\x05\x03\x04\x0b",
        ),  # try_table, with a clause of each kind
    ],
    ids=lambda each: each.hex(),
)
def test_every_index_an_instruction_carries_is_renumbered(old: bytes, new: bytes) -> None:
    assert rewrite(old) == new


@pytest.mark.parametrize("padded", [b"\x81\x00", b"\x81\x80\x80\x80\x00"])
def test_a_padded_index_is_still_an_index(padded: bytes) -> None:
    assert rewrite(b"\x10" + padded) == b"\x10\xad\x02"
    assert rewrite(b"\x02" + padded + b"\x0b") == b"\x02\xc0\x00\x0b"


@pytest.mark.parametrize(
    "code",
    [
        b"\x20\xff\xff\xff\xff\x0f",  # local.get, with a number of five bytes
        b"\x41\xff\xff\xff\xff\x7f",  # i32.const
        b"\x42\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # i64.const
        b"\x43\x0b\x10\x24\xfe",  # f32.const, of bytes that look like instructions
        b"\x44\x0b\x10\x24\xfe\x0b\x10\x24\xfe",
        b"\x0e\x02\x80\x01\x05\x06",  # br_table
        b"\x28\x02\xff\xff\x03",  # i32.load
        b"\xfd\x0c" + b"\x10\xfe" * 8,  # v128.const
        b"\xfd\x57\x03\x80\x10\x01",  # v128.load64_lane
        b"\x1c\x02\x7f\x70",  # select with types
        b"\xd0\x6f",  # ref.null
    ],
    ids=bytes.hex,
)
def test_what_is_no_index_is_copied_as_it_is(code: bytes) -> None:
    assert rewrite(code) == code


@pytest.mark.parametrize(
    ("code", "problem", "at"),
    [
        (b"\x10\x02", "function 2 of 2", 2),
        (b"\x11\x02\x00", "type 2 of 2", 2),
        (b"\x23\x02", "global 2 of 2", 2),
        (b"\x25\x02", "table 2 of 2", 2),
        (b"\x08\x01", "tag 1 of 1", 2),
        (b"\xfc\x09\x02", "data segment 2 of 2", 3),
        (b"\xfc\x0d\x02", "element segment 2 of 2", 3),
        (b"\x02\x02", "type 2 of 2", 2),
        (b"\x02\x41", "unsupported block type 0x41", 2),
        (b"\x02\x63\x70", "unsupported block type 0x63", 2),
        (b"\x02\x81\x40", "unsupported block type 0x81", 2),
        (b"\x1f\x40\x01\x04\x00", "unsupported catch clause 0x04", 4),
        (b"\x1c\x01\x40", "unsupported value type 0x40", 3),
        (b"\xd0\x7f", "unsupported reference type 0x7f", 2),
        (b"\x28\x42\x01\x00", "unsupported alignment 0x42", 2),
        (b"\x28\x80\x01\x00", "unsupported alignment 0x80", 2),
        (b"\x3f\x01", "memory 1 of 1", 2),
        (b"\x40\x01", "memory 1 of 1", 2),
        (b"\xfc\x0a\x00\x01", "memory 1 of 1", 4),
        (b"\x20\x80\x80\x80\x80\x80\x00", "a number of more than 5 bytes", 7),
        (b"\x10\x80\x80\x80\x80\x80\x00", "a number of more than 5 bytes", 7),
        (b"\x42" + b"\x80" * 10 + b"\x00", "a number of more than 10 bytes", 12),
    ],
    ids=lambda each: each.hex() if isinstance(each, bytes) else "",
)
def test_what_can_not_be_renumbered_is_refused_where_it_stands(
    code: bytes, problem: str, at: int
) -> None:
    with pytest.raises(BadWasm, match=problem) as caught:
        rewrite(code)

    assert caught.value.offset == at


@pytest.mark.parametrize("body", [b"", b"\x00", b"\x00\x01", b"\x01\x01", b"\xff\xff\xff\xff\x0f"])
def test_a_body_without_an_end_is_refused(body: bytes) -> None:
    with pytest.raises(BadWasm, match="ends inside an instruction"):
        BodyRewriter(body, MAPS, grow=None).rewrite(0, len(body))


def test_locals_of_an_unknown_type_are_refused() -> None:
    body = b"\x02\x01\x7f\x03\x63\x0b"

    with pytest.raises(BadWasm, match="unsupported value type 0x63"):
        BodyRewriter(body, MAPS, grow=None).rewrite(0, len(body))


def test_a_body_says_what_it_calls_and_writes() -> None:
    body = b"\x00\x10\x00\xd2\x01\x24\x01\x26\x00\xfc\x09\x00\xfc\x0d\x00\x0b"

    result = BodyRewriter(body, MAPS, grow=None).rewrite(0, len(body))

    assert result.functions == {300, 301}
    assert result.globals_written == {130}
    assert result.unseen_writes == (
        "a table entry",
        "a dropped data segment",
        "a dropped element segment",
    )


def test_growing_memory_becomes_a_call_and_is_counted_as_one() -> None:
    body = b"\x00\x40\x00\x3f\x00\x0b"

    result = BodyRewriter(body, MAPS, grow=400).rewrite(0, len(body))

    assert result.code == b"\x00\x10\x90\x03\x3f\x00\x0b"
    assert result.functions == {400}


def test_one_rewriter_does_many_bodies_and_forgets_each() -> None:
    data = b"\x00\x10\x00\x0b\x00\x24\x00\x0b"
    rewriter = BodyRewriter(data, MAPS, grow=None)

    rewriter.rewrite(0, 4)
    second = rewriter.rewrite(4, 8)

    assert second.code == b"\x00\x24\x07\x0b"
    assert second.functions == frozenset()


def test_offsets_in_errors_count_from_the_start_of_the_file() -> None:
    data = b"\xaa" * 10 + b"\x00\x06\x0b"

    with pytest.raises(BadWasm, match="unsupported instruction 0x06") as caught:
        BodyRewriter(data, MAPS, grow=None).rewrite(10, 13)

    assert caught.value.offset == 11


def test_an_empty_segment_of_outside_references_keeps_its_type() -> None:
    one = part(
        "one",
        """(table 1 externref) (elem $none externref)
        (func (export "f") (result i32)
          (table.init $none (i32.const 0) (i32.const 0) (i32.const 0)) (i32.const 3))""",
    )

    assert Running(merged(one).data).call("f") == 3
