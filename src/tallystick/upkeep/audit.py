"""Check the rows beside the chains of a ledger against what the records say.

A chain binds entries. Beside the chains are rows that decide about a run: which ledger owns it,
which attachments its holder keeps, what a total has spent, what a session keeps. They are compared
with what the records name, and where no record says anything, with the table of acts.

Rule 1: what is computed from records has priority over what is stored a second time. The acts
(`tallystick.ledger.acts`) are only for what no record of the chain can say.
Rule 2: a check that a ledger's format does not cover is named, never omitted silently.
Rule 3: a ledger may be in use. Faults of a run are dropped if the run was changed meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tallystick.attachments.collect import (
    BadAttachment,
    CollectableAttachments,
    verify_attachments,
)
from tallystick.attachments.collect import VerifyReport as AttachmentsReport
from tallystick.attachments.port import AttachmentError
from tallystick.attachments.session import snapshots_holder
from tallystick.core.budget.amount import Amount
from tallystick.core.chain import Head, Header, Sealed
from tallystick.core.errors import LedgerCorrupt, LedgerError, RunNotFound, StoreError
from tallystick.core.history import History, Key, key_of
from tallystick.core.ids import is_ulid
from tallystick.core.records import (
    AskModel,
    ModelFailed,
    ModelReplied,
    QueryAsked,
    QueryFailed,
    QueryReplied,
    Record,
    RunEnded,
    RunForked,
    RunPruned,
    RunResumed,
    RunStarted,
    decode_record,
)
from tallystick.ledger.acts import Act, latest_custody
from tallystick.ledger.custody import created_at_ms
from tallystick.ledger.facts import row_differences
from tallystick.ledger.port import RunRow
from tallystick.ledger.sqlite import SqliteLedger
from tallystick.ledger.verify import BadRow, VerifyReport, verify_ledger
from tallystick.runtime.runs.history import put_id_in, references_in
from tallystick.runtime.spend.scopes import DEPLOYMENT
from tallystick.sessions.book import SessionBook
from tallystick.sessions.rows import Left, SessionRun
from tallystick.stores import stores_of

_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
# Bodies that pruning never removes.
_NEVER_PRUNED = frozenset({"receipt.issued", "run.forked", "run.pruned"})
# Bodies that pruning keeps only if no other record has the same facts.
_MAYBE_PRUNED = frozenset({"step.left", "step.entered"})
_CALL_TAGS = frozenset(
    {
        *("model.ask", "model.replied", "model.failed"),
        *("query.ask", "query.replied", "query.failed"),
    }
)
_LIFE_TAGS = frozenset({"run.resumed", "run.pruned", "run.ended"})
_decode_header = msgspec.json.Decoder(Header).decode


@dataclass(slots=True)
class _RunFacts:
    """Facts from the entries of one run about the rows beside its chain."""

    begun: Record | None = None
    # Id and length of each attachment that is named, with the first entry that names it.
    named: dict[tuple[str, int | None], int] = field(default_factory=dict)
    erased: list[int] = field(default_factory=list)
    tags_erased: dict[int, str] = field(default_factory=dict)
    # The first body that is still there although pruning would remove it.
    first_kept: int | None = None
    pruned: list[tuple[int, RunPruned]] = field(default_factory=list)
    # Calls without an outcome so far, and the charges of the others.
    asked: dict[Key, AskModel | QueryAsked] = field(default_factory=dict)
    charged: list[Amount] = field(default_factory=list)
    resumed: bool = False
    ended: RunEnded | None = None
    head: Head = field(default_factory=Head.of_nothing)

    @property
    def session_id(self) -> str | None:
        begun = self.begun
        return begun.session_id if isinstance(begun, RunStarted | RunForked) else None

    @property
    def session(self) -> str | None:
        """The session that the run was begun in; None if it was in none."""
        given = self.begun.session if isinstance(self.begun, RunStarted) else None
        return None if given is None else given.session

    def looks_pruned(self) -> bool:
        """Return True if the missing bodies are what pruning removes from the beginning on.

        Call it only if a body is missing.
        """
        if any(tag in _NEVER_PRUNED for tag in self.tags_erased.values()):
            return False
        return self.first_kept is None or self.first_kept > max(self.erased)


class Audit:
    """Collects facts from entries, run by run, and then compares them with the rows.

    Each entry is visited once, in order. The comparing methods raise `LedgerError` and
    `AttachmentError` if rows cannot be read.
    """

    def __init__(self, ledger: SqliteLedger) -> None:
        self._ledger = ledger
        self._seen: dict[str, _RunFacts] = {}

    # -- reading ---------------------------------------------------------------------------------

    def visit(self, run: str, seq: int, entry: Sealed) -> None:
        """Take in one entry.

        The entries of a run come in their order; one that cannot be read is ignored.
        """
        seen = self._seen.setdefault(run, _RunFacts())
        seen.head = Head(count=seq + 1, hash=entry.hash)
        tag = _tag_of(entry)
        if entry.body is None:
            seen.erased.append(seq)
            seen.tags_erased[seq] = tag
            return
        relevant = tag in _CALL_TAGS or tag in _LIFE_TAGS
        # A cheap test before decoding. The names may also be written with escapes.
        names = (
            b"byte_len" in entry.body or b"\\u" in entry.body or b"attachments.put" in entry.body
        )
        if seen.first_kept is None and tag not in _NEVER_PRUNED | _MAYBE_PRUNED:
            seen.first_kept = seq
        if not (seq == 0 or relevant or names):
            return
        try:
            record = decode_record(entry.body)
        except _UNREADABLE:
            return
        self._note(seen, seq, record)

    def _note(self, seen: _RunFacts, seq: int, record: Record) -> None:
        if seq == 0:
            seen.begun = record
        for ref in references_in(record):
            seen.named.setdefault((ref.id, ref.byte_len), seq)
        put = put_id_in(record)
        if put is not None:
            seen.named.setdefault((put, None), seq)
        match record:
            case RunResumed():
                # A call that is open at a resume is left out of the comparison: the process that
                # died may have settled it in the total without recording it.
                seen.asked.clear()
                seen.resumed = True
            case RunPruned():
                seen.pruned.append((seq, record))
            case RunEnded():
                seen.ended = record
            case AskModel() | QueryAsked():
                seen.asked[key_of(record)] = record
            case ModelReplied() | ModelFailed() | QueryReplied() | QueryFailed():
                asked = seen.asked.pop(key_of(record), None)
                if asked is not None:
                    # The pair alone is a history: so the charge is computed as a resume does it.
                    charges, _ = History([asked, record]).holds
                    seen.charged += charges.values()
            case _:
                pass

    def read(self) -> list[BadRow]:
        """Read every run without checking hashes. Return the runs that cannot be read.

        A run that is removed meanwhile is left out.
        """
        bad = []
        for row in self._ledger.runs():
            try:
                for seq, entry in enumerate(self._ledger.read(row.run)):
                    self.visit(row.run, seq, entry)
            except RunNotFound:
                self._seen.pop(row.run, None)
            except LedgerError as error:
                why = f"its records cannot be read ({error}): tally verify says more"
                bad.append(BadRow(what="records", run=row.run, why=why))
        return bad

    # -- comparison ------------------------------------------------------------------------------

    def missing(self, attachments: CollectableAttachments) -> list[BadAttachment]:
        """Return the attachments that records name and the holder of their run does not keep.

        Each comes once, with the first reason found. One that is held with another length counts
        too. Runs that changed meanwhile are left out.
        """
        sessions: dict[str, list[str]] = {}
        whys: dict[str, str] = {}
        rows, acts = self._rows(), self._ledger.acts_by_run() or {}
        found = list(self._unheld(_committed_lengths(attachments), rows, acts))
        fresh = self._rows()
        for run, session_id, id, why in found:
            if self._is_unchanged(run, rows, fresh):
                sessions.setdefault(id, []).append(session_id)
                whys.setdefault(id, why)
        return [
            BadAttachment(id=id, sessions=tuple(sessions[id]), why=why) for id, why in whys.items()
        ]

    def _unheld(
        self,
        held: Mapping[tuple[str, str], int],
        rows: Mapping[str, RunRow],
        acts: Mapping[str, Sequence[Act]],
    ) -> Iterator[tuple[str, str, str, str]]:
        """Yield each attachment that the holder of a run lacks, or keeps with another length.

        The values are the run, its holder, the attachment, and the fault.
        """
        for run, (id, byte_len), where in self._expected_attachments(rows, acts):
            session_id = self._seen[run].session_id
            assert session_id is not None
            found = held.get((session_id, id))
            if found is None:
                yield run, session_id, id, f"{where} names it, and its session does not hold it"
            elif byte_len not in (None, found):
                why = f"{where} says that it has {byte_len:,} bytes, its reference says {found:,}"
                yield run, session_id, id, why

    def named_attachments(self) -> frozenset[str]:
        """Return the ids of all attachments that a run here needs, whether they are kept or not."""
        rows, acts = self._rows(), self._ledger.acts_by_run() or {}
        return frozenset(id for _, (id, _), _ in self._expected_attachments(rows, acts))

    def report(self, report: VerifyReport, runs: Collection[str] | None) -> VerifyReport:
        """Add to a report the faults beside the chains, and the checks that are not covered.

        `runs` are those to check; None means all, and also what belongs to no run. `ok` becomes
        False with a fault. Faults of runs that changed meanwhile are left out.
        """
        rows = self._rows()
        acts = self._ledger.acts_by_run()
        by_run = acts or {}
        bad: list[BadRow] = []
        notes = list(report.notes)
        uncovered = []
        for run in sorted(rows.keys() if runs is None else rows.keys() & set(runs)):
            latest = latest_custody(by_run.get(run, ()))
            if latest is None or latest.kind == "known":
                uncovered.append(run)
            bad += _row_faults(rows[run], latest)
            bad += self._column_faults(rows[run])
            bad += self._erasure_faults(rows[run], by_run.get(run, ()), notes)
        with stores_of(self._ledger) as stores:
            held = _committed_lengths(stores.attachments)
        for run, _, id, why in self._unheld(held, rows, by_run):
            bad.append(BadRow(what=f"attachment {id}", run=run, why=why))
        if runs is None:
            bad += self._total_faults(by_run)
            bad += self._session_faults(held, rows, by_run, notes)
        fresh = self._rows()
        bad = [
            each for each in bad if each.run is None or self._is_unchanged(each.run, rows, fresh)
        ]
        return msgspec.structs.replace(
            report,
            ok=report.ok and not bad,
            bad_rows=tuple(bad),
            notes=tuple(notes),
            not_covered=_not_covered(uncovered, has_acts=acts is not None),
        )

    # -- inside ----------------------------------------------------------------------------------

    def _column_faults(self, row: RunRow) -> list[BadRow]:
        """Return the contradictions between a row and the records of its run.

        A run that cannot be read has none: its chain reports that.
        """
        try:
            whys = row_differences(self._ledger, row)
        except LedgerError:
            return []  # removed just now, or damaged, which the chain says
        return [BadRow(what="row", run=row.run, why=why) for why in whys]

    def _rows(self) -> dict[str, RunRow]:
        return {row.run: row for row in self._ledger.runs()}

    def _is_unchanged(
        self, run: str, rows: Mapping[str, RunRow], fresh: Mapping[str, RunRow]
    ) -> bool:
        """Return True if a run is still as it was read, entries and row."""
        row = fresh.get(run)
        if row is None or row != rows.get(run):
            return False
        return run not in self._seen or row.head == self._seen[run].head

    def _expected_attachments(
        self, rows: Mapping[str, RunRow], acts: Mapping[str, Sequence[Act]]
    ) -> Iterator[tuple[str, tuple[str, int | None], str]]:
        """Yield what the holder of each run must keep: run, attachment, and where it is named.

        Runs without a row are left out, and so is an ancestor that was imported with a fork.
        """
        parents = {
            each.begun.parent for each in self._seen.values() if isinstance(each.begun, RunForked)
        }
        for run, seen in self._seen.items():
            row = rows.get(run)
            if row is None or seen.session_id is None:
                continue
            latest = latest_custody(acts.get(run, ()))
            # An ancestor that was imported with a fork keeps nothing: the fork keeps it all.
            if latest is not None and latest.kind == "shared":
                continue
            if row.imported and run in parents and (latest is None or latest.kind == "known"):
                continue
            for what, seq in self._named_by(run, row.head.count):
                yield run, what, f"entry {seq[1]} of run {seq[0]}"

    def _named_by(
        self, run: str, count: int
    ) -> Iterator[tuple[tuple[str, int | None], tuple[str, int]]]:
        """Yield what a run names in its first `count` entries, and shares with its ancestors.

        What a run named before it was pruned is left out.
        """
        walked: set[str] = set()
        while run not in walked:
            walked.add(run)
            seen = self._seen.get(run)
            if seen is None:
                return
            # What is named before a `run.pruned` was released in the transaction of that record.
            let_go = max((seq for seq, _ in seen.pruned if seq < count), default=-1)
            for what, seq in seen.named.items():
                if let_go < seq < count:
                    yield what, (run, seq)
            if not isinstance(seen.begun, RunForked):
                return
            run, count = seen.begun.parent, seen.begun.count

    def _erasure_faults(self, row: RunRow, acts: Sequence[Act], notes: list[str]) -> list[BadRow]:
        """Return a fault if a body is gone without a record or act of its erasure.

        In a ledger of an older version, a run that looks pruned only adds a note.
        """
        seen = self._seen.get(row.run)
        if seen is None or not seen.erased:
            return []
        spans = [(act.first, act.last) for act in acts if act.kind == "erased"]
        noted = {
            seq
            for seq in seen.erased
            if any(a is not None and b is not None and a <= seq <= b for a, b in spans)
        }
        unnoted = [seq for seq in seen.erased if seq not in noted]
        # A prune records how many bodies it removed, not which: so many before it are excused.
        allowed = sum(record.removed for _, record in seen.pruned)
        end = max((seq for seq, _ in seen.pruned), default=-1)
        loose = []
        for seq in unnoted:
            if seq < end and allowed and seen.tags_erased[seq] not in _NEVER_PRUNED:
                allowed -= 1
            else:
                loose.append(seq)
        if not loose:
            return []
        latest = latest_custody(acts)
        covered = latest is not None and latest.kind != "known"
        # Older versions pruned without an act, and a copy took the gaps along: nobody can tell
        # those from bodies that somebody removed, so this is said and is no fault.
        if not covered and not seen.pruned and seen.looks_pruned():
            bodies = "1 body is" if len(loose) == 1 else f"{len(loose):,} bodies are"
            notes.append(
                f"run {row.run}: {bodies} gone, and no record here says why; "
                f"copies and runs that were moved are pruned that way in older ledgers"
            )
            return []
        why = f"the body of entry {loose[0]} is gone, and nothing on record says that it was erased"
        if len(loose) > 1:
            why += f" ({len(loose):,} such bodies)"
        return [BadRow(what="body", run=row.run, why=why)]

    def _total_faults(self, acts: Mapping[str, Sequence[Act]]) -> list[BadRow]:
        """Return contradictions between totals, reservations, and the charges in records.

        If the totals cannot be read, the result is that error.
        """
        charged: list[Amount] = []
        for run, seen in self._seen.items():
            own = [act.kind for act in acts.get(run, ()) if act.kind != "erased"]
            # Charges of an imported run were made in another ledger, so no total here has them.
            if own and set(own) <= {"created", "released"}:
                charged += seen.charged
        total = Amount(
            tokens=sum(each.tokens for each in charged),
            usd=sum(each.usd or 0 for each in charged),
            model_calls=sum(each.model_calls for each in charged),
        )
        try:
            with stores_of(self._ledger) as stores:
                found = stores.scopes.faults({DEPLOYMENT: total} if charged else {})
        except LedgerError as error:
            found = [str(error)]
        return [BadRow(what="total", why=why) for why in found]

    def _session_faults(
        self,
        held: Mapping[tuple[str, str], int],
        rows: Mapping[str, RunRow],
        acts: Mapping[str, Sequence[Act]],
        notes: list[str],
    ) -> list[BadRow]:
        book = stores_of(self._ledger).sessions.book
        begun = {run: seen.session for run, seen in self._seen.items() if seen.session is not None}
        if not book.exists:
            if begun:
                runs = "1 run was" if len(begun) == 1 else f"{len(begun):,} runs were"
                notes.append(f"{runs} begun in sessions, and {book.where} is not here")
            return []
        try:
            bad = [BadRow(what="sessions", why=why) for why in book.damage()]
            for session in book.ids():
                bad += self._faults_of_session(book, session, held, rows, acts)
        except StoreError as error:
            return [BadRow(what="sessions", why=str(error))]
        return bad

    def _faults_of_session(
        self,
        book: SessionBook,
        session: str,
        held: Mapping[tuple[str, str], int],
        rows: Mapping[str, RunRow],
        acts: Mapping[str, Sequence[Act]],
    ) -> Iterator[BadRow]:
        what = f"session {session}"
        info = book.get(session)
        if not is_ulid(session) or info.created_at != created_at_ms(session):
            yield BadRow(what=what, why="its time of creation is not the one in its id")
        for id, which in _not_held(book, session, held):
            yield BadRow(what=what, why=f"{which} is attachment {id}, which is not held")
        for which, left in _interpreters(book, session):
            if left.run is not None and self._is_of_other(left.run, session):
                why = f"{which} is said to be left by run {left.run}, which is not of the session"
                yield BadRow(what=what, run=left.run, why=why)
        listed = {each.run: each for each in book.kept.runs(session)}
        for run, noted in listed.items():
            wrong = self._count_fault(noted, session)
            if wrong is not None:
                yield BadRow(what=what, run=run, why=wrong)
        for run, seen in self._seen.items():
            # An imported run names a session of another ledger, which no book here lists.
            latest = latest_custody(acts.get(run, ()))
            made_here = run in rows and latest is not None and latest.kind == "created"
            if seen.session == session and made_here and run not in listed:
                why = "the records of this run name the session, which does not list it"
                yield BadRow(what=what, run=run, why=why)

    def _count_fault(self, noted: SessionRun, session: str) -> str | None:
        """Return what a session has wrong about a run that it lists; None if nothing.

        A higher count than that of the records is no fault. Figures are only compared for a run
        that has ended and was not resumed.
        """
        if self._is_of_other(noted.run, session):
            return "the session lists this run, whose records do not name the session"
        seen = self._seen.get(noted.run)
        # A run that was resumed without its session (busy or removed) keeps its old figures there.
        ended = None if seen is None or seen.resumed else seen.ended
        if ended is None or not noted.ended:
            return None
        charge = ended.charge
        tokens = charge.tokens_in + charge.tokens_out
        if noted.tokens >= tokens and noted.wall_ms >= charge.wall_ms:
            return None
        return (
            f"the session counts {noted.tokens:,} tokens and {noted.wall_ms:,} ms for this run, "
            f"whose records say {tokens:,} and {charge.wall_ms:,}"
        )

    def _is_of_other(self, run: str, session: str) -> bool:
        """Return True if the records of a run are here and do not name this session."""
        seen = self._seen.get(run)
        return seen is not None and seen.begun is not None and seen.session != session


def _interpreters(book: SessionBook, session: str) -> list[tuple[str, Left]]:
    """Return the interpreters that a session keeps, each with a description."""
    lefts: list[tuple[str, Left]] = [("its interpreter", book.get(session).left)]
    for each in book.kept.snapshots(session):
        lefts.append((f"its snapshot {each.snapshot.name!r}", each.left))
    return lefts


def _not_held(
    book: SessionBook, session: str, held: Mapping[tuple[str, str], int]
) -> Iterator[tuple[str, str]]:
    """Yield each attachment that a session needs and does not keep, with a description.

    One that it keeps with another length counts too.
    """
    holder = snapshots_holder(session)
    for which, left in _interpreters(book, session):
        for ref in left.attachments:
            if held.get((holder, ref.id)) != ref.byte_len:
                is_image = ref is left.image
                yield ref.id, which if is_image else f"the record of the values of {which}"


def verify_records(
    ledger: SqliteLedger,
    runs: Collection[str] | None = None,
    *,
    heads: Mapping[str, Head] | None = None,
) -> VerifyReport:
    """Check chains as `verify_ledger` does, and then the rows beside them.

    All runs are checked by default, with the file itself, totals and sessions. If a chain is not
    valid, the rows are not checked. Tables that cannot be read are reported as a bad row. Raise
    `RunNotFound` for a run that is neither here nor in `heads`.
    """
    damage = ledger.damage() if runs is None else []
    audit = Audit(ledger)
    report = verify_ledger(ledger, runs, heads=heads or {}, visit=audit.visit)
    if report.first_bad is None:
        try:
            report = audit.report(report, runs)
        except (LedgerError, AttachmentError) as error:
            bad = BadRow(what="tables", why=str(error))
            report = msgspec.structs.replace(report, ok=False, bad_rows=(*report.bad_rows, bad))
    if damage:
        found = tuple(BadRow(what="file", why=why) for why in damage)
        report = msgspec.structs.replace(report, ok=False, bad_rows=(*found, *report.bad_rows))
    return report


def verify_references(
    ledger: SqliteLedger, attachments: CollectableAttachments
) -> AttachmentsReport:
    """Verify attachments, and check that holders keep what records of runs and sessions name.

    Damage of the ledger's file, runs and sessions that cannot be read are in `damage`. Raise
    `LedgerError` or `AttachmentError` if the rows of runs or attachments cannot be read.
    """
    damage = ledger.damage()
    audit = Audit(ledger)
    unread = [f"run {each.run}: {each.why}" for each in audit.read()]
    report = verify_attachments(attachments)
    lost: list[BadAttachment] = []
    try:
        lost = _missing_of_sessions(ledger, attachments)
    except StoreError as error:
        unread.append(f"sessions: {error}")
    bad = (*report.bad, *audit.missing(attachments), *lost)
    return msgspec.structs.replace(
        report, ok=not (bad or damage or unread), bad=bad, damage=(*damage, *unread)
    )


def _missing_of_sessions(
    ledger: SqliteLedger, attachments: CollectableAttachments
) -> list[BadAttachment]:
    """Return the attachments that sessions need for interpreters and do not keep.

    Raise `StoreError` if the sessions cannot be read.
    """
    book = stores_of(ledger).sessions.book
    if not book.exists:
        return []
    held = _committed_lengths(attachments)
    return [
        BadAttachment(
            id=id,
            sessions=(snapshots_holder(session),),
            why=f"session {session} has {which} in it, and does not hold it",
        )
        for session in book.ids()
        for id, which in _not_held(book, session, held)
    ]


def needed_attachments(ledger: SqliteLedger) -> frozenset[str]:
    """Return the ids of all attachments that records of runs, or sessions, need.

    An interpreter that a run has prepared does not count. Raise `LedgerCorrupt` or `StoreError` for
    what cannot be read.
    """
    audit = Audit(ledger)
    for each in audit.read():
        raise LedgerCorrupt(where=f"run {each.run}", why=each.why)
    book = stores_of(ledger).sessions.book
    if not book.exists:
        return audit.named_attachments()
    kept = {
        ref.id
        for session in book.ids()
        for _, left in _interpreters(book, session)
        for ref in left.attachments
    }
    return audit.named_attachments() | kept


def _committed_lengths(attachments: CollectableAttachments) -> dict[tuple[str, str], int]:
    """Return the length of each committed attachment, by holder and id."""
    return {
        (each.intent.session_id, each.ref.id): each.ref.byte_len
        for each in attachments.references()
        if each.committed_at_epoch_ms is not None
    }


def _row_faults(row: RunRow, latest: Act | None) -> list[BadRow]:
    """Return contradictions between a row, the id of its run, and its last act of custody."""
    whys = []
    if not is_ulid(row.run):
        whys.append("its id is none that a run has")
    elif row.created_at != created_at_ms(row.run):
        whys.append("its time of creation is not the one in its id")
    if row.moved and row.imported:
        whys.append("it is marked both as moved away and as a copy")
    elif row.imported and row.fence != 0:
        whys.append("it is marked as a copy, and was written here")
    # The first claim gives token 1, and a move raises it once more.
    elif not row.imported and row.fence < (2 if row.moved else 1):
        whys.append("it was never written here, and is not marked as a copy")
    if latest is not None:
        marks = (row.moved, row.imported)
        if marks != (latest.moved, latest.imported):
            marks_named = {(False, False): "the ledger's own", (True, False): "moved away"}
            now, then = (
                marks_named.get(each, "a copy") for each in (marks, (latest.moved, latest.imported))
            )
            whys.append(f"it is marked as {now}, and was last made {then}")
        # Claims raise the token without an act, so it may be higher. After a move nobody can claim.
        elif row.fence < latest.fence or (row.moved and row.fence != latest.fence):
            whys.append(
                f"its fence is {row.fence}, and was {latest.fence} when it was {latest.kind}"
            )
    return [BadRow(what="row", run=row.run, why=why) for why in whys]


def _not_covered(runs: Sequence[str], *, has_acts: bool) -> tuple[str, ...]:
    """Return the checks that are not possible for `runs`, which an older version created.

    The result is empty for no runs.
    """
    if not runs:
        return ()
    whose = (
        "1 run that an older version made"
        if len(runs) == 1
        else (f"{len(runs):,} runs that an older version made")
    )
    marks = (
        "were changed before this version first wrote the ledger" if has_acts else "were changed"
    )
    return (
        f"{whose}: whether the marks for moved and imported {marks}",
        f"{whose}: bodies removed from the beginning on, without an entry that says so",
        f"{whose}: whether the total has spent what they were charged",
    )


def _tag_of(entry: Sealed) -> str:
    try:
        return _decode_header(entry.header).tag
    except _UNREADABLE:
        return ""
