"""Load the settings, and record the source of each.

The sources, from the highest: a flag, the environment, a project's file, the user's file, the
default. The highest that sets a value wins. A project's file counts in full only if the user trusts
it (see `trust`).
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from tallystick.core.budget.amount import Budget
from tallystick.core.charge import RunLimits, nano_usd
from tallystick.core.errors import UsageError
from tallystick.core.strategy import AskedStrategy
from tallystick.model.price_table import PriceTable, Pricing
from tallystick.model.tokens import FileTokenizer
from tallystick.settings.files import (
    PROJECT_FILE,
    ConfigFile,
    config_directory,
    find_project_file,
    read_config,
    user_file_path,
)
from tallystick.settings.paths import cache_directory, data_directory
from tallystick.settings.providers import (
    LOCAL_KEY,
    LOCAL_URL,
    Provider,
    ProviderModel,
    merge_providers,
    resolve_model,
)
from tallystick.settings.schema import (
    PROVIDER_KEYS,
    SETTINGS,
    SKILLS_BUDGET,
    Value,
    Values,
    check_value,
    from_text,
    one_line,
)
from tallystick.settings.trust import Restricted, TrustState, TrustStore, narrow


class SkillSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of skills: directories, policy on signatures, size of the catalog.

    `of_project` is True if a project's file named the `paths`. Trust in that file covers the names
    of the directories, but not their future content, so skills in them need trust as well. `budget`
    is in characters.
    """

    paths: tuple[str, ...] = ()
    of_project: bool = False
    require_signature: bool = False
    budget: int = SKILLS_BUDGET


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting as it is shown: its value as text, and its source. Never contains a key."""

    name: str
    value: str
    source: str


def listed_values(values: Mapping[str, Value], sources: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the settings of `SETTINGS` in their order; the text of one that is not set is ""."""
    for name in SETTINGS:
        yield Setting(
            name=name,
            value=_text_of(values.get(name, "")),
            source=sources.get(name, "default"),
        )


def listed_places(environ: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the directories of caches and data, which only the environment sets.

    Their source is the variable that counts: a relative path in an XDG variable does not.
    """
    places = {
        "cache": (cache_directory(environ), ("TALLYSTICK_CACHE_DIR", "XDG_CACHE_HOME")),
        "data": (data_directory(environ), ("TALLYSTICK_DATA_DIR", "XDG_DATA_HOME")),
    }
    for name, (path, variables) in places.items():
        variable = next((each for each in variables if _names_place(each, environ)), None)
        source = f"environment {variable}" if variable else "default"
        yield Setting(name=name, value=one_line(str(path)), source=source)


def _names_place(variable: str, environ: Mapping[str, str]) -> bool:
    named = environ.get(variable, "")
    return Path(named).is_absolute() if variable.startswith("XDG_") else bool(named)


def listed_providers(
    providers: Mapping[str, Provider], environ: Mapping[str, str]
) -> Iterator[Setting]:
    """Yield the values of every provider, by name.

    In place of `key_env` comes `key`: whether one is set, and its variable. An address that cannot
    be used is not shown.
    """
    for name, provider in sorted(providers.items()):
        for key in PROVIDER_KEYS:
            source = provider.sources[key]
            if key == "key_env":
                yield Setting(
                    name=f"providers.{name}.key", value=_key_text(provider, environ), source=source
                )
            else:
                value = _text_of(provider.value_of(key))
                if key == "base_url" and provider.fault:
                    value = "cannot be used"
                yield Setting(name=f"providers.{name}.{key}", value=value, source=source)


def restricted_lines(
    file: ConfigFile, restricted: Iterable[Restricted], providers: Mapping[str, Provider]
) -> Iterator[str]:
    """Yield what trust in a file would let it set, and which keys would go where.

    For the user who decides about trust.
    """
    for each in restricted:
        table, _, name = each.name.partition(".")
        if table == "providers":
            yield from _provider_lines(file, providers[name])
        elif table == "prices":
            yield f"{each.name} is declared"
        else:
            value = file.aliases[name] if table == "aliases" else file.values[each.name]
            yield f"{each.name} = {_text_of(value)}" + (f"  ({each.why})" if each.why else "")


def _provider_lines(file: ConfigFile, provider: Provider) -> Iterator[str]:
    given = file.providers[provider.name]
    for key, value in given.items():
        yield f"providers.{provider.name}.{key} = {_text_of(value)}"
    if provider.key_env and provider.base_url and {"base_url", "key_env"} & given.keys():
        yield f"  the key in {provider.key_env} would be sent to {provider.base_url}"


def _text_of(value: Value) -> str:
    """Return a value as a person would write it."""
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return str(int(value)) if value.is_integer() else str(value)
        case tuple():
            return ", ".join(value)
        case str():
            # Escaped: some of these are paths, whose names may contain control characters.
            return one_line(value)
        case _:
            return str(value)


def _key_text(provider: Provider, environ: Mapping[str, str]) -> str:
    """Return whether there is a key, and its variable; nothing of the key itself."""
    if not provider.key_env:
        return "none"
    state = "set" if environ.get(provider.key_env) else "not set"
    return f"{state} ({provider.key_env})"


_PREFIX = "TALLYSTICK_"
_DEFAULT_SOURCE = "default"
# Variables of tallystick that set no value of `SETTINGS`.
OTHER_VARIABLES = (
    LOCAL_KEY,
    LOCAL_URL,
    "TALLYSTICK_CACHE_DIR",
    "TALLYSTICK_CONFIG",
    "TALLYSTICK_DATA_DIR",
    "TALLYSTICK_SKILLS",
)
_IGNORED_SHOWN_MAX = 8
# Variables that name directories and files.
_PLACES = (
    "HOME",
    "TALLYSTICK_CACHE_DIR",
    "TALLYSTICK_CONFIG",
    "TALLYSTICK_DATA_DIR",
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
)


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """A project's file, the parts that need trust, and the providers as if it were trusted."""

    file: ConfigFile
    state: TrustState
    restricted: tuple[Restricted, ...]
    providers: Mapping[str, Provider]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every setting that applies. Instead of keys it has the names of their variables."""

    model: str | None
    limits: RunLimits
    temperature: float | None
    strategy: AskedStrategy | None
    compact_at: int | None
    session_bytes: int
    grants: tuple[str, ...]
    aliases: Mapping[str, str]
    providers: Mapping[str, Provider]
    pricing: Pricing
    total: Budget
    project: Project | None
    warnings: tuple[str, ...]
    origins: Origins = field(compare=False, repr=False)
    skills: SkillSettings
    memory: str | None = None
    clock: str = "now"
    timezone: str = "UTC"

    def listed(self) -> list[Setting]:
        """Return every setting with its value and its source, in the order of `tally config`."""
        return list(self.origins.listed())


class _Layer(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one source, and the name of that source for each."""

    values: Mapping[str, Value]
    sources: Mapping[str, str]
    aliases: Mapping[str, str]


class Origins(msgspec.Struct, frozen=True, kw_only=True):
    """The sources of all settings, formatted only when they are listed.

    Of the environment it keeps the variables that name directories, and no key.
    """

    values: Mapping[str, Value]
    sources: Mapping[str, str]
    layers: Sequence[_Layer]
    user: ConfigFile | None
    project: Project | None
    providers: Mapping[str, Provider]
    environ: Mapping[str, str]

    def listed(self) -> Iterator[Setting]:
        """Yield every setting with its value and its source, in the order of `tally config`."""
        yield from listed_values(self.values, self.sources)
        yield from listed_places(self.environ)
        yield from _listed_files(self.environ, self.user, self.project)
        yield from _listed_aliases(self.layers)
        yield from _listed_prices(self.user, self.project)
        yield from listed_providers(self.providers, self.environ)

    def not_default(self) -> dict[str, str]:
        """Return the source of each setting that is no default; of a table, all its sources.

        The tables are `aliases`, `prices` and `providers`. Several sources are joined by commas.
        """
        places: dict[str, list[str]] = {
            name: [source] for name, source in self.sources.items() if source != _DEFAULT_SOURCE
        }
        for each in (*_listed_aliases(self.layers), *_listed_prices(self.user, self.project)):
            places.setdefault(each.name.partition(".")[0], []).append(each.source)
        for _, provider in sorted(self.providers.items()):
            found = (provider.sources[key] for key in PROVIDER_KEYS)
            of_files = [each for each in found if each != _DEFAULT_SOURCE]
            if of_files:
                places.setdefault("providers", []).extend(of_files)
        return {name: ", ".join(dict.fromkeys(found)) for name, found in places.items()}


_DEFAULT = _Layer(
    values={name: each.default for name, each in SETTINGS.items() if each.default is not None},
    sources=dict.fromkeys(SETTINGS, _DEFAULT_SOURCE),
    aliases={},
)


def load_settings(
    *,
    flags: Mapping[str, object] | None = None,
    environ: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
    configured: bool = True,
) -> Settings:
    """Read all settings once. A flag that is None or an empty list counts as not given.

    The project's file is searched for from `cwd` on, None for the working directory. If not
    `configured`, no file is read, and no variable except those of providers' addresses. Raise
    `UsageError` if a flag, a variable, a file or the tokenizer is not valid, or a variable looks
    like a misspelt setting. Raise `StoreError` if the record of trust cannot be read.
    """
    above = [_flags_layer(flags or {}), *([_environment_layer(environ)] if configured else [])]
    user = _user_file(environ) if configured else None
    below = [_DEFAULT] if user is None else [_file_layer(user, user.values, user.aliases), _DEFAULT]
    file = _project_file(environ, cwd) if configured else None
    project, layers = None, [*above, *below]
    if file is not None:
        project, layer = _place_project(file, user=user, below=below, environ=environ)
        layers = [*above, layer, *below]
    providers = (
        project.providers
        if project is not None and project.state == "trusted"
        else merge_providers(user=user, project=None, environ=environ)
    )
    found, sources = _merge_layers(layers)
    values: Values = msgspec.convert(found, Values)
    aliases = {name: target for each in reversed(layers) for name, target in each.aliases.items()}
    return Settings(
        model=values.model,
        limits=_limits(values),
        temperature=values.temperature,
        strategy=values.strategy,
        compact_at=values.compact_at,
        session_bytes=values.session_mb * 1024 * 1024,
        grants=values.grants,
        aliases=aliases,
        providers=providers,
        pricing=Pricing(
            declared=_prices(user, project),
            waived=values.allow_unpriced,
            tokenizer=FileTokenizer.from_file(values.tokenizer) if values.tokenizer else None,
        ),
        total=Budget(usd=_usd(values.total_usd)),
        project=project,
        warnings=_warnings(project),
        origins=Origins(
            values=found,
            sources=sources,
            layers=layers,
            user=user,
            project=project,
            providers=providers,
            environ=_without_keys(environ, providers),
        ),
        skills=SkillSettings(
            paths=values.skills_paths,
            of_project=bool(values.skills_paths)
            and file is not None
            and sources.get("skills_paths") == file.shown_path,
            require_signature=values.skills_require_signature,
            budget=values.skills_budget,
        ),
        memory=values.memory,
        clock=values.clock,
        timezone=values.timezone,
    )


def _without_keys(environ: Mapping[str, str], providers: Mapping[str, Provider]) -> dict[str, str]:
    """Return the variables that name directories, and "set" for those that hold keys."""
    kept = {name: environ[name] for name in _PLACES if name in environ}
    keys = (each.key_env for each in providers.values())
    return kept | {name: "set" for name in keys if name and environ.get(name)}


# -- the sources --------------------------------------------------------------------------------


def _flags_layer(flags: Mapping[str, object]) -> _Layer:
    values = {}
    for name, value in flags.items():
        if name not in SETTINGS:
            raise UsageError(f"{one_line(name)} is not a setting")
        if value is not None and value != () and value != []:
            spec = SETTINGS[name]
            values[name] = check_value(spec.kind, value, where="", key=spec.flag)
    return _Layer(
        values=values,
        sources={name: f"flag {SETTINGS[name].flag}" for name in values},
        aliases={},
    )


def _environment_layer(environ: Mapping[str, str]) -> _Layer:
    variables = {each.variable: name for name, each in SETTINGS.items() if each.variable}
    known = {each.removeprefix(_PREFIX) for each in (*variables, *OTHER_VARIABLES)}
    for variable in sorted(environ):
        word = variable.removeprefix(_PREFIX)
        if word == variable or word in known:
            continue
        # Unknown variables may belong to other programs. One whose name is close to a known one
        # is taken for a misspelt setting: ignoring it could drop a limit.
        close = difflib.get_close_matches(word[:80], known, n=1, cutoff=0.7)
        if close:
            raise UsageError(
                f"{one_line(variable)} is not a setting; did you mean {_PREFIX}{close[0]}?"
            )
    given = {name: variable for variable, name in variables.items() if environ.get(variable)}
    return _Layer(
        values={
            name: from_text(SETTINGS[name].kind, environ[variable], variable=variable)
            for name, variable in given.items()
        },
        sources={name: f"environment {variable}" for name, variable in given.items()},
        aliases={},
    )


def _file_layer(
    file: ConfigFile, values: Mapping[str, Value], aliases: Mapping[str, str]
) -> _Layer:
    return _Layer(
        values=values,
        sources=dict.fromkeys([*values, *aliases], file.shown_path),
        aliases=aliases,
    )


def _user_file(environ: Mapping[str, str]) -> ConfigFile | None:
    path = user_file_path(environ)
    # A file that TALLYSTICK_CONFIG names must exist; the default one need not.
    if not environ.get("TALLYSTICK_CONFIG") and not os.path.lexists(path):
        return None
    file = read_config(path)
    file.require_supported()
    return file


def _project_file(environ: Mapping[str, str], cwd: Path | None) -> ConfigFile | None:
    path = project_file_path(environ, cwd)
    # If TALLYSTICK_CONFIG names the project's file, it is the user's own and needs no trust.
    if path is None or os.path.realpath(path) == os.path.realpath(user_file_path(environ)):
        return None
    return read_config(path)


def project_file_path(
    environ: Mapping[str, str] = os.environ, cwd: Path | None = None
) -> Path | None:
    """Return the path of the project's file; None if there is none.

    None also if the working directory was deleted.
    """
    try:
        return find_project_file(cwd or Path.cwd(), environ)
    except FileNotFoundError:
        return None


def _place_project(
    file: ConfigFile,
    *,
    user: ConfigFile | None,
    below: Sequence[_Layer],
    environ: Mapping[str, str],
) -> tuple[Project, _Layer]:
    """Return the project, and its layer: the whole file if it is trusted, else the allowed part.

    Raise `UsageError` if a provider of a file is not valid, or a trusted file has a table of a
    later version. Raise `StoreError` if the record of trust cannot be read.
    """
    own = merge_providers(user=user, project=None, environ=environ)

    def leaves_machine(model: str, aliases: Mapping[str, str]) -> bool:
        try:
            found = resolve_model(model, aliases=aliases, providers=own)
        except UsageError:
            return True
        return isinstance(found, ProviderModel) and not found.provider.is_loopback

    values, _ = _merge_layers(below)
    aliases = user.aliases if user is not None else {}
    part = narrow(file, below=values, aliases=aliases, leaves_machine=leaves_machine)
    state = TrustStore(config_directory(environ)).state(file)
    project = Project(
        file=file,
        state=state,
        restricted=part.restricted,
        # Computed in either case, so that errors in the file are reported before it is trusted.
        providers=merge_providers(user=user, project=file, environ=environ),
    )
    if state == "trusted":
        file.require_supported()
        return project, _file_layer(file, file.values, file.aliases)
    return project, _file_layer(file, part.values, part.aliases)


def _merge_layers(layers: Sequence[_Layer]) -> tuple[dict[str, Value], dict[str, str]]:
    values: dict[str, Value] = {}
    sources: dict[str, str] = {}
    for each in reversed(layers):
        values.update(each.values)
        sources.update({name: each.sources[name] for name in each.values})
    return values, sources


def _warnings(project: Project | None) -> tuple[str, ...]:
    if project is None or project.state == "trusted" or not project.restricted:
        return ()
    names = [str(each) for each in project.restricted[:_IGNORED_SHOWN_MAX]]
    more = len(project.restricted) - len(names)
    listed = ", ".join(names) + (f" and {more} more" if more else "")
    is_what = "is not trusted" if project.state == "untrusted" else "changed since it was trusted"
    return (
        f"{project.file.shown_path} {is_what}; ignored: {listed}; "
        f"to read and trust it: tally config trust",
    )


# -- values with their types --------------------------------------------------------------------


def _limits(values: Values) -> RunLimits:
    return RunLimits(
        turns=values.max_turns,
        tokens=values.max_tokens,
        host_calls=values.max_host_calls,
        # Zero means stop at once, so a limit under 0.5 ms must not be rounded to it.
        wall_ms=max(round(values.timeout * 1000), 1 if values.timeout else 0),
        reply_tokens=values.reply_tokens,
        retries=values.retries,
        usd=_usd(values.max_usd),
    )


def _usd(dollars: float | None) -> int | None:
    return None if dollars is None else nano_usd(dollars)


def _prices(user: ConfigFile | None, project: Project | None) -> PriceTable:
    """Return the user's prices, overridden by those of a trusted project."""
    tables = [user.prices.prices] if user is not None else []
    if project is not None and project.state == "trusted":
        tables.append(project.file.prices.prices)
    return PriceTable(prices={name: price for each in tables for name, price in each.items()})


# -- listing of files, prices and aliases -------------------------------------------------------


def _listed_files(
    environ: Mapping[str, str], user: ConfigFile | None, project: Project | None
) -> Iterator[Setting]:
    path = one_line(str(user_file_path(environ)))
    named = "environment TALLYSTICK_CONFIG" if environ.get("TALLYSTICK_CONFIG") else "default"
    yield Setting(name="user_file", value=path, source=named if user else "not there")
    if project is None:
        yield Setting(name="project_file", value="", source=f"no {PROJECT_FILE} here or above")
        return
    state = {"untrusted": "not trusted", "changed": "changed since it was trusted"}
    yield Setting(
        name="project_file",
        value=project.file.shown_path,
        source=state.get(project.state, project.state),
    )


def _listed_prices(user: ConfigFile | None, project: Project | None) -> Iterator[Setting]:
    files = [each for each in (user, project.file if project else None) if each is not None]
    for name in sorted(_prices(user, project).prices):
        of = [each for each in files if name in each.prices.prices]
        counts = of[-1] if project is not None and project.state == "trusted" else of[0]
        yield Setting(name=f"prices.{name}", value="declared", source=counts.shown_path)


def _listed_aliases(layers: Sequence[_Layer]) -> Iterator[Setting]:
    found = {
        name: Setting(name=f"aliases.{name}", value=target, source=each.sources[name])
        for each in reversed(layers)
        for name, target in each.aliases.items()
    }
    yield from (found[name] for name in sorted(found))
