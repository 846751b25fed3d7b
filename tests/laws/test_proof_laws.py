"""Laws of proofs, over generated chains."""

import msgspec
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.laws.test_ledger_laws import replies
from tests.ledger.builders import EMPTY, OTHER, RUN, drafted

from tallystick.core.chain import Draft, Head, Sealed, seal
from tallystick.core.errors import UsageError
from tallystick.core.json_text import canonical
from tallystick.core.proof import check_proof, make_proof, parse_proof

drafts = st.lists(replies.map(drafted), min_size=1, max_size=8)


def sealed(drafts: list[Draft], *, run: str = RUN) -> tuple[list[Sealed], list[Head]]:
    """A chain, and every head on the way."""
    entries: list[Sealed] = []
    heads = [EMPTY]
    for number, each in enumerate(drafts):
        entry, head = seal(each, run=run, head=heads[-1], salt=bytes([number]) * 16)
        entries.append(entry)
        heads.append(head)
    return entries, heads


def holds(document: bytes, head: Head) -> bool:
    """Whether a document is a proof, and leads to a head."""
    try:
        return check_proof(parse_proof(document), head) is None
    except UsageError:
        return False


@given(drafts=drafts, data=st.data())
def test_every_entry_is_proven_under_every_head_behind_it_and_no_other(
    drafts: list[Draft], data: st.DataObject
) -> None:
    entries, heads = sealed(drafts)
    seq = data.draw(st.integers(0, len(entries) - 1))
    count = data.draw(st.integers(seq + 1, len(entries)))
    document = canonical(
        make_proof(entries[:count], run=RUN, seq=seq, body=data.draw(st.booleans()))
    )

    assert [head.count for head in heads if holds(document, head)] == [count]


@given(drafts=drafts, data=st.data(), mask=st.integers(1, 255))
def test_no_byte_of_a_proof_can_be_changed(
    drafts: list[Draft], data: st.DataObject, mask: int
) -> None:
    entries, heads = sealed(drafts)
    seq = data.draw(st.integers(0, len(entries) - 1))
    document = canonical(make_proof(entries, run=RUN, seq=seq, body=True))
    place = data.draw(st.integers(0, len(document) - 1))

    other = document[:place] + bytes([document[place] ^ mask]) + document[place + 1 :]

    assert holds(document, heads[-1])
    assert not holds(other, heads[-1])


@given(drafts=drafts, data=st.data())
def test_a_proof_cut_anywhere_is_none(drafts: list[Draft], data: st.DataObject) -> None:
    entries, heads = sealed(drafts)
    document = canonical(make_proof(entries, run=RUN, seq=0, body=True))

    assert not holds(document[: data.draw(st.integers(0, len(document) - 1))], heads[-1])


@given(drafts=drafts, data=st.data())
def test_a_proof_of_one_place_or_run_is_none_of_another(
    drafts: list[Draft], data: st.DataObject
) -> None:
    entries, heads = sealed(drafts)
    foreign, _ = sealed(drafts, run=OTHER)
    places = st.integers(0, len(entries) - 1)
    seq, other = data.draw(places), data.draw(places)
    proof = make_proof(entries, run=RUN, seq=seq)
    assume(seq != other)

    assert not holds(canonical(msgspec.structs.replace(proof, seq=other)), heads[-1])
    assert not holds(canonical(make_proof(foreign, run=OTHER, seq=seq)), heads[-1])
    assert not holds(canonical(make_proof(foreign, run=RUN, seq=seq)), heads[-1])


@given(drafts=drafts, data=st.data())
def test_erasing_bodies_changes_no_proof_of_a_place(
    drafts: list[Draft], data: st.DataObject
) -> None:
    entries, heads = sealed(drafts)
    seq = data.draw(st.integers(0, len(entries) - 1))
    erased = data.draw(st.sets(st.integers(0, len(entries) - 1)))
    left = [
        msgspec.structs.replace(entry, salt=None, body=None) if place in erased else entry
        for place, entry in enumerate(entries)
    ]

    proof = make_proof(left, run=RUN, seq=seq)

    assert proof == make_proof(entries, run=RUN, seq=seq)
    assert check_proof(proof, heads[-1]) is None


@given(drafts=drafts, data=st.data())
def test_a_body_is_proven_only_if_it_is_the_one(drafts: list[Draft], data: st.DataObject) -> None:
    entries, heads = sealed(drafts)
    seq = data.draw(st.integers(0, len(entries) - 1))
    body = data.draw(replies.map(drafted)).body
    assume(body != entries[seq].body)

    proof = make_proof(entries, run=RUN, seq=seq, body=True)

    assert check_proof(msgspec.structs.replace(proof, body=body), heads[-1]) == (
        seq,
        "its body is not the one that its header binds",
    )
