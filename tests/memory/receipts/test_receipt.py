"""Receipts of memory: no byte of one can be changed, and what they say is checked anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.core.errors import UsageError
from tallystick.memory.receipts.receipt import (
    GENESIS,
    RECEIPT_BYTES_MAX,
    Derived,
    ForgetReceipt,
    ForgottenNote,
    HmacInit,
    HmacMismatch,
    Key,
    Link,
    MissingRecord,
    NotErased,
    NotForgotten,
    NotRecalled,
    QueryHashMismatch,
    RecallDiffers,
    RecallReceipt,
    Receipt,
    ReceiptError,
    ReceiptUnreadable,
    RecordContentHashMismatch,
    RunErased,
    Tokens,
    UnknownKey,
    query_hash,
    read_receipt,
    receipt_bytes,
)
from tallystick.memory.receipts.receipts import (
    Erased,
    Held,
    Recomputed,
    Verified,
    check_citation,
    cite,
    content_hash,
    issue,
    issue_forget,
    read_citation,
    verify_chain,
    verify_forget,
    verify_receipt,
)
from tallystick.memory.store.records import ForgetStrategy
from tallystick.memory.store.sqlite import empty_head, seal_entry

KEY = Key(id="k1", secret=b"k" * 32)
OTHER = Key(id="k2", secret=b"o" * 32)
KEYS = {KEY.id: KEY.secret, OTHER.id: OTHER.secret}
QUERY = "when is tea?"
TOKENS = Tokens(delivered=12, whole_scope=900, json_tools=80, tokenizer="words")
TEXTS = {
    "n1": "tea is at four",
    "n2": "tea was at five",
    "n3": "the key is under the mat",
}


def salt_of(id: str) -> bytes:
    return id.encode().ljust(16, b".")


def derived(id: str, *, score: float, body: bytes | None = None) -> Derived:
    text = TEXTS[id].encode() if body is None else body
    return Derived(
        id=id,
        content_hash=content_hash(text, salt=salt_of(id)),
        score=score,
        lanes=(("bm25", score / 2), ("dense", 0.25)),
        seq=int(id[1:]),
        prev_hash=GENESIS,
    )


HITS = (derived("n1", score=2.5), derived("n2", score=1.0 / 3), derived("n3", score=-0.5))


@dataclass
class World:
    """What is stored, and what a recall comes to now."""

    stored: dict[str, Held | Erased] = field(
        default_factory=lambda: {
            id: Held(body=text.encode(), salt=salt_of(id)) for id, text in TEXTS.items()
        }
    )
    now: Recomputed = field(
        default_factory=lambda: Recomputed(profile="p" * 64, model="m" * 64, hits=HITS)
    )
    asked: list[str] = field(default_factory=list)

    def recompute(self, receipt: RecallReceipt, query: str) -> Recomputed:
        self.asked.append(query)
        return self.now

    def erase(self, id: str) -> None:
        held = self.stored[id]
        assert isinstance(held, Held)
        self.stored[id] = Erased(content_hash=content_hash(held.body, salt=held.salt))

    def verify(self, receipt: RecallReceipt, *, keys: Mapping[str, bytes] = KEYS) -> Verified:
        return verify_receipt(
            receipt,
            keys=keys,
            contents=self.stored.get,
            recompute=self.recompute,
            query=QUERY,
        )


def given_receipt(
    *, hits: tuple[Derived, ...] = HITS, key: Key = KEY, link: Link | None = None, k: int = 10
) -> RecallReceipt:
    return issue(
        key=key,
        link=Link() if link is None else link,
        read_id="r-1",
        agent_id="ada",
        query=QUERY,
        scope={"agent_id": "ada", "tags": ("a", "b")},
        as_of=3,
        profile="p" * 64,
        model="m" * 64,
        k=k,
        derived_from=hits,
        tokens=TOKENS,
        ts=1_700_000_000_000,
    )


def forget_receipt(
    *, strategy: ForgetStrategy = ForgetStrategy.HARD_DELETE, link: Link | None = None
) -> ForgetReceipt:
    return issue_forget(
        key=KEY,
        link=Link() if link is None else link,
        forget_id="f-1",
        store="s-1",
        agent_id="ada",
        strategy=strategy,
        asked={"ids": ["n1", "n2", "n9"]},
        forgotten=[
            ForgottenNote(id=hit.id, seq=hit.seq or 0, content_hash=hit.content_hash)
            for hit in HITS[:2]
        ],
        errors=[NotForgotten(id="n9", why="no such note")],
        exports=[(7, "notes-2024.jsonl")],
        entries=[1, 2],
        runs=[RunErased(run="R1", how="pruned"), RunErased(run="R2", how="kept", why="runs")],
        attachments_left=1,
        ts=1_700_000_000_001,
    )


def refused(check: Callable[[], object]) -> bool:
    try:
        check()
    except ReceiptError:
        return True
    return False


# -- what holds ---------------------------------------------------------------------------------

hits = st.lists(
    st.builds(
        Derived,
        id=st.text(min_size=1, max_size=8),
        content_hash=st.just("a" * 64),
        score=st.floats(allow_nan=False, allow_infinity=False),
        lanes=st.lists(
            st.tuples(st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False)),
            max_size=3,
        ).map(tuple),
        seq=st.none() | st.integers(0, 1 << 40),
    ),
    max_size=5,
    unique_by=lambda hit: hit.id,
).map(tuple)


@given(hits=hits, query=st.text(max_size=20), agent=st.text(max_size=5), ts=st.integers(0, 1 << 48))
def test_what_was_issued_holds(hits: tuple[Derived, ...], query: str, agent: str, ts: int) -> None:
    receipt = issue(
        key=KEY, link=Link(), read_id="r", agent_id=agent, query=query, scope={}, as_of=9,
        profile="p", model=None, k=5, derived_from=hits, tokens=None, ts=ts,
    )  # fmt: skip
    gone = {hit.id: Erased(content_hash=hit.content_hash) for hit in hits}

    verdict = verify_receipt(
        receipt,
        keys=KEYS,
        contents=gone.get,
        recompute=lambda *_: Recomputed(profile="p", model=None, hits=[]),
        query=query,
    )

    assert read_receipt(receipt_bytes(receipt)) == receipt
    assert verdict.erased == tuple(hit.id for hit in hits)
    assert verdict.ranking == "same"


def test_a_receipt_says_what_was_checked() -> None:
    world = World()

    verdict = world.verify(given_receipt())

    assert verdict == Verified(
        read_id="r-1",
        notes=(("n1", "held"), ("n2", "held"), ("n3", "held")),
        query="same",
        ranking="same",
    )
    assert world.asked == [QUERY]


def test_without_the_query_the_recall_is_not_made_again_and_that_is_said() -> None:
    world = World()

    verdict = verify_receipt(
        given_receipt(), keys=KEYS, contents=world.stored.get, recompute=world.recompute
    )

    assert (verdict.query, verdict.ranking, world.asked) == ("not_given", "not_recomputed", [])


def test_a_receipt_is_read_as_it_is_spelled_with_or_without_a_newline() -> None:
    data = receipt_bytes(given_receipt())

    assert read_receipt(data) == read_receipt(data + b"\n") == given_receipt()


# -- no byte can be changed ---------------------------------------------------------------------


def held(data: bytes) -> None:
    """Read a receipt and check all of it."""
    receipt = read_receipt(data)
    if isinstance(receipt, ForgetReceipt):
        verify_forget(receipt, keys=KEYS, contents=lambda id: None)
    else:
        World().verify(receipt)


RECEIPTS = [
    given_receipt(),
    given_receipt(key=OTHER, link=Link(count=7, hash="e" * 64)),
    forget_receipt(),
]


@pytest.mark.parametrize("receipt", RECEIPTS, ids=["first", "later", "forgetting"])
def test_no_byte_of_a_receipt_can_be_changed_anywhere(receipt: Receipt) -> None:
    data = receipt_bytes(receipt)
    held(data)

    # The nearest other byte, and one with only the highest bit turned.
    for mask in (0x01, 0x80):
        for place in range(len(data)):
            other = data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :]
            assert refused(lambda other=other: held(other)), place  # type: ignore[misc]


@given(data=st.data(), mask=st.integers(1, 255), receipt=st.sampled_from(RECEIPTS))
def test_no_byte_of_a_receipt_can_be_made_any_other(
    data: st.DataObject, mask: int, receipt: Receipt
) -> None:
    raw = receipt_bytes(receipt)
    place = data.draw(st.integers(0, len(raw) - 1))

    other = raw[:place] + bytes([raw[place] ^ mask]) + raw[place + 1 :]

    assert refused(lambda: held(other))


@given(data=st.data(), extra=st.binary(min_size=1, max_size=3))
def test_nothing_can_be_cut_out_or_put_in(data: st.DataObject, extra: bytes) -> None:
    raw = receipt_bytes(given_receipt())
    place = data.draw(st.integers(0, len(raw) - 1))

    assert refused(lambda: held(raw[:place]))
    assert refused(lambda: held(raw[:place] + raw[place + 1 :]))
    assert refused(lambda: held(raw[:place] + extra + raw[place:]))


@given(id=st.sampled_from(sorted(TEXTS)), data=st.data(), mask=st.integers(1, 255))
def test_no_byte_of_a_note_or_its_salt_can_be_changed(
    id: str, data: st.DataObject, mask: int
) -> None:
    world = World()
    was = world.stored[id]
    assert isinstance(was, Held)
    name = data.draw(st.sampled_from(["body", "salt"]))
    raw = was.body if name == "body" else was.salt
    place = data.draw(st.integers(0, len(raw) - 1))
    other = raw[:place] + bytes([raw[place] ^ mask]) + raw[place + 1 :]
    world.stored[id] = replace(was, body=other) if name == "body" else replace(was, salt=other)

    with pytest.raises(RecordContentHashMismatch) as raised:
        world.verify(given_receipt())

    assert raised.value.id == id


@given(order=st.permutations(HITS))
def test_hits_cannot_be_put_in_another_order(order: list[Derived]) -> None:
    receipt = given_receipt()

    other = msgspec.structs.replace(receipt, derived_from=tuple(order))

    assert refused(lambda: World().verify(other)) is (tuple(order) != HITS)


@given(order=st.permutations(HITS))
def test_a_recall_that_orders_its_hits_otherwise_now_is_found(order: list[Derived]) -> None:
    world = World()
    world.now = replace(world.now, hits=order)

    assert refused(lambda: world.verify(given_receipt())) is (tuple(order) != HITS)


def test_bytes_of_a_salt_cannot_go_over_to_the_body() -> None:
    world = World()
    was = world.stored["n1"]
    assert isinstance(was, Held)
    world.stored["n1"] = Held(body=was.salt[-1:] + was.body, salt=was.salt[:-1])

    with pytest.raises(RecordContentHashMismatch):
        world.verify(given_receipt())
    with pytest.raises(UsageError, match="16 bytes"):
        content_hash(b"", salt=b"short")


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{}", b"[]", b"null", b"\xff", b"[" * 100_000,
        b'{"kind":"memory.other"}', b" " * (RECEIPT_BYTES_MAX + 1),
        b" " + receipt_bytes(given_receipt()), receipt_bytes(given_receipt()) + b"\n\n",
        receipt_bytes(given_receipt()).replace(b'"as_of":3', b'"as_of":3.0'),
        receipt_bytes(given_receipt()).replace(b'"as_of":3', b'"as_of":3,"as_of":3'),
        receipt_bytes(given_receipt()).replace(b'"as_of":3', b'"as_of":3,"b":3'),
    ],
)  # fmt: skip
def test_what_is_no_receipt_is_refused_in_one_line(raw: bytes) -> None:
    with pytest.raises(ReceiptUnreadable) as raised:
        read_receipt(raw)

    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 240


# -- the errors by their names ------------------------------------------------------------------


def test_a_key_that_is_not_known_is_named() -> None:
    with pytest.raises(UnknownKey) as raised:
        World().verify(given_receipt(), keys={"k2": OTHER.secret})

    assert raised.value.key_id == "k1"


def test_another_key_of_the_same_id_does_not_do() -> None:
    with pytest.raises(HmacMismatch):
        World().verify(given_receipt(), keys={"k1": OTHER.secret})


def test_keys_that_were_replaced_still_check_what_they_signed() -> None:
    old, new = given_receipt(), given_receipt(key=OTHER)

    assert World().verify(old).ranking == World().verify(new).ranking == "same"


@pytest.mark.parametrize("secret", [b"", b"short", b"k" * 15])
def test_a_key_that_is_too_short_signs_and_checks_nothing(secret: bytes) -> None:
    with pytest.raises(HmacInit, match="at least 16"):
        given_receipt(key=Key(id="weak", secret=secret))
    with pytest.raises(HmacInit):
        World().verify(given_receipt(), keys={"k1": secret})


def test_a_key_does_not_show_its_secret() -> None:
    assert "kkk" not in repr(KEY)


def test_a_receipt_of_another_query_is_found() -> None:
    with pytest.raises(QueryHashMismatch):
        verify_receipt(given_receipt(), keys=KEYS, contents=World().stored.get, query="when is tea")


def test_a_note_that_is_not_there_is_missing() -> None:
    world = World()
    del world.stored["n2"]

    with pytest.raises(MissingRecord) as raised:
        world.verify(given_receipt())

    assert raised.value.id == "n2"


def test_a_signature_is_checked_before_anything_is_asked_of_the_store() -> None:
    forged = msgspec.structs.replace(given_receipt(), agent_id="eve")

    def never(id: str) -> Held:
        raise AssertionError("the store was asked")

    with pytest.raises(HmacMismatch):
        verify_receipt(forged, keys=KEYS, contents=never)


# -- the recall made again ----------------------------------------------------------------------

CHANGED = msgspec.structs.replace(HITS[1], lanes=(("bm25", 9.0), ("dense", 0.25)))


def test_a_chain_on_a_genuine_log_is_checked_without_keys() -> None:
    """Whoever has a copy of the log and a head of it has no key, and finds a gap all the same."""
    chain: list[RecallReceipt] = []
    for _ in range(4):
        link = Link.after(chain[-1]) if chain else Link()
        chain.append(given_receipt(link=link))
    one, two, three, four = chain
    forged = msgspec.structs.replace(two, k=two.k + 1)

    whole = verify_chain(chain, keys={}, genuine=4)
    assert (whole.valid, whole.verified_records, whole.unknown_keys) == (True, 4, 4)
    assert verify_chain(chain, keys=KEYS, genuine=4).unknown_keys == 0
    for broken, at in (
        ([one, three, two, four], 1),
        ([one, three, four], 1),
        ([two, three, four], 0),
        ([one, two, two, three, four], 2),
        ([one, forged, three, four], 2),
    ):
        verdict = verify_chain(broken, keys={}, genuine=4)
        assert (verdict.valid, verdict.first_broken_at) == (False, at)
    # Beyond what is known to be genuine, a signature is needed.
    assert verify_chain(chain, keys={}, genuine=3).first_broken_at == 3
    assert verify_chain([one, forged], keys=KEYS, genuine=4).first_broken_at == 1


def test_last_digits_may_differ_between_processors_but_not_the_order_or_more() -> None:
    world = World()
    nearly = msgspec.structs.replace(HITS[0], score=HITS[0].score + 1e-7)
    world.now = Recomputed(profile="p" * 64, model="m" * 64, hits=(nearly, *HITS[1:]))

    def check(tolerance: float) -> Verified:
        return verify_receipt(
            given_receipt(),
            keys=KEYS,
            contents=world.stored.get,
            recompute=world.recompute,
            query=QUERY,
            tolerance=tolerance,
        )

    with pytest.raises(RecallDiffers):
        check(0.0)
    with pytest.raises(RecallDiffers):
        check(1e-8)
    assert check(1e-4).ranking == "same"
    world.now = Recomputed(profile="p" * 64, model="m" * 64, hits=(*HITS[:2][::-1], HITS[2]))
    with pytest.raises(RecallDiffers):
        check(1e9)


@pytest.mark.parametrize(
    ("now", "place"),
    [
        (Recomputed(profile="q", model="m" * 64, hits=HITS), "profile"),
        (Recomputed(profile="p" * 64, model=None, hits=HITS), "model"),
        (Recomputed(profile="p" * 64, model="m" * 64, hits=HITS[:2]), "number of hits"),
        (Recomputed(profile="p" * 64, model="m" * 64, hits=HITS[::-1]), "id of hit 1"),
        (
            Recomputed(profile="p" * 64, model="m" * 64, hits=(HITS[0], CHANGED, HITS[2])),
            "lanes of hit 2",
        ),
        (
            Recomputed(
                profile="p" * 64,
                model="m" * 64,
                hits=(*HITS[:2], msgspec.structs.replace(HITS[2], score=-0.5000000000000001)),
            ),
            "score of hit 3",
        ),
        (
            Recomputed(
                profile="p" * 64,
                model="m" * 64,
                hits=HITS,
                tokens=msgspec.structs.replace(TOKENS, delivered=13),
            ),
            "tokens",
        ),
    ],
)
def test_a_recall_that_comes_to_something_else_names_the_first_place(
    now: Recomputed, place: str
) -> None:
    world = World(now=now)

    with pytest.raises(RecallDiffers) as raised:
        world.verify(given_receipt())

    assert raised.value.place == place
    assert place in str(raised.value)


def test_zero_and_minus_zero_are_two_scores() -> None:
    zero = (derived("n1", score=0.0),)
    world = World(
        now=Recomputed(profile="p" * 64, model="m" * 64, hits=(derived("n1", score=-0.0),))
    )

    with pytest.raises(RecallDiffers, match=r"score of hit 1 was 0\.0 and is -0\.0"):
        world.verify(given_receipt(hits=zero))


# -- erasure ------------------------------------------------------------------------------------


@pytest.mark.parametrize("id", sorted(TEXTS))
def test_an_erased_note_is_said_to_be_and_the_rest_holds(id: str) -> None:
    world = World()
    world.erase(id)
    rest = tuple(hit for hit in HITS if hit.id != id)
    # The next best has moved up to the end.
    further = derived("n4", score=-0.75, body=b"another")
    world.now = replace(world.now, hits=(*rest, further), erased=frozenset({id}))

    verdict = world.verify(given_receipt())

    assert verdict.erased == (id,)
    assert dict(verdict.notes) == {each: "erased" if each == id else "held" for each in TEXTS}
    assert (verdict.ranking, verdict.difference) == ("same", None)


def test_scores_that_moved_since_notes_are_gone_are_said_and_not_held_against_it() -> None:
    world = World()
    moved = tuple(msgspec.structs.replace(hit, score=hit.score + 1) for hit in HITS)
    world.now = replace(world.now, hits=moved, erased=frozenset({"n8"}))

    verdict = world.verify(given_receipt())

    assert (verdict.ranking, verdict.erased) == ("erased", ())
    assert verdict.difference == "receipt r-1: score of hit 1 was 2.5 and is 3.5 now"


def test_another_profile_is_not_excused_by_an_erasure() -> None:
    world = World()
    world.now = replace(world.now, profile="q", erased=frozenset({"n8"}))

    with pytest.raises(RecallDiffers, match="profile"):
        world.verify(given_receipt())


def test_the_other_notes_are_still_checked_after_an_erasure() -> None:
    world = World()
    world.erase("n1")
    world.stored["n2"] = Held(body=b"tea was at six", salt=salt_of("n2"))

    with pytest.raises(RecordContentHashMismatch) as raised:
        world.verify(given_receipt())

    assert raised.value.id == "n2"


def test_another_note_cannot_be_passed_off_as_the_erased_one() -> None:
    world = World()
    world.stored["n1"] = Erased(content_hash=HITS[1].content_hash)

    with pytest.raises(RecordContentHashMismatch):
        world.verify(given_receipt())


def test_a_redacted_note_is_said_to_be_redacted() -> None:
    world = World()
    world.stored["n3"] = Erased(content_hash=HITS[2].content_hash, how="redacted")
    world.now = replace(world.now, hits=HITS[:2])

    assert world.verify(given_receipt()).notes[2] == ("n3", "redacted")


def test_nothing_in_a_receipt_says_what_was_asked_or_found() -> None:
    data = receipt_bytes(given_receipt())

    for secret in (QUERY.encode(), *(text.encode() for text in TEXTS.values())):
        assert secret not in data


def test_the_digest_of_a_note_is_the_one_that_the_log_binds() -> None:
    salt, body = b"s" * 16, b"{}"
    _, header = seal_entry(
        head=empty_head(), store="s", at=0, tag="t", note="n", origin=None, body=body, salt=salt
    )

    assert content_hash(body, salt=salt) == header.body_sha256


def test_a_query_cannot_be_guessed_without_the_key_nor_two_of_them_compared() -> None:
    own = query_hash("yes", read_id="r-1", key=KEY)

    assert own != query_hash("yes", read_id="r-1", key=OTHER)
    assert own != query_hash("yes", read_id="r-2", key=KEY)
    assert query_hash("c", read_id="ab", key=KEY) != query_hash("bc", read_id="a", key=KEY)


# -- forgetting ---------------------------------------------------------------------------------


def test_a_receipt_of_forgetting_holds_when_the_notes_are_gone() -> None:
    world = World()
    world.erase("n1")
    world.erase("n2")

    verdict = verify_forget(forget_receipt(), keys=KEYS, contents=world.stored.get)

    assert verdict.notes == (("n1", "erased"), ("n2", "erased"))
    assert read_receipt(receipt_bytes(forget_receipt())) == forget_receipt()


@pytest.mark.parametrize("strategy", [ForgetStrategy.HARD_DELETE, ForgetStrategy.REDACT])
def test_a_note_that_can_still_be_read_was_not_erased(strategy: ForgetStrategy) -> None:
    world = World()
    world.erase("n1")

    with pytest.raises(NotErased) as raised:
        verify_forget(forget_receipt(strategy=strategy), keys=KEYS, contents=world.stored.get)

    assert raised.value.id == "n2"


@pytest.mark.parametrize(
    "strategy", [ForgetStrategy.SOFT_DELETE, ForgetStrategy.DECAY, ForgetStrategy.ARCHIVE]
)
def test_what_only_puts_a_note_aside_leaves_it_to_be_read(strategy: ForgetStrategy) -> None:
    world = World()

    verdict = verify_forget(forget_receipt(strategy=strategy), keys=KEYS, contents=world.stored.get)

    assert verdict.notes == (("n1", "held"), ("n2", "held"))


# -- the chain ----------------------------------------------------------------------------------


def chain(length: int) -> tuple[list[Receipt], Link]:
    """Recalls and forgettings in turn, and where the chain stands after them."""
    link = Link()
    made: list[Receipt] = []
    for number in range(length):
        receipt = forget_receipt(link=link) if number % 3 == 2 else given_receipt(link=link)
        made.append(receipt)
        link = Link.after(receipt)
    return made, link


def test_a_chain_of_both_kinds_holds() -> None:
    made, head = chain(5)

    verdict = verify_chain(made, keys=KEYS, head=head)

    assert (verdict.valid, verdict.total_records, verdict.verified_records) == (True, 5, 5)
    assert (verdict.first_broken_at, verdict.error_message) == (None, None)


def test_a_chain_of_nothing_holds() -> None:
    assert verify_chain([], keys=KEYS, head=Link()).valid


@given(length=st.integers(2, 6), data=st.data())
def test_no_receipt_can_be_taken_out_or_swapped(length: int, data: st.DataObject) -> None:
    made, head = chain(length)
    place = data.draw(st.integers(0, length - 1))
    other = data.draw(st.integers(0, length - 1).filter(lambda each: each != place))
    without = made[:place] + made[place + 1 :]
    swapped = list(made)
    swapped[place], swapped[other] = swapped[other], swapped[place]

    cut, turned = (verify_chain(each, keys=KEYS, head=head) for each in (without, swapped))

    assert (cut.valid, cut.first_broken_at) == (False, place)
    assert (turned.valid, turned.first_broken_at) == (False, min(place, other))


def test_a_receipt_put_in_with_the_key_breaks_what_comes_behind_it() -> None:
    made, head = chain(3)
    made[1] = issue_forget(
        key=KEY, link=Link.after(made[0]), forget_id="f-2", store="s-1", agent_id="eve",
        strategy=ForgetStrategy.DECAY, asked={}, forgotten=[], ts=0,
    )  # fmt: skip

    verdict = verify_chain(made, keys=KEYS, head=head)

    assert (verdict.first_broken_at, verdict.error_message) == (
        2,
        "receipt 2: the receipt before it is another",
    )


def test_a_receipt_that_counts_wrongly_breaks_the_chain() -> None:
    made, head = chain(2)
    made.append(given_receipt(link=Link(count=7, hash=head.hash)))

    verdict = verify_chain(made, keys=KEYS)

    assert verdict.first_broken_at == 2
    assert verdict.error_message == "receipt 7: it stands at place 2 of its chain"


def test_a_missing_end_is_seen_by_a_head_that_was_kept() -> None:
    made, head = chain(4)

    cut = verify_chain(made[:3], keys=KEYS, head=head)

    assert (cut.valid, cut.first_broken_at) == (False, 3)
    assert cut.error_message == "the chain was 4 receipts long, and is 3"
    assert verify_chain(made[:3], keys=KEYS).valid


def test_a_broken_signature_is_found_in_its_place() -> None:
    made, head = chain(4)
    made[2] = msgspec.structs.replace(made[2], ts=5)

    assert verify_chain(made, keys=KEYS, head=head).first_broken_at == 2


# -- issuing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hits", "k", "said"),
    [
        (HITS, 2, "a recall of 2 cannot have 3 hits"),
        ((HITS[0], HITS[0]), 5, "each note once"),
        ((derived("n1", score=float("nan")),), 5, "finite"),
        ((msgspec.structs.replace(HITS[0], lanes=(("bm25", float("inf")),)),), 5, "finite"),
    ],
)
def test_what_no_recall_can_give_gets_no_receipt(
    hits: tuple[Derived, ...], k: int, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        given_receipt(hits=hits, k=k)


# -- citations ----------------------------------------------------------------------------------


def test_a_citation_leads_back_to_the_hit() -> None:
    receipt = given_receipt()

    citation = cite("n2", [receipt])

    assert citation.text == f"note:n2@r-1#{HITS[1].content_hash[:16]}"
    assert check_citation(read_citation(citation.text), receipt) == HITS[1]


def test_only_what_was_recalled_can_be_cited() -> None:
    with pytest.raises(NotRecalled):
        cite("n4", [given_receipt()])
    with pytest.raises(NotRecalled):
        cite("n1", [])


def test_a_note_is_cited_by_the_last_recall_that_gave_it() -> None:
    later = msgspec.structs.replace(given_receipt(), read_id="r-2")

    assert cite("n1", [given_receipt(), later]).read_id == "r-2"


@pytest.mark.parametrize("field", ["id", "read_id", "digest"])
def test_a_citation_of_something_else_is_found(field: str) -> None:
    citation = msgspec.structs.replace(cite("n1", [given_receipt()]), **{field: "0" * 16})

    with pytest.raises((NotRecalled, RecordContentHashMismatch)):
        check_citation(citation, given_receipt())


@pytest.mark.parametrize("text", ["", "note:", "note:a@b#c", "note:a b@r#" + "0" * 16, "x" * 9_999])
def test_what_is_no_citation_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a citation"):
        read_citation(text)
