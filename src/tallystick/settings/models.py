"""Open models by name: from what the settings say to a backend that can be called.

Keys are read from the environment here and nowhere else. A key is handed to the endpoint, which
binds it to its address. No setting, listing or error contains it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from tallystick.core.errors import UsageError
from tallystick.model.dialect import table_of
from tallystick.model.endpoint import Endpoint, Secret
from tallystick.settings.providers import LOCAL_URL, Provider, ProviderModel, resolve_model

# Each kind of model is imported when one is opened: most runs use a single kind.
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
    """Open a model by its name; no request is sent yet. `recorded` opens that of a recorded run.

    Models that share one `pacing` share the waits for their provider. Raise `UsageError` if there
    is no name, if it is not known, or if its settings, its key or its file cannot be used. What
    `recorded` raises is passed on.
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


def recorded_name(name: str, settings: Settings) -> str:
    """Return the name that runs record for a model: what an alias or a short name stands for.

    A name that means no model here is returned as it is. Nothing is opened.
    """
    try:
        found = resolve_model(name, aliases=settings.aliases, providers=settings.providers)
    except UsageError:
        return name
    if isinstance(found, ProviderModel):
        return f"{found.provider.name}:{found.model}"
    rest = Path(found.rest).name if found.kind == "gguf" else found.rest
    return f"{found.kind}:{rest}"


def endpoint_of(named: ProviderModel, environ: Mapping[str, str]) -> Endpoint:
    """Return the endpoint of a provider's model, with its key.

    Raise `UsageError` if the provider has no usable address, or needs a key or a variable that is
    not set or cannot be sent.
    """
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
        cache=provider.cache,
        headers=_headers(provider, environ),
        query=provider.query,
        body=provider.body,
    )


def no_model_message(settings: Settings) -> str:
    """Return the advice for a missing model, which depends on whether a local server is named."""
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


def _headers(
    provider: Provider, environ: Mapping[str, str]
) -> tuple[tuple[str, str | Secret], ...]:
    """Return the headers of a provider, with the values of the variables that they name.

    A value from a variable counts as a key: it is never shown. Raise `UsageError` for a variable
    that is not set, and for a value that cannot be sent.
    """
    found: list[tuple[str, str | Secret]] = []
    for name, value in table_of(provider.headers).items():
        text = str(value)
        if not text.startswith("$"):
            found.append((name, text))
            continue
        if not environ.get(text[1:]):
            raise UsageError(
                f"provider {provider.name}: the header {name} needs the variable {text[1:]}"
            )
        try:
            found.append((name, Secret(environ[text[1:]])))
        except UsageError as error:
            raise UsageError(f"provider {provider.name}: {text[1:]}: {error}") from None
    return tuple(found)


def _path(named: str, environ: Mapping[str, str]) -> str:
    """Return a path with `~/` expanded: a shell does not expand it after a colon."""
    if named.startswith("~/") and environ.get("HOME"):
        return str(Path(environ["HOME"]) / named[2:])
    return named
