"""Models by name: from what the settings say to a backend that can be asked.

Here, and only here, a key is read from the environment. It is handed to the endpoint, which binds
it to its address; no setting, listing or error ever holds it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from tallystick.core.errors import UsageError
from tallystick.model.endpoint import Endpoint, Secret
from tallystick.settings.providers import LOCAL_URL, Provider, ProviderModel, resolve_model

# Each kind of model is imported when one is opened: most runs have one, of one kind.
if TYPE_CHECKING:
    from tallystick.model.pacing import Pacing
    from tallystick.model.port import Model
    from tallystick.settings.settings import Settings


def open_model(
    name: str | None,
    settings: Settings,
    *,
    pacing: Pacing,
    recorded: Callable[[str], Model],
    environ: Mapping[str, str] = os.environ,
) -> Model:
    """Open a model by its name; nothing is asked of it yet. `recorded` opens that of a run.

    Models that share one `pacing` wait for a provider together.
    """
    if name is None:
        raise UsageError(no_model_message(settings))
    found = resolve_model(name, aliases=settings.aliases, providers=settings.providers)
    if isinstance(found, ProviderModel):
        from tallystick.model.http import HttpModel

        endpoint = endpoint_of(found, environ)
        return HttpModel(endpoint, pacing.gate(endpoint))
    match found.kind:
        case "scripted":
            from tallystick.model.scripted import ScriptedModel

            return ScriptedModel.from_file(_path(found.rest, environ))
        case "recorded":
            return recorded(found.rest)
        case "gguf":
            from tallystick.model.gguf import GgufModel

            return GgufModel.from_file(_path(found.rest, environ))
        case _:
            assert_never(found.kind)


def endpoint_of(named: ProviderModel, environ: Mapping[str, str]) -> Endpoint:
    """Where a provider's model is asked, with its key."""
    provider = named.provider
    if provider.fault:
        raise UsageError(provider.fault)
    if not provider.base_url:
        raise UsageError(
            f"provider {provider.name} has no address; set {LOCAL_URL} to the base URL of an "
            f"OpenAI-compatible server, such as http://127.0.0.1:8080/v1"
        )
    return Endpoint(
        provider=provider.name,
        dialect=provider.dialect,
        base_url=provider.base_url,
        model=named.model,
        key=_key(provider, environ),
        connect_seconds=provider.connect_seconds,
        silence_seconds=provider.silence_seconds,
        total_seconds=provider.total_seconds,
        concurrency=provider.concurrency,
        stream=provider.stream,
        allow_plain_http=provider.allow_plain_http,
    )


def no_model_message(settings: Settings) -> str:
    """What to do when no model is set."""
    if settings.providers["local"].base_url:
        return f"no model: {LOCAL_URL} names a server; name a model of it with -m MODEL"
    return (
        "no model; there are three ways to get one: a provider with its key (set OPENAI_API_KEY, "
        f"-m openai:gpt-5-mini), a local server (-m ollama:MODEL, or set {LOCAL_URL}, -m MODEL), "
        "or a file (pip install 'tallystick[gguf]', -m gguf:PATH); tally demo needs none"
    )


def _key(provider: Provider, environ: Mapping[str, str]) -> Secret | None:
    variable = provider.key_env
    value = environ.get(variable) if variable else None
    if value:
        try:
            return Secret(value)
        except UsageError as error:
            raise UsageError(f"{variable}: {error}") from None
    if provider.key_required:
        raise UsageError(f"provider {provider.name} needs a key; set {variable} to it")
    return None


def _path(named: str, environ: Mapping[str, str]) -> str:
    """A path as it was written. A shell does not see the `~` behind a colon."""
    if named.startswith("~/") and environ.get("HOME"):
        return str(Path(environ["HOME"]) / named[2:])
    return named
