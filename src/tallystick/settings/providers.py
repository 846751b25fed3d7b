"""Providers and names of models: those built in, those a file adds, and what a name means.

No key is held here. A provider names the variable its key is in; the key is read when a model is
opened, and goes from there to its endpoint alone.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

import msgspec

from tallystick.core.errors import UsageError
from tallystick.model.endpoint import Endpoint
from tallystick.settings.files import ConfigFile
from tallystick.settings.schema import (
    FILE_KINDS,
    PROVIDER_KEYS,
    FileKind,
    ProviderValues,
    Value,
    from_text,
    quoted,
)

LOCAL_URL = "TALLYSTICK_MODEL_URL"
LOCAL_KEY = "TALLYSTICK_MODEL_KEY"

_BUILT_IN: Mapping[str, Mapping[str, Value]] = {
    "openai": {"base_url": "https://api.openai.com/v1", "key_env": "OPENAI_API_KEY"},
    "anthropic": {
        "dialect": "anthropic",
        "base_url": "https://api.anthropic.com",
        "key_env": "ANTHROPIC_API_KEY",
    },
    "openrouter": {"base_url": "https://openrouter.ai/api/v1", "key_env": "OPENROUTER_API_KEY"},
    "ollama": {"base_url": "http://127.0.0.1:11434/v1"},
    "lmstudio": {"base_url": "http://127.0.0.1:1234/v1"},
    "vllm": {"base_url": "http://127.0.0.1:8000/v1"},
    "llamacpp": {"base_url": "http://127.0.0.1:8080/v1"},
    "local": {"key_env": LOCAL_KEY},
}
# Addresses in the environment. The first is ours; the others are shared with the vendors' tools.
_URL_VARIABLES = {
    "local": LOCAL_URL,
    "openai": "OPENAI_BASE_URL",
    "anthropic": "ANTHROPIC_BASE_URL",
}


class Provider(ProviderValues, frozen=True, kw_only=True):
    """Where models are asked, and where each of these values came from.

    An empty `base_url` means that it has no address yet; `fault` says why one cannot be used.
    """

    name: str
    key_required: bool
    sources: Mapping[str, str]
    fault: str = ""

    @property
    def is_loopback(self) -> bool:
        """Whether what is asked stays on this machine."""
        if not self.base_url:
            return True
        return Endpoint(
            provider=self.name, dialect=self.dialect, base_url=self.base_url, model="-"
        ).is_loopback

    def value_of(self, key: str) -> Value:
        value: Value = getattr(self, key)
        return value


def merged_providers(
    *, user: ConfigFile | None, project: ConfigFile | None, environ: Mapping[str, str]
) -> dict[str, Provider]:
    """Every provider, each of its values from the highest place that sets it."""
    files = [file for file in (user, project) if file is not None]
    named = dict.fromkeys([*_BUILT_IN, *(name for file in files for name in file.providers)])
    return {name: _merged(name, files, environ) for name in named}


def _merged(name: str, files: list[ConfigFile], environ: Mapping[str, str]) -> Provider:
    values = dict(_BUILT_IN.get(name, {}))
    sources = dict.fromkeys(PROVIDER_KEYS, "default")
    for file in files:
        given = file.providers.get(name, {})
        values.update(given)
        sources.update(dict.fromkeys(given, file.shown_path))
    fault = ""
    variable = _URL_VARIABLES.get(name, "")
    if environ.get(variable):
        sources["base_url"] = f"environment {variable}"
        try:
            values["base_url"] = from_text(
                PROVIDER_KEYS["base_url"], environ[variable], variable=variable
            )
        except UsageError as error:
            # A variable of other tools may hold what only they can use. That is an error for who
            # asks this provider, not for everybody.
            if variable == LOCAL_URL:
                raise
            values["base_url"], fault = "", str(error)
    if not values.get("base_url") and name not in _BUILT_IN:
        file = next(file for file in reversed(files) if name in file.providers)
        raise UsageError(f"{file.shown_path}: providers.{name}: base_url is missing")
    optional = name == "local" and sources["key_env"] == "default"
    found: Provider = msgspec.convert(
        {
            **values,
            "name": name,
            "key_required": bool(values.get("key_env")) and not optional,
            "sources": sources,
            "fault": fault,
        },
        Provider,
    )
    return found


# Names of models: what `-m`, a variable or a file may say, and what is meant by it.


_KINDS: dict[str, FileKind] = {kind: kind for kind in FILE_KINDS}
_FORMS = "PROVIDER:MODEL, gguf:PATH, scripted:FILE or recorded:RUN"
# Names that say whose they are.
_BARE = ((re.compile(r"gpt-|o[134](-|$)"), "openai"), (re.compile(r"claude-"), "anthropic"))


class FileModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of this machine: a file, or a run of the ledger."""

    kind: FileKind
    rest: str


class ProviderModel(msgspec.Struct, frozen=True, kw_only=True):
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
