"""`tally inspect`, `receipt` and `diff`: show a run, its receipt, or how two runs differ."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator, Sequence

import click
import msgspec

from tallystick.cli.parts import JSON, echo_json, echo_line, stdout_columns
from tallystick.cli.progress import Row, budget_lines, fit, row_text, shown_cost
from tallystick.cli.show import (
    decided,
    outcome,
    plain,
    quantity,
    safe,
    steps_as_json,
    table_lines,
    transcript_lines,
)
from tallystick.core.charge import Charge, shown_usd
from tallystick.core.errors import LedgerError, UsageError
from tallystick.core.machine.reply import as_program, is_program, parse_reply
from tallystick.core.machine.turn import charge_of
from tallystick.core.records import (
    Approval,
    AskModel,
    ModelLine,
    ModelReplied,
    ProgramFinished,
    Receipt,
    ReceiptIssued,
    Record,
    RunEnded,
    RunProgram,
    RunStarted,
    encode_record,
    harn_fields,
)
from tallystick.core.records.receipts import holds_reservations
from tallystick.core.views.difference import (
    CallsDifference,
    EndDifference,
    Pair,
    RunDifference,
    TurnDifference,
    Verdict,
    difference_of,
)
from tallystick.core.views.outline import End, RunAct, Spend
from tallystick.core.views.receipt import Tally, harn_step_fields, holds_steps, step_lines
from tallystick.ledger.port import Ledger
from tallystick.runtime.runs.history import (
    NOT_BEGUN,
    records_of,
    resolve_run,
    timed_records,
    whole_records,
)
from tallystick.runtime.runs.tree import Node, tree_of
from tallystick.runtime.runs.waiting import waiting_in
from tallystick.settings.paths import ledger_path
from tallystick.stores import open_stores

# `tally inspect`: show a run turn by turn, or a chain of steps.


# So many children of one run have a line each; one line sums up the others.
_CHILDREN_SHOWN = 20
_DEPTH_SHOWN = 12
_OUTPUT_LINES_MAX = 20
_NAME_CELLS = 36
_WAITING_CHARS_MAX = 400
_WIDTH = 94
# A record, and when it was appended: milliseconds since 1970, or None.
_Timed = tuple[int | None, Record]


@click.command("inspect")
@click.argument("run")
@click.option("--programs", is_flag=True, help="Show replies and outputs in full.")
@click.option("--records", "as_records", is_flag=True, help="Show a line for every record.")
@click.option("--tree", is_flag=True, help="Show the runs inside the run, and what each cost.")
@click.option("--all", "whole", is_flag=True, help="With --tree: show every run of a long batch.")
@click.option("--json", "as_json", is_flag=True, help="Print all records, or the tree, as JSON.")
@click.option(
    "--follow",
    is_flag=True,
    help="Show the events of the run, and those to come until it ends; with --json, as JSON lines.",
)
@click.option(
    "--after",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="With --follow: show the events after the one with this number.",
)
def inspect_command(
    run: str,
    programs: bool,
    as_records: bool,
    tree: bool,
    whole: bool,
    as_json: bool,
    follow: bool,
    after: int | None,
) -> int:
    r"""Show a run turn by turn: program, output, tokens, time and cost.

    RUN is an id, the beginning of one, or `last`.

    \b
    Example:
        tally inspect last
        tally inspect last --programs
        tally inspect last --follow
    """
    if after is not None and not follow:
        raise UsageError("--after needs --follow")
    if follow:
        return _follow(run, after=after or 0, full=programs, as_json=as_json)
    ledger = open_stores(ledger_path()).ledger
    found = resolve_run(ledger, run)
    if tree:
        root = tree_of(ledger, found)
        if as_json:
            echo_json(root)
            return 0
        for line in tree_lines(root, whole=whole, width=stdout_columns()):
            click.echo(line)
        return 0
    return _show(ledger, found, full=programs, as_records=as_records, as_json=as_json)


def _show(ledger: Ledger, found: str, *, full: bool, as_records: bool, as_json: bool) -> int:
    timed = list(timed_records(ledger, found))
    records = [record for _, record in timed]
    if as_json:
        bodies = [msgspec.Raw(encode_record(record)) for record in records]
        waits = waiting_in(ledger, found, records) if records else []
        shown = {"run": found, "records": bodies, "times": [at for at, _ in timed]}
        echo_json({**shown, "waits": waits} if waits else shown)
        return 0
    if not records:
        click.echo(f"run {found} {NOT_BEGUN}", err=True)
        return 0
    # A chain of steps has no turns, so show a line for each of its records.
    in_blocks = not as_records and isinstance(records[0], RunStarted)
    for line in turn_lines(timed, full=full) if in_blocks else _lines(timed, full):
        # Indented lines are programs and their output, which keep their line breaks.
        if line.startswith("    "):
            click.echo(line)
        else:
            echo_line(line)
    for each in waiting_in(ledger, found, records):
        inside = "" if each.run == found else f"  in run {each.run}"
        echo_line(f"waits     {plain(each.text(), chars_max=_WAITING_CHARS_MAX)}{inside}")
    return 0


def _follow(run: str, *, after: int, full: bool, as_json: bool) -> int:
    # Imported here: it reads the events of runs, which the other views do not.
    from tallystick.cli.followed import print_followed

    print_followed(run, after=after, full=full, as_json=as_json)
    return 0


def _lines(timed: Sequence[_Timed], full: bool) -> Iterator[str]:
    """Write every record as a line; with `full`, with the text of replies and output below it.

    A line begins with the time of the record in UTC, if the ledger has one.
    """
    clock = _Clock()
    for at, record in timed:
        yield from clock.note(at)
        mark = "" if at is None else f"{_time_of_day(at)}  "
        yield from (f"{mark}{line}" for line in transcript_lines(record))
        if full and isinstance(record, ModelReplied):
            yield _quote(record.text)
        if full and isinstance(record, ProgramFinished):
            yield _quote("\n".join(_output_lines(record)))


class _Clock:
    """Compares the times of entries: a clock that was set back is shown, and not hidden."""

    def __init__(self) -> None:
        self._latest: int | None = None

    def note(self, at: int | None) -> list[str]:
        """Note the time of the next entry. Return a line if it is before that of the last one."""
        before, self._latest = self._latest, self._latest if at is None else at
        if before is None or at is None or at >= before:
            return []
        return [f"clock     went back by {(before - at) / 1000:,.3f} s before the next entry"]


def _time_of_day(at: int) -> str:
    """Return a time in UTC, without its day, to the millisecond."""
    moment = datetime.datetime.fromtimestamp(at / 1000, datetime.UTC)
    return f"{moment:%H:%M:%S}.{at % 1000:03d}"


def turn_lines(timed: Sequence[_Timed], *, full: bool) -> Iterator[str]:
    """Write a run as blocks, one for each turn: its cost, its programs and their output.

    Other records of the turn have a line where they happened. Without `full`, replies are not
    shown if they had programs, and output is cut to 20 lines.
    """
    sources: list[str] = []
    bounded = False
    clock = _Clock()
    for at, record in timed:
        yield from clock.note(at)
        match record:
            case ReceiptIssued():
                bounded = holds_reservations(record.receipt)
                yield from transcript_lines(record)
            case AskModel() if record.attempt == 1:
                # The reply shows that the model was asked. Keep the line about a shortened prompt.
                yield from (line for line in transcript_lines(record) if " asked " not in line)
            case ModelReplied():
                yield ""
                yield _turn_head(record, at)
                reply = parse_reply(record.text, cut=record.cut)
                sources = [as_program(each) if is_program(each) else "" for each in reply.commands]
                if full or not any(sources):
                    yield from _prefix("", record.text.splitlines(), full=full)
            case RunProgram():
                # Fewer if another version read the reply in another way.
                source = sources[record.part] if record.part < len(sources) else ""
                if not full:
                    yield from _prefix(">>> ", source.splitlines(), full=True)
            case ProgramFinished():
                yield from _prefix("", _output_lines(record), full=full)
                calls = quantity(record.host_calls, "host call") + ", " if record.host_calls else ""
                # Its output and its traceback are shown above, so add only an answer.
                said = f"  {outcome(record)}" if record.answer is not None else ""
                yield f"    [{calls}{record.wall_ms / 1000:,.1f} s]{said}"
            case RunEnded():
                yield ""
                yield f"run       {record.stop}  {plain(record.detail)}".rstrip()
                yield from _prefix("", (record.answer or "").splitlines(), full=True)
                turns = quantity(record.charge.turns, "turn")
                yield f"cost      {shown_cost(record.charge, bounded=bounded)}   {turns}"
            case _:
                yield from transcript_lines(record)


def _turn_head(record: ModelReplied, at: int | None) -> str:
    charge = charge_of(record)
    # Without a report of the provider, the tokens are an estimate, or those reserved for the call.
    reserved = record.settled is not None and record.settled.figures == "reserved"
    whence = " (reserved)" if reserved else "" if record.usage.reported else " (estimated)"
    tokens = f"{charge.tokens_in:,} tokens in, {charge.tokens_out:,} out{whence}"
    cost = "price unknown" if charge.usd is None else shown_usd(charge.usd)
    when = "" if at is None else f"   at {_time_of_day(at)}"
    return f"turn {record.turn:<4} {tokens}   {cost}   {record.wall_ms / 1000:,.1f} s{when}"


def _output_lines(record: ProgramFinished) -> list[str]:
    """Return the output of a program, and its traceback if it failed, in lines."""
    failure = record.failure.traceback if record.failure is not None else ""
    return (record.stdout + record.stderr + failure).rstrip("\n").splitlines()


def _prefix(mark: str, lines: Sequence[str], *, full: bool) -> Iterator[str]:
    """Indent lines of a model or a program, with `?` for what a terminal would act on.

    Without `full`, only the first 20 are given, and a line with the number of the others.
    """
    shown = lines if full else lines[:_OUTPUT_LINES_MAX]
    for line in shown:
        yield f"    {mark}{safe(line.expandtabs())}".rstrip()
    if len(shown) < len(lines):
        yield f"    … {quantity(len(lines) - len(shown), 'more line')} (--programs shows all)"


def tree_lines(root: Node, *, whole: bool, width: int | None = None) -> list[str]:
    """Write a run and those inside it as lines, and what all together may still use.

    A run has one line, or two if one does not fit `width`. Without `whole`, a run shows at most 20
    of its children.
    """
    lines: list[str] = []
    waiting: list[Node | str] = [root]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            lines.append(each)
            continue
        lines += _node_lines(each, width)
        shown = each.children if whole else each.children[:_CHILDREN_SHOWN]
        rest = _rest_line(each, each.children[len(shown) :])
        waiting += [*([] if rest is None else [rest]), *reversed(shown)]
    if root.limits is not None:
        lines += budget_lines(
            root.charge, root.limits, seconds=0, width=min(width or _WIDTH, _WIDTH)
        )
    return lines


def _node_lines(node: Node, width: int | None) -> list[str]:
    row = Row(
        depth=min(node.depth, _DEPTH_SHOWN),
        name=node.goal or ("(pruned)" if node.standing == "pruned" else "(nothing recorded)"),
        state=_state(node),
        turn=node.turn,
        charge=node.charge,
    )
    answer = "" if node.answer is None else f"  {plain(node.answer, chars_max=40)!r}"
    asked = f"  {node.queries[0]:,} of {node.queries[1]:,} queries" if node.queries[1] else ""
    text = row_text(row, width=min(width or _WIDTH, _WIDTH), name_cells=_NAME_CELLS)
    rest = f"{plain(node.run, chars_max=26)}{asked}{answer}"
    line = f"{text:<{_WIDTH}}  {rest}"
    if width is None or len(line) <= width:
        return [line]
    indent = "  " * (min(node.depth, _DEPTH_SHOWN) + 1)
    return [text, fit(f"{indent}{rest}", width).rstrip()]


def _state(node: Node) -> str:
    return "not begun" if node.missing else node.stop or node.standing or "unfinished"


def _rest_line(node: Node, hidden: list[Node]) -> str | None:
    """Sum up the children that have no line of their own; return None if there are none."""
    count = len(hidden) + node.more
    if not count:
        return None
    states = Counter(_state(each) for each in hidden)
    named = ", ".join(f"{many:,} {plain(state)}" for state, many in states.most_common())
    cost = sum((each.charge for each in hidden), Charge())
    details = f": {named}   {shown_cost(cost)}" if cost.model_calls else f": {named}"
    return (
        f"{'  ' * (min(node.depth, _DEPTH_SHOWN) + 1)}… {count:,} more{details if hidden else ''}"
    )


def _quote(text: str) -> str:
    """Mark lines of a model or a program with a bar, and replace what a terminal would act on."""
    lines = text.rstrip("\n").expandtabs().splitlines()
    return "\n".join(f"          | {safe(line)}" for line in lines)


# `tally receipt`: show what a run, or the steps around runs, did and cost.


_PRICES = {
    "published": "published price",
    "declared": "declared price",
    "in_process": "free: asks no server",
    "waived": "price waived",
    "unknown": "price unknown",
}


@click.command("receipt")
@click.argument("run")
@JSON
@click.option("--harn", is_flag=True, help="Print JSON with the field names of harn.receipt.v1.")
@click.option("--steps", is_flag=True, help="Show the steps around the run, not the run.")
def receipt_command(run: str, as_json: bool, harn: bool, steps: bool) -> int:
    r"""Show what a run did and cost, line by line.

    RUN is an id, the beginning of one, or `last`. For the id of a chain of steps, each step is
    shown.

    \b
    Example:
        tally receipt last
    """
    with open_stores(ledger_path()) as stores:
        ledger = stores.ledger
        found = resolve_run(ledger, run)
        records = list(records_of(ledger, found))
        if steps and not holds_steps(records):
            found = _parent_of(found, records)
            records = list(records_of(ledger, found))
    if holds_steps(records):
        _show_steps(found, records, as_json=as_json, harn=harn)
        return 0
    receipt = _receipt_of(found, records)
    if harn:
        echo_json(harn_fields(receipt))
    elif as_json:
        echo_json({"run": found, "receipt": receipt})
    else:
        # Receipts of older runs do not list the decisions of persons; the record has them.
        for line in _receipt_lines(found, receipt, _tally_of(records).approvals):
            echo_line(line)
    return 0


def _show_steps(chain: str, records: Sequence[Record], *, as_json: bool, harn: bool) -> None:
    lines = step_lines(records)
    if harn:
        echo_json(harn_step_fields(chain, lines))
    elif as_json:
        click.echo(steps_as_json(chain, lines).decode())
    else:
        for line in table_lines(chain, lines):
            click.echo(line)


def _parent_of(run: str, records: Sequence[Record]) -> str:
    """Return the chain of steps that a run was started in. Raise `UsageError` if there is none."""
    started = next((each for each in records if isinstance(each, RunStarted)), None)
    if started is None or started.parent is None:
        raise UsageError(f"run {run} was not started inside a step; leave out --steps")
    return started.parent


def _receipt_of(run: str, records: Sequence[Record]) -> Receipt:
    """Return the last receipt of a run; compute it for runs of versions that issued none.

    Raise `UsageError` if the run has not ended.
    """
    # A run that was resumed has several receipts. The last one counts the whole run.
    for record in reversed(records):
        if isinstance(record, ReceiptIssued):
            return record.receipt
    started = next((each for each in records if isinstance(each, RunStarted)), None)
    ended = next((each for each in records if isinstance(each, RunEnded)), None)
    if started is None or ended is None:
        raise UsageError(
            f"run {run} has not ended, so there is no receipt yet; tally inspect {run} shows it"
        )
    tally = _tally_of(records)
    return tally.receipt(started, ended)


def _tally_of(records: Sequence[Record]) -> Tally:
    tally = Tally()
    for record in records:
        tally.add(record)
    return tally


def _receipt_lines(run: str, receipt: Receipt, approvals: Sequence[Approval] = ()) -> list[str]:
    charge = receipt.charge
    total = sum(each.usd for each in receipt.models)
    unpriced = sum(each.unpriced for each in receipt.models)
    cost = shown_usd(total)
    if receipt.models and all(_is_unpriced(each) for each in receipt.models):
        cost = "price unknown"
    if holds_reservations(receipt):
        cost = f"at most {cost}"
    if unpriced and cost != "price unknown":
        cost += f" and {quantity(unpriced, 'unpriced call')}"
    cap = "" if receipt.usd_cap is None else f" of {shown_usd(receipt.usd_cap)}"
    made = [
        f"run       {run}",
        f"status    {receipt.status}  ({receipt.stop}: {receipt.detail})",
        f"cost      {cost}{cap}",
        f"used      {quantity(charge.turns, 'turn')}, "
        f"{quantity(charge.model_calls, 'model call')}, {charge.tokens_in:,} tokens in, "
        f"{charge.tokens_out:,} out, {charge.wall_ms / 1000:.1f} s",
    ]
    if receipt.step is not None and receipt.parent is not None:
        made.append(f"step      {plain(receipt.step)}  of {plain(receipt.parent)}")
    made += [_model(each) for each in receipt.models]
    made += [
        f"person    turn {each.turn}  {decided(each.decision, by=each.by, at=each.at)}  "
        f"{plain(each.subject)} sha256:{each.sha256}"
        for each in receipt.approvals or approvals
    ]
    if receipt.refused_calls:
        made.append(f"refused   {quantity(receipt.refused_calls, 'call')} that the budget forbade")
    made += [f"called    {name}  {quantity(count, 'time')}" for name, count in receipt.tool_calls]
    made.append(f"effects   {receipt.side_effects:,}")
    made.append(f"given     sha256:{receipt.inputs_digest}")
    made.append(f"answered  sha256:{receipt.outputs_digest}")
    return made


def _is_unpriced(line: ModelLine) -> bool:
    """Return True if no call of the model had a known price, so that its cost is unknown."""
    return not line.usd and (line.price in ("unknown", "waived") or line.calls == line.unpriced)


def _model(line: ModelLine) -> str:
    usd = "price unknown" if _is_unpriced(line) else shown_usd(line.usd)
    failed = f", {line.failed:,} failed" if line.failed else ""
    odd = "".join(f"  {name} x{count}" for name, count in line.flags)
    return (
        f"model     {line.model}  {quantity(line.calls, 'call')}{failed}  {line.tokens_in:,} in  "
        f"{line.tokens_out:,} out  {usd}  ({_PRICES.get(line.price, line.price)}){odd}"
    )


# `tally diff`: compare two runs turn by turn.


_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_LINES_MAX = 20
_CHARS_MAX = 160
_FIELDS_MAX = 12
_NAMED_MAX = 3
_BEFORE = 20  # characters of a long line that stay before its first difference
_INDENT = " " * 10
_WORDS: dict[Verdict, str] = {
    "same": "same",
    "other": "other",
    "only_a": "only in A",
    "only_b": "only in B",
    "none": "neither",
}


@click.command("diff")
@click.argument("a")
@click.argument("b")
@click.option("--json", "as_json", is_flag=True, help="Print the whole comparison as JSON.")
@click.option("--full", is_flag=True, help="Show all differences, however long.")
def diff_command(a: str, b: str, as_json: bool, full: bool) -> int:
    r"""Compare two runs turn by turn.

    For each turn, it shows whether the prompt, the program, the output and the calls are the same,
    how they differ, and what the turn cost. A and B are ids, beginnings of ids, or `last`. The exit
    code is 0 whether or not they differ.

    \b
    Example:
        tally diff 01M7HHD5 last
    """
    with open_stores(ledger_path()) as stores:
        ledger = stores.ledger
        runs = Pair(resolve_run(ledger, a), resolve_run(ledger, b))
        difference = difference_of(_records(ledger, runs.a), _records(ledger, runs.b))
    if as_json:
        shown = {"a": runs.a, "b": runs.b, "difference": difference}
        echo_json(shown)
        return 0
    for line in _difference_lines(runs, difference, full=full):
        # Indented lines are of diffs, which keep their line breaks.
        if line.startswith(_INDENT):
            click.echo(line)
        else:
            echo_line(line)
    return 0


def _records(ledger: Ledger, run: str) -> list[Record]:
    """Read a run, with what it shares if it is a fork.

    Raise `LedgerError` for a record that cannot be decoded, `UsageError` for a chain of steps.
    """
    try:
        records = whole_records(ledger, run)
    except _UNREADABLE as error:
        raise LedgerError(
            f"run {run}: a record cannot be read; to find it: tally verify {run}"
        ) from error
    if holds_steps(records):
        raise UsageError(
            f"{run} is a chain of steps, which has no turns; name one of its runs (tally receipt "
            f"{run} lists the steps)"
        )
    return records


def _difference_lines(runs: Pair[str], found: RunDifference, *, full: bool) -> Iterator[str]:
    yield from _heads(runs, found)
    yield from _input_lines(found, full=full)
    for turn in found.turns:
        yield f"turn {turn.turn:<4} {_verdicts(turn)}  {_usd(turn.spend)}, {_tokens(turn.spend)}"
        yield from _details(turn, full=full)
    yield f"end       {_end_text(found.end)}"
    if found.end.diff and found.end.diff not in _answers(found.turns[-1:]):
        yield from _diff("answer", found.end.diff, full=full)
    yield f"spent     {_spend_text(found.spend)}"
    yield f"parted    {_parting_text(found)}"


# -- their ids, models and inputs --------------------------------------------------------------


def _heads(runs: Pair[str], found: RunDifference) -> Iterator[str]:
    sides = (
        ("A", "-", runs.a, found.models.a, found.end.ends.a, found.passages.a),
        ("B", "+", runs.b, found.models.b, found.end.ends.b, found.passages.b),
    )
    for side, mark, run, model, end, passages in sides:
        yield f"{side}  {mark}      {run}  {_stop(end)}  {plain(model) or 'model unknown'}"
        yield from (f"{side}         {_act_line(each)}" for each in passages)


def _act_line(passage: RunAct) -> str:
    if passage.kind == "pruned":
        return f"pruned: {passage.removed:,} records have no content, and are not compared"
    where = f"after turn {passage.after_turn}" if passage.after_turn else "before its first turn"
    changed = [] if passage.model is None else [f"model {plain(passage.model)}"]
    changed += [] if passage.temperature is None else [f"temperature {passage.temperature:g}"]
    changed += [] if passage.limits is None else ["limits " + _limits(passage.limits)]
    return f"{passage.kind} {where}" + "".join(f", {each}" for each in changed)


def _limits(limits: Sequence[tuple[str, int | None]]) -> str:
    return " ".join(
        f"{name}={shown_usd(limit) if name == 'usd' else limit}"
        for name, limit in limits
        if limit is not None
    )


def _input_lines(found: RunDifference, *, full: bool) -> Iterator[str]:
    if found.started != "other":
        yield f"given     {'the same' if found.started == 'same' else _WORDS[found.started]}"
        return
    shown = found.given if full else found.given[:_FIELDS_MAX]
    for each in shown:
        a, b = _side_by_side(each.a, each.b, full=full)
        yield f"given     {plain(each.name)}  {a} / {b}"
    if len(shown) < len(found.given):
        yield f"given     {len(found.given) - len(shown):,} more differ; --full shows them"


def _side_by_side(a: str | None, b: str | None, *, full: bool) -> tuple[str, str]:
    if a is None or b is None or full:
        made = ("nothing" if each is None else _escape(each) for each in (a, b))
        return next(made), next(made)
    one, other = _cut_together(a, b, chars_max=_CHARS_MAX // 3)
    return _escape(one), _escape(other)


# -- a turn ------------------------------------------------------------------------------------


def _verdicts(turn: TurnDifference) -> str:
    """Write in a line what is the same in a turn of both runs, and what is not."""
    if turn.verdict in ("only_a", "only_b"):
        count = len(turn.programs)
        return f"{_WORDS[turn.verdict]}: {count:,} program{'' if count == 1 else 's'}"
    said = [_request(turn)] if turn.request != "same" else []
    if turn.programs:
        said.append(f"{'other' if 'program' in turn.differs else 'same'} program")
        said.append(f"{'other' if 'output' in turn.differs else 'same'} output")
    if not turn.programs or turn.differs == ("reply",):
        said.append(f"{_WORDS[turn.reply]} reply" if turn.reply != "none" else "no reply")
    said += _calls_text("host call", turn.host_calls) + _calls_text("model call", turn.queries)
    if turn.attempts.a != turn.attempts.b:
        said.append(f"{turn.attempts.a} / {turn.attempts.b} attempts")
    return ", ".join(said)


def _request(turn: TurnDifference) -> str:
    if turn.request != "other":
        return f"request {_WORDS[turn.request]}"
    hows = {"other": "", "only_a": " only in A", "only_b": " only in B", "unknown": " perhaps"}
    named = [f"{plain(each.name)}{hows[each.how]}" for each in turn.parts]
    more = [f"{len(named) - _NAMED_MAX} more"] if len(named) > _NAMED_MAX else []
    return f"other prompt ({', '.join(named[:_NAMED_MAX] + more) or 'not in the records'})"


def _calls_text(what: str, calls: CallsDifference) -> list[str]:
    """Write the first call that differs in a turn; nothing if all are the same."""
    if calls.first is None:
        return []
    a, b = (plain(name) if name is not None else "none" for name in (calls.names.a, calls.names.b))
    names = a if a == b else f"{a} / {b}"
    how = {"request": "has another request", "answer": "has another answer"}
    return [
        f"{calls.count.a:,} / {calls.count.b:,} {what}s, of which number {calls.first:,} ({names}) "
        + how.get(calls.what or "", "is in one run only")
    ]


def _details(turn: TurnDifference, *, full: bool) -> Iterator[str]:
    for side, failed in (("A", turn.failed.a), ("B", turn.failed.b)):
        if failed is not None and turn.failed.a != turn.failed.b:
            yield f"{_INDENT}{side} failed: {plain(failed, chars_max=_CHARS_MAX)}"
    yield from _diff("reply", turn.diff, full=full)
    for program in turn.programs:
        number = f" {program.part + 1}" if len(turn.programs) > 1 else ""
        if program.source not in ("same", "none") and not program.diff:
            yield f"{_INDENT}program{number}: its text is not in the records"
        yield from _diff(f"program{number}", program.diff, full=full)
        for text in program.texts:
            yield from _diff(f"{text.name}{number}", text.diff, full=full)
    yield from _diff("host call", turn.host_calls.diff, full=full)
    yield from _diff("model call", turn.queries.diff, full=full)


def _answers(turns: Sequence[TurnDifference]) -> list[tuple[str, ...]]:
    """Return the differences between answers that are shown in their turns already."""
    return [
        text.diff
        for turn in turns
        for program in turn.programs
        for text in program.texts
        if text.name == "answer"
    ]


# -- how they ended ----------------------------------------------------------------------------


def _stop(end: End | None) -> str:
    return "has not ended" if end is None else plain(end.stop)


def _end_text(end: EndDifference) -> str:
    a, b = end.ends.a, end.ends.b
    if a is None or b is None:
        return f"{_stop(a)} / {_stop(b)}"
    answer = "same" if a.answer_sha256 == b.answer_sha256 else "other"
    if end.verdict == "same":
        return f"the same: {plain(a.stop)}, {answer} answer"
    stops = plain(a.stop) if a.stop == b.stop else f"{plain(a.stop)} / {plain(b.stop)}"
    details = "" if a.detail == b.detail else f" ({plain(a.detail)} / {plain(b.detail)})"
    return f"{stops}{details}, {answer} answer"


def _spend_text(spend: Pair[Spend]) -> str:
    a, b = spend.a.charge, spend.b.charge
    counts = (
        ("model calls", a.model_calls, b.model_calls),
        ("host calls", a.host_calls, b.host_calls),
        ("fuel", a.fuel, b.fuel),
    )
    made = "".join(f", {x:,} / {y:,} {name}" for name, x, y in counts)
    return f"{_usd(spend)}, {_tokens(spend)}{made}"


def _tokens(spend: Pair[Spend]) -> str:
    a, b = (each.charge.tokens_in + each.charge.tokens_out for each in (spend.a, spend.b))
    return f"{a:,} / {b:,} tokens"


def _usd(spend: Pair[Spend]) -> str:
    return f"{_cost(spend.a)} / {_cost(spend.b)}"


def _cost(spend: Spend) -> str:
    if spend.charge.usd is None:
        return shown_usd(None if spend.unpriced else 0)
    more = f" + {spend.unpriced:,} unpriced" if spend.unpriced else ""
    return f"{shown_usd(spend.charge.usd)}{more}"


def _parting_text(found: RunDifference) -> str:
    """Write the first turn in which the runs differ, and the first in which their prompts do."""
    asked = found.prompt_parted
    prompts = "" if asked is None else f"; prompts differ first at turn {asked}"
    if found.parted is None:
        empty = found.started == "none" and not found.turns
        return ("there is nothing to compare" if empty else "nowhere") + prompts
    turn = next(each for each in found.turns if each.turn == found.parted)
    if turn.verdict in ("only_a", "only_b"):
        return f"at turn {turn.turn}, which is {_WORDS[turn.verdict]}{prompts}"
    differs = ", ".join(each.replace("_", " ") for each in turn.differs if each != "request")
    return f"at turn {turn.turn}: {differs}{prompts}"


# -- diffs -------------------------------------------------------------------------------------


def _diff(name: str, lines: Sequence[str], *, full: bool) -> Iterator[str]:
    """Write a unified diff below its name, with escapes for what a terminal would act on.

    Without `full`, at most 20 lines are given, and long lines are cut.
    """
    if not lines:
        return
    yield f"{_INDENT}{plain(name)}"
    shown = list(lines) if full else _cut_lines(lines[: _LINES_MAX + 1])[:_LINES_MAX]
    yield from (f"{_INDENT}| {_escape(line)}" for line in shown)
    if len(shown) < len(lines):
        yield f"{_INDENT}| ... {len(lines) - len(shown):,} more lines; --full shows them"


def _cut_lines(lines: Sequence[str]) -> list[str]:
    """Cut long lines; cut a removed line and the line in its place at the same character."""
    made: list[str] = []
    taken: list[str] = []
    put: list[str] = []
    for line in (*lines, " "):
        mark, text = line[:1], line[1:]
        if mark == "+":
            put.append(text)
            continue
        if put or mark != "-":
            made += _cut_block(taken, put)
            taken, put = [], []
        if mark == "-":
            taken.append(text)
        else:
            made.append(_cut(line))
    return made[:-1]


def _cut_block(taken: Sequence[str], put: Sequence[str]) -> list[str]:
    both = [_cut_together(a, b, chars_max=_CHARS_MAX) for a, b in zip(taken, put, strict=False)]
    return [
        *(f"-{one}" for one, _ in both),
        *(f"-{_cut(text)}" for text in taken[len(both) :]),
        *(f"+{other}" for _, other in both),
        *(f"+{_cut(text)}" for text in put[len(both) :]),
    ]


def _cut_together(a: str, b: str, *, chars_max: int) -> tuple[str, str]:
    """Cut two texts to the same part, of `chars_max` characters, which has their first difference.

    It begins 20 characters before that. What was left out is named with its number of characters.
    Texts that are short enough are returned as they are.
    """
    if max(len(a), len(b)) <= chars_max:
        return a, b
    least = min(len(a), len(b))
    same = next((at for at in range(least) if a[at] != b[at]), least)
    start = max(0, same - _BEFORE)
    lead = f"[{start:,} the same] " if start else ""
    return (
        lead + _cut(a[start:], chars_max=chars_max),
        lead + _cut(b[start:], chars_max=chars_max),
    )


def _cut(text: str, *, chars_max: int = _CHARS_MAX) -> str:
    left_out = len(text) - chars_max
    return text if left_out <= 0 else f"{text[:chars_max]} [{left_out:,} more characters]"


def _escape(text: str) -> str:
    """Write unprintable characters as escapes: colours, line ends, marks that change direction."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
