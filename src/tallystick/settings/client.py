"""Combine the configuration of a client with the arguments of its caller.

Rule 1: arguments win over everything that is configured.
Rule 2: `RunLimits` does not record which of its fields were given. A field with its default value
counts as not given. The configuration may lower it but not raise it, because the caller may have
meant the default.
Rule 3: the configuration is read once, when it is first needed, and in the same way as by the
command line.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from tallystick.core.budget.amount import Budget
from tallystick.core.charge import RunLimits
from tallystick.core.errors import UsageError
from tallystick.core.strategy import AskedStrategy
from tallystick.model.price_table import Pricing
from tallystick.settings.settings import Settings, load_settings

# The source of settings: "auto" as for the command line, None for no configuration.
Config = Settings | Literal["auto"] | None
ARGUMENT = "argument"

_DEFAULTS = RunLimits()
# The settings that are limits of a run, by the names of its fields.
_LIMITS: Mapping[str, str] = {
    "turns": "max_turns",
    "tokens": "max_tokens",
    "host_calls": "max_host_calls",
    "wall_ms": "timeout",
    "reply_tokens": "reply_tokens",
    "retries": "retries",
    "usd": "max_usd",
}
_PRICES = ("allow_unpriced", "prices", "tokenizer")
# The settings that a client uses; tables by their names.
_TAKEN = frozenset(
    {
        *_LIMITS.values(),
        *_PRICES,
        "aliases",
        "compact_at",
        "model",
        "providers",
        "strategy",
        "temperature",
        "total_usd",
    }
)


class RunSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that apply to one run. `sources` names the source of each that is no default."""

    limits: RunLimits
    strategy: AskedStrategy | None
    temperature: float | None
    compact_at: int | None
    sources: Mapping[str, str]


class ClientSettings:
    """The configuration of one client, read when it is first needed.

    `say` gets each warning then. Raise `UsageError` if `config` is neither settings, "auto" nor
    None.
    """

    def __init__(
        self,
        config: Config,
        *,
        total: Budget | None,
        pricing: Pricing | None,
        say: Callable[[str], None],
    ) -> None:
        if not (config is None or config == "auto" or isinstance(config, Settings)):
            raise UsageError('config: "auto" reads the configuration, None reads none')
        self._config = config
        self._total = total
        self._pricing = pricing
        self._say = say
        self._guard = threading.Lock()
        self._read: Settings | None = config if isinstance(config, Settings) else None

    @property
    def settings(self) -> Settings:
        """The settings that apply; the defaults if there is no configuration.

        The first use raises the errors of `load_settings`, and so does each use until one succeeds.
        """
        with self._guard:
            if self._read is None:
                self._read = load_settings(configured=self._config is not None)
                for warning in self._read.warnings:
                    self._say(f"warning: {warning}")
            return self._read

    @property
    def total(self) -> Budget:
        """The total that applies: the caller's, or else the configured one (see `settings`)."""
        return self.settings.total if self._total is None else self._total

    @property
    def total_given(self) -> bool:
        """True if the total is the caller's, and not from the configuration."""
        return self._total is not None

    def pricing(self, counted: str) -> Pricing:
        """Return the prices that apply: the caller's as they are, or else the configured ones.

        `counted` is the model that the configured tokenizer belongs to, and counts only for these.
        """
        if self._pricing is not None:
            return self._pricing
        return dataclasses.replace(self.settings.pricing, tokenizer_of=counted)

    def for_run(
        self,
        *,
        limits: RunLimits | None,
        strategy: AskedStrategy | None,
        temperature: float | None,
        compact_at: int | None,
        model_given: bool,
    ) -> RunSettings:
        """Return the settings for a new run: arguments first, then the configuration.

        An argument of None was not given; `model_given` says that the model is the caller's. The
        configuration can lower a field of `limits` with its default value, but not raise it (rule
        2). Without a configuration, `sources` is empty. Raise the errors of `load_settings` if the
        configuration is read here and cannot be.
        """
        settings = self.settings
        sources = self._sources()
        given: dict[str, object] = {
            "strategy": strategy,
            "temperature": temperature,
            "compact_at": compact_at,
            "model": model_given or None,
            "total_usd": self._total,
        }
        sources.update({name: ARGUMENT for name, value in given.items() if value is not None})
        if self._pricing is not None:
            sources = {name: each for name, each in sources.items() if name not in _PRICES}
            sources["prices"] = ARGUMENT
        configured = settings.limits
        limits = configured if limits is None else _combine_limits(limits, configured, sources)
        return RunSettings(
            limits=limits,
            strategy=settings.strategy if strategy is None else strategy,
            temperature=settings.temperature if temperature is None else temperature,
            compact_at=settings.compact_at if compact_at is None else compact_at,
            sources={} if self._config is None else dict(sorted(sources.items())),
        )

    def _sources(self) -> dict[str, str]:
        """Return the source of each setting that a run uses and that is no default."""
        found = self.settings.origins.not_default()
        return {name: source for name, source in found.items() if name in _TAKEN}


def _combine_limits(given: RunLimits, configured: RunLimits, sources: dict[str, str]) -> RunLimits:
    """Return the caller's limits, where a default value is lowered to the configured one.

    `sources` is updated: "argument" for a field with another value, and no source for one that
    keeps its default.
    """
    chosen: dict[str, int | None] = {}
    for field, name in _LIMITS.items():
        asked, default = getattr(given, field), getattr(_DEFAULTS, field)
        other = getattr(configured, field)
        if asked != default:
            chosen[field] = asked
            sources[name] = ARGUMENT
        elif other is not None and (default is None or other < default):
            chosen[field] = other
        else:
            chosen[field] = asked
            sources.pop(name, None)
    return msgspec.structs.replace(given, **chosen)
