"""A memory as users have it: one tenant's notes, read and written as one agent, with receipts.

Rule 1: a tenant is a file. Notes that must not be seen together are not stored together.
Rule 2: a reader with an agent's name sees that agent's notes, those shared with it, and public
ones; the owner of the file sees everything.
Rule 3: without the extra `memory` and its weights, recall works by words alone, and says so. A
strategy that needs embeddings is then refused, and never replaced by another.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from tallystick.core.errors import UsageError
from tallystick.core.ids import moment_ms
from tallystick.memory.errors import ModelMismatch, NoteInvalid
from tallystick.memory.forget import decay_pass
from tallystick.memory.note import (
    MemoryType,
    NewNote,
    Note,
    Permission,
    check_agent,
    worth_of,
)
from tallystick.memory.recall.minilm import DIMENSIONS, MiniLm, missing
from tallystick.memory.recall.recall import (
    Asking,
    Recalled,
    Strategy,
    looking,
    recall,
    verify_recall,
)
from tallystick.memory.recall.scope import DEFAULT, Embedder, Profile
from tallystick.memory.recall.selection import EVERYTHING, NOW, Filters, Seen, select_notes
from tallystick.memory.recall.view import find_note
from tallystick.memory.recall.words import TOKENIZER, count_tokens
from tallystick.memory.receipts.keys import MemoryKeys, open_keys
from tallystick.memory.receipts.receipt import ForgetReceipt, RecallReceipt, ReceiptUnknown
from tallystick.memory.receipts.receipts import (
    NoteCitation,
    Verified,
    VerifiedForget,
    check_citation,
    find_forget_receipt,
    find_recall_receipt,
    read_citation,
    verify_forgotten,
)
from tallystick.memory.remember import Remembered, consolidate, remember, remember_all
from tallystick.memory.sharing import (
    Relation,
    Share,
    relate,
    relations_at,
    share,
    share_notes,
    shares_at,
)
from tallystick.memory.store.sqlite import EntryHeader, SqliteMemory, read_entry_header
from tallystick.memory.store.vectors import count_notes_without_vectors, embed_missing, model_at
from tallystick.settings.files import config_directory
from tallystick.settings.paths import cache_directory, data_directory

if TYPE_CHECKING:
    from tallystick.memory.code_mode.operations import Budget as ProgramBudget
    from tallystick.memory.code_mode.operations import Bundle, Program
    from tallystick.memory.recall.index import StandingIndex
    from tallystick.memory.receipts.receipt_file import ReceiptFile
    from tallystick.settings.signing import SigningKey


# The position and the time that a caller's `as_of` means.
#
# A position was the head until the next entry was written. A recall there was made before that, so
# the time of the next entry counts. Entries of one request are seen together: no reader sees a note
# without the entry that quarantines it, or that ends another note.


_DIGITS_MAX = 18
# Tags of entries that are written directly after a note, by the same request.
_BELONGS = frozenset({"note.quarantined", "note.closed", "note.restored"})


def resolve_as_of(store: SqliteMemory, as_of: int | str | None) -> tuple[int | None, int | None]:
    """Return the position and the time that `as_of` means. None is the head, and the present time.

    A time gives the last position at or before it, and itself. A position gives the end of the
    request that wrote it, and the time of the next entry: None if it is the last. Position 0, or
    one whose header cannot be read, gives the time 0.

    Raise `UsageError` or `NoteInvalid` if it is neither, or if the log has no such position. Raise
    `MemoryCorrupt` if a header on the way to a time cannot be read.
    """
    if as_of is None:
        return None, None
    if isinstance(as_of, bool) or not isinstance(as_of, int | str):
        raise UsageError("as_of is a place in the log or a time")
    if isinstance(as_of, str) and not (as_of.isascii() and as_of.isdecimal()):
        at = moment_ms(as_of)
        return store.seq_at(at), at
    if isinstance(as_of, str) and len(as_of) > _DIGITS_MAX:
        raise UsageError(f"as_of: no log has a place of {len(as_of):,} digits")
    place = store.resolve(int(as_of))
    here, following = _header(store, place), _header(store, place + 1)
    while here is not None and following is not None and _same_request(here, following):
        place, here = place + 1, following
        following = _header(store, place + 1)
    if here is None:
        return place, 0
    return place, None if following is None else following.at


def _same_request(here: EntryHeader, following: EntryHeader) -> bool:
    return following.tag in _BELONGS and following.at == here.at


def _header(store: SqliteMemory, place: int) -> EntryHeader | None:
    entry = next(store.entries(start=place, stop=place), None) if place > 0 else None
    if entry is None:
        return None
    header = read_entry_header(entry.header, store=store.identity(), seq=place)
    return None if isinstance(header, str) else header


# Visibility: a reader gets no sign of a note that it may not see.


def visible_ids(memory: SqliteMemory, ids: Sequence[str], *, reader: str | None) -> list[str]:
    """Return those of some notes that a reader sees, deleted ones too, in the order given.

    For a reader of None the ids are returned as they are, whether or not there are such notes.
    """
    if reader is None:
        return list(ids)
    with memory.reading() as db:
        seq = memory.resolve(None)
        return [
            id
            for id in ids
            if select_notes(db, reader=reader, filters=EVERYTHING, seq=seq, at=0, id=id)
        ]


# The memory as users have it.


# The agent of notes if the caller names none.
AGENT = "agent"
# The most notes that are embedded before a recall. If more are waiting, the recall would take too
# long: it goes without them, and a remark says so.
_EMBEDDED_MAX = 200
_HALF = re.compile("[\ud800-\udfff]")
_TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def memory_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory with the files of the tenants, whether it exists or not."""
    return data_directory(environ) / "memory"


class Faded(msgspec.Struct, frozen=True, kw_only=True):
    """The notes that hardly matter any more, by `Memory.decay`: archived, or called forgotten."""

    archived: tuple[str, ...]
    forgotten: tuple[str, ...]


class Memory:
    """A tenant's memory, shared by threads. Closing twice is harmless.

    Notes are written as `agent_id`, and read for it; with `owner`, everything in the file is read.
    `embedder` is "auto" for the one of the extra if it can be used here, None for none. `config` is
    the directory with the key that signs receipts for others. Every method may raise a
    `StorageFailed`.
    """

    def __init__(
        self,
        store: SqliteMemory,
        *,
        tenant: str = "default",
        agent_id: str = AGENT,
        owner: bool = False,
        keys: MemoryKeys,
        embedder: Embedder | Literal["auto"] | None = "auto",
        profile: Profile = DEFAULT,
        config: Path | None = None,
    ) -> None:
        check_agent(agent_id)
        self._config = config_directory(os.environ) if config is None else config
        self.store = store
        self.tenant = tenant
        self.agent_id = agent_id
        self.keys = keys
        self.profile = profile
        self._reader = None if owner else agent_id
        self._embedder = embedder
        self._index: StandingIndex | None = None

    @classmethod
    def open(
        cls,
        tenant: str = "default",
        *,
        agent_id: str = AGENT,
        owner: bool = False,
        embedder: Embedder | Literal["auto"] | None = "auto",
        directory: Path | None = None,
        create: bool = True,
        environ: Mapping[str, str] = os.environ,
    ) -> Self:
        """Open a tenant's memory. With `create`, a missing file is made on first use.

        `directory` has the files. The file of keys is made now if there is none. Raise `UsageError`
        if the name is not allowed, or if there is no file and `create` is False. Raise `StoreError`
        if the keys cannot be read or made, `NoteInvalid` if `agent_id` is no name.
        """
        if _TENANT.fullmatch(tenant) is None:
            raise UsageError(
                f"memory {tenant[:80]!r}: a name is letters, digits, '.', '_' and '-', at most 64"
            )
        path = (directory or memory_directory(environ)) / f"{tenant}.db"
        if not create and not path.exists():
            raise UsageError(f"there is no memory {tenant!r} yet; tally remember makes it")
        return cls(
            SqliteMemory(path),
            tenant=tenant,
            agent_id=agent_id,
            owner=owner,
            keys=open_keys(config_directory(environ)),
            embedder=embedder,
            config=config_directory(environ),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file. It is opened again on its next use."""
        self.store.close()

    @property
    def reader(self) -> str | None:
        """The agent for whom notes are read; None is the owner of the file."""
        return self._reader

    def prepare(self, *, strategy: Strategy = "auto") -> None:
        """Do now what the next recall by a strategy would otherwise do first.

        Load the embedder if the strategy needs one, embed the new notes, let the index follow the
        log, and count the tokens of notes that were not counted yet. If more than 200 notes are
        waiting, none is embedded. Raise `UsageError` if the files of the model are not the ones
        that this version was made for.
        """
        # What a strategy refuses is refused by the recall itself, and not here.
        by_words: Strategy = strategy if strategy in ("lexical", "exact") else "auto"
        embedder, _ = self._embedder_for(by_words, self.profile, None)
        if embedder is not None:
            # Its first use also takes longer than the others.
            embedder.embed("warm")
        index = self._standing_index()
        with looking(
            self.store,
            reader=self._reader,
            filters=NOW,
            as_of=None,
            at=None,
            index=index,
            vectors=embedder is not None,
        ) as looked:
            looked.count_all(count_tokens, tokenizer=TOKENIZER)

    # -- notes ---------------------------------------------------------------------------------

    def remember(
        self,
        content: str,
        *,
        origin: str | None = None,
        **fields: Any,  # noqa: ANN401 (the fields of a note, each with its own type)
    ) -> Remembered:
        """Remember a note. It is on disk when this returns. `fields` are those of `NewNote`.

        `origin` names the request: if it is repeated, the note is remembered once. Raise
        `NoteInvalid` if a field has a value that it may not have.
        """
        return remember(self.store, self.new_note(content, **fields), origin=origin)

    def remember_all(self, contents: Iterable[str | NewNote]) -> list[Remembered]:
        """Remember notes in one transaction: all of them, or none if one raises `NoteInvalid`.

        It is raised for more than 10,000 notes, too. The results are in the order of the notes.
        """
        news = [each if isinstance(each, NewNote) else self.new_note(each) for each in contents]
        return remember_all(self.store, news)

    def new_note(self, content: str, **fields: Any) -> NewNote:  # noqa: ANN401
        """Return a request to remember a note of this agent. A field that is None is left out.

        `fields` are those of `NewNote`. Raise `NoteInvalid` if one is unknown or has the wrong
        type; whether its value is allowed is checked when the note is remembered.
        """
        given = {key: value for key, value in fields.items() if value is not None}
        try:
            return msgspec.convert(
                {"agent_id": self.agent_id, "content": content, **given}, type=NewNote
            )
        except msgspec.ValidationError as error:
            raise NoteInvalid(field="note", why=str(error)) from None

    def note(self, id: str, *, as_of: int | str | None = None) -> Seen:
        """Return one note that this reader sees, whatever its state is.

        `as_of` is a position in the log or a time. Raise `NoteNotFound` if there was none that the
        reader may see, `NoteErased` to the owner if it was erased since. Raise `UsageError` or
        `NoteInvalid` for another `as_of`.
        """
        place, _ = resolve_as_of(self.store, as_of)
        return find_note(self.store, id, reader=self._reader, as_of=place)

    def score(self, id: str) -> float:
        """Return how much a note still matters, 0 to 1, by importance, age and number of recalls.

        Raise `NoteNotFound` or `NoteErased` as `note` does.
        """
        seen = self.note(id)
        return worth_of(
            seen.note,
            seen.state.importance,
            now=self.store.clock(),
            access_count=seen.access_count,
        )

    def consolidate(
        self,
        ids: Sequence[str],
        content: str,
        *,
        memory_type: MemoryType | str = MemoryType.SEMANTIC,
        created_by: str | None = None,
    ) -> Remembered:
        """Remember a text in place of several notes. They stay, and are recalled as of before.

        Raise `NoteInvalid` for fewer than two notes, notes of several agents, or notes that are not
        recalled, such as deleted ones. Raise it too for another type of memory, and for a text that
        cannot be a note or is that of one of them. Raise `NoteNotFound` or
        `MemoryPermissionDenied` for a note that may not be changed.
        """
        kinds = {each.value: each for each in MemoryType}
        if memory_type not in kinds:
            raise NoteInvalid(field="memory_type", why=", ".join(kinds), given=str(memory_type))
        return consolidate(
            self.store,
            ids,
            content,
            actor=self._reader,
            memory_type=kinds[memory_type],
            created_by=created_by or self.agent_id,
        )

    def decay(
        self, *, archive_below: float = 0.2, forget_below: float = 0.05, dry_run: bool = False
    ) -> Faded:
        """Archive the notes whose `score` is below a limit; mark the least as forgotten.

        Neither is recalled any more, and both can be recalled as of before. Procedural notes stay.
        An agent's own notes count, for the owner of the file those of all. Raise `NoteInvalid`
        unless 0 <= `forget_below` <= `archive_below` <= 1.
        """
        archived, forgotten = decay_pass(
            self.store,
            archive_below=archive_below,
            forget_below=forget_below,
            owner=self._reader,
            dry_run=dry_run,
        )
        return Faded(archived=archived, forgotten=forgotten)

    # -- sharing and relations -----------------------------------------------------------------

    def share(
        self,
        id: str | None,
        with_agent: str,
        permission: Permission | str = Permission.READ,
        *,
        tag: str | None = None,
    ) -> int:
        """Give another agent a permission on a note, or on all notes if `id` is None.

        All notes are those of `agent_id`, also later ones; with `tag`, those with that tag. A
        higher permission includes the lower ones: read, write, delete, share, delegate, admin.
        Return how many notes have it now that had not. Raise `NoteInvalid`, `NoteNotFound` or
        `MemoryPermissionDenied` if it cannot be given.
        """
        rights = {each.value: each for each in Permission}
        if permission not in rights:
            raise NoteInvalid(field="permission", why=", ".join(rights), given=str(permission))
        return self._set_share(id, with_agent, rights[permission], tag)

    def unshare(self, id: str | None, from_agent: str, *, tag: str | None = None) -> int:
        """Take back what `share` gave, with the same arguments. Return how many notes it concerns.

        Recalls as of before still find them. Raise `NoteInvalid` if nothing was given.
        """
        return self._set_share(id, from_agent, None, tag)

    def _set_share(
        self, id: str | None, agent: str, permission: Permission | None, tag: str | None
    ) -> int:
        if id is None:
            return share_notes(
                self.store,
                owner=self.agent_id,
                actor=self._reader,
                with_agent=agent,
                permission=permission,
                tag=tag,
            )
        if tag is not None:
            raise NoteInvalid(field="tag", why="for all notes; leave out the id", given=tag)
        share(self.store, id, actor=self._reader, with_agent=agent, permission=permission)
        return 1

    def shares(self, id: str | None = None, *, as_of: int | str | None = None) -> tuple[Share, ...]:
        """Return who may see which notes, of this reader's notes and of those shared with it.

        Rules for all notes are among them, with `id` None. With `id`, return those of one note.
        `as_of` is a position in the log or a time. Raise `NoteNotFound` if there is no such note,
        and the errors of `resolve_as_of`.
        """
        if id is not None:
            self.note(id, as_of=as_of)
        place, _ = resolve_as_of(self.store, as_of)
        seq = self.store.head().count if place is None else place
        return shares_at(self.store, reader=self._reader, seq=seq, id=id)

    def relate(
        self, id: str, to: str, relation: str = "related_to", *, weight: float = 1.0
    ) -> None:
        """Relate a note to another one. The weight 0 takes the relation back.

        Recall follows relations with the strategy `graph`, in both directions. Raise `NoteInvalid`
        for a relation that is not one word, or a weight that is not from 0 to 1. Raise
        `NoteNotFound` or `MemoryPermissionDenied` for a note that may not be read or changed.
        """
        relate(self.store, id, to, actor=self._reader, relation=relation, weight=weight)

    def relations(self, id: str, *, as_of: int | str | None = None) -> tuple[Relation, ...]:
        """Return the relations of a note to others that this reader sees, its own first.

        `as_of` is a position in the log or a time. Raise `NoteNotFound` if there is no such note,
        and the errors of `resolve_as_of`.
        """
        self.note(id, as_of=as_of)
        place, _ = resolve_as_of(self.store, as_of)
        with self.store.reading() as db:
            found = relations_at(db, id, seq=self.store.resolve(place))
            ends = [each.target if each.source == id else each.source for each in found]
        seen = set(visible_ids(self.store, list(dict.fromkeys(ends)), reader=self._reader))
        return tuple(each for each, end in zip(found, ends, strict=True) if end in seen)

    # -- recall --------------------------------------------------------------------------------

    def recall(
        self,
        query: str,
        k: int = 10,
        *,
        as_of: int | str | None = None,
        strategy: Strategy = "auto",
        filters: Filters = NOW,
        tokens_max: int | None = None,
        weights: Mapping[str, float] | None = None,
        profile: Profile | None = None,
    ) -> Recalled:
        """Return the `k` notes that fit a query best, the best first, with a receipt.

        `as_of` is a position in the log or a time: what was known then, ranked as it was then. The
        hits have at most `tokens_max` tokens together. `weights` weigh lanes of the ranking
        otherwise, such as `{"importance": 0.5, "decay": 0.5}`; the receipt has them. At the head,
        new notes are embedded first, unless more than 200 are waiting. The recall and its receipt
        are recorded in the log.

        Raise `UsageError` or `NoteInvalid` for an argument out of range; `k` is from 0 to 100.
        Raise `EmbedderNotConfigured` or `ModelMismatch` if the strategy needs vectors that are not
        there; `auto` then goes by words alone, and says so in `remarks`.
        """
        _check_text("the query", query)
        for what in ("org_id", "thread_id", "author", "key"):
            _check_text(what, getattr(filters, what) or "")
        for tag in filters.tags:
            _check_text("a tag", tag)
        place, at = resolve_as_of(self.store, as_of)
        ranking = profile or self.profile
        weighed = ranking.weighed(weights or {})
        embedder, remarks = self._embedder_for(strategy, weighed, place)
        index = self._standing_index()
        made = recall(
            self.store,
            query,
            Asking(
                agent_id=self.agent_id,
                reader=self._reader,
                k=k,
                filters=filters,
                as_of=place,
                at=at,
                strategy=strategy,
                profile=ranking,
                weights=dict(weights or {}),
                tokens_max=tokens_max,
            ),
            key=self.keys.current,
            embedder=embedder,
            count=count_tokens,
            tokenizer=TOKENIZER,
            index=index,
        )
        remarks = (*remarks, *(() if index is None else index.remarks))
        return made if not remarks else _with_remarks(made, remarks)

    def run_program(
        self,
        program: str | bytes | Program,
        *,
        budget: ProgramBudget | None = None,
        as_of: int | str | None = None,
        strategy: Strategy = "auto",
        filters: Filters = NOW,
    ) -> Bundle:
        """Run a recall program, a list of operations or Python, and return its bundle.

        The time of `budget` counts the program and its calls, and not what is made ready for it.
        Raise a `CodeModeError`, which has what was gathered, if the program ends early, and
        `InvalidProgram` if it is none. Raise `SandboxError` or `GuestMissing` if no sandbox could
        start it.
        """
        # Most who open a memory run no programs.
        from tallystick.memory.code_mode.running import MemoryHost, run_recall_program

        host = MemoryHost(self, as_of=as_of, strategy=strategy, filters=filters)
        return run_recall_program(self, program, budget=budget, host=host)

    def receipt(self, read_id: str) -> RecallReceipt:
        """Return the receipt of a recall that was made here, by this agent unless as the owner.

        Raise `ReceiptUnknown` for any other id.
        """
        found = find_recall_receipt(self.store, read_id)
        # The same error as for no receipt: an agent gets no sign of what others recalled.
        if self._reader is not None and found.agent_id != self._reader:
            raise ReceiptUnknown(id=read_id)
        return found

    def verify(
        self, receipt: RecallReceipt, *, query: str | None = None, profile: Profile | None = None
    ) -> Verified:
        """Check a receipt of a recall; with its query, repeat the recall and compare.

        Without the query, its digest and the ranking are not checked; all the rest is. `profile`
        has to be the one that ranked. Raise a `ReceiptError` if it does not hold. Raise
        `ModelMismatch` or `EmbedderNotConfigured` if the model of the recall is not here, and
        `UsageError` if this version cannot repeat what the receipt describes.
        """
        embedder, profile = None, profile or self.profile
        if query is not None and receipt.model is not None:
            embedder, _ = self._embedder_for("hybrid", profile, receipt.as_of)
        return verify_recall(
            self.store,
            receipt,
            keys=self.keys.by_id,
            query=query,
            profile=profile,
            embedder=embedder,
            index=self._standing_index(),
        )

    def receipt_file(
        self,
        id: str,
        *,
        query: str | None = None,
        sign: bool = False,
        key: SigningKey | None = None,
    ) -> ReceiptFile:
        """Return the receipt of a recall or a forgetting as a file that others can check.

        With `sign` it is signed with this user's key. The key is made on first use, and its public
        half is the file `signing.pub` in the same directory. With `key` it is signed with that one.
        With `query`, everybody who gets the file can read what was asked. Raise `ReceiptUnknown` if
        it was not made here, and `UsageError` if it has no query, or one that only its owner can
        check. Without the extra `sign`, raise `UsageError` for a signature; raise `StoreError` if
        the key cannot be read or made.
        """
        # Most who open a memory give no receipts away.
        from tallystick.memory.receipts.receipt_file import make_receipt_file

        if sign and key is None:
            from tallystick.settings.signing import open_signing_key

            key = open_signing_key(self._config, ledger=self.store.path)
        receipt: RecallReceipt | ForgetReceipt
        try:
            receipt = self.receipt(id)
        except ReceiptUnknown:
            receipt = self.forget_receipt(id)
        return make_receipt_file(self.store, receipt, keys=self.keys.by_id, query=query, key=key)

    def resolve(self, citation: str | NoteCitation) -> Note:
        """Return the note that a citation names, as it was recalled, checked against the receipt.

        Raise `UsageError` if it is no citation. Raise `NotRecalled` or a `ReceiptError` if the
        receipt does not support it. Raise `NoteNotFound` or `NoteErased` if the note cannot be
        read.
        """
        read = read_citation(citation) if isinstance(citation, str) else citation
        receipt = self.receipt(read.read_id)
        self.verify(receipt)
        hit = check_citation(read, receipt)
        return find_note(self.store, hit.id, reader=self._reader, as_of=receipt.as_of).note

    def embed(self, *, replace: bool = False) -> int:
        """Embed every note that has no vectors yet; return how many were embedded.

        They are stored 200 at a time: an error leaves earlier ones. With `replace`, vectors of
        another model are deleted first; otherwise they raise `ModelMismatch`. Raise `UsageError` if
        there is no embedder.
        """
        embedder = self._load_embedder()
        if embedder is None:
            raise UsageError(f"embedding needs more: {missing() or 'no embedder is given'}")
        return embed_missing(self.store, embedder, dimensions=DIMENSIONS, replace=replace)

    # -- receipts of forgetting ----------------------------------------------------------------

    def forget_receipt(self, forget_id: str) -> ForgetReceipt:
        """Return the receipt of a forgetting that was done here, by whichever agent.

        Raise `ReceiptUnknown` if there is none of that id.
        """
        return find_forget_receipt(self.store, forget_id)

    def verify_forget(self, receipt: ForgetReceipt) -> VerifiedForget:
        """Check a receipt of a forgetting against the memory as it is now.

        Raise a `ReceiptError` if it does not hold.
        """
        return verify_forgotten(self.store, receipt, keys=self.keys.by_id)

    # -- inside --------------------------------------------------------------------------------

    def _embedder_for(
        self, strategy: Strategy, profile: Profile, place: int | None
    ) -> tuple[Embedder | None, tuple[str, ...]]:
        """Return the embedder for a recall, and remarks about why or where it is not used.

        It is None if neither strategy nor profile uses vectors, if there is no embedder, or if the
        vectors are of another model and the strategy is `auto`. For another strategy they raise
        `ModelMismatch`. At the head, new notes are embedded first.
        """
        if strategy in ("lexical", "exact") or not (
            profile.dense or profile.token or profile.passage
        ):
            return None, ()
        embedder = self._load_embedder()
        if embedder is None:
            return None, ()
        with self.store.reading() as db:
            chosen = model_at(db, self.store.head().count if place is None else place)
        if chosen is not None and chosen[0] != embedder.digest:
            if strategy != "auto":
                raise ModelMismatch(found=chosen[0], given=embedder.digest)
            why = "its vectors are another model's; tally memory embed --replace makes them again"
            return None, (f"by words alone: {why}",)
        if place is not None:
            return embedder, ()
        left = self._embed_some(embedder)
        if not left:
            return embedder, ()
        return embedder, (f"{left:,} notes are found by words alone until tally memory embed",)

    def _embed_some(self, embedder: Embedder) -> int:
        """Embed the notes without vectors if they are at most 200. Return how many are left."""
        count = count_notes_without_vectors(self.store)
        if count > _EMBEDDED_MAX:
            return count
        if count:
            embed_missing(self.store, embedder, dimensions=DIMENSIONS)
        return 0

    def _standing_index(self) -> StandingIndex | None:
        """Return the standing index of the open memory, made on first use; None without numpy."""
        if self._index is None and importlib.util.find_spec("numpy") is not None:
            from tallystick.memory.recall.index import StandingIndex

            self._index = StandingIndex(self.store)
        return self._index

    def _load_embedder(self) -> Embedder | None:
        if self._embedder == "auto":
            self._embedder = None if missing() else MiniLm.load(cache=cache_directory())
        return self._embedder


def _check_text(what: str, text: str) -> None:
    """Raise `UsageError` for half of a surrogate pair: no hash or file can have it as UTF-8."""
    if _HALF.search(text):
        raise UsageError(f"{what} holds half of a character")


def _with_remarks(made: Recalled, more: Sequence[str]) -> Recalled:
    return Recalled(
        hits=made.hits,
        notes=made.notes,
        receipt=made.receipt,
        remarks=(*made.remarks, *more),
    )
