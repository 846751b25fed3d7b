"""Rows for the settings of the configuration, and for the keys of a provider."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import Any

from tests.fields.runs import CALL, TWO, look, overloaded, skills_folder
from tests.fields.table import Row, World, refused
from tests.model.fake_server import REQUEST, FakeServer, ok

from tallystick import Agent, Memory
from tallystick.client import Session
from tallystick.inputs import given_text
from tallystick.ledger import MemoryLedger, SqliteLedger
from tallystick.model.pacing import Pacing
from tallystick.settings import Settings, load_settings, open_model
from tallystick.settings.paths import cache_directory
from tallystick.skills import find_skills
from tallystick.testing.models import PRICING, ModelDouble, block, programs
from tallystick.testing.runs import ROOMY
from tallystick.testing.sandbox import PlainSandbox

TOKENIZER = '{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}'


def settings(world: World, **flags: object) -> Settings:
    """Return the settings of somebody who has set these alone."""
    return load_settings(flags=flags, environ={"HOME": str(world.fresh())}, cwd=world.fresh())


def ran(world: World, made: Settings, *sources: str, **more: Any) -> tuple[Any, ModelDouble]:
    """Run with a configuration, and return how the run ended and the model."""
    model = ModelDouble(programs(*sources))
    model.failures = more.pop("failures", [])
    options = {"pricing": PRICING, "ledger": MemoryLedger(), **more.pop("options", {})}
    with Session(
        model=model,
        functions=[look],  # type: ignore[list-item]
        sandbox=PlainSandbox(),
        config=made,
        **options,
    ) as session:
        return session.run("what is it?", **{"strategy": "code", **more}), model


def ended(name: str, *sources: str, **more: Any) -> Any:
    """Return a look at the end of a run under a setting."""
    also = more.pop("also", {})

    def see(world: World, value: object) -> object:
        given = {each: made() if callable(made) else made for each, made in more.items()}
        run, _ = ran(world, settings(world, **{name: value}, **also), *sources, **given)
        return run.answer, run.stop

    return see


def asked(name: str, *sources: str, **more: Any) -> Any:
    """Return a look at what the model is asked under a setting."""

    def see(world: World, value: object) -> object:
        _, model = ran(world, settings(world, **{name: value}), *sources, **more)
        return model.prompts, model.caps, model.temperatures

    return see


def model_named(world: World, value: str) -> object:
    folder = world.fresh()
    for name in ("one", "two"):
        (folder / name).write_text(json.dumps({"text": block(f"FINAL({name!r})")}) + "\n")
    with Session(
        ledger=MemoryLedger(), sandbox=PlainSandbox(),
        config=settings(world, model=f"scripted:{folder / value}"),
    ) as session:  # fmt: skip
        return session.run("?", strategy="code").answer


def total(world: World, value: float | None) -> object:
    with SqliteLedger(world.fresh() / "l.db") as ledger:
        run, _ = ran(world, settings(world, total_usd=value), *TWO, options={"ledger": ledger})
        return run.stop


def unpriced(world: World, value: bool) -> object:
    made = settings(world, allow_unpriced=value, max_usd=1.0)
    run, _ = ran(world, made, *TWO, options={"pricing": None})
    return run.stop


def tokenizer(world: World, value: bool) -> object:
    path = world.fresh() / "tokenizer.json"
    path.write_text(TOKENIZER)
    return settings(world, tokenizer=str(path) if value else None).pricing.tokenizer is not None


def skills_in(world: World, made: Settings) -> list[str]:
    found = find_skills(settings=made)
    return [] if found is None else [each.id for each in found.registry.cards()]


def skills_of(world: World, **flags: object) -> Settings:
    return settings(world, skills_paths=[str(skills_folder(world))], **flags)


def catalog(world: World, value: int) -> object:
    """Look at how many of 20 skills the model is shown."""
    root = world.fresh()
    for number in range(20):
        (root / f"skill-{number}").mkdir()
        text = f"---\nname: skill-{number}\ndescription: {'a long description ' * 6}\n---\nx\n"
        (root / f"skill-{number}" / "SKILL.md").write_text(text)
    made = settings(world, skills_paths=[str(root)], skills_budget=value)
    _, model = ran(world, made, "FINAL(1)", options={"skills": find_skills(settings=made)})
    return model.prompts[0].count("skill-")


def kept_on_disk(world: World, value: int) -> object:
    """Look at the refusal of another session, when the first has left 3 MB."""
    source = "import random\nx = random.randbytes(3_000_000)\nFINAL(0)"
    with SqliteLedger(world.fresh() / "l.db") as ledger, Agent(
        ModelDouble(programs(source)),
        ledger=ledger, sandbox=world.wasm, config=settings(world, session_mb=value),
    ) as agent:  # fmt: skip
        agent.run("?", session=agent.sessions.new().id, strategy="code")
        return refused(lambda: agent.sessions.new()).partition(":")[0]


def commanded(name: str) -> Any:
    """Return a look at what `tally run` records of a run under a setting of the environment."""

    def see(world: World, value: object) -> object:
        home = world.fresh()
        with Memory.open(directory=home / "data" / "memory", embedder=None) as memory:
            memory.remember("the ferry leaves at nine")
        (home / ".config" / "tallystick").mkdir(parents=True)
        text = "" if value is None else f"{name} = {json.dumps(value)}\n"
        (home / ".config" / "tallystick" / "config.toml").write_text(text)
        (home / "script").write_text(json.dumps({"text": block("FINAL(1)")}) + "\n")
        environ = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "TALLYSTICK_DATA_DIR": str(home / "data"),
            "TALLYSTICK_CACHE_DIR": str(cache_directory()),
            "TALLYSTICK_CLOCK": "fixed",
        }

        def tally(*words: str) -> str:
            command = [sys.executable, "-m", "tallystick", *words]
            done = subprocess.run(command, env=environ, cwd=home, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            return done.stdout

        tally("run", "?", "-m", f"scripted:{home / 'script'}", "--strategy", "code", "--quiet")
        (started, *_) = json.loads(tally("inspect", "last", "--records", "--json"))["records"]
        return started["grants"], started.get("memory") is not None

    return see


SETTINGS_ROWS = [
    Row("model", "result", "one", "two", model_named),
    Row("max_turns", "result", 1, 9, ended("max_turns", *TWO)),
    Row("max_tokens", "result", 100, 100_000, ended("max_tokens", *TWO)),
    Row("max_usd", "result", 0.000000001, None, ended("max_usd", *TWO)),
    Row("total_usd", "result", 0.000000001, None, total),
    Row("allow_unpriced", "result", True, False, unpriced),
    Row("tokenizer", "result", True, False, tokenizer),
    Row("timeout", "result", 0.0, 300.0, ended("timeout", *TWO)),
    Row("max_host_calls", "result", 0, 9, ended("max_host_calls", CALL)),
    Row("reply_tokens", "prompt", 10, 20, asked("reply_tokens", *TWO)),
    Row("retries", "result", 0, 1, ended("retries", *TWO, failures=lambda: [overloaded()])),
    Row("temperature", "prompt", 0.1, 0.9, asked("temperature", *TWO)),
    Row("strategy", "prompt", "code", "direct", asked(
        "strategy", "FINAL(1)", strategy=None, inputs=[given_text("abc")])),
    Row("compact_at", "prompt", 1, 0, asked("compact_at", *(
        f"print({n} * 'words to read ' * 200)" for n in range(4)), "FINAL(1)", limits=ROOMY)),
    Row("clock", "prompt", "2026-03-01T09:30", "fixed", asked("clock", *TWO)),
    Row("timezone", "prompt", "Asia/Tokyo", "UTC", asked("timezone", *TWO, clock="fixed")),
    Row("grants", "record", ["attachments.read"], None, commanded("grants"), slow=True),
    Row("skills_paths", "result", True, False, lambda world, value: skills_in(
        world, skills_of(world) if value else settings(world))),
    Row("skills_require_signature", "result", True, False, lambda world, value: skills_in(
        world, skills_of(world, skills_require_signature=value))),
    Row("skills_budget", "prompt", 10, 2_000, catalog),
    Row("session_mb", "refusal", 1, 2_048, kept_on_disk),
    Row("memory", "record", "default", None, commanded("memory"), slow=True),
]  # fmt: skip


# -- providers -------------------------------------------------------------------------------------


def in_toml(value: object) -> str:
    """Return a value as TOML; a dictionary is an inline table."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {in_toml(each)}" for key, each in value.items()) + "}"
    return json.dumps(value)


def find_none(run: str) -> Any:
    raise AssertionError(f"no recorded model is asked for: {run}")


def provided(world: World, server: FakeServer, **keys: object) -> Any:
    """Open a model of a provider with these keys, beside the address of the server."""
    home = world.fresh()
    (home / ".config" / "tallystick").mkdir(parents=True)
    given = {"base_url": server.url, **keys}
    text = "".join(f"{key} = {in_toml(value)}\n" for key, value in given.items())
    (home / ".config" / "tallystick" / "config.toml").write_text(f"[providers.x]\n{text}")
    environ = {"HOME": str(home), "X_KEY": "sk-secret"}
    made = load_settings(environ=environ, cwd=world.fresh())
    return open_model("x:m", made, pacing=Pacing(), recorded=find_none, environ=environ)


def ask(world: World, server: FakeServer, **keys: object) -> str:
    """Ask a model of a provider, and return the refusal; "" if there is a reply."""

    async def work() -> str:
        model = provided(world, server, **keys)
        try:
            await model.ask(REQUEST)
        except Exception as error:
            return f"{type(error).__name__}: {error}".replace(str(server.url), "URL")
        finally:
            await model.close()
        return ""

    return asyncio.run(work())


def seen(key: str, see: Any, **more: Any) -> Any:
    """Return a look at what a server saw of a request under a key."""

    def looked(world: World, value: object) -> object:
        with FakeServer() as server:
            said = ask(world, server, **{key: value}, **more)
            return see(server) if server.seen else said

    return looked


def late(key: str) -> Any:
    """Return a look at the refusal of a reply that takes 0.3 seconds."""

    def looked(world: World, value: float) -> object:
        with FakeServer() as server:
            server.always(lambda seen: [0.3, *ok()(seen)])
            return ask(world, server, **{key: value}).partition(":")[0]

    return looked


def which_server(world: World, value: bool) -> object:
    with FakeServer() as one, FakeServer() as two:
        ask(world, one, base_url=(one if value else two).url)
        return len(one.seen), len(two.seen)


def not_encrypted(world: World, value: bool) -> object:
    with FakeServer() as server:
        keys = {"base_url": "http://api.example.org/v1", "key_env": "X_KEY"}
        return refused(lambda: provided(world, server, allow_plain_http=value, **keys))


def connecting(world: World, value: float) -> object:
    """Look at the time in which a request has to be connected."""
    with FakeServer() as server:
        return provided(world, server, connect_seconds=value)._transport._extensions


def admitted(world: World, value: int) -> object:
    """Look at how many requests are admitted side by side, of three."""

    async def work() -> int:
        with FakeServer() as server:
            model = provided(world, server, concurrency=value)
        inside = 0

        async def one() -> None:
            nonlocal inside
            async with model.admitted():
                inside += 1
                await asyncio.Event().wait()

        waiting = [asyncio.ensure_future(one()) for _ in range(3)]
        await asyncio.sleep(0.05)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return inside

    return asyncio.run(work())


PROVIDER_ROWS = [
    Row("providers.dialect", "prompt", "openai", "anthropic", seen(
        "dialect", lambda server: server.seen[0].path)),
    Row("providers.base_url", "prompt", True, False, which_server),
    Row("providers.key_env", "prompt", "X_KEY", "", seen(
        "key_env", lambda server: server.seen[0].headers.get("authorization"))),
    Row("providers.concurrency", "result", 1, 3, admitted),
    Row("providers.connect_seconds", "prompt", 0.5, 5.0, connecting),
    Row("providers.silence_seconds", "refusal", 0.05, 5.0, late("silence_seconds")),
    Row("providers.total_seconds", "refusal", 0.05, 5.0, late("total_seconds")),
    Row("providers.stream", "prompt", True, False, seen(
        "stream", lambda server: server.seen[0].json.get("stream"))),
    Row("providers.headers", "prompt", {"x-team": "a"}, {}, seen(
        "headers", lambda server: server.seen[0].headers.get("x-team"))),
    Row("providers.query", "prompt", {"api-version": "1"}, {}, seen(
        "query", lambda server: server.seen[0].path)),
    Row("providers.body", "prompt", {"top_p": 0.5}, {}, seen(
        "body", lambda server: server.seen[0].json.get("top_p"))),
    Row("providers.cache", "prompt", True, False, seen(
        "cache", lambda server: server.seen[0].body, dialect="anthropic")),
    Row("providers.allow_plain_http", "refusal", True, False, not_encrypted),
]  # fmt: skip

ROWS = [*SETTINGS_ROWS, *PROVIDER_ROWS]
