"""Define `Run`, the result of a run for its caller, and what to do if it has no answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Generic, Self, cast

import msgspec

from tallystick.core.budget.amount import is_of_total, is_overrun
from tallystick.core.charge import Charge
from tallystick.core.citation.cited import Citation, Cited, Unchecked
from tallystick.core.errors import TallystickError
from tallystick.core.machine.answer import value_of
from tallystick.core.machine.prompt import is_older
from tallystick.core.machine.state import RunState
from tallystick.core.records import RunEnded, RunStarted, StopReason
from tallystick.model.prices import is_unpriced
from tallystick.runtime.runs.waiting import Waiting

_NOTHING = Cited()


if TYPE_CHECKING:
    # A plain `Run` is one whose answer is text. Python knows such defaults from 3.13 on.
    from typing_extensions import TypeVar

    T_co = TypeVar("T_co", covariant=True, default=str)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)
_SHOWN_CHARS_MAX = 60


class Run(msgspec.Struct, Generic[T_co], frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """The result of a run that has ended. `answer` is partial unless `stop` is `answered`.

    `value` is the answer as the type that was asked for, and `cost` what was paid, in dollars.
    `citations` are places in the inputs, checked against their bytes. `unchecked` are the claims of
    the answer about its sources that could not be checked. With a schema, `answer` is JSON and
    `data` is that JSON decoded. `said` is the last reply of the model if the run has no answer.
    `session_lost` says that the session could not keep the variables of the run. Inside steps,
    `parent` is the id of their chain in the ledger, and `step` the path of the step that began the
    run. `settings` gives the source of each setting that is not a default. `waits` are the calls
    and programs that wait for a person, of a run that stopped as `waiting`.
    """

    run: str
    answer: str | None
    stop: StopReason
    detail: str
    partial: bool
    turns: int
    charge: Charge
    citations: tuple[Citation, ...]
    ledger: str
    parent: str | None = None
    step: str | None = None
    unchecked: tuple[Unchecked, ...] = ()
    # Recorded results of steps have it under its older name.
    data: object = msgspec.field(default=None, name="value")
    settings: Mapping[str, str] = {}
    session_lost: bool = False
    said: str | None = None
    typed: bool = False
    waits: tuple[Waiting, ...] = ()

    @property
    def id(self) -> str:
        """The id of the run in the ledger."""
        return self.run

    @property
    def answered(self) -> bool:
        """True if the run has an answer that is not partial."""
        return self.stop == "answered"

    @property
    def cost(self) -> Decimal | None:
        """The cost of the run in dollars, exactly; None if a price is unknown."""
        return dollars(self.charge.usd)

    @property
    def value(self) -> T_co:
        """The answer as the type that was asked for; the text itself if none was.

        Raise `NoAnswer` if the run has no answer, or only a partial one. Raise it too if the answer
        fits the schema, but the type refuses it.
        """
        if not self.answered:
            raise NoAnswer(self)
        if not self.typed:
            return cast("T_co", self.answer)
        decode = self.__dict__.get(_DECODE)
        if decode is None:
            return cast("T_co", self.data)
        try:
            return cast("T_co", decode(self.data))
        except ValueError as error:
            raise NoAnswer(
                self, why=f"the answer fits its schema, but not its type: {error}"
            ) from error

    def checked(self) -> Self:
        """Return this run. Raise `NoAnswer` if it has no answer, or only a partial one."""
        _ = self.value
        return self

    def __str__(self) -> str:
        """Return the answer, or a line that says why there is none."""
        if self.answered and self.answer is not None:
            return self.answer
        return stop_line(self)

    def __repr__(self) -> str:
        """Return one line: id, stop, turns, cost and the beginning of the answer."""
        cost = "price unknown" if self.cost is None else f"${self.cost}"
        parts = [f"Run {self.run}", self.stop, _counted(self.turns, "turn"), cost]
        if self.answer is not None:
            parts.append(f"{'partial: ' if not self.answered else ''}{_short(self.answer)!r}")
        return f"<{', '.join(parts)}>"

    def _repr_html_(self) -> str:
        from tallystick.runtime.runs.card import card_of

        return card_of(self)


_DECODE = "decode"


def as_type(run: Run[Any], decode: Callable[[object], Any] | None) -> Run[Any]:
    """Have `Run.value` of this run decoded by a function, and return the run.

    The function raises `ValueError` for a value that does not fit.
    """
    run.__dict__[_DECODE] = decode
    return run


def decoder_of(run: object) -> Callable[[object], Any] | None:
    """Return the function that decodes `Run.value`; None if there is none, or this is no run."""
    found: Callable[[object], Any] | None = None
    if isinstance(run, Run):
        found = run.__dict__.get(_DECODE)
    return found


class NoAnswer(TallystickError):
    """A run has no answer, or only a partial one, or one that its type refuses.

    `run` is the run, with what it spent and what it found.
    """

    code = "no_answer"

    def __init__(self, run: Run[Any], *, why: str | None = None) -> None:
        self.run = run
        said = [f"run {run.run}: {why}"] if why else [stop_line(run)]
        said += [f"next: {command}" for command in next_steps(run)[:1]]
        super().__init__("; ".join(said))

    def __reduce__(self) -> tuple[Any, ...]:
        return _no_answer, (self.run, str(self))


def _no_answer(run: Run[Any], message: str) -> NoAnswer:
    made = NoAnswer(run)
    made.args = (message,)
    return made


def stop_line(run: Run[Any]) -> str:
    """Return a line about a run that was not answered: its stop, and what there is of an answer."""
    line = f"run {run.run} has no answer: {run.stop}: {run.detail}".rstrip(": ")
    if run.answer is not None:
        return f"{line}; the partial answer is {_short(run.answer)!r}"
    return line


def dollars(nano: int | None) -> Decimal | None:
    """Return nano-dollars as dollars, with at least two decimals; None for None."""
    if nano is None:
        return None
    exact = Decimal(nano).scaleb(-9)
    plain = exact.normalize()
    return plain if -int(plain.as_tuple().exponent) > 2 else exact.quantize(Decimal("0.01"))


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN_CHARS_MAX else f"{line[: _SHOWN_CHARS_MAX - 3]}..."


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


# The option that raises the limit which stopped a run. The detail begins with the dimension.
_RAISING = {
    "usd": "--max-usd DOLLARS",
    "tokens": "--max-tokens N",
    "turns": "--max-turns N",
    "wall_ms": "--timeout SECONDS",
}


def next_steps(result: Run[Any]) -> list[str]:
    """Return what to type to continue a run that has no answer, each command on its own line.

    Return an empty list if no command helps: the run answered, was refused, or made no progress.
    """
    resume = f"tally resume {result.run}"
    match result.stop:
        case "cancelled" | "model_error" | "sandbox_error":
            return [resume]
        case "waiting":
            return [f"tally approve {result.run}", f"tally deny {result.run} --because TEXT"]
        case "max_turns":
            return [f"{resume} --max-turns N"]
        case "deadline":
            return [f"{resume} --timeout SECONDS"]
        case "budget" if is_unpriced(result.detail):
            return [
                "declare the price of the model in [prices] of the configuration, or:",
                f"{resume} --allow-unpriced",
            ]
        case "budget" if is_overrun(result.detail):
            # A higher limit does not help: the provider charged more than a call had reserved.
            return [resume]
        case "budget" if is_of_total(result.detail):
            return ["tally total USD --raise", resume]
        case "budget":
            option = _RAISING.get(result.detail.partition(":")[0])
            return [resume if option is None else f"{resume} {option}"]
        case "in_doubt":
            return [
                "find out whether the call happened, then repeat it or never repeat it:",
                f"{resume} --in-doubt retry",
                f"{resume} --in-doubt abandon",
            ]
        case _:
            return []


def said_at_end(ended: RunEnded, started: RunStarted, said: str | None) -> str | None:
    """Return `said`, the last reply of the model, for a run that was not answered; else None.

    Return None for runs with the prompts of an older version too: their steps have recorded results
    without this reply.
    """
    return None if ended.stop == "answered" or is_older(started) else said


def run_of(
    run_id: str,
    state: RunState,
    *,
    ledger: str,
    cited: Cited = _NOTHING,
    parent: str | None = None,
    step: str | None = None,
    session_lost: bool = False,
) -> Run:
    """Return the result of a run from its final state. The run must have ended."""
    assert state.ended is not None
    return Run(
        run=run_id,
        answer=state.ended.answer,
        stop=state.ended.stop,
        detail=state.ended.detail,
        partial=state.ended.partial,
        turns=state.charge.turns,
        charge=state.ended.charge,
        citations=cited.citations,
        ledger=ledger,
        parent=parent,
        step=step,
        unchecked=cited.unchecked,
        session_lost=session_lost,
        said=said_at_end(state.ended, state.started, state.said),
        data=value_of(state.answer, state.started) if state.ended.stop == "answered" else None,
        typed=state.started.schema is not None,
        settings=state.started.settings or {},
    )
