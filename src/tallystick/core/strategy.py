"""Choose how a run is answered: by reading at once, by programs, or by programs that ask models.

direct: the texts go into one prompt whole, and the reply is the answer. code: the model writes
programs. recursive: the same, and the prompt shows how programs ask models about pieces of text.

Rule 1: the choice follows from numbers alone, never from words of the question.
Rule 2: a model that counts rows miscounts: tables and records of more than a few dozen rows are for
programs, however short they are. Lines of prose are no rows: no program understands them.
Rule 3: exactly at a limit is allowed. An unknown figure is no reason against a strategy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeGuard, get_args

from tallystick.core.budget.amount import Remaining
from tallystick.core.charge import shown_usd
from tallystick.core.errors import UsageError

Strategy = Literal["direct", "code", "recursive"]
# The strategies that a caller can ask for: one by name, or `auto` for the one that fits.
AskedStrategy = Literal["auto", "direct", "code", "recursive"]
STRATEGIES: tuple[AskedStrategy, ...] = get_args(AskedStrategy)
_KNOWN = f"{', '.join(STRATEGIES[:-1])} or {STRATEGIES[-1]}"

DIRECT_TOKENS_MAX = 2**14
ROWS_MAX = 36
# The window of a model if it is unknown: smaller than that of most models in use.
WINDOW = 32_768
# At most this part of a window is kept free for the reply.
_REPLY_PART = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Estimates of what a strategy uses. `usd` is in nano-dollars, None if no price is known."""

    calls: int
    tokens: int
    usd: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The figures of a run before it begins. Tokens are estimates.

    `rows` are of tables and records, `prose_tokens` of the texts that are neither, or that have
    prose in every line. `on_host` says that the texts are too long for the guest. `prompt_tokens`
    is the direct prompt with everything in it, `prompt_tokens_max` the reservation for it.
    `reply_tokens_least` is the shortest reply that is worth paying for, and `least_usd` the worst
    cost of both. `window` is None if it is unknown.
    """

    text_tokens: int
    prose_tokens: int
    rows: int
    pictures: int
    on_host: bool
    prompt_tokens: int
    prompt_tokens_max: int
    reply_tokens: int
    reply_tokens_least: int
    least_usd: int | None
    window: int | None
    left: Remaining
    direct: Figures
    code: Figures
    recursive: Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A strategy, and the reason for it; empty if the caller asked for it by name."""

    strategy: Strategy
    why: str = ""


def check_strategy_name(asked: str) -> AskedStrategy:
    """Return a strategy by its name. Raise `UsageError` for an unknown name."""
    if not _is_strategy(asked):
        raise UsageError(f"strategy: must be {_KNOWN}, not {str(asked)[:40]!r}")
    return asked


def choose_strategy(asked: AskedStrategy, facts: Facts) -> Choice:
    """Return the strategy to use. Only the reason of `auto` is not empty.

    Raise `UsageError` if direct was asked for and the texts do not fit. A direct run that no budget
    pays for is not refused here but when it makes its first call.
    """
    if asked == "auto":
        return _auto(facts)
    if asked == "direct" and (why := _why_no_room(facts)) is not None:
        raise refusal(why)
    return Choice(strategy=asked)


def refusal(why: str) -> UsageError:
    """Return the error for a direct run that is not possible. It is not raised here."""
    return UsageError(f"strategy direct: {why}; take code, recursive or auto")


def why_on_host(tokens: int) -> str:
    """Return the reason why texts that are too long for the guest cannot be in a prompt."""
    return f"texts of about {tokens:,} tokens stay on the host"


def _is_strategy(asked: str) -> TypeGuard[AskedStrategy]:
    return asked in STRATEGIES


def why_not_direct(facts: Facts) -> str | None:
    """Return why a run cannot be direct: its texts do not fit, or are not paid for. Else None."""
    return _why_no_room(facts) or _why_not_paid(facts)


def _why_no_room(facts: Facts) -> str | None:
    if facts.on_host:
        return why_on_host(facts.text_tokens)
    window = WINDOW if facts.window is None else facts.window
    reply = min(facts.reply_tokens, window // _REPLY_PART)
    if facts.prompt_tokens + reply > window:
        known = "is taken to have" if facts.window is None else "has"
        return (
            f"a prompt of about {facts.prompt_tokens:,} tokens and a reply of {reply:,} do not fit "
            f"the model, which {known} room for {window:,}"
        )
    return None


def _why_not_paid(facts: Facts) -> str | None:
    left = facts.left
    needed = facts.prompt_tokens_max + facts.reply_tokens_least
    if left.tokens is not None and needed > left.tokens:
        return f"its prompt may come to {needed:,} tokens, and {max(0, left.tokens):,} are left"
    if left.usd is not None and facts.least_usd is not None and facts.least_usd > left.usd:
        return (
            f"its prompt may cost {shown_usd(facts.least_usd)}, and "
            f"{shown_usd(max(0, left.usd))} is left"
        )
    return None


def _auto(facts: Facts) -> Choice:
    """Choose by the size of the texts, their kind, and the cost of reading them."""
    if not facts.text_tokens:
        if not facts.pictures:
            return Choice(strategy="code", why="there is no text to read")
        if (why := why_not_direct(facts)) is not None:
            return Choice(strategy="code", why=f"not direct: {why}")
        return Choice(strategy="direct", why="there are only pictures, which no program sees")
    # Before any length is looked at: a model miscounts rows also if they are short.
    if facts.rows > ROWS_MAX:
        return Choice(
            strategy="code",
            why=f"{facts.rows:,} rows are counted by programs (more than {ROWS_MAX})",
        )
    if facts.on_host or facts.prompt_tokens > DIRECT_TOKENS_MAX:
        return _choose_for_long(facts)
    if (why := why_not_direct(facts)) is not None:
        return Choice(strategy="code", why=f"not direct: {why}")
    # Compared with reading in pieces, not with code: programs alone are often cheaper, but they
    # understand nothing.
    direct, pieces = facts.direct.usd, facts.recursive.usd
    if direct is None or pieces is None:
        return Choice(strategy="direct", why=_why_at_once(facts))
    costs = f"about {shown_usd(direct)} at once, {shown_usd(pieces)} in pieces"
    if direct > pieces:
        return _choose_pieces(facts, f"reading at once costs more: {costs}")
    return Choice(
        strategy="direct", why=f"{_why_at_once(facts)}; {costs}" if pieces else _why_at_once(facts)
    )


def _why_at_once(facts: Facts) -> str:
    return f"about {facts.prompt_tokens:,} tokens are read at once (up to {DIRECT_TOKENS_MAX:,})"


def _choose_for_long(facts: Facts) -> Choice:
    """Return the strategy for texts that are too long to be read at once."""
    prose = facts.prose_tokens
    # The tokens of a prompt with only the texts that are neither table nor record.
    alone = prose + max(0, facts.prompt_tokens - facts.text_tokens)
    if alone <= DIRECT_TOKENS_MAX:
        said = (
            f"about {facts.text_tokens:,} tokens, of which {prose:,} are neither table nor record"
        )
        return Choice(strategy="code", why=said)
    return _choose_pieces(facts, f"about {prose:,} tokens of text that is neither table nor record")


def _choose_pieces(facts: Facts, said: str) -> Choice:
    """Return the recursive strategy, or code if what is left does not pay for reading in pieces."""
    figures, left = facts.recursive, facts.left
    for what, needed, held in (
        ("tokens", figures.tokens, left.tokens),
        ("model calls", figures.calls, left.model_calls),
    ):
        if held is not None and needed > held:
            why = f"{said}: reading it in pieces takes about {needed:,} {what}, and "
            return Choice(strategy="code", why=f"{why}{max(0, held):,} are left")
    if left.usd is not None and figures.usd is not None and figures.usd > left.usd:
        why = f"{said}: reading it in pieces costs about {shown_usd(figures.usd)}, and "
        return Choice(strategy="code", why=f"{why}{shown_usd(max(0, left.usd))} is left")
    return Choice(strategy="recursive", why=said)
