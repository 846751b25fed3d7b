"""The models of a session's runs: those that programs may ask, and those opened by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tallystick.core.errors import UsageError
from tallystick.ledger.port import Ledger
from tallystick.model.port import Model
from tallystick.runtime.desk import FindModel

__all__ = ["models_for_programs", "opened_by_name"]


def models_for_programs(own: Model, others: Mapping[str, Model]) -> FindModel:
    """The models that programs may ask: the run's own, and those that were given by name."""

    def find(name: str | None) -> Model:
        if name is None or name == own.name:
            return own
        if name not in others:
            known = ", ".join([own.name, *others])
            raise UsageError(f"model {name[:80]!r} is not for programs; known are: {known}")
        return others[name]

    return find


def opened_by_name(name: str, ledger: Callable[[], Ledger]) -> Model:
    """A model that is opened as the settings say."""
    # Names are resolved above this module, which recorded models read.
    from tallystick.model.pacing import Pacing
    from tallystick.runtime.models import open_model
    from tallystick.runtime.settings import load_settings

    settings = load_settings(flags={"model": name})
    return open_model(settings.model, settings, pacing=Pacing(), ledger=ledger)
