"""Providers and model names: the built-in ones, those that a file adds, and what a name means.

No key is kept here. A provider names the variable of its key. The key is read when a model is
opened, and handed to its endpoint alone.
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
    quote,
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
# Variables with addresses. The first is tallystick's own; the vendors' tools use the others too.
_URL_VARIABLES = {
    "local": LOCAL_URL,
    "openai": "OPENAI_BASE_URL",
    "anthropic": "ANTHROPIC_BASE_URL",
}


class Provider(ProviderValues, frozen=True, kw_only=True):
    """A provider of models, and the source of each of its values.

    An empty `base_url` means that it has no address yet; `fault` says why one cannot be used.
    """

    name: str
    key_required: bool
    sources: Mapping[str, str]
    fault: str = ""

    @property
    def is_loopback(self) -> bool:
        """True if what is sent stays on this machine, or nothing can be sent yet.

        No name is resolved.
        """
        if not self.base_url:
            return True
        return Endpoint(
            provider=self.name, dialect=self.dialect, base_url=self.base_url, model="-"
        ).is_loopback

    def value_of(self, key: str) -> Value:
        value: Value = getattr(self, key)
        return value


def merge_providers(
    *, user: ConfigFile | None, project: ConfigFile | None, environ: Mapping[str, str]
) -> dict[str, Provider]:
    """Return every provider, each of its values from the highest place that sets it.

    The places are, from the highest: the environment, the project's file, the user's file, the
    built-in values. Raise `UsageError` if `TALLYSTICK_MODEL_URL` is not valid, or a provider of a
    file has no address. An address in a variable of other tools that is not valid becomes the
    `fault` of its provider.
    """
    files = [file for file in (user, project) if file is not None]
    named = dict.fromkeys([*_BUILT_IN, *(name for file in files for name in file.providers)])
    return {name: _merge_provider(name, files, environ) for name in named}


def _merge_provider(name: str, files: list[ConfigFile], environ: Mapping[str, str]) -> Provider:
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
            # A variable of other tools may have a value that only they can use. That is an error
            # when this provider is used, not for every command.
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


_KINDS: dict[str, FileKind] = {kind: kind for kind in FILE_KINDS}
_FORMS = "PROVIDER:MODEL, gguf:PATH, scripted:FILE or recorded:RUN"
# Names that identify their provider.
_BARE = ((re.compile(r"gpt-|o[134](-|$)"), "openai"), (re.compile(r"claude-"), "anthropic"))


class FileModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of this machine: a file, or a run of the ledger."""

    kind: FileKind
    rest: str


class ProviderModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model at a provider."""

    provider: Provider
    model: str


def resolve_model(
    name: str, *, aliases: Mapping[str, str], providers: Mapping[str, Provider]
) -> FileModel | ProviderModel:
    """Return what a name means. An alias stands for a whole name, never for another alias.

    A name without a colon is a model of the local server if that has an address. Else its beginning
    decides: `gpt-`, `o1`, `o3`, `o4` or `claude-`. Raise `UsageError` if the name is not known.
    """
    target = aliases.get(name, name)
    kind, colon, rest = target.partition(":")
    if not colon:
        return _resolve_bare(name, aliases, providers)
    if not rest:
        raise UsageError(f"model {quote(name)}: nothing after the colon; use {_FORMS}")
    if kind in _KINDS:
        return FileModel(kind=_KINDS[kind], rest=rest)
    if kind not in providers:
        raise UsageError(f"model {quote(target)}: {_no_provider(kind, providers)}")
    return ProviderModel(provider=providers[kind], model=rest)


def bare_provider(name: str) -> str | None:
    """Return the provider that a name without one identifies; None if it identifies none."""
    return next((provider for pattern, provider in _BARE if pattern.match(name)), None)


def _resolve_bare(
    name: str, aliases: Mapping[str, str], providers: Mapping[str, Provider]
) -> ProviderModel:
    # A user's own server may give its models any names, so a bare name is one of its models.
    own = "local" if providers["local"].base_url else bare_provider(name)
    if own is not None:
        return ProviderModel(provider=providers[own], model=name)
    close = difflib.get_close_matches(name[:80], aliases, n=1)
    hint = f"did you mean {close[0]}?" if close else f"use {_FORMS}, or an alias"
    raise UsageError(f"model {quote(name)} is not known; {hint}")


def _no_provider(kind: str, providers: Mapping[str, Provider]) -> str:
    close = difflib.get_close_matches(kind[:80], [*providers, *_KINDS], n=1, cutoff=0.75)
    if close:
        return f"no provider {quote(kind)}; did you mean {close[0]}?"
    if providers["local"].base_url:
        return f"no provider {quote(kind)}; for the local server write local:MODEL"
    return f"no provider {quote(kind)}; there are {', '.join(sorted(providers))}"
