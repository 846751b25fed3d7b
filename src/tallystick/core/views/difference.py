"""Compare two runs turn by turn, and two texts line by line.

Rule 1: only records are compared, and any part of a run will do. What neither has is `none`, never
`same`; what one of them has is `only_a` or `only_b`.
Rule 2: ids and times are not compared: two runs that do the same thing do not differ. Their
spending is shown beside the comparison and does not count as a difference.
Rule 3: the difference of (b, a) is that of (a, b) with the sides changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Generic, Literal, TypeVar

import msgspec

from tallystick.core.records import AskModel, Record, RunStarted
from tallystick.core.views.outline import (
    Call,
    End,
    Outline,
    RunAct,
    Spend,
    Turn,
    commands_of,
    inputs_of_run,
    outline_of,
    outputs_of,
    sources_of,
)

# Two texts line by line, as a unified diff.
#
# Rule 1: the diff of (b, a) is that of (a, b) with the sides changed. `difflib` favours one side
# where lines repeat, so it is always given the two in the same order.
# Rule 2: texts are hostile. `difflib` may take time that grows with the cube of the lines; texts
# that are too long for it are shown as removed and added, whole.


_CONTEXT_LINES = 3
# The most lines between the common beginning and the common end. The worst case found takes 0.15 s.
_LINES_MAX = 600

_Row = tuple[str, str]


def unified_diff(a: str | None, b: str | None) -> tuple[str, ...]:
    """Return the lines of a unified diff, without file names; none if the texts are equal.

    None is a text without lines. If more than 600 lines remain between the common beginning and
    end, they are shown as removed and added, whole.
    """
    if a == b:
        return ()
    return tuple(_hunk_lines(_rows(_lines(a), _lines(b))))


def _lines(text: str | None) -> list[str]:
    # Not `splitlines`: other line ends, such as a carriage return, stay visible in the line.
    return [] if text is None else text.split("\n")


def _rows(a: list[str], b: list[str]) -> list[_Row]:
    """Return each line with its mark: of both, of the first, of the second."""
    least = min(len(a), len(b))
    head = next((at for at in range(least) if a[at] != b[at]), least)
    least -= head
    tail = next((at for at in range(least) if a[-1 - at] != b[-1 - at]), least)
    inner = _changed_rows(a[head : len(a) - tail], b[head : len(b) - tail])
    return [
        *((" ", line) for line in a[:head]),
        *inner,
        *((" ", line) for line in a[len(a) - tail :]),
    ]


def _changed_rows(a: list[str], b: list[str]) -> Iterator[_Row]:
    for i1, i2, j1, j2, same in _blocks(a, b):
        if same:
            yield from ((" ", line) for line in a[i1:i2])
        else:
            yield from (("-", line) for line in a[i1:i2])
            yield from (("+", line) for line in b[j1:j2])


def _blocks(a: list[str], b: list[str]) -> Iterator[tuple[int, int, int, int, bool]]:
    if max(len(a), len(b)) > _LINES_MAX:
        yield 0, len(a), 0, len(b), False
        return
    if a <= b:
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, a, b).get_opcodes():
            yield i1, i2, j1, j2, tag == "equal"
    else:
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, b, a).get_opcodes():
            yield j1, j2, i1, i2, tag == "equal"


def _hunks(rows: list[_Row]) -> Iterator[tuple[int, int]]:
    """Yield the rows to be shown: the changes, and three lines around them."""
    start = end = 0
    for at, (mark, _) in enumerate(rows):
        if mark == " ":
            continue
        if end and at - _CONTEXT_LINES > end:
            yield start, end
            end = 0
        if not end:
            start = max(0, at - _CONTEXT_LINES)
        end = min(len(rows), at + 1 + _CONTEXT_LINES)
    if end:
        yield start, end


def _hunk_lines(rows: list[_Row]) -> Iterator[str]:
    """Yield the lines of the hunks, each after a header with its lines on both sides."""
    done = of_a = of_b = 0
    for start, end in _hunks(rows):
        marks = [mark for mark, _ in rows[done:start]]
        of_a, of_b = of_a + _without(marks, "+"), of_b + _without(marks, "-")
        marks = [mark for mark, _ in rows[start:end]]
        in_a, in_b = _without(marks, "+"), _without(marks, "-")
        yield f"@@ -{of_a + (in_a > 0)},{in_a} +{of_b + (in_b > 0)},{in_b} @@"
        yield from (f"{mark}{line}" for mark, line in rows[start:end])
        done, of_a, of_b = end, of_a + in_a, of_b + in_b


def _without(marks: list[str], other: str) -> int:
    return len(marks) - marks.count(other)


# Two runs turn by turn: their inputs, requests, replies, outputs, calls and spending.


Verdict = Literal["same", "other", "only_a", "only_b", "none"]
Value = TypeVar("Value")
_CallKey = tuple[int, int]


class Pair(msgspec.Struct, Generic[Value], frozen=True):
    """The same thing of both runs."""

    a: Value
    b: Value


class FieldDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of both runs under one name. None is no input."""

    name: str
    a: str | None
    b: str | None


class PartDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a prompt, or a setting of the request.

    `unknown` may differ: its text is not in the records. `earlier` is what the prompt had before.
    """

    name: str
    how: Literal["other", "only_a", "only_b", "unknown"]


class TextDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A text that differs, as a unified diff."""

    name: str
    diff: tuple[str, ...]


class ProgramDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A command of a reply, and its result if it ran.

    `diff` is empty if a source is not in the records.
    """

    part: int
    source: Verdict
    diff: tuple[str, ...]
    output: Verdict
    texts: tuple[TextDifference, ...]


class CallsDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Calls in their order. `first` is the first that differs, counted from 1, by its names."""

    count: Pair[int]
    first: int | None = None
    what: Literal["request", "answer", "missing"] | None = None
    names: Pair[str | None] = Pair(None, None)
    diff: tuple[str, ...] = ()


class TurnDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A turn. `differs` names its parts: request, reply, program, output, host_calls, queries.

    `diff` is of the replies, if their programs do not show the difference. `failed` is the reason
    if there is no reply.
    """

    turn: int
    verdict: Verdict
    differs: tuple[str, ...]
    request: Verdict
    parts: tuple[PartDifference, ...]
    attempts: Pair[int]
    reply: Verdict
    failed: Pair[str | None]
    diff: tuple[str, ...]
    programs: tuple[ProgramDifference, ...]
    host_calls: CallsDifference
    queries: CallsDifference
    spend: Pair[Spend]


class EndDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The ends of both runs. None is a run that has not ended."""

    verdict: Verdict
    ends: Pair[End | None]
    diff: tuple[str, ...]


class RunDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs. `parted` is the first turn that differs, or that one of them does not have.

    `prompt_parted` is the first turn in which both asked with different requests: with another
    model that is the first of all, while the runs may do the same. `same` is about inputs, actions
    and results: not about spending, nor about a resume.
    """

    same: bool
    parted: int | None
    prompt_parted: int | None
    started: Verdict
    given: tuple[FieldDifference, ...]
    models: Pair[str]
    passages: Pair[tuple[RunAct, ...]]
    turns: tuple[TurnDifference, ...]
    end: EndDifference
    spend: Pair[Spend]


def difference_of(a: Iterable[Record], b: Iterable[Record]) -> RunDifference:
    """Compare two runs by their records, or by the part of them that there is.

    Two runs without any record are `same`.
    """
    one, other = outline_of(a), outline_of(b)
    started, given = _compare_given(one.started, other.started)
    turns: list[TurnDifference] = []
    for number in sorted({*one.turns, *other.turns}):
        already = bool(turns) and turns[-1].request == "other"
        turns.append(_compare_turns(number, one, other, already=already))
    end = _compare_ends(one.end, other.end)
    agree = {started, end.verdict} <= {"same", "none"}
    return RunDifference(
        same=agree and all(each.verdict == "same" for each in turns),
        parted=next((each.turn for each in turns if _is_divergent(each)), None),
        prompt_parted=next((each.turn for each in turns if each.request == "other"), None),
        started=started,
        given=given,
        models=Pair(one.model, other.model),
        passages=Pair(tuple(one.passages), tuple(other.passages)),
        turns=tuple(turns),
        end=end,
        spend=Pair(one.spend, other.spend),
    )


def _is_divergent(turn: TurnDifference) -> bool:
    return turn.verdict in ("only_a", "only_b") or bool({*turn.differs} - {"request"})


def _verdict(a: object | None, b: object | None) -> Verdict:
    if a is None or b is None:
        return "none" if a is b else ("only_b" if a is None else "only_a")
    return "same" if a == b else "other"


def _all_names(a: Mapping[str, Value], b: Mapping[str, Value]) -> list[str]:
    """Return the names of both in alphabetical order, which is the same for (a, b) and (b, a)."""
    return sorted({*a, *b})


# -- beginnings and ends -----------------------------------------------------------------------


def _compare_given(
    a: RunStarted | None, b: RunStarted | None
) -> tuple[Verdict, tuple[FieldDifference, ...]]:
    if a is None or b is None:
        return _verdict(a, b), ()
    one, other = inputs_of_run(a), inputs_of_run(b)
    found = tuple(
        FieldDifference(name=name, a=one.get(name), b=other.get(name))
        for name in _all_names(one, other)
        if one.get(name) != other.get(name)
    )
    return ("other" if found else "same"), found


def _compare_ends(a: End | None, b: End | None) -> EndDifference:
    one, other = ((each.stop, each.detail, each.answer_sha256) if each else None for each in (a, b))
    diff: tuple[str, ...] = ()
    if a is not None and b is not None and None not in (a.answer, b.answer):
        diff = unified_diff(a.answer, b.answer)
    return EndDifference(verdict=_verdict(one, other), ends=Pair(a, b), diff=diff)


# -- turns -------------------------------------------------------------------------------------


def _compare_turns(number: int, one: Outline, other: Outline, *, already: bool) -> TurnDifference:
    """Compare the turn of a number in both runs.

    `already` says that an earlier request differed.
    """
    a, b = one.turns.get(number), other.turns.get(number)
    present = _verdict(a and True, b and True)
    a, b = a or Turn(), b or Turn()
    request = _verdict(*(each.asked.request_sha256 if each.asked else None for each in (a, b)))
    reply = _verdict(_outcome_of(a), _outcome_of(b))
    programs = _compare_programs(a, b)
    host_calls, queries = (
        _compare_calls(a.host_calls, b.host_calls),
        _compare_calls(a.queries, b.queries),
    )
    verdicts: dict[str, Iterable[Verdict]] = {
        "request": (request,),
        "reply": (reply,),
        "program": [each.source for each in programs],
        "output": [each.output for each in programs],
    }
    differs = [name for name, found in verdicts.items() if not {*found} <= {"same", "none"}]
    differs += ["host_calls"] if host_calls.first is not None else []
    differs += ["queries"] if queries.first is not None else []
    replies = [each.replied.text if each.replied is not None else None for each in (a, b)]
    return TurnDifference(
        turn=number,
        verdict="other" if present == "same" and differs else present,
        differs=tuple(differs),
        request=request,
        parts=_compare_prompts(one, other, a, b, already=already) if request == "other" else (),
        attempts=Pair(a.attempts, b.attempts),
        reply=reply,
        # A failure that a later attempt made good is in `attempts`, and did not end the turn.
        failed=Pair(*(each.failed if each.replied is None else None for each in (a, b))),
        # A program is part of its reply: where it is shown, the reply would show it once more.
        diff=unified_diff(*replies) if reply != "same" and "program" not in differs else (),
        programs=programs,
        host_calls=host_calls,
        queries=queries,
        spend=Pair(a.spend, b.spend),
    )


def _outcome_of(turn: Turn) -> tuple[str, str, bool] | None:
    """Return the outcome of asking the model: its reply, or why there is none.

    None if no outcome is recorded.
    """
    if turn.replied is not None:
        return "replied", turn.replied.text, turn.replied.cut
    return None if turn.failed is None else ("failed", turn.failed, False)


# -- prompts -----------------------------------------------------------------------------------


def _compare_prompts(
    one: Outline, other: Outline, a: Turn, b: Turn, *, already: bool
) -> tuple[PartDifference, ...]:
    """Return the parts of two requests that differ, as far as the records show.

    Empty if a turn has no request. If no new part differs, but an earlier request did (`already`)
    or the prompts keep different beginnings, the part is `earlier`. Parts whose text is unknown are
    returned only if none is known to differ.
    """
    if a.first is None or b.first is None or a.asked is None or b.asked is None:
        return ()
    found = [PartDifference(name="model", how="other")] if a.model != b.model else []
    found += [
        PartDifference(name=name, how="other")
        for name in ("tokens_out_max", "temperature")
        if getattr(a.asked, name) != getattr(b.asked, name)
    ]
    # After a compaction a prompt begins anew: its parts do not stand beside those of one that grew.
    alike = (a.first.base is None) == (b.first.base is None) and a.first.kept == b.first.kept
    ours, theirs = _new_parts(one, a.first), _new_parts(other, b.first)
    unread = []
    for name in _all_names(ours, theirs) if alike else ():
        if name not in ours or name not in theirs:
            how: Literal["only_a", "only_b"] = "only_a" if name in ours else "only_b"
            found.append(PartDifference(name=name, how=how))
        elif ours[name] is None or theirs[name] is None:
            unread.append(PartDifference(name=name, how="unknown"))
        elif ours[name] != theirs[name]:
            found.append(PartDifference(name=name, how="other"))
    if not found and (already or not alike):
        return (PartDifference(name="earlier", how="other" if alike else "unknown"),)
    return tuple(found or unread)


def _new_parts(outline: Outline, asked: AskModel) -> dict[str, object]:
    """Return the new parts of a prompt with their origin; None if that is not in the records.

    Intents count attempts as well, so a part is named by the turn that it is of.
    """
    made: dict[str, object] = {}
    for part in dict.fromkeys("+".join(asked.added).split("+")):
        kind, _, intent = part.partition(":")
        number, at = outline.places.get(intent, (0, None))
        turn = outline.turns.get(number)
        name = f"{kind} of turn {number}" + (f", part {at}" if at else "")
        if kind == "reply" and turn is not None:
            made[name] = commands_of(turn) or (turn.replied and turn.replied.text)
        elif kind in ("result", "brief") and turn is not None:
            made[name] = None if at is None else outputs_of(turn, at)
        elif kind == "nudge" and turn is not None:
            made[name] = None
        else:
            made[part] = _origin_of_start(outline.started, part)
    return made


def _origin_of_start(started: RunStarted | None, part: str) -> object:
    """Return the origin of the fixed part or the task, and None for any other part."""
    if started is None or part not in ("system", "task"):
        return None
    if part == "system":
        return started.template, started.functions
    samples = [each.sample for each in started.contexts]
    return started.template, started.goal, samples, [each.id for each in started.images]


# -- programs and calls ------------------------------------------------------------------------


def _compare_programs(a: Turn, b: Turn) -> tuple[ProgramDifference, ...]:
    """Compare the commands of two replies by their places, and the results of those that ran."""
    ours, theirs = sources_of(a), sources_of(b)
    made = []
    for part in sorted({*ours, *theirs}):
        one, other = ours.get(part), theirs.get(part)
        source = _verdict(one and one[0], other and other[0])
        texts = [each[1] for each in (one, other) if each is not None]
        before, after = outputs_of(a, part), outputs_of(b, part)
        made.append(
            ProgramDifference(
                part=part,
                source=source,
                diff=()
                if source == "same" or None in texts
                else unified_diff(one and one[1], other and other[1]),
                output=_verdict(before, after),
                texts=_compare_texts(before or {}, after or {}),
            )
        )
    return tuple(made)


def _compare_texts(a: Mapping[str, str], b: Mapping[str, str]) -> tuple[TextDifference, ...]:
    return tuple(
        TextDifference(name=name, diff=unified_diff(a.get(name), b.get(name)))
        for name in _all_names(a, b)
        if a.get(name) != b.get(name)
    )


def _compare_calls(
    ours: Mapping[_CallKey, Call], theirs: Mapping[_CallKey, Call]
) -> CallsDifference:
    """Compare calls in the order in which programs made them: they are answered in any."""
    a, b = ([calls[place] for place in sorted(calls)] for calls in (ours, theirs))
    count = Pair(len(a), len(b))
    for at, (one, other) in enumerate(zip_longest(a, b), start=1):
        names: Pair[str | None] = Pair(
            one.name if one is not None else None, other.name if other is not None else None
        )
        if one is None or other is None:
            return CallsDifference(count=count, first=at, what="missing", names=names)
        if (one.name, one.request) != (other.name, other.request):
            diff = _diff_if_recorded(one.asked, other.asked)
            return CallsDifference(count=count, first=at, what="request", names=names, diff=diff)
        if one.answer != other.answer:
            diff = _diff_if_recorded(one.said, other.said)
            return CallsDifference(count=count, first=at, what="answer", names=names, diff=diff)
    return CallsDifference(count=count)


def _diff_if_recorded(a: str | None, b: str | None) -> tuple[str, ...]:
    return () if a is None or b is None else unified_diff(a, b)
