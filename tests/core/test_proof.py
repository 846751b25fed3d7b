"""What a proof of one entry holds, and what is refused before it is even checked."""

import hashlib
import json

import msgspec
import pytest
from tests.ledger.builders import EMPTY, OTHER, RUN, draft

from tallystick.core.chain import Head, Sealed, seal
from tallystick.core.errors import UsageError
from tallystick.core.json_text import canonical
from tallystick.core.proof import (
    PROOF_BYTES_MAX,
    PROOF_FORMAT,
    Proof,
    check_proof,
    make_proof,
    parse_proof,
)

COUNT = 5


def chain(count: int, *, run: str = RUN) -> tuple[list[Sealed], Head]:
    entries, head = [], EMPTY
    for number in range(count):
        entry, head = seal(draft(number), run=run, head=head, salt=bytes([number]) * 16)
        entries.append(entry)
    return entries, head


ENTRIES, HEAD = chain(COUNT)
PROOF = make_proof(ENTRIES, run=RUN, seq=2, body=True)


def changed(**fields: object) -> Proof:
    return msgspec.structs.replace(PROOF, **fields)


def test_a_proof_can_be_checked_with_a_hash_function_and_nothing_of_ours() -> None:
    document = json.loads(canonical(PROOF))

    reached = bytes.fromhex(document["previous"])
    for header in [document["header"], *document["after"]]:
        reached = hashlib.sha256(reached + header.encode()).digest()

    assert reached.hex() == HEAD.hash
    assert document["format"] == PROOF_FORMAT
    assert json.loads(document["header"])["seq"] == document["seq"] == 2


def test_every_entry_can_be_proven_with_and_without_its_body() -> None:
    for seq in range(COUNT):
        for body in (False, True):
            proof = make_proof(ENTRIES, run=RUN, seq=seq, body=body)

            assert check_proof(proof, HEAD) is None
            assert (proof.body is not None) is body
            assert parse_proof(canonical(proof) + b"\n") == proof


def test_the_entries_before_are_not_needed() -> None:
    proof = make_proof(ENTRIES[1:], run=RUN, seq=2, body=True, start=1)

    assert proof == PROOF


def test_no_other_body_is_in_a_proof() -> None:
    document = canonical(make_proof(ENTRIES, run=RUN, seq=1))

    assert b"reply" not in document


def test_an_erased_body_leaves_the_place_to_be_proven() -> None:
    erased = [msgspec.structs.replace(each, salt=None, body=None) for each in ENTRIES]

    assert check_proof(make_proof(erased, run=RUN, seq=2), HEAD) is None
    with pytest.raises(UsageError, match="body of entry 2 was erased"):
        make_proof(erased, run=RUN, seq=2, body=True)


@pytest.mark.parametrize("seq", [-1, COUNT, COUNT + 1])
def test_an_entry_that_is_not_there_cannot_be_proven(seq: int) -> None:
    with pytest.raises(UsageError, match=f"no entry {seq}"):
        make_proof(ENTRIES, run=RUN, seq=seq)


AFTER = PROOF.after
FOREIGN = make_proof(chain(COUNT, run=OTHER)[0], run=OTHER, seq=2)


@pytest.mark.parametrize(
    ("proof", "seq", "why"),
    [
        (changed(after=AFTER[:-1]), 2, "ends at 4 entries, the head at 5"),
        (changed(after=(*AFTER, AFTER[-1])), 2, "ends at 6 entries, the head at 5"),
        (changed(after=AFTER[::-1]), 3, "has place 4"),
        (changed(after=(AFTER[0], AFTER[0])), 4, "has place 3"),
        (changed(after=(AFTER[0], FOREIGN.after[1])), 4, "names another run"),
        (FOREIGN, 2, "does not lead to the head"),
        (changed(run=OTHER), 2, "names another run"),
        (changed(seq=1, after=(PROOF.header, *AFTER)), 1, "has place 2"),
        (changed(seq=3, after=AFTER[1:]), 3, "has place 2"),
        (changed(seq=9), 9, "behind the head"),
        (changed(previous="00" * 32), 2, "does not lead to the head"),
        (changed(header=PROOF.header + " "), 2, "not in canonical form"),
        (changed(header=PROOF.header.replace('"v":1', '"v":3')), 2, "format 3; this version"),
        (changed(header=PROOF.header.replace('"v":1', '"v":2')), 2, "format 2 and no time"),
        (changed(header="[" * 1000), 2, "cannot be read"),
        (changed(body=b"{}"), 2, "not the one that its header binds"),
        (changed(salt=bytes(15)), 2, "15 bytes, not 16"),
    ],
)
def test_a_proof_that_was_changed_names_the_entry_and_why(proof: Proof, seq: int, why: str) -> None:
    found = check_proof(proof, HEAD)

    assert found is not None
    assert found[0] == seq
    assert why in found[1]


def test_a_header_of_the_right_form_and_another_content_does_not_lead_to_the_head() -> None:
    header = PROOF.header.replace("model.replied", "model.unknown")

    assert check_proof(changed(header=header, salt=None, body=None), HEAD) == (
        2,
        "its proof does not lead to the head",
    )


DOCUMENT = canonical(PROOF)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not a proof"),
        (b"[]", "not a proof"),
        (b"[" * 100_000, "not a proof"),
        (b"\xff", "not a proof"),
        (DOCUMENT[:-1], "not a proof"),
        (DOCUMENT + b" ", "not in canonical form"),
        (DOCUMENT + b"\n\n", "not in canonical form"),
        (DOCUMENT.replace(b"{", b'{"seq":9,', 1), "not in canonical form"),
        (DOCUMENT.replace(b"{", b'{"extra":9,', 1), "extra"),
        (DOCUMENT.replace(b"proof@1", b"proof@2"), "'tallystick-proof@2'; this version reads"),
        (DOCUMENT.replace(b"tallystick-proof@1", b"tallystick-head@1"), "this version reads"),
        (canonical(changed(seq=-1)), "a place of -1"),
        (canonical(changed(run="no run")), "not the id of one"),
        (canonical(changed(previous="zz" * 32)), "64 hexadecimal digits"),
        (canonical(changed(previous=HEAD.hash.upper())), "64 hexadecimal digits"),
        (canonical(changed(salt=None)), "only one of salt and body"),
        (canonical(changed(header="x" * 1025)), "more than 1,024 characters"),
        (canonical(changed(after=("x" * 1025,))), "more than 1,024 characters"),
        (DOCUMENT.replace(b'"header":"', b'"header":"\\ud800'), "not a proof"),
        (b" " * (PROOF_BYTES_MAX + 1), "longer than"),
    ],
)
def test_what_is_no_proof_is_refused_by_name(data: bytes, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        parse_proof(data)
