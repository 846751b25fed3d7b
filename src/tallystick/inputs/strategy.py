"""Choose the strategy of a run by numbers, and estimate its cost. No model is asked."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from tallystick.attachments.media import HEAD_BYTES, reference_to
from tallystick.attachments.port import Declared
from tallystick.attachments.session import SessionAttachments
from tallystick.core.budget.amount import Remaining
from tallystick.core.charge import RunLimits
from tallystick.core.machine import prompt
from tallystick.core.machine.answer import schema_text
from tallystick.core.machine.prompt import Message
from tallystick.core.records import AttachmentRef, RunStarted
from tallystick.core.strategy import (
    WINDOW,
    AskedStrategy,
    Facts,
    Figures,
    Strategy,
    check_strategy_name,
    choose_strategy,
    refusal,
    why_not_direct,
    why_on_host,
)
from tallystick.inputs.judging import are_messages
from tallystick.inputs.layout import STR_BYTES_MAX, InputLayout, layout_of
from tallystick.inputs.shapes import shape_of
from tallystick.model.port import Model, window_of
from tallystick.model.price_table import CallTerms, Pricing
from tallystick.model.tokens import input_estimate, text_tokens_estimated
from tallystick.runtime.calls.capability import AskedRun, Capability
from tallystick.runtime.calls.functions import RunFunction
from tallystick.runtime.calls.queries import FindModel
from tallystick.runtime.context.attachments import RunAttachments
from tallystick.runtime.context.inputs import Input
from tallystick.runtime.context.namespace import texts_of
from tallystick.runtime.spend.door import REPLY_TOKENS_LEAST, ModelDoor, picture_size, prompt_figure
from tallystick.sandbox.host import HostTable
from tallystick.sandbox.text import HostText

_Kind = Literal["lines", "table", "json_lines", "json", "numbers"]
# The tokens of a reply, and of its output in the next prompt, if nothing better is known: a program
# of twenty lines and its output.
_TURN_TOKENS = 400
_TURNS_USUAL = 4
# In tokens: a reply that is the answer; then a piece of text that a program sends, the question
# about it, and the reply to that.
_ANSWER_TOKENS = 100
_PIECE_TOKENS, _ASKED_TOKENS, _SAID_TOKENS = 2_000, 50, 20
# The lowest estimate of the tokens of a text: one for this many bytes.
_BYTES_PER_TOKEN = 4
# For a longer text that lowest estimate is used: reading it would take too long.
_ESTIMATED_BYTES_MAX = 1_000_000
# So much is read of a text that stays on the host.
_HEAD_CHARS = 65_536
# The recorded reason if a run is direct and the caller named no strategy.
_UNREAD = "there is nothing for a program to read"
_SAMPLED = 200
_ALIKE_SHARE = 0.8
_WORDS = re.compile(r"\S+")
_BETWEEN = re.compile(r"[\s,;]+")
_DIGITS, _LETTERS = re.compile(r"[0-9]+"), re.compile(r"[^\W\d_]+")


def check_strategy(asked: AskedStrategy | None, inputs: Sequence[Input]) -> None:
    """Raise `UsageError` if the strategy is unknown, or is direct and the texts are over 4 MB.

    Only their sizes are compared: the texts are not read here, since they may be long.
    """
    if asked is None:
        return
    size = sum(len(each.text) for each in inputs if not each.is_picture)
    if check_strategy_name(asked) == "direct" and size > STR_BYTES_MAX:
        raise refusal(why_on_host(size // _BYTES_PER_TOKEN))


def with_strategy(
    started: RunStarted,
    asked: AskedStrategy | None,
    *,
    layout: InputLayout,
    model: Model,
    model_door: ModelDoor,
) -> RunStarted:
    """Return the start of a run with its strategy. Raise `UsageError` if it cannot be used.

    If `asked` is None, the strategy is code, or direct if a program would have nothing to read. If
    direct cannot be used then, `started` is returned as it is, without a strategy. The recursive
    strategy also replaces the descriptions of the texts, if they have rows.
    """
    if asked is None and not prompt.has_nothing_to_read(started):
        asked = "code"
    if asked in ("code", "recursive"):
        return _with_chosen(started, asked, layout)
    facts = facts_of(
        started,
        layout=layout,
        terms=model_door.terms(model),
        left=model_door.run_scopes.remaining(),
        window=window_of(model),
    )
    if asked is None:
        direct = why_not_direct(facts) is None
        return _with_chosen(started, "direct", layout, why=_UNREAD) if direct else started
    choice = choose_strategy(asked, facts)
    return _with_chosen(started, choice.strategy, layout, why=choice.why)


def _with_chosen(
    started: RunStarted, strategy: Strategy, layout: InputLayout, *, why: str = ""
) -> RunStarted:
    contexts = layout.asking if strategy == "recursive" and layout.asking else started.contexts
    return msgspec.structs.replace(started, strategy=strategy, strategy_why=why, contexts=contexts)


def facts_of(
    started: RunStarted,
    *,
    layout: InputLayout,
    terms: CallTerms,
    left: Remaining,
    window: int | None,
) -> Facts:
    """Return the figures of a run that has not begun, from which its strategy is chosen.

    Sizes are estimates. The direct prompt is counted only if all texts are in the guest and are not
    estimated to be longer than the model's window; else its bound is 0.
    """
    sizes = _sizes(layout)
    limits = started.limits
    tokens = sum(each.tokens for each in sizes)
    least = min(REPLY_TOKENS_LEAST, limits.reply_tokens)
    bound, about = 0, tokens
    if not layout.texts and tokens <= (WINDOW if window is None else window):
        messages = prompt.direct(started, texts_of(layout.values))
        figure = prompt_figure(terms, messages)
        bound = figure.tokens
        about = bound if figure.label == "counted" else _estimate_tokens(messages, terms)
    worst = terms.worst
    recursive = _with_chosen(started, "recursive", layout)
    return Facts(
        text_tokens=tokens,
        prose_tokens=sum(each.tokens for each in sizes if not each.rows),
        rows=sum(each.rows for each in sizes),
        pictures=len(started.images),
        on_host=bool(layout.texts),
        prompt_tokens=about,
        prompt_tokens_max=bound,
        reply_tokens=limits.reply_tokens,
        reply_tokens_least=least,
        least_usd=None if worst is None else worst(bound, least),
        window=window,
        left=left,
        direct=Figures(
            calls=1,
            tokens=about + _ANSWER_TOKENS,
            usd=None if worst is None else worst(about, _ANSWER_TOKENS),
        ),
        code=_code_figures(started, terms),
        recursive=_recursive_figures(_code_figures(recursive, terms), tokens, terms),
    )


def _estimate_tokens(messages: tuple[Message, ...], terms: CallTerms) -> int:
    return input_estimate(messages, dialect=terms.dialect, size_of=picture_size).tokens


def _code_figures(started: RunStarted, terms: CallTerms) -> Figures:
    """Return a guess of what programs use: four turns of 400 tokens each, or fewer if limited."""
    about = _estimate_tokens(prompt.opening(started), terms)
    turns = range(min(_TURNS_USUAL, started.limits.turns))
    asked = [about + turn * _TURN_TOKENS * 2 for turn in turns]
    worst = terms.worst
    return Figures(
        calls=len(asked),
        tokens=sum(asked) + len(asked) * _TURN_TOKENS,
        usd=None if worst is None else sum(worst(each, _TURN_TOKENS) for each in asked),
    )


def _recursive_figures(code: Figures, text_tokens: int, terms: CallTerms) -> Figures:
    """Return the figures of code, with a call for each piece of the texts added."""
    pieces = -(-text_tokens // _PIECE_TOKENS)
    each = min(_PIECE_TOKENS, text_tokens) + _ASKED_TOKENS
    worst = terms.worst
    return Figures(
        calls=code.calls + pieces,
        tokens=code.tokens + text_tokens + pieces * (_ASKED_TOKENS + _SAID_TOKENS),
        usd=None
        if code.usd is None or worst is None
        else code.usd + pieces * worst(each, _SAID_TOKENS),
    )


# -- texts -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Size:
    """The estimated size of a text. `rows` is 0 for prose."""

    tokens: int
    rows: int


def _sizes(layout: InputLayout) -> list[_Size]:
    kinds = {(view.of, view.key): view.kind for view in layout.views if view.kind != "lines"}
    # In the order of the files.
    texts = zip(layout.files, texts_of(layout.values), strict=True)
    found = [_size_of(text, kinds.get((of, key), "lines")) for (_, of, key), text in texts]
    for value in layout.texts.values():
        held = [value] if isinstance(value, HostText) else value.values()
        found += map(_size_of_long, held)
    return found


def _size_of(text: str, kind: _Kind) -> _Size:
    size = len(text.encode("utf-8", "replace"))
    tokens = size // _BYTES_PER_TOKEN
    if size <= _ESTIMATED_BYTES_MAX:
        tokens = text_tokens_estimated(text)
    return _Size(tokens=tokens, rows=_count_rows(text, kind))


def _size_of_long(text: HostText) -> _Size:
    """Return the size of a long text, estimated from its first 65,536 characters."""
    head = text.slice(0, _HEAD_CHARS)
    whole_lines = head[: head.rfind("\n") + 1] or head
    rows = _count_rows(whole_lines, shape_of(whole_lines).kind)
    if not rows and head.lstrip()[:1] in ("{", "["):
        rows = whole_lines.count("\n") + 1
    share = len(whole_lines.encode("utf-8", "replace"))
    return _Size(
        tokens=len(text) // _BYTES_PER_TOKEN, rows=-(-rows * len(text) // share) if share else 0
    )


def _count_rows(text: str, kind: _Kind) -> int:
    """Return about how many rows, records or numbers a text has; 0 for prose.

    For JSON, this is the length of its longest list or dictionary. A table is counted by its lines.
    """
    match kind:
        case "numbers":
            return sum(1 for each in _BETWEEN.split(text) if each)
        case "json":
            return _longest_collection(msgspec.json.decode(text.removeprefix("\ufeff")))
        case "table":
            return _count_filled_lines(text) - 1
        case "json_lines":
            return _count_filled_lines(text)
        case "lines":
            lines = [line for line in text.splitlines() if line.strip()]
            sampled = lines[:: max(1, len(lines) // _SAMPLED)]
            return len(lines) if _are_records(sampled) and not are_messages(sampled) else 0


def _count_filled_lines(text: str) -> int:
    return sum(1 for line in text.splitlines() if line.strip())


def _longest_collection(value: object) -> int:
    """Return the length of the longest list or dictionary in a JSON document."""
    longest = 0
    waiting = [value]
    while waiting:
        held = waiting.pop()
        if isinstance(held, dict):
            held = list(held.values())
        if isinstance(held, list):
            longest = max(longest, len(held))
            waiting.extend(held)
    return longest


def _are_records(sampled: Sequence[str]) -> bool:
    """Return True if lines are records, as in a log: 80 % begin in one form, with a digit."""
    forms = Counter(_form(line) for line in sampled)
    form, count = forms.most_common(1)[0] if forms else ("", 0)
    return "9" in form and count >= _ALIKE_SHARE * len(sampled)


def _form(line: str) -> str:
    """Return the first three words of a line, with `a` for each run of letters, `9` for digits."""
    words = [found[0] for found, _ in zip(_WORDS.finditer(line[:200]), range(3), strict=False)]
    return _DIGITS.sub("9", _LETTERS.sub("a", " ".join(words)))


# -- estimates ---------------------------------------------------------------------------------


class StrategyEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate for one strategy. `why_not` is the reason if it cannot be used, else empty."""

    strategy: Strategy
    calls: int
    tokens: int
    usd: int | None
    why_not: str = ""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate of a run before it begins. Money is in nano-dollars, None without a price.

    `first_call_usd_max` is the reservation for the first call: a bound, not a guess. `usual_usd` is
    a guess: four turns of 400 tokens each. `auto` is the strategy that `auto` would choose, and
    `auto_why` the reason. `fits` says that the limits pay for the first call.
    """

    model: str
    price: str
    why: str
    tokens_in_estimated: int
    tokens_in_max: int
    tokens_out_max: int
    first_call_usd_max: int | None
    usual_usd: int | None
    usd_cap: int | None
    tokens_cap: int
    turns_cap: int
    fits: bool
    strategies: tuple[StrategyEstimate, ...]
    auto: Strategy
    auto_why: str


def estimate_run(
    model: Model,
    goal: str,
    *,
    inputs: Sequence[Input],
    limits: RunLimits,
    functions: Sequence[RunFunction] = (),
    grants: Sequence[str] = (),
    schema: Mapping[str, object] | None = None,
    pricing: Pricing,
    capabilities: Sequence[Capability] = (),
    put_skills: Sequence[str] = (),
    find_model: FindModel | None = None,
) -> Estimate:
    """Return an estimate of a run, without starting it or asking a model.

    The inputs are read, and nothing is stored on disk. `capabilities` add to the prompt what they
    add to that of a run. `find_model` finds the models that its programs may ask; without it, those
    that skills name are not checked. Raise `UsageError` if an input or the request is wrong.
    """
    layout = layout_of(inputs, question=goal)
    # Imported here: only an estimate needs attachments in memory.
    from tallystick.attachments.memory import MemoryAttachments

    run_attachments = RunAttachments(
        SessionAttachments(MemoryAttachments(), session_id="estimate"), grants=grants
    )
    table = HostTable(
        [*run_attachments.functions(), *(each.hosted() for each in functions)],
        granted=frozenset(grants),
        answering=True,
    )
    started = RunStarted(
        goal=goal,
        model=model.name,
        limits=limits,
        grants=(),
        contexts=layout.contexts,
        functions=tuple((each.name, each.doc) for each in table.names.functions),
        texts=(),
        seed=0,
        clock_ns=0,
        session_id="",
        template=prompt.TEMPLATE,
        guest="",
        engine="",
        started_at=0,
        views=layout.views,
        files=layout.files,
        images=tuple(_picture(each) for each in inputs if each.is_picture),
        schema=schema_text(schema),
    )
    asked = AskedRun(
        goal=goal,
        inputs=inputs,
        put_skills=put_skills,
        session_id="estimate",
        find_model=find_model,
    )
    for each in capabilities:
        started = msgspec.structs.replace(started, **each.start_fields(asked, run_attachments))
    messages = prompt.opening(started)
    terms = pricing.terms(model, usd_capped=limits.usd is not None)
    bound = prompt_figure(terms, messages).tokens
    about = input_estimate(messages, dialect=terms.dialect, size_of=picture_size).tokens
    cap = max(0, min(limits.reply_tokens, limits.tokens - bound))
    worst = terms.worst
    most = None if worst is None else worst(bound, cap)
    left = Remaining(tokens=limits.tokens, usd=limits.usd, model_calls=limits.model_calls)
    facts = facts_of(started, layout=layout, terms=terms, left=left, window=window_of(model))
    choice = choose_strategy("auto", facts)
    return Estimate(
        model=model.name,
        price=terms.decision.policy,
        why=terms.decision.why,
        tokens_in_estimated=about,
        tokens_in_max=bound,
        tokens_out_max=cap,
        first_call_usd_max=most,
        usual_usd=facts.code.usd,
        usd_cap=limits.usd,
        tokens_cap=limits.tokens,
        turns_cap=limits.turns,
        fits=cap > 0
        and terms.decision.policy != "refuse"
        and (limits.usd is None or most is None or worst is None or worst(bound, 1) <= limits.usd),
        strategies=(
            _estimate("direct", facts.direct, why_not_direct(facts) or ""),
            _estimate("code", facts.code),
            _estimate("recursive", facts.recursive),
        ),
        auto=choice.strategy,
        auto_why=choice.why,
    )


def _estimate(strategy: Strategy, figures: Figures, why_not: str = "") -> StrategyEstimate:
    return StrategyEstimate(
        strategy=strategy,
        calls=figures.calls,
        tokens=figures.tokens,
        usd=figures.usd,
        why_not=why_not,
    )


def _picture(given: Input) -> AttachmentRef:
    """Return the reference that storing a picture would give, but without an id."""
    return reference_to(
        id="",
        byte_len=len(given.text),
        head=given.text.read_raw(0, HEAD_BYTES),
        declared=Declared(label=given.name),
    )
