"""Write records as lines for people, and the receipts of steps as a table or as JSON."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import msgspec

from tallystick.core.charge import RunLimits, shown_usd
from tallystick.core.ids import moment_text
from tallystick.core.records import (
    FIGURE_MAX,
    AskModel,
    CallDecided,
    CallHost,
    CallWaiting,
    ChildBegun,
    ChildEnded,
    FilesKept,
    HostAnswered,
    ModelFailed,
    ModelRefused,
    ModelReplied,
    NetworkAttempted,
    PersonDecision,
    ProgramChecked,
    ProgramFinished,
    QueryAsked,
    QueryFailed,
    QueryRecord,
    QueryRefused,
    QueryReplied,
    ReceiptIssued,
    Record,
    RunEnded,
    RunForked,
    RunProgram,
    RunPruned,
    RunResumed,
    RunStarted,
    SkillLoaded,
    SkillMatched,
    SkillUsed,
    SnapshotTaken,
    StepEntered,
    StepLeft,
)
from tallystick.core.views.call_text import recorded_call_text
from tallystick.core.views.receipt import StepLine, StepTotals, step_totals

_SHOWN_CHARS_MAX = 70
# Characters that are letters for Unicode, but show nothing.
_FILLERS = frozenset("\u115f\u1160\u3164\uffa0")
# The maximum of combining marks on one letter. More of them would cover the lines around it.
_MARKS_MAX = 2
_TERMS_SHOWN_MAX = 5


def transcript_lines(record: Record) -> list[str]:
    """Write a record as lines of normalized text, without times and ids, but for a decision's time.

    A receipt has none.
    """
    match record:
        case RunStarted():
            return [f"run       {_start_text(record)}"]
        case AskModel() | ModelReplied() | ModelFailed() | ModelRefused():
            return [f"turn {record.turn:<4} {each}" for each in _model(record)]
        case record if isinstance(record, QueryRecord):
            return [f"          {_query(record)}"]
        case RunProgram() | ProgramFinished():
            return [f"turn {record.turn:<4} {_program(record)}"]
        case CallHost() | HostAnswered() | CallWaiting() | CallDecided():
            return [f"          {_host(record)}"]
        case ReceiptIssued() | SnapshotTaken() | SkillMatched() | ProgramChecked():
            return _side_lines(record)
        case FilesKept() | NetworkAttempted():
            return [_native_line(record)]
        case RunEnded() | RunResumed() | RunForked() | RunPruned():
            return [f"run       {_continuation(record)}"]
        case StepEntered() | StepLeft():
            return [f"step      {_step(record)}"]


def _side_lines(record: ReceiptIssued | SnapshotTaken | SkillMatched | ProgramChecked) -> list[str]:
    match record:
        case ReceiptIssued():
            return []
        case SnapshotTaken():
            return [f"turn {record.turn:<4} snapshot   {record.image.byte_len:,} bytes"]
        case SkillMatched():
            return [f"run       skills     {_match_text(record)}"]
        case ProgramChecked():
            return [f"turn {record.turn:<4} vocabulary {_vocabulary_text(record)}"]


def _native_line(record: FilesKept | NetworkAttempted) -> str:
    if isinstance(record, NetworkAttempted):
        to = f" at {plain(record.address)}" if record.address else ""
        why = f": {plain(record.why)}" if record.why else ""
        host = f"{plain(record.host)}:{record.port}" if record.host else "unreadable request"
        return f"          network    {record.outcome} {host}{to}{why}"
    size = "nothing" if record.archive is None else f"{record.archive.byte_len:,} bytes"
    out = f"  {record.left_out_of} left out" if record.left_out_of else ""
    problem = f"  {plain(record.problem)}" if record.problem else ""
    return f"turn {record.turn:<4} files      {size}{out}{problem}"


def _vocabulary_text(record: ProgramChecked) -> str:
    unknown = ", ".join(map(plain, record.unknown_terms[:_TERMS_SHOWN_MAX]))
    return f"{record.decision}  unknown: {unknown}" if unknown else record.decision


def _match_text(record: SkillMatched) -> str:
    scores = {each.id: each.score for each in record.candidates}
    said = ", ".join(f"{plain(id)} ({scores.get(id, 0):.2f})" for id in record.matched)
    return f"matched {said}" if said else "none matches"


def size_text(size: int) -> str:
    """Write a number of bytes with its unit: 12 B, 3.1 KiB, 1.7 MiB, 2.0 GiB."""
    if size < 1_024:
        return f"{size} B"
    amount = float(size)
    for unit in ("KiB", "MiB", "GiB"):
        amount /= 1_024
        if amount < 1_024 or unit == "GiB":
            break
    return f"{amount:,.1f} {unit}"


def quantity(count: int, noun: str) -> str:
    """Write a count with its noun, in the plural unless it is one."""
    many = f"{noun.removesuffix('y')}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else many}"


def plain(text: str, *, chars_max: int = _SHOWN_CHARS_MAX) -> str:
    """Return a text in one line, cut to `chars_max`, with `?` for what a terminal would act on.

    White space becomes single spaces. A text that is cut ends with "...", unless so much of it is
    white space that the first `4 * chars_max` characters fit. The others are not looked at.
    """
    # Cut first: a text from an imported run may be very long.
    line = " ".join(text[: 4 * chars_max].split())
    line = line if len(line) <= chars_max else f"{line[: chars_max - 3]}..."
    return safe(line)


def safe(text: str) -> str:
    """Return a text with `?` for each character that a terminal would act on, or that deceives.

    These are control characters, those that change the direction of writing, and those without
    width. Of the combining marks on one letter, all but two are removed.
    """
    if text.isascii():
        return text if text.isprintable() else "".join(map(_shown_ascii, text))
    kept: list[str] = []
    marks = 0
    for each in text:
        if each.isprintable() and unicodedata.category(each) in ("Mn", "Me"):
            marks += 1
            if marks <= _MARKS_MAX:
                kept.append(each)
            continue
        marks = 0
        kept.append(each if each.isprintable() and each not in _FILLERS else "?")
    return "".join(kept)


def _shown_ascii(char: str) -> str:
    return char if char.isprintable() else "?"


def _start_text(record: RunStarted) -> str:
    limits = record.limits
    named = "".join(f"  {each.name}={each.bytes}B" for each in record.contexts)
    tokens = "" if limits.tokens == FIGURE_MAX else f" tokens<={limits.tokens}"
    typed = "" if record.schema is None else f"  schema={len(record.schema)}B"
    return f"started    goal={_short(record.goal)}{named}{typed}  turns<={limits.turns}{tokens}"


def _program(record: RunProgram | ProgramFinished) -> str:
    if isinstance(record, RunProgram):
        kind = "" if record.kind == "python" else f"  {record.kind}"
        return f"program    part={record.part}{kind}"
    return f"finished   {outcome(record)}"


def _continuation(record: RunEnded | RunResumed | RunForked | RunPruned) -> str:
    match record:
        case RunEnded():
            kind = "partial" if record.partial else "answer"
            return (
                f"ended      {record.stop}  {kind}={_short(record.answer or '')}  "
                f"turns={record.charge.turns} host_calls={record.charge.host_calls}"
            )
        case RunResumed():
            doubt = "" if record.in_doubt == "halt" else f"  in doubt: {record.in_doubt}"
            return f"resumed   {_decided(record)}{doubt}{_limits(record.limits)}"
        case RunForked():
            model = "" if record.model is None else f"  model={_short(record.model)}"
            return f"forked     after turn {record.turn}{model}{_limits(record.limits)}"
        case RunPruned():
            return f"pruned     {record.removed} bodies, {record.bytes:,} bytes"


def _decided(record: RunResumed) -> str:
    if record.decision is None:
        return ""
    why = f": {plain(record.because)}" if isinstance(record.because, str) else ""
    return f"  {decided(record.decision, by=record.by, at=record.at)}{why}"


def decided(decision: PersonDecision, *, by: str, at: int) -> str:
    """Return what a person decided, who that was, and when."""
    verb = {"approve": "approved", "deny": "denied"}[decision]
    return f"{verb} by {plain(by) or 'nobody named'} at {moment_text(at)}"


def _limits(limits: RunLimits | None) -> str:
    return "" if limits is None else f"  turns<={limits.turns} tokens<={limits.tokens}"


def _step(record: StepEntered | StepLeft) -> str:
    match record:
        case StepEntered():
            tokens = "" if record.tokens_max is None else f"  tokens<={record.tokens_max}"
            usd = "" if record.usd_max is None else f"  usd<={shown_usd(record.usd_max)}"
            model = "" if record.model is None else f"  {plain(record.model)}"
            what = "entered" if record.note is None else "noted"
            return f"{what:<10} {plain(record.path)}{model}{tokens}{usd}"
        case StepLeft():
            receipt = record.receipt
            error = "" if receipt.error is None else f"  {_short(receipt.error)}"
            return (
                f"left       {plain(receipt.path)}  {receipt.status}  calls={receipt.llm_calls} "
                f"runs={receipt.runs_begun}  {shown_usd(receipt.usd)}{error}"
            )


def _host(record: CallHost | HostAnswered | CallWaiting | CallDecided) -> str:
    match record:
        case CallWaiting():
            return f"waits      {plain(recorded_call_text(record))}  for a person"
        case CallDecided():
            return f"decided    {decided(record.decision, by=record.by, at=record.at)}"
        case CallHost():
            return f"calling    {plain(recorded_call_text(record))}  {record.policy}"
        case HostAnswered():
            verdict = "ok" if record.ok else "error"
            asked = plain(recorded_call_text(record))
            return f"answered   {asked}  {verdict}  {_size(record)}{_skill_text(record)}"


def _skill_text(record: HostAnswered) -> str:
    """Write what the call did with a skill; an empty text if it did nothing with one."""
    match record.skill:
        case SkillLoaded(id=id, by_child=True):
            return f"  a child run followed the skill {plain(id)}"
        case SkillLoaded(id=id):
            return f"  loaded the skill {plain(id)}"
        case SkillUsed(id=id) as used:
            return f"  used {plain(used.said)} of the skill {plain(id)}"
        case None:
            return ""


def _size(record: HostAnswered) -> str:
    if record.reply_ref is not None:
        return f"{record.reply_ref.byte_len} bytes, as an attachment"
    if record.reply_sha256 is not None:
        return "can be computed again"
    return f"{len(record.reply)} bytes"


def _compaction_lines(record: AskModel) -> list[str]:
    """Write which turns were shortened or left out in a prompt; no line if none was.

    The names of the parts of the prompt say so.
    """
    # Commands that show no record of a model need not load the state machine.
    from tallystick.core.machine.compaction import BRIEF, EARLIER

    short = sum(each.startswith(BRIEF) for each in record.added)
    parts = [part for each in record.added for part in each.split("+")]
    gone = [each.removeprefix(EARLIER) for each in parts if each.startswith(EARLIER)]
    said = [f"{short} in short"] * (short > 0) + [f"{each} left out" for each in gone]
    return [f"compacted  turns: {', '.join(said)}"] if said else []


def _model(record: AskModel | ModelReplied | ModelFailed | ModelRefused) -> list[str]:
    match record:
        case AskModel():
            asked = f"asked      added={','.join(record.added)}"
            return [*_compaction_lines(record), f"{asked}{_catalog(record)}"]
        case ModelReplied():
            cut = "  cut" if record.cut else ""
            return [f"replied    {len(record.text)} characters{cut}"]
        case ModelFailed():
            return [f"failed     {record.reason}: {_short(record.message)}"]
        case ModelRefused():
            return [f"refused    {_short(record.message)}"]


def _catalog(record: AskModel) -> str:
    found = record.evidence
    return "" if found is None else f"  skills: {found.shown} listed, {found.omitted} not"


def _query(record: QueryRecord) -> str:
    """Write a record of a program's model call in a line."""
    place = f"call={record.intent} item={record.item} attempt={record.attempt}"
    match record:
        case QueryAsked():
            return f"query      {place}  {record.model}"
        case QueryReplied():
            return f"replied    {place}  {len(record.text)} characters"
        case QueryFailed():
            return f"failed     {place}  {record.reason}: {_short(record.message)}"
        case QueryRefused():
            return f"refused    {place}  {_short(record.message)}"
        case ChildBegun():
            return f"child      {place}"
        case ChildEnded():
            return f"child      {place}  {record.stop}  answer={_short(record.answer)}"


def outcome(record: ProgramFinished) -> str:
    """Describe the end of a program: the first there is of failure, exit code, answer and value.

    Without these, its output. Each text is in one line, cut to 70 characters.
    """
    if record.failure is not None:
        return f"{record.failure.kind}: {_short(record.failure.message)}"
    if isinstance(record.exit_code, int) and record.exit_code:
        return f"exit {record.exit_code}  printed {_short(record.stdout.strip())}"
    if record.answer is not None:
        return f"answer={_short(record.answer)}"
    if record.value is not None:
        return f"value={_short(record.value)}"
    return (
        f"printed {_short(record.stdout.strip())}" if record.stdout.strip() else "nothing printed"
    )


def _short(text: str) -> str:
    line = " ".join(text.split())
    return repr(line if len(line) <= _SHOWN_CHARS_MAX else line[: _SHOWN_CHARS_MAX - 3] + "...")


# The receipts of steps: a table for people, JSON for programs.


_INDENT_MAX = 12
_HEADINGS = ("step", "status", "calls", "in", "out", "cost", "runs", "")
# Text columns are aligned on the left, numbers on the right.
_LEFT = (0, 1, len(_HEADINGS) - 1)


def steps_as_json(chain: str, lines: Sequence[StepLine]) -> bytes:
    """Encode the receipts of steps, the paths of steps that have none yet, and the totals."""
    return msgspec.json.encode(
        {
            "run": chain,
            "receipts": [line.receipt for line in lines if line.receipt is not None],
            "open": [line.path for line in lines if line.receipt is None],
            "missed": sum(line.missed for line in lines),
            "totals": step_totals(lines),
        }
    )


def table_lines(chain: str, lines: Sequence[StepLine]) -> list[str]:
    """Write a table of steps, each indented below the step that it is in, and notes on it."""
    totals = step_totals(lines)
    unfinished = sum(line.receipt.unfinished for line in lines if line.receipt is not None)
    missed = sum(line.missed for line in lines)
    rows = [_HEADINGS, *map(_row, lines), _total(totals)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEADINGS))]
    made = [f"steps     {chain}", f"cost      {_cost(totals)}", ""]
    made += [_align(row, widths) for row in rows]
    if any(line.receipt is None for line in lines):
        made.append("open steps have no receipt yet; interrupted steps never get one")
    if unfinished:
        made.append("what had not ended with its step has its later cost in its own receipt only")
    if missed:
        made.append(f"{quantity(missed, 'step')} ended before the first run, and are not listed")
    return made


def _row(line: StepLine) -> tuple[str, ...]:
    name = "  " * min(line.depth, _INDENT_MAX) + plain(line.name, chars_max=40)
    receipt = line.receipt
    if receipt is None:
        return (name, line.status, "", "", "", "", "", "")
    said = [] if receipt.error is None else [plain(receipt.error)]
    if receipt.unfinished:
        said.append(f"{receipt.unfinished:,} not ended")
    return (
        name,
        line.status,
        f"{receipt.llm_calls:,}",
        f"{receipt.input_tokens:,}",
        f"{receipt.output_tokens:,}",
        _cost(StepTotals().plus(receipt)),
        f"{receipt.runs_begun:,}",
        "; ".join(said),
    )


def _total(totals: StepTotals) -> tuple[str, ...]:
    calls, into, out = totals.llm_calls, totals.input_tokens, totals.output_tokens
    return ("total", "", f"{calls:,}", f"{into:,}", f"{out:,}", _cost(totals), "", "")


def _cost(totals: StepTotals) -> str:
    if totals.unpriced and totals.unpriced >= totals.llm_calls:
        return "unpriced"
    some = f" + {totals.unpriced:,} unpriced" if totals.unpriced else ""
    return f"{shown_usd(totals.usd)}{some}"


def _align(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        cell.ljust(width) if place in _LEFT else cell.rjust(width)
        for place, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()
