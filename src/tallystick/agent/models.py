"""Find the models of an agent by their names, and open those that were only named."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tallystick.core.errors import UsageError

if TYPE_CHECKING:
    from tallystick.core.records import RunStarted
    from tallystick.ledger.port import Ledger
    from tallystick.model.port import Model
    from tallystick.runtime.calls.queries import FindModel
    from tallystick.settings.client import ClientSettings


def models_for_programs(
    own: Model,
    others: Mapping[str, Model],
    sub: Callable[[], Model] | None = None,
    full_name: Callable[[str], str] = str,
) -> FindModel:
    """Return the function that finds the models for programs.

    A call without a name asks `sub`, which is opened when it is first needed, or else the run's
    own model. By name, the run's own, `others` and `sub` are tried in this order, first by the name
    as it is given and then by its `full_name`, which an alias stands for. It raises `UsageError`
    for any other name. `sub` may be opened to learn its name, and its errors are raised.
    """

    def find_known(name: str) -> Model | None:
        if name == own.name:
            return own
        if name in others:
            return others[name]
        recorded = next((each for each in others.values() if each.name == name), None)
        if recorded is None and sub is not None and name == sub().name:
            return sub()
        return recorded

    def find(name: str | None) -> Model:
        if name is None:
            return own if sub is None else sub()
        found = find_known(name) or find_known(full_name(name))
        if found is not None:
            return found
        known = ", ".join([own.name, *([] if sub is None else [sub().name]), *others])
        raise UsageError(f"model {name[:80]!r} is not for programs; known are: {known}")

    return find


class AgentModels:
    """The models of one agent: its own, those that programs may ask, and those opened by name.

    `own` is a model, a callable that replies, or a name, which is opened when it is needed. `own`
    None is the configured one. `others` are further ones by name. Models that were opened here are
    closed with this object. Any thread may ask.
    """

    def __init__(
        self,
        own: object,
        others: Mapping[str, object],
        *,
        settings: ClientSettings,
        ledger: Callable[[], Ledger],
    ) -> None:
        from tallystick.agent.model_function import as_model
        from tallystick.model.pacing import Pacing

        self._own = None if own is None or isinstance(own, str) else as_model(own)
        self._own_name = own if isinstance(own, str) else None
        self.own_given = own is not None
        self.others: dict[str, Model] = {name: as_model(each) for name, each in others.items()}
        self._settings = settings
        self._ledger = ledger
        self._pacing = Pacing()
        self._by_name: dict[str, Model] = {}
        self._owned: list[Model] = []
        # Two threads that start runs must not open one model twice.
        self._guard = threading.RLock()

    @property
    def name(self) -> str:
        """The name of the agent's own model, as far as it is known without opening one."""
        return self._own.name if self._own is not None else self._own_name or "configured"

    def use(self, model: Model, *, owned: bool = False, configured: bool = False) -> None:
        """Use another model for the next runs.

        An `owned` model is closed with this object, also after another one has replaced it.
        `configured` says that it is the model of the configuration, opened by the caller.
        """
        with self._guard:
            self._own, self._own_name = model, None
            self.own_given = not configured
            if owned:
                self._owned.append(model)

    def named(self, model: object) -> str:
        """Return the name by which `of` finds a model that was given for one run.

        Raise `UsageError` for what is no model, and if another model has its name.
        """
        from tallystick.agent.model_function import as_model

        made = as_model(model)
        with self._guard:
            known = [each for each in (self._own, *self._known()) if each is not None]
            if any(each.name == made.name and each is not made for each in known):
                raise UsageError(
                    f"model: another model of this agent is called {made.name!r}; rename this one"
                )
            self._by_name[made.name] = made
        return made.name

    def of(self, name: str | None) -> Model:
        """Return a model by its name; the agent's own for None.

        Raise `UsageError` if the name cannot be opened, or if there is no own model, and the errors
        of `load_settings`.
        """
        with self._guard:
            if name is None or (self._own is not None and self._own.name == name):
                if self._own is None:
                    self._own = self._open(self._own_name or self._settings.settings.model)
                return self._own
            if name in self.others:
                return self.others[name]
            if name not in self._by_name:
                self._by_name[name] = self._open(name)
            return self._by_name[name]

    def for_programs(self, own: Model, sub: Callable[[], Model] | None) -> FindModel:
        """Return the function that finds the models which programs of a run may ask."""
        return models_for_programs(own, self.others, sub, self._full_name)

    def sub_model_of(
        self, named: str | None, run: str | None, recorded: RunStarted | None
    ) -> Callable[[], Model] | None:
        """Return the function that opens the model of sub-calls; None if it is the run's own.

        A recorded run says which it was; `named` says where that is found. A recorded run that
        cannot be read counts as having none. Raise `UsageError` if one is named for a recorded run
        that had none.
        """
        was = None if recorded is None else recorded.sub_model
        if run is not None and not isinstance(was, str):
            if named is not None:
                raise UsageError(f"run {run} was begun without a model for its sub-calls")
            return None
        name = named or (was if isinstance(was, str) else None)
        if name is None:
            return None

        def open_sub_model() -> Model:
            return next((each for each in self._known() if each.name == name), None) or self.of(
                name
            )

        return open_sub_model

    def recorded(self, name: str | None, sub: Callable[[], Model] | None = None) -> Model:
        """Return the model that a recorded run names, or the agent's own if it is unknown here.

        If the agent was not given a model of its own, the named one is opened. The caller compares
        the name of what is returned. Raise what `of` raises.
        """
        if sub is not None and name is not None and (own := sub()).name == name:
            return own
        if self._own is None and self._own_name is None:
            found = next((each for each in self._known() if each.name == name), None)
            return found or self.of(name)
        own = self.of(None)
        return next((each for each in (own, *self._known()) if each.name == name), own)

    def owned(self) -> list[Model]:
        """Return the models that were opened here or given as owned, and forget them.

        The caller closes them.
        """
        with self._guard:
            self._by_name.clear()
            owned, self._owned = self._owned, []
        return owned

    def _known(self) -> list[Model]:
        return [*self.others.values(), *self._by_name.values()]

    def _open(self, name: str | None) -> Model:
        from tallystick.runtime.runs.history import recorded_model
        from tallystick.settings.models import open_model

        opened = open_model(
            name,
            self._settings.settings,
            pacing=self._pacing,
            recorded=lambda run: recorded_model(self._ledger(), run),
        )
        self._owned.append(opened)
        return opened

    def _full_name(self, name: str) -> str:
        """Return the name that a run records for a model, by the aliases of the settings.

        Raise the errors of `load_settings`.
        """
        from tallystick.settings.models import recorded_name

        return recorded_name(name, self._settings.settings)
