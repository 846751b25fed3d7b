"""The pytest plugin: the fixture `tally`, and what pytest is told of its runs.

    def test_overdue(tally):
        run = tally.run("which are overdue?", files=["books.csv"], tools=[rate])
        assert run.value == "INV-101"

Nothing of the engine is imported before a test asks for the fixture: pytest loads this module in
every project that has tallystick installed.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tallystick.sandbox.wasm.sandbox import WasmSandbox
    from tallystick.testing.agents import AgentTest

_MODES = ("replay", "once", "record", "live")
_NAME = re.compile(r"[^A-Za-z0-9_.=-]+")
_NAME_CHARS_MAX = 100
_TEST = pytest.StashKey["AgentTest"]()
_LEDGER = "TALLYSTICK_TEST_LEDGER"


class RecordingDrift(UserWarning):
    """A run of a test differs from its recording. With --tally-strict it is a failure."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tallystick", "tests of agents")
    group.addoption(
        "--tally",
        choices=_MODES,
        default="replay",
        help="Where replies come from: replay (recordings), once (record what is missing), "
        "record (ask a model and write recordings), live (ask a model and write nothing).",
    )
    group.addoption(
        "--tally-model", metavar="MODEL", help="The model to ask; else that of the configuration."
    )
    group.addoption(
        "--tally-strict",
        action="store_true",
        help="Fail a test whose run differs from its recording.",
    )
    group.addoption(
        "--tally-max-usd",
        metavar="DOLLARS",
        help="What all tests together may spend, over all workers.",
    )
    group.addoption(
        "--tally-artifacts",
        metavar="DIR",
        help="For a failed test, write its runs here: the outline, and the run for tally import.",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", 'tally_budget(usd="0.10"): what the runs of this test may spend together.'
    )
    if config.getoption("--tally-max-usd") is not None and _LEDGER not in os.environ:
        import tempfile

        # Workers of xdist are started with this environment, so that they share one ledger.
        folder = tempfile.mkdtemp(prefix="tally-tests-")
        os.environ[_LEDGER] = str(Path(folder) / "ledger.db")
        config.add_cleanup(_remove_ledger)


def _remove_ledger() -> None:
    import shutil

    shutil.rmtree(Path(os.environ.pop(_LEDGER)).parent, ignore_errors=True)


@pytest.fixture(scope="session")
def _tally_sandbox() -> Iterator[WasmSandbox]:
    """One sandbox for all tests: its sessions share nothing but compiled code."""
    import asyncio

    from tallystick.sandbox.wasm.sandbox import WasmSandbox
    from tallystick.settings.paths import cache_directory

    loaded = WasmSandbox.load(cache=cache_directory())
    yield loaded
    asyncio.run(loaded.close())


@pytest.fixture
def tally(request: pytest.FixtureRequest, _tally_sandbox: WasmSandbox) -> Iterator[AgentTest]:
    """Run agents in this test: in memory, without a network or a key, with a fixed clock."""
    from tallystick.testing.agents import AgentTest

    config = request.config
    mark = request.node.get_closest_marker("tally_budget")
    options: dict[str, Any] = {}
    if _LEDGER in os.environ and config.getoption("--tally") != "replay":
        options["stores"] = _shared_stores()
        options["max_usd"] = config.getoption("--tally-max-usd")
    node = request.node
    with AgentTest(
        recording=recording_path(node.path, node.name, node.cls),
        mode=config.getoption("--tally"),
        model=config.getoption("--tally-model"),
        remedy=f"pytest --tally=record '{node.nodeid}'",
        strict=config.getoption("--tally-strict"),
        warn=lambda said: warnings.warn(RecordingDrift(said), stacklevel=2),
        sandbox=_tally_sandbox,
        budget=None if mark is None else mark.kwargs,
        **options,
    ) as test:
        node.stash[_TEST] = test
        yield test


def _shared_stores() -> Any:  # noqa: ANN401 (imported when it is used)
    """Return the stores that all workers share: their ledger has the sum of what was spent."""
    from tallystick.stores import open_stores

    return open_stores(Path(os.environ[_LEDGER]))


def recording_path(test_file: Path, name: str, inside: type | None) -> Path:
    """Return the recording of a test: `recordings/MODULE/[CLASS.]NAME.tally` beside its file.

    Characters that not every file system has become `_`, and a long name ends with its digest.
    """
    full = name if inside is None else f"{inside.__name__}.{name}"
    safe = _NAME.sub("_", full)
    if safe != full or len(safe) > _NAME_CHARS_MAX:
        import hashlib

        digest = hashlib.sha256(full.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        safe = f"{safe[:_NAME_CHARS_MAX]}-{digest}"
    return test_file.parent / "recordings" / test_file.stem / f"{safe}.tally"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:  # noqa: ANN401
    report = yield
    test = item.stash.get(_TEST, None)
    if report.when == "call" and report.failed and test is not None:
        for number, each in enumerate(test.made, start=1):
            report.sections.append((f"tally run {number}", test.outline(each.run)))
            folder = item.config.getoption("--tally-artifacts")
            if folder is not None:
                _write_artifacts(Path(folder), item, number, test, each.run)
    return report


def _write_artifacts(
    folder: Path,
    item: pytest.Item,
    number: int,
    test: AgentTest,
    run: Any,  # noqa: ANN401
) -> None:
    """Write a run and its outline. A failure to do so is a warning: the test has its own."""
    from tallystick.core.errors import TallystickError

    name = _NAME.sub("_", item.nodeid)[-_NAME_CHARS_MAX:]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}-{number}.txt").write_text(test.outline(run) + "\n", encoding="utf-8")
        path = folder / f"{name}-{number}.tally"
        path.unlink(missing_ok=True)
        test.export(run, path)
    except (OSError, TallystickError) as error:
        warnings.warn(f"{folder}: the run of {item.nodeid} is not written: {error}", stacklevel=2)
