"""Read what a caller asks for: answers, data and limits as people write them, money as text."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, cast

import msgspec

from tallystick.core.budget.amount import Budget
from tallystick.core.charge import RunLimits, nano_usd
from tallystick.core.errors import UsageError

if TYPE_CHECKING:
    import datetime

    from tallystick.agent.model_function import ModelFunction
    from tallystick.core.records import InDoubt, PersonDecision
    from tallystick.core.strategy import AskedStrategy
    from tallystick.inputs.reading import InputValue
    from tallystick.model.port import Model
    from tallystick.runtime.calls.deltas import HearDelta
    from tallystick.runtime.context.inputs import Input
    from tallystick.runtime.run.assembly import Watch
    from tallystick.runtime.runs.decided import Decided
    from tallystick.runtime.runs.result import Run

# Dollars as a person writes them. A float is refused: 0.1 is not a tenth of a dollar.
Dollars = str | int | Decimal
Limits = RunLimits | Mapping[str, object]
Function = TypeVar("Function", bound=Callable[..., Any])


class RunOptions(TypedDict, total=False):
    """The options of one run, all by keyword. One that is left out, or None, has its default.

    - `inputs`: text, bytes or paths by the names of their variables; or one of them alone
    - `files`: files, directories and patterns, as `tally run -f` has them
    - `max_usd`, `max_tokens`: limits of this run; `limits` has all of them
    - `instructions`: what this run heeds beside its goal, after those of the agent
    - `model`: for this run, a name, a model or a function; `sub_model` for the calls of programs
    - `strategy`: "code", "direct", "recursive" or "auto"
    - `skills`: skills to put into the prompt, each a name with its arguments
    - `session`: the id or name of a session whose variables programs find
    - `grants`: rights, such as "attachments.read"
    - `temperature`, `seed`, `compact_at`, `clock`, `timezone`: as in the reference
    - `recursion_depth`: the runs above this one, from which it counts up to its limit of depth;
      otherwise those of the function around the call, or of `TALLYSTICK_DEPTH`
    - `watch`: called with the run and each record; `heard` with each `TextDelta` of a reply
    """

    inputs: Mapping[str, InputValue] | InputValue | Sequence[Input] | None
    files: Sequence[str | os.PathLike[str]] | None
    max_usd: Dollars | None
    max_tokens: int | None
    limits: Limits | None
    instructions: str | None
    model: str | Model | ModelFunction | None
    sub_model: str | None
    strategy: AskedStrategy | None
    skills: Sequence[str] | None
    session: str | None
    grants: Sequence[str] | None
    temperature: float | None
    seed: int | None
    compact_at: int | None
    clock: str | datetime.datetime | None
    timezone: str | None
    recursion_depth: int | None
    watch: Watch | None
    heard: HearDelta | None


class DecideOptions(TypedDict, total=False):
    """The options of a resume after a decision, all by keyword. One that is None has its default.

    - `max_usd`, `max_tokens`, `limits`: for the whole run, with what it has spent
    - `in_doubt`: "halt", "retry" or "abandon" calls whose outcome is unknown
    - `steal`: take the run from another process
    - `sub_model`: where the model of its sub-calls is, if the recorded name does not say
    - `watch`, `heard`: as for a run
    """

    max_usd: Dollars | None
    max_tokens: int | None
    limits: Limits | None
    in_doubt: InDoubt | None
    steal: bool | None
    sub_model: str | None
    watch: Watch | None
    heard: HearDelta | None


class ResumeOptions(DecideOptions, total=False):
    """The options of a resume: those of `DecideOptions`, and a decision.

    - `decision`, `by`: about what waits for a person, and the name of that person; see
      `Agent.approve` and `Agent.deny`
    """

    decision: PersonDecision | Decided | None
    by: str | None


class ForkOptions(TypedDict, total=False):
    """The options of a fork, all by keyword. One that is left out, or None, is that of the run."""

    max_usd: Dollars | None
    max_tokens: int | None
    limits: Limits | None
    temperature: float | None
    watch: Watch | None
    heard: HearDelta | None


def check_options(options: Mapping[str, object], known: type, *, of: str) -> dict[str, Any]:
    """Return the options that are not None.

    Raise `TypeError`, as Python does, for one that is not among the fields of `known`.
    """
    names = list(known.__annotations__)
    for name in options:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"{of}() got an unexpected keyword argument {name!r}{hint}")
    return {name: value for name, value in options.items() if value is not None}


def shows(known: type) -> Callable[[Function], Function]:
    """Return a decorator that has a function show its options one by one, in `help` and notebooks.

    They are the fields of `known`, which type checkers read from the annotation of `**options`.
    """

    def mark(function: Function) -> Function:
        found = inspect.signature(function)
        kept = [each for each in found.parameters.values() if each.kind is not each.VAR_KEYWORD]
        fields = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_text_of(annotation)
            )
            for name, annotation in known.__annotations__.items()
        ]
        signature = found.replace(parameters=[*kept, *fields])
        setattr(function, "__signature__", signature)  # noqa: B010 (unknown to types)
        return function

    return mark


def _text_of(annotation: Any) -> Any:  # noqa: ANN401 (an annotation, which may be text)
    return getattr(annotation, "__forward_arg__", annotation)


# -- answers ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AskedAnswer:
    """The type of answer that was asked for: its schema, None for text, and its decoder."""

    schema: Mapping[str, Any] | None = None
    decode: Callable[[object], Any] | None = None

    def of(self, run: Run[Any]) -> Run[Any]:
        """Give the value of a run this type, and return the run."""
        from tallystick.runtime.runs.result import as_type

        return as_type(run, self.decode)


TEXT = AskedAnswer()


def asked_answer(answer: object) -> AskedAnswer:
    """Return the type of answer that `answer=` stands for: a type, a JSON Schema, or None for text.

    Raise `UsageError` for a type that cannot be checked, by its name.
    """
    if answer is None or answer is str:
        return TEXT
    if isinstance(answer, Mapping):
        return AskedAnswer(cast("Mapping[str, Any]", answer))
    from tallystick.typed.value_type import value_type

    made = value_type(answer, where="answer")
    return AskedAnswer(made.schema, made.decode)


# -- data ---------------------------------------------------------------------------------------


def asked_inputs(options: dict[str, Any]) -> list[Input]:
    """Return the data of a run, and take `inputs` and `files` out of its options.

    Raise `UsageError` for data that cannot be read.
    """
    given, files = options.pop("inputs", ()), options.pop("files", ())
    inputs: list[Input] = []
    if isinstance(given, list | tuple):
        inputs.extend(_listed(given))
    else:
        from tallystick.inputs.reading import named_inputs

        inputs.extend(named_inputs(given))
    if isinstance(files, str | os.PathLike):
        files = [files]
    if files:
        from tallystick.inputs.reading import read_inputs

        inputs.extend(read_inputs([os.fspath(each) for each in files]))
    return inputs


def _listed(given: Sequence[object]) -> Sequence[Input]:
    if not given:
        return ()
    from tallystick.runtime.context.inputs import Input

    for each in given:
        if not isinstance(each, Input):
            raise UsageError(
                f"inputs: a list has {type(each).__name__}; give text and paths by name, as in "
                'inputs={"books": text}, or files=["books.csv"]'
            )
    return cast("Sequence[Input]", given)


# -- money and limits ---------------------------------------------------------------------------


def nano_of(value: object, *, field: str) -> int:
    """Return dollars as nano-dollars.

    Raise `UsageError` for a float, which is no exact sum, and `InvalidLimit` for any other value
    that is no sum of dollars.
    """
    if isinstance(value, float):
        raise UsageError(
            f"{field}: {value!r} is a float, which is not an exact sum; write it as text, as in "
            f'{field}="{value!r}"'
        )
    return nano_usd(value, field=field)  # type: ignore[arg-type]  # It refuses other types.


def asked_budget(
    budget: Budget | Mapping[str, object] | None, max_usd: Dollars | None, max_tokens: int | None
) -> Budget:
    """Return the budget of all runs of an agent together; no limit if nothing was given.

    Raise `UsageError` for a budget together with one of its short forms, and for a wrong field.
    """
    if budget is None:
        fields: Mapping[str, object] = {"usd": max_usd, "tokens": max_tokens}
        return _budget_of(fields, field="max_{}")
    if max_usd is not None or max_tokens is not None:
        short = "max_usd" if max_usd is not None else "max_tokens"
        raise UsageError(f"budget and {short}: give one of them; a budget has this limit too")
    if isinstance(budget, Budget):
        _check_whole(budget, "Budget")
        return budget
    if not isinstance(budget, Mapping):
        raise UsageError(
            f'budget: give a Budget, or a dict such as {{"usd": "5"}}, not {budget!r:.80}'
        )
    return _budget_of(budget, field="budget: {}")


def _budget_of(fields: Mapping[str, object], *, field: str) -> Budget:
    given = _known(fields, Budget.__struct_fields__, "budget")
    usd = given.pop("usd", None)
    nano = None if usd is None else nano_of(usd, field=field.format("usd"))
    return msgspec.structs.replace(Budget.of(**given), usd=nano)


def asked_limits(
    limits: Limits | None, max_usd: Dollars | None, max_tokens: int | None
) -> RunLimits | None:
    """Return the limits of a run; None if none was given.

    Raise `UsageError` for limits together with one of their short forms, and for a wrong field.
    """
    if limits is None:
        if max_usd is None and max_tokens is None:
            return None
        return _limits_of({"usd": max_usd, "tokens": max_tokens}, field="max_{}")
    if max_usd is not None or max_tokens is not None:
        short = "max_usd" if max_usd is not None else "max_tokens"
        raise UsageError(f"limits and {short}: give one of them; limits has this one too")
    if isinstance(limits, RunLimits):
        _check_whole(limits, "RunLimits")
        return limits
    if not isinstance(limits, Mapping):
        raise UsageError(
            f'limits: give RunLimits, or a dict such as {{"turns": 5}}, not {limits!r:.80}'
        )
    return _limits_of(limits, field="limits: {}")


def _limits_of(fields: Mapping[str, object], *, field: str) -> RunLimits:
    given = _known(fields, RunLimits.__struct_fields__, "limits")
    usd = given.pop("usd", None)
    for name, value in given.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise UsageError(
                f"{field.format(name)}: {value!r:.80} is no limit; a whole number from 0 on is"
            )
    nano = None if usd is None else nano_of(usd, field=field.format("usd"))
    return RunLimits(**given, usd=nano)


def _known(fields: Mapping[str, object], names: Sequence[str], what: str) -> dict[str, Any]:
    for name in fields:
        if name not in names:
            near = difflib.get_close_matches(str(name), names, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names)}"
            raise UsageError(f"{what}: {name!r:.80} is no limit; {hint}")
    return {name: value for name, value in fields.items() if value is not None}


def _check_whole(limits: Budget | RunLimits, what: str) -> None:
    """Raise `UsageError` for dollars as people write them in a struct of nano-dollars."""
    given: object = limits.usd
    if given is None or (isinstance(given, int) and not isinstance(given, bool)):
        return
    raise UsageError(
        f"{what}(usd={given!r:.40}): this is a whole number of nano-dollars; for dollars write "
        f'{{"usd": "{given}"}}, or max_usd="{given}"'
    )
