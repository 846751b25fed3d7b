"""Receipts of memory as data: their fields, their one spelling, chain, signature and errors.

A receipt is canonical JSON. It holds the hash of the receipt before it, so receipts of one store
are a chain; and an HMAC over everything else in it, by a key that it names.

Rule 1: a receipt has one spelling. `read_receipt` refuses any other, so no byte can be changed.
Rule 2: a receipt has no content of a note or a query. A digest of a short text can be guessed by
trying texts. So the query's is keyed: HMAC-SHA256 over read_id and query, by a key made from the
receipt's key. The holder of the key can still try; the holder of the receipt alone cannot. A note's
digest is the salted one by which the log binds it, and its salt is erased with the note; then
nobody can try.
Rule 3: each receipt has a key of its own for its query, derived from the receipt's key. Its owner
can give it away together with the query, and nothing follows from it for other receipts. Receipts
of earlier versions share one key for all queries; theirs only the owner can check.

Rejected: one salt in each receipt for its query. The holder of the receipt would hold the salt.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

import msgspec

from tallystick.core.errors import Facts, LedgerError, Refused
from tallystick.core.json_text import canonical, digest
from tallystick.memory.store.records import ForgetStrategy

# Errors about receipts of memory, sorted as in `tallystick.core.errors`.
#
# LedgerError
# └── ReceiptError                  a receipt that does not hold
#     ├── ChainBroken                   it does not follow the receipt before it
#     ├── HmacInit                      the key cannot be used
#     ├── HmacMismatch                  not what was signed, or signed with another key
#     ├── MemoryDiffers                 the memory or export is not the one it is checked against
#     ├── MissingRecord                 a note that it names is not there
#     ├── NotErased                     a note that it calls erased can be read
#     ├── NotOnLog                      the memory's log does not have it where it should be
#     ├── QueryHashMismatch             it was given for another query
#     ├── RecallDiffers                 the recall, repeated, gives another result
#     ├── ReceiptUnknown                no receipt of that id was given here
#     ├── ReceiptUnreadable             it is no receipt, or not in its one spelling
#     ├── RecordContentHashMismatch     a note has another text than it had
#     ├── SignatureMismatch             not signed by the holder of the public key that was given
#     └── UnknownKey                    no key of that id is known here
# Refused
# └── NotRecalled                   a citation of a note that this run did not recall


class ReceiptError(LedgerError):
    """A receipt does not hold."""

    code = "ledger.receipt"


class ChainBroken(Facts, ReceiptError):
    """A receipt is at a place of its chain where another was given."""

    code = "ledger.receipt.chain"
    says = "receipt {number}: {why}"

    number: int
    why: str


class HmacInit(Facts, ReceiptError):
    """A key cannot sign."""

    code = "ledger.receipt.key"

    key_id: str
    why: str

    def text(self) -> str:
        return f"the key {self.key_id[:80]!r} cannot be used: {self.why}"


class HmacMismatch(Facts, ReceiptError):
    """The receipt is not what was signed with its key."""

    code = "ledger.receipt.hmac"

    id: str

    def text(self) -> str:
        return f"receipt {self.id[:80]}: it was changed, or signed with another key of that id"


class MemoryDiffers(Facts, ReceiptError):
    """The memory or the export does not hold, or is not the one that the trusted head names."""

    code = "ledger.receipt.memory"

    where: str
    why: str

    def text(self) -> str:
        return f"{self.where[:200]}: {' '.join(self.why.split())[:200]}"


class MissingRecord(Facts, ReceiptError):
    """A note that the receipt names is neither in the store nor erased from it."""

    code = "ledger.receipt.missing"

    id: str

    def text(self) -> str:
        return f"note {self.id[:80]} is not there; name the store that the receipt is of"


class NotErased(Facts, ReceiptError):
    """The text of a note that was to be erased can still be read."""

    code = "ledger.receipt.not_erased"

    id: str

    def text(self) -> str:
        return f"note {self.id[:80]} can still be read, and the receipt says it was erased"


class NotOnLog(Facts, ReceiptError):
    """The log has another entry, or none, where the receipt should be."""

    code = "ledger.receipt.not_on_log"

    id: str
    why: str

    def text(self) -> str:
        return f"receipt {self.id[:80]} is not on the log of this memory: {self.why}"


class QueryHashMismatch(Facts, ReceiptError):
    """The receipt was given for another query."""

    code = "ledger.receipt.query"

    read_id: str

    def text(self) -> str:
        return f"receipt {self.read_id[:80]} was given for another query"


class RecallDiffers(Facts, ReceiptError):
    """The same recall, repeated, gives another result.

    `place` is the first that differs: a field of the receipt, or of a hit, counted from one.
    """

    code = "ledger.receipt.differs"

    read_id: str
    place: str
    recorded: object
    now: object

    def text(self) -> str:
        recorded, now = _shorten(self.recorded), _shorten(self.now)
        return f"receipt {self.read_id[:80]}: {self.place} was {recorded} and is {now} now"


class ReceiptUnknown(Facts, ReceiptError):
    """This memory gave no receipt of that id."""

    code = "ledger.receipt.unknown"

    id: str

    def text(self) -> str:
        return (
            f"no recall or forgetting {self.id[:80]!r} is known here; name a receipt's file or its "
            "id"
        )


class ReceiptUnreadable(Facts, ReceiptError):
    """The bytes are no receipt of this version, or not spelled as receipts are."""

    code = "ledger.receipt.unreadable"

    why: str

    def text(self) -> str:
        return f"not a receipt: {' '.join(self.why.split())[:200]}"


class RecordContentHashMismatch(Facts, ReceiptError):
    """The text of a note is not the one that was recalled."""

    code = "ledger.receipt.content"

    id: str

    def text(self) -> str:
        return f"note {self.id[:80]} does not say what it said when it was recalled"


class SignatureMismatch(Facts, ReceiptError):
    """The receipt's file was not signed by the holder of a public key, or was changed since."""

    code = "ledger.receipt.signature"

    id: str
    why: str

    def text(self) -> str:
        return f"receipt {self.id[:80]}: {self.why}"


class UnknownKey(Facts, ReceiptError):
    """The receipt was signed with a key that is not known here."""

    code = "ledger.receipt.unknown_key"

    key_id: str

    def text(self) -> str:
        return (
            f"no key {self.key_id[:80]!r} here; whoever has not made the receipt checks it with "
            "its maker's public key (--key), or with a head of the memory (--head)"
        )


class NotRecalled(Facts, Refused):
    """The run cites a note that it did not recall."""

    code = "refused.not_recalled"

    id: str

    def text(self) -> str:
        return f"note {self.id[:80]!r} was not recalled here, so it cannot be cited"


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


GENESIS = "0" * 64
KEY_BYTES_MIN = 16
# A receipt of the most notes that one request can forget takes half of it.
RECEIPT_BYTES_MAX = 64 << 20
_QUERY_LABEL = b"tallystick.memory.query.v1"
# Before the digest of a query that has a key of its own.
_OWN_KEY = "2:"
_RECEIPT_LABEL = b"tallystick.memory.receipt.v1"
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Tokens(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens that a recall put into a context, and that other ways would have, by one tokenizer."""

    delivered: int
    whole_scope: int
    json_tools: int
    tokenizer: str


class Derived(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """One hit: the note, its salted digest in the log, its score, and the score of each lane.

    `seq` is the note's position in the log, `prev_hash` the hash of the entry before it.
    """

    id: str
    content_hash: str
    score: float
    lanes: tuple[tuple[str, float], ...] = ()
    seq: int | None = None
    prev_hash: str | None = None


class RecallReceipt(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="memory.recalled",
):
    """The result of one recall, with its hits in their order.

    `scope` is what was looked through, in the store's own words; `as_of` is the position in its log
    up to which it was read. `profile` and `model` are the digests of the ranking's weights and of
    the embedder; `model` is None if none was used. `number` counts the receipts of the chain from
    zero. `ts` is in milliseconds since 1970.
    """

    read_id: str
    agent_id: str
    query_hash: str
    scope: dict[str, object]
    as_of: int
    profile: str
    model: str | None
    k: int
    derived_from: tuple[Derived, ...]
    tokens: Tokens | None
    ts: int
    number: int
    prev_hash: str
    hmac_key_id: str
    hmac: str


class ForgottenNote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One note that was forgotten: the position of its content in the log, and its digest."""

    id: str
    seq: int
    content_hash: str


class NotForgotten(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One note that was to be forgotten and was not; `why` is the code of an error."""

    id: str
    why: str


class RunErased(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """A run with traces of forgotten notes, and what was done to it.

    `pruned` runs have no bodies any more, `removed` ones do not exist any more. `kept` ones still
    have everything, and `why` has the reason.
    """

    run: str
    how: Literal["pruned", "removed", "kept"]
    why: str = ""


class ForgetReceipt(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="memory.forgotten",
):
    """The result of one forgetting: what was done, what could not be, and earlier exports.

    `asked` is how the notes were chosen, without the names that they were chosen by: those may be
    what is to be forgotten. `entries` are the positions of the log whose bytes are gone. `exports`
    are earlier exports of these notes, by position and label: they are out of reach, so they are
    named and nothing is claimed. `runs` are the recorded runs that were looked at, None if none
    were; `attachments_left` is how many attachments still have some of the text, held by others.
    """

    forget_id: str
    store: str
    agent_id: str
    strategy: ForgetStrategy
    asked: dict[str, object]
    forgotten: tuple[ForgottenNote, ...]
    errors: tuple[NotForgotten, ...]
    exports: tuple[tuple[int, str], ...]
    ts: int
    number: int
    prev_hash: str
    hmac_key_id: str
    hmac: str
    entries: tuple[int, ...] = ()
    runs: tuple[RunErased, ...] | None = None
    attachments_left: int = 0


Receipt = RecallReceipt | ForgetReceipt
_Kind = TypeVar("_Kind", RecallReceipt, ForgetReceipt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A secret that signs, and the id by which it is found after another key has replaced it."""

    id: str
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """The end of a chain of receipts: how many there are, and the hash of the last."""

    count: int = 0
    hash: str = GENESIS

    @classmethod
    def after(cls, receipt: Receipt) -> Link:
        """Return the end of the chain after a receipt."""
        return cls(count=receipt.number + 1, hash=receipt_hash(receipt))


def query_key(read_id: str, *, key: Key) -> bytes:
    """Return the key that binds the query of one receipt, and of no other.

    Raise `HmacInit` if the key is too short.
    """
    of_queries = hmac.digest(_secret_of(key), _QUERY_LABEL, "sha256")
    return hmac.digest(of_queries, _parts(b"one receipt", _encode(read_id)), "sha256")


def query_hash(query: str, *, read_id: str, key: Key) -> str:
    """Return the digest by which a receipt binds its query.

    Raise `HmacInit` if the key is too short.
    """
    return _keyed_query_hash(query, query_key(read_id, key=key))


def has_query_key(receipt: RecallReceipt) -> bool:
    """Return True if the query of a receipt has a key of its own, which can be given away."""
    return receipt.query_hash.startswith(_OWN_KEY)


def check_query(
    receipt: RecallReceipt, query: str, *, key: Key | None = None, given_key: bytes | None = None
) -> bool:
    """Check that a receipt was given for a query, with its maker's key or with the query's own.

    Return False if neither key can check it. Raise `QueryHashMismatch` if it was another query, and
    `HmacInit` if `key` is too short.
    """
    if has_query_key(receipt):
        own = query_key(receipt.read_id, key=key) if key is not None else given_key
        if own is None:
            return False
        expected = _keyed_query_hash(query, own)
    elif key is not None:
        of_queries = hmac.digest(_secret_of(key), _QUERY_LABEL, "sha256")
        parts = _parts(_encode(receipt.read_id), _encode(query))
        expected = hmac.digest(of_queries, parts, "sha256").hex()
    else:
        return False
    if not hmac.compare_digest(expected.encode(), _encode(receipt.query_hash)):
        raise QueryHashMismatch(read_id=receipt.read_id)
    return True


def _keyed_query_hash(query: str, own: bytes) -> str:
    return f"{_OWN_KEY}{hmac.digest(own, _encode(query), 'sha256').hex()}"


# -- bytes --------------------------------------------------------------------------------------


def receipt_bytes(receipt: Receipt) -> bytes:
    """Return the one spelling of a receipt."""
    return canonical(receipt)


def receipt_hash(receipt: Receipt) -> str:
    """Return the hash of a receipt, which the next one of the chain holds."""
    return digest(receipt_bytes(receipt))


def read_receipt(data: bytes) -> Receipt:
    """Read a receipt, with or without one newline at its end.

    Raise `ReceiptUnreadable` if it is none, has more than 64 MiB, or is not in its one spelling.
    Its content may still be false: `check_signature` and `verify` find that out.
    """
    if len(data) > RECEIPT_BYTES_MAX:
        raise ReceiptUnreadable(why=f"longer than {RECEIPT_BYTES_MAX:,} bytes")
    try:
        receipt: Receipt = msgspec.json.decode(data, type=Receipt)
        same = receipt_bytes(receipt) == data.removesuffix(b"\n")
    except _UNREADABLE as error:
        raise ReceiptUnreadable(why=str(error)) from error
    if not same:
        raise ReceiptUnreadable(why="not in canonical form")
    return receipt


def check_signature(receipt: Receipt, keys: Mapping[str, bytes]) -> Key:
    """Check that the key that a receipt names signed it, and return that key.

    Raise `UnknownKey` if it is not among `keys`, `HmacInit` if it is too short, and `HmacMismatch`
    if the receipt was changed or the key is another.
    """
    secret = keys.get(receipt.hmac_key_id)
    if secret is None:
        raise UnknownKey(key_id=receipt.hmac_key_id)
    key = Key(id=receipt.hmac_key_id, secret=secret)
    expected = _hmac(receipt, key).encode()
    if not hmac.compare_digest(expected, _encode(receipt.hmac)):
        raise HmacMismatch(id=id_of(receipt))
    return key


def check_link(receipt: Receipt, link: Link) -> Link:
    """Check that a receipt is the next of its chain, and return the end of the chain after it.

    Raise `ChainBroken` if it is not.
    """
    if receipt.number != link.count:
        why = f"it stands at place {link.count} of its chain"
        raise ChainBroken(number=receipt.number, why=why)
    if receipt.prev_hash != link.hash:
        raise ChainBroken(number=receipt.number, why="the receipt before it is another")
    return Link.after(receipt)


def id_of(receipt: Receipt) -> str:
    """Return the id of a receipt of either kind."""
    return receipt.read_id if isinstance(receipt, RecallReceipt) else receipt.forget_id


def sign(receipt: _Kind, key: Key) -> _Kind:
    """Sign a receipt, in place of any signature that it has.

    Raise `HmacInit` if the key is too short.
    """
    return msgspec.structs.replace(receipt, hmac=_hmac(receipt, key))


def _hmac(receipt: Receipt, key: Key) -> str:
    unsigned = receipt_bytes(msgspec.structs.replace(receipt, hmac=""))
    return hmac.digest(_secret_of(key), _parts(_RECEIPT_LABEL, unsigned), "sha256").hex()


def _secret_of(key: Key) -> bytes:
    if len(key.secret) < KEY_BYTES_MIN:
        why = f"it has {len(key.secret)} bytes; a key has at least {KEY_BYTES_MIN}"
        raise HmacInit(key_id=key.id, why=why)
    return key.secret


def _parts(*parts: bytes) -> bytes:
    """Join byte strings, each after its length, so that no two lists give the same bytes."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
