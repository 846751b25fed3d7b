"""Shorten long prompts: show old turns in short, and keep them whole where programs find them.

Rule 1: it is mechanical. No model is asked, so it costs nothing, and a replay does the same again
from the records alone.
Rule 2: up to `RunStarted.compact_at` tokens, of four bytes each, nothing is touched. Beyond that,
the oldest turns are shortened in one go, until half of it is reached. So the part of a prompt that
servers cache is not lost at every turn.
Rule 3: the fixed part, the task and the last three turns stay as they are. If they alone are longer
than that, old turns still have half as much room as the bound, and a quarter after compaction.
Rule 4: first, the results of old programs are shown by their beginning; the programs stay. Only if
more than three quarters of the bound are still in use, the oldest turns leave, and a paragraph
after the task says so.
Rule 5: what was shown and is not any more is in `outputs`, at a place that the prompt names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from tallystick.core.errors import InvalidLimit
from tallystick.core.machine.commands import Code, names_bound, tree_of
from tallystick.core.machine.prompt import Message, output
from tallystick.core.machine.reply import parse_reply
from tallystick.core.machine.state import KeptText, Output, Past, RunState
from tallystick.core.records import ProgramFinished

# In tokens. A text of twice as many tokens as are estimated, such as one of digits, still fits a
# model of 32,768 with its reply; and small models are lost in more.
COMPACT_AT = 12_000
TURNS_WHOLE = 3
# The names of the parts of a prompt that stand for others begin with these.
BRIEF, EARLIER = "brief:", "earlier:"

_BYTES_PER_TOKEN = 4
_RESULT = "result:"
_FIXED = 2  # The fixed part and the task.
_HEAD_CHARS = 240
_NAMES_BYTES = 600
_EARLIER_BYTES_MAX = 1_000
# At most this part of a window is kept free for the reply, and a prompt may be twice its estimate.
_REPLY_PART, _DENSEST = 4, 2


def bound_for(window: int | None, *, reply_tokens: int) -> int:
    """Return the default bound of compaction in tokens: 12,000, or less in a small window.

    That is half of what a reply of `reply_tokens` leaves of the window, at least 1. A reply counts
    as a quarter of the window at most. None is an unknown window.
    """
    if window is None:
        return COMPACT_AT
    room = window - min(reply_tokens, window // _REPLY_PART)
    return max(1, min(COMPACT_AT, room // _DENSEST))


def check_bound(given: object) -> int:
    """Return a bound that a caller gave, in tokens; 0 switches compaction off.

    Raise `InvalidLimit` if it is no whole number, or negative.
    """
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        why = "must be a whole number of tokens, or 0 for no compaction"
        raise InvalidLimit(field="compact_at", given=given, why=why)
    return given


def size_of(messages: Iterable[Message]) -> int:
    """Return the length of the texts of a prompt in bytes.

    Pictures are in the task and do not count.
    """
    return sum(len(each.text.encode("utf-8", "replace")) for each in messages)


def add_result(state: RunState, event: ProgramFinished) -> tuple[ProgramFinished, ...]:
    """Return the results of programs with one more, or none without compaction."""
    return (*state.results, event) if state.started.compact_at else ()


def messages_with_outputs(state: RunState, last: ProgramFinished) -> tuple[Message, ...]:
    """Return the prompt, with earlier results at its end if it does not show all of them.

    The results of the `last` program, and of failed ones, are left out. It is for comparing, not to
    be sent.
    """
    if state.past is None and not any(isinstance(each, KeptText) for each in state.outputs):
        return state.messages
    results = [
        each for each in state.results if each.failure is None and each.intent != last.intent
    ]
    shown = "\n".join(output(each, part="").text for each in results)
    return (*state.messages, Message(role="user", part="", text=shown))


def compact(state: RunState) -> RunState:
    """Return the state with a prompt that is short enough, as far as the rules allow.

    It stays as it is without compaction (`compact_at` 0), and below the bound. What leaves the
    prompt is added to `outputs`.
    """
    bound = state.started.compact_at * _BYTES_PER_TOKEN
    if not bound or size_of(state.messages) <= bound:
        return state
    fixed, turns = state.messages[:_FIXED], state.messages[_FIXED:]
    stays = size_of(fixed) + size_of(turns[-2 * _turns_kept_whole(state) :])
    most, least = max(bound, stays + bound // 2), max(bound // 2, stays + bound // 4)
    if size_of(state.messages) <= most:
        return state
    state = _shorten_results(state, least)
    # With less room than this, compaction would happen again after a turn or two.
    return state if size_of(state.messages) <= (most + least) // 2 else _drop_turns(state, least)


def _turns_kept_whole(state: RunState) -> int:
    """Return how many turns stay as they are. A mistake that is about to leave does not count."""
    return TURNS_WHOLE + state.passing


def _turns_old(state: RunState) -> int:
    return max(0, (len(state.messages) - _FIXED) // 2 - _turns_kept_whole(state))


# -- results in short --------------------------------------------------------------------------


def _shorten_results(state: RunState, bytes_max: int) -> RunState:
    """Show the results of old programs by their beginning, the oldest first.

    It ends once the prompt has `bytes_max` bytes. What is cut is added to `outputs`. A result that
    would not get shorter stays.
    """
    messages, outputs = list(state.messages), list(state.outputs)
    results = {each.intent: each for each in state.results}
    size, sent = size_of(messages), state.sent
    for place in range(_FIXED + 1, _FIXED + 2 * _turns_old(state), 2):
        if size <= bytes_max:
            break
        found = [results[each] for each in _intents(messages[place])]
        short, kept = _brief_message(found, len(outputs))
        saved = size_of((messages[place],)) - size_of((short,))
        if found and saved > 0:
            messages[place] = short
            outputs += kept
            size -= saved
            sent = min(sent, place)
    return msgspec.structs.replace(
        state, messages=tuple(messages), outputs=tuple(outputs), sent=sent
    )


def _intents(message: Message) -> list[int]:
    """Return the programs whose results a message shows whole."""
    parts = message.part.split("+")
    return [int(each.removeprefix(_RESULT)) for each in parts if each.startswith(_RESULT)]


def _brief_message(results: Sequence[ProgramFinished], place: int) -> tuple[Message, list[Output]]:
    """Return the results of a reply's programs in short, and the additions to `outputs`.

    `place` is the place of the first addition.
    """
    texts: list[str] = []
    kept: list[Output] = []
    for result in results:
        text, is_cut = _brief_text(result, place + len(kept))
        texts.append(text)
        if is_cut:
            label = f"what came of program {result.intent}"
            kept.append(KeptText(label=label, pieces=(full_text_of(result),)))
    parts = "+".join(f"{BRIEF}{each.intent}" for each in results)
    return Message(role="user", part=parts, text="\n".join(texts)), kept


def _brief_text(result: ProgramFinished, place: int) -> tuple[str, bool]:
    """Return the beginnings of a result, and True if there is more than is shown.

    A stream that was too long for the record names its place in `outputs` itself, in its last line.
    """
    said, left_out = [], 0
    for title, text in _sections(result):
        head, cut_there = _head(text, closing=bool(result.outputs), last=title == _FAILED)
        said.append(f"{title}:\n{head}")
        left_out += cut_there
    if not said:
        return _NOTHING, False
    if left_out:
        name = f"outputs[{place}]"
        said.append(f"[... {left_out:,} characters left out; {name} has all: {name}[0:2000] ...]")
    return "\n".join(said), left_out > 0


def _head(text: str, *, closing: bool, last: bool) -> tuple[str, int]:
    """Return the beginning of a text, or of an error its end, and how many characters are left out.

    That is 0 also if the last line of the text names the place of the rest.
    """
    text = text.rstrip("\n")
    if len(text) <= _HEAD_CHARS:
        return text, 0
    if last:
        end = text.rpartition("\n")[2][:_HEAD_CHARS]
        return end, len(text) - len(end)
    head = text[:_HEAD_CHARS]
    end = text.rpartition("\n")[2]
    if closing and end.startswith("[output cut: "):
        return f"{head}\n{end}", 0
    return head, len(text) - len(head)


_FAILED = "The program failed"
_NOTHING = "The program ran and printed nothing."


def _sections(result: ProgramFinished) -> list[tuple[str, str]]:
    found = [("Output", result.stdout), ("Errors printed", result.stderr)]
    if result.failure is not None:
        failure = result.failure
        found.append((_FAILED, failure.traceback or f"{failure.kind}: {failure.message}"))
    elif result.value is not None:
        found.append(("Value of the last line", result.value))
    found = [(title, text) for title, text in found if text.strip()]
    if not found and result.assigned is not None:
        name, value = result.assigned
        return [(f"The program printed nothing. {name} is", value)]
    return found


def full_text_of(result: ProgramFinished) -> str:
    """Return the whole result of a program. If it only printed, that is as it was printed.

    If it gave nothing, it is a sentence that says so.
    """
    match _sections(result):
        case []:
            return _NOTHING
        case [("Output", text)]:
            return text
        case found:
            return "\n".join(f"{title}:\n{text}" for title, text in found)


# -- turns that leave --------------------------------------------------------------------------


def _drop_turns(state: RunState, bytes_max: int) -> RunState:
    """Take the oldest turns out of the prompt, and add a paragraph after the task about them.

    The state stays as it is if no turn is old, or none has to go.
    """
    messages = state.messages
    past = state.past or Past(task=messages[1])
    pairs = [messages[at : at + 2] for at in range(_FIXED, len(messages), 2)]
    size = size_of((messages[0], past.task, *messages[_FIXED:])) + _EARLIER_BYTES_MAX
    going = 0
    while going < _turns_old(state) and size > bytes_max:
        size -= size_of(pairs[going])
        going += 1
    if not going:
        return state
    past = _with_turns(past, pairs[:going], state.results)
    place = len(state.outputs)
    task = past.task
    told = msgspec.structs.replace(
        task, part=_part_of(past), text=f"{task.text}\n\n{_summary(past, place)}"
    )
    return msgspec.structs.replace(
        state,
        messages=(messages[0], told, *messages[_FIXED + 2 * going :]),
        outputs=(*state.outputs, KeptText(label="earlier turns", pieces=past.pieces)),
        past=past,
        sent=min(state.sent, 1),
    )


def _part_of(past: Past) -> str:
    return f"{past.task.part}+{EARLIER}{past.turns}"


def _with_turns(
    past: Past, pairs: Sequence[Sequence[Message]], results: Sequence[ProgramFinished]
) -> Past:
    known = {each.intent: each for each in results}
    pieces, names, turns = list(past.pieces), list(past.names), past.turns
    for reply, told in pairs:
        turns += 1
        shown = [*_intents(told), *_intents_in_short(told)]
        texts = [full_text_of(known[each]) for each in shown] or [told.text]
        pieces += (f"--- program {turns} ---\n", reply.text, "\n--- what came of it ---\n")
        for text in texts:
            pieces += (text, "" if text.endswith("\n") else "\n")
        # A name counts at its last binding, so that the newest names come last.
        names = [*dict.fromkeys(reversed([*names, *_names_made(reply.text)]))][::-1]
    return msgspec.structs.replace(past, turns=turns, pieces=tuple(pieces), names=_latest(names))


def _intents_in_short(message: Message) -> list[int]:
    parts = message.part.split("+")
    return [int(each.removeprefix(BRIEF)) for each in parts if each.startswith(BRIEF)]


def _summary(past: Past, place: int) -> str:
    name = f"outputs[{place}]"
    told = (
        f"The first {past.turns:,} programs, and what came of them, are left out here. {name} has "
        f"them all: {name}[0:2000], {name}.find(text). SHOW_VARS() lists your variables."
    )
    names = ", ".join(f"`{each}`" for each in past.names)
    return f"{told} Names they made: {names}." if names else told


def _latest(names: Sequence[str]) -> tuple[str, ...]:
    """Return the last names, as many as there is room for: 600 bytes with their marks."""
    room, found = _NAMES_BYTES, []
    for name in reversed(names):
        room -= len(name.encode("utf-8", "replace")) + len("``, ")
        if room < 0:
            break
        found.append(name)
    return tuple(reversed(found))


def _names_made(reply: str) -> Iterator[str]:
    """Yield the names that the programs of a reply bind for those after them."""
    for command in parse_reply(reply).commands:
        tree = tree_of(command.source) if isinstance(command, Code) else None
        for statement in tree.body if tree is not None else ():
            yield from names_bound(statement)
