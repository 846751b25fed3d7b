"""`tally models`: show which models can be asked from here, and what to set for the others."""

from __future__ import annotations

import asyncio
import dataclasses
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import click
import msgspec

from tallystick.cli.exit_codes import OK
from tallystick.cli.parts import JSON, echo_json, echo_line
from tallystick.core.errors import UsageError
from tallystick.model.http import HttpModel
from tallystick.model.port import ModelError
from tallystick.settings.models import endpoint_of
from tallystick.settings.providers import LOCAL_URL, Provider, ProviderModel
from tallystick.settings.settings import load_settings

_State = Literal["ready", "not asked", "no key", "no address", "no answer", "wrong setting"]

# A person waits for this, and a provider that takes longer is of little use.
_CONNECT_SECONDS = 2.0
_TOTAL_SECONDS = 8.0
_SHOWN_MAX = 3


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """One provider: whether it can be asked, its models, and what to do if it cannot."""

    provider: str
    state: _State
    address: str
    models: Sequence[str] = ()
    advice: str = ""


@click.command("models")
@click.argument("provider", required=False)
@click.option("--offline", is_flag=True, help="Send nothing; show only what is configured.")
@JSON
def command(provider: str | None, offline: bool, as_json: bool) -> int:
    r"""Show which models can be asked from here, and what to set for the others.

    Each provider that has an address, and its key if it needs one, is asked for the list of its
    models. That costs nothing. With PROVIDER, its models are printed one a line, as -m takes them.

    \b
    Exit codes: 0 shown, 2 an unknown provider or a missing key,
    5 the provider did not answer.

    \b
    Example:
        tally models
        tally models ollama
    """
    settings = load_settings()
    if provider is not None:
        return _print_one(provider, settings.providers, offline=offline, as_json=as_json)
    found = asyncio.run(_look_at(list(settings.providers.values()), offline=offline))
    file_engine = importlib.util.find_spec("xllamacpp") is not None
    if as_json:
        default = {"model": settings.model, "aliases": settings.aliases}
        echo_json({**default, "providers": found, "gguf": file_engine})
        return OK
    for line in _lines(found, file_engine=file_engine):
        echo_line(line, indent=23)
    for alias, target in settings.aliases.items():
        echo_line(f"{alias} is short for {target}", indent=4)
    echo_line(_default_line(settings.model), indent=4)
    return OK


def _print_one(
    name: str, providers: Mapping[str, Provider], *, offline: bool, as_json: bool
) -> int:
    """Print the models of one provider. Raise `UsageError` or `ModelError` if that cannot be."""
    if name not in providers:
        raise UsageError(f"no provider {name[:80]!r}; there are {', '.join(sorted(providers))}")
    if offline:
        raise UsageError("--offline shows what is configured, and no names; leave PROVIDER out")
    names = asyncio.run(_ask(providers[name]))
    full = [f"{name}:{each}" for each in names]
    if as_json:
        echo_json(full)
    else:
        for each in full:
            click.echo(each)
    return OK


# -- asking the providers -----------------------------------------------------------------------


async def _look_at(providers: Sequence[Provider], *, offline: bool) -> list[_Found]:
    """Ask all providers at once; return what was found, in their order."""
    return list(await asyncio.gather(*(_look(each, offline=offline) for each in providers)))


async def _look(provider: Provider, *, offline: bool) -> _Found:
    name, address = provider.name, provider.base_url
    if provider.fault:
        return _Found(provider=name, state="wrong setting", address="", advice=provider.fault)
    if not address:
        advice = f"set {LOCAL_URL} to the base URL of an OpenAI-compatible server"
        return _Found(provider=name, state="no address", address="", advice=advice)
    if provider.key_required and not os.environ.get(provider.key_env or ""):
        advice = f"set {provider.key_env}"
        return _Found(provider=name, state="no key", address=address, advice=advice)
    if offline:
        return _Found(provider=name, state="not asked", address=address)
    try:
        models = await _ask(provider)
    except UsageError as error:
        return _Found(provider=name, state="wrong setting", address=address, advice=str(error))
    except ModelError as error:
        return _Found(provider=name, state="no answer", address=address, advice=_advice(error))
    return _Found(provider=name, state="ready", address=address, models=models)


async def _ask(provider: Provider) -> tuple[str, ...]:
    """Return the models that a provider lists. Raise `UsageError` or `ModelError`."""
    # The list is asked for under a name that no model has; the name is not sent.
    endpoint = dataclasses.replace(
        endpoint_of(ProviderModel(provider=provider, model="-"), os.environ),
        connect_seconds=_CONNECT_SECONDS,
        silence_seconds=_TOTAL_SECONDS,
        total_seconds=_TOTAL_SECONDS,
    )
    model = HttpModel(endpoint)
    try:
        return await model.models()
    finally:
        await model.close()


def _advice(error: ModelError) -> str:
    """Return the message of an error without the endpoint it names, which the line shows."""
    return error.message.partition(": ")[2] or error.message


# -- what is printed ----------------------------------------------------------------------------


def _lines(found: Sequence[_Found], *, file_engine: bool) -> Iterator[str]:
    """Write a line for each provider, those that can be asked first."""
    for each in sorted(found, key=lambda one: one.state != "ready"):
        yield f"{each.provider:<11} {each.state:<10} {_last_column(each)}"
    state = "ready" if file_engine else "no engine"
    advice = "-m gguf:PATH" if file_engine else "pip install 'tallystick[gguf]'"
    yield f"{'gguf':<11} {state:<10} {advice}"


def _last_column(found: _Found) -> str:
    if found.state != "ready":
        return found.advice or found.address
    if not found.models:
        return f"{found.address} lists no models; name one with -m {found.provider}:MODEL"
    shown = ", ".join(found.models[:_SHOWN_MAX])
    rest = len(found.models) - _SHOWN_MAX
    more = f" and {rest:,} more: tally models {found.provider}" if rest > 0 else ""
    return f"{shown}{more}"


def _default_line(model: str | None) -> str:
    if model is None:
        return "No model is set: name one with -m PROVIDER:MODEL, or as model in tallystick.toml."
    return f"Runs ask {model}, unless -m names another (tally config says where it is set)."
