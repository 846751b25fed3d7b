"""Names of models: what `-m`, a variable or a file may say, and what is meant by it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tallystick.core.errors import UsageError
from tallystick.runtime.config_keys import FILE_KINDS, FileKind, quoted
from tallystick.runtime.providers import Provider

__all__ = ["FileModel", "ProviderModel", "bare_provider", "resolve_model"]

_KINDS: dict[str, FileKind] = {kind: kind for kind in FILE_KINDS}
_FORMS = "PROVIDER:MODEL, gguf:PATH, scripted:FILE or recorded:RUN"
# Names that say whose they are.
_BARE = ((re.compile(r"gpt-|o[134](-|$)"), "openai"), (re.compile(r"claude-"), "anthropic"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileModel:
    """A model of this machine: a file, or a run of the ledger."""

    kind: FileKind
    rest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderModel:
    """A model that is asked at a provider."""

    provider: Provider
    model: str


def resolve_model(
    name: str, *, aliases: Mapping[str, str], providers: Mapping[str, Provider]
) -> FileModel | ProviderModel:
    """What a name means. An alias stands for a whole name, never for another alias."""
    target = aliases.get(name, name)
    kind, colon, rest = target.partition(":")
    if not colon:
        return _bare(name, aliases, providers)
    if not rest:
        raise UsageError(f"model {quoted(name)}: nothing after the colon; use {_FORMS}")
    if kind in _KINDS:
        return FileModel(kind=_KINDS[kind], rest=rest)
    if kind not in providers:
        raise UsageError(f"model {quoted(target)}: {_no_provider(kind, providers)}")
    return ProviderModel(provider=providers[kind], model=rest)


def bare_provider(name: str) -> str | None:
    """Whose model a name without a provider is, if the name itself says so."""
    return next((provider for pattern, provider in _BARE if pattern.match(name)), None)


def _bare(
    name: str, aliases: Mapping[str, str], providers: Mapping[str, Provider]
) -> ProviderModel:
    # A server of one's own may call its models anything, so all names are its.
    own = "local" if providers["local"].base_url else bare_provider(name)
    if own is not None:
        return ProviderModel(provider=providers[own], model=name)
    close = difflib.get_close_matches(name[:80], aliases, n=1)
    hint = f"did you mean {close[0]}?" if close else f"use {_FORMS}, or an alias"
    raise UsageError(f"model {quoted(name)} is not known; {hint}")


def _no_provider(kind: str, providers: Mapping[str, Provider]) -> str:
    close = difflib.get_close_matches(kind[:80], [*providers, *_KINDS], n=1, cutoff=0.75)
    if close:
        return f"no provider {quoted(kind)}; did you mean {close[0]}?"
    if providers["local"].base_url:
        return f"no provider {quoted(kind)}; for the local server write local:MODEL"
    return f"no provider {quoted(kind)}; there are {', '.join(sorted(providers))}"
