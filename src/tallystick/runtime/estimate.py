"""What a run would cost, as far as that can be told before it begins; nothing is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tallystick.attachments.media import HEAD_BYTES, described
from tallystick.attachments.memory import MemoryAttachments
from tallystick.attachments.port import Declared
from tallystick.attachments.session import SessionAttachments
from tallystick.core import prompt
from tallystick.core.attachment import AttachmentRef
from tallystick.core.budget_amount import Remaining
from tallystick.core.records import RunLimits, RunStarted
from tallystick.core.strategy import Figures, Strategy, chosen, not_direct
from tallystick.core.typed_answer import schema_text
from tallystick.model.port import Model
from tallystick.model.tokens import input_estimate
from tallystick.runtime.functions import RunFunction
from tallystick.runtime.inputs import Input, layout_of
from tallystick.runtime.shelf import Shelf
from tallystick.runtime.skills import Skills, skills_asked
from tallystick.runtime.strategy import facts_of, window_of
from tallystick.runtime.teller import Pricing, picture_size, prompt_figure
from tallystick.sandbox.host import HostTable

__all__ = ["Estimate", "StrategyEstimate", "estimated"]


class StrategyEstimate(msgspec.Struct, frozen=True, kw_only=True):
    """About what a run takes by one strategy. `why_not` says why it cannot be; else it is empty."""

    strategy: Strategy
    calls: int
    tokens: int
    usd: int | None
    why_not: str = ""


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """Before a run. Money is in nano-dollars, None where no price is known.

    `first_call_usd_max` is what is reserved for the first call: a bound, not a guess. `usual_usd`
    is a guess: four turns of four hundred tokens each. `auto` is the strategy that would be taken
    if nobody says which, and `auto_why` why.
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


def estimated(
    model: Model,
    goal: str,
    *,
    inputs: Sequence[Input],
    limits: RunLimits,
    functions: Sequence[RunFunction] = (),
    grants: Sequence[str] = (),
    schema: Mapping[str, object] | None = None,
    pricing: Pricing,
    skills: Skills | None = None,
    put_skills: Sequence[str] = (),
) -> Estimate:
    """Say what a run would begin with, and what that costs at most."""
    layout = layout_of(inputs, question=goal)
    shelf = Shelf(SessionAttachments(MemoryAttachments(), session_id="estimate"), grants=grants)
    table = HostTable(
        [*shelf.functions(), *(each.hosted() for each in functions)],
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
        skills=skills_asked(
            skills, put_skills, goal=goal, inputs=inputs, shelf=shelf, session="estimate"
        ),
    )
    messages = prompt.opening(started)
    terms = pricing.terms(model, usd_capped=limits.usd is not None)
    bound = prompt_figure(terms, messages).tokens
    about = input_estimate(messages, dialect=terms.dialect, size_of=picture_size).tokens
    cap = max(0, min(limits.reply_tokens, limits.tokens - bound))
    worst = terms.worst
    most = None if worst is None else worst(bound, cap)
    left = Remaining(tokens=limits.tokens, usd=limits.usd, model_calls=limits.model_calls)
    facts = facts_of(started, layout=layout, terms=terms, left=left, window=window_of(model))
    choice = chosen("auto", facts)
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
            _estimate("direct", facts.direct, not_direct(facts) or ""),
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
    """A picture as its reference would say it is."""
    return described(
        id="",
        byte_len=len(given.text),
        head=given.text.read_raw(0, HEAD_BYTES),
        declared=Declared(label=given.name),
    )
