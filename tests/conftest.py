"""Hypothesis profiles: the same examples every time by default, more in CI, others in a soak.

A default run that draws afresh fails for whoever comes next, not for whoever broke it. Looking for
new failures is the soak's work (`--hypothesis-profile=soak`). Deadlines measure the machine, so
there are none.
"""

import asyncio
import functools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from tests import descriptors
from tests.wasm_session import TestSession, open_session

from tallystick.agent.agent import Agent
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.settings.paths import cache_directory
from tallystick.settings.schema import SETTINGS

settings.register_profile(
    "default", derandomize=True, deadline=None, database=None, max_examples=25
)
settings.register_profile("ci", derandomize=True, deadline=None, database=None, max_examples=70)
settings.register_profile(
    "soak", derandomize=False, deadline=None, max_examples=2_000, print_blob=True
)
settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    # As a plugin: pytest asks no conftest.py below the root about fixtures of the whole session.
    config.pluginmanager.register(descriptors)


@pytest.fixture(scope="session", autouse=True)
def no_configuration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide the configuration of whoever runs the tests from clients, commands and workers."""
    with pytest.MonkeyPatch.context() as patch:
        for variable in ("TALLYSTICK_CONFIG", *(each.variable for each in SETTINGS.values())):
            if variable is not None:
                patch.delenv(variable, raising=False)
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("no configuration")))
        yield


@pytest.fixture(scope="session")
def wasm_sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WasmSandbox]:
    """The WASM sandbox, shared by all tests: its sessions share nothing but code."""
    loaded = WasmSandbox.load(
        cache=cache_directory(), output_directory=tmp_path_factory.mktemp("output")
    )
    yield loaded
    asyncio.run(loaded.close())


@pytest.fixture(scope="session")
def sandbox(wasm_sandbox: WasmSandbox) -> WasmSandbox:
    """The sandbox of most tests; a folder may put another in its place."""
    return wasm_sandbox


@pytest.fixture(autouse=True)
def descriptors_closed() -> Iterator[None]:
    """Fail a test that leaves descriptors open. Set up first, so that it looks last."""
    with descriptors.closed_descriptors():
        yield


@pytest.fixture(autouse=True)
def sessions_closed(descriptors_closed: None) -> Iterator[None]:
    """Close what a test leaves open: each agent has a loop, with files of its own."""
    made: list[Agent] = []
    original = Agent.__init__

    # Wrapped, so that the signature is still that of the class.
    @functools.wraps(original)
    def init(self: Agent, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        made.append(self)

    Agent.__init__ = init  # type: ignore[method-assign]
    yield
    Agent.__init__ = original  # type: ignore[method-assign]
    for each in made:
        each.close()


@pytest.fixture
def session(sandbox: WasmSandbox) -> Iterator[TestSession]:
    """A fresh session."""
    with open_session(sandbox) as opened:
        yield opened
