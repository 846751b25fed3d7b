"""A row for each public field: two values, and the place where what they do must differ.

A row looks at one place of one small run or program. With the first value it looks twice, so that a
place which differs by chance is noticed. To add a field, add one line to the module of its kind:
`runs` for limits and arguments, `programs` for one program, `configured` for settings, `options`
for the classes that arguments take.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.testing.models import PRICING, ModelDouble, programs
from tallystick.testing.runs import ROOMY, Played, play
from tallystick.testing.sandbox import PlainSandbox

Place = Literal["prompt", "record", "result", "refusal", "output"]


@dataclass(frozen=True)
class World:
    """What a row may use: a folder of its own for each look, and the shared WASM sandbox."""

    wasm: WasmSandbox
    folder: Path

    def fresh(self) -> Path:
        """Return a new, empty folder."""
        return Path(tempfile.mkdtemp(dir=self.folder))


Look = Callable[[World, Any], object]


@dataclass(frozen=True)
class Row:
    """One field. `look` gets a value and returns what the place shows.

    A field of a class is `Class.field`, an argument `method(argument=)`, a setting its name.
    """

    field: str
    place: Place
    first: object
    second: object
    look: Look = dataclasses.field(repr=False)
    slow: bool = False


def refused(work: Callable[[], object]) -> str:
    """Return the error of some work as text; "" if there is none."""
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def ran(
    *sources: str,
    model: Mapping[str, Any] | None = None,
    names: Mapping[str, object] | None = None,
    **more: Any,
) -> Observed:
    """Run a goal whose turns are these programs, on plain Python, and return what it left.

    `model` are arguments of the model, `names` what programs find; the rest is for `play`.
    """
    double = ModelDouble(**{"answers": programs(*sources), **(model or {})})
    given = {"limits": ROOMY, "pricing": PRICING, **more}
    sandbox = given.pop("sandbox", None) or PlainSandbox(names=names)
    return Observed(play(sandbox, double, **given), double)


@dataclass(frozen=True)
class Observed:
    """A run that was played, and the model that was asked, by the places where rows look."""

    played: Played
    model: ModelDouble

    @property
    def prompt(self) -> str:
        """Everything that the model was asked, with what each request asks for."""
        asked = zip(self.model.prompts, self.model.caps, self.model.temperatures, strict=True)
        return "\n".join(f"{text}\n{cap} {temperature}" for text, cap, temperature in asked)

    @property
    def record(self) -> str:
        """The records of the run as lines, without times."""
        return self.played.transcript

    @property
    def result(self) -> tuple[object, ...]:
        """How the run ended, for its caller."""
        run = self.played.run
        return run.answer, run.stop, run.detail.partition(" ms passed")[1], run.partial, run.turns


def told(run: Observed, kinds: Sequence[str] = ()) -> list[str]:
    """Return the kinds of the records of a run, in order; of these alone if any are named."""
    found = [type(each).__name__ for each in run.played.records]
    return [each for each in found if each in kinds] if kinds else found
