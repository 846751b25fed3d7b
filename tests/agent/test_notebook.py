"""The plain calls work where an event loop runs already: in a notebook, and beside trio."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from tests.agent.test_agent import agent_of

CELLS = [
    "import warnings; warnings.simplefilter('error')\nimport tallystick as tally",
    "program = '```python\\nFINAL(41 + 1)\\n```'\n"
    "agent = tally.Agent(lambda messages: program, ledger='memory:', config=None)",
    "run = agent.run('x', answer=int, strategy='code')\nrun.value",
    "(await agent.arun('x', answer=int, strategy='code')).value",
    "len([event async for event in agent.stream('x', strategy='code')]) > 3",
    "run",
    "agent.close()\n"
    "import threading\n[each.name for each in threading.enumerate() if each.name.startswith('tally')]",
]


@pytest.mark.slow
def test_a_real_kernel_runs_plain_and_awaited_calls_and_shows_a_run_as_a_table() -> None:
    manager: Any = pytest.importorskip("jupyter_client.manager", reason="no jupyter_client here")
    pytest.importorskip("ipykernel", reason="no ipykernel here")
    kernel, client = manager.start_new_kernel(kernel_name="python3")
    try:
        shown = [_shown(client, cell) for cell in CELLS]
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)

    texts = [each.get("text/plain") for each in shown]
    assert texts[2:5] == ["42", "42", "True"]
    assert shown[5]["text/html"].startswith("<table>")
    assert "tally-loop" not in str(texts[6])


def _shown(client: Any, cell: str) -> dict[str, str]:
    """Run a cell, and return what it shows. Anything that it prints is an error."""
    shown: dict[str, str] = {}

    def output(message: Any) -> None:
        content = message["content"]
        assert message["msg_type"] not in ("error", "stream"), content
        if message["msg_type"] == "execute_result":
            shown.update(content["data"])

    client.execute_interactive(cell, timeout=120, output_hook=output)
    return shown


def test_a_call_in_a_thread_of_its_own_leaves_nothing_behind() -> None:
    before = set(threading.enumerate())
    answers: list[str] = []

    def work() -> None:
        with agent_of("FINAL('there')") as agent:
            answers.append(agent.run("x", strategy="code").value)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

    assert answers == ["there"]
    assert {each for each in threading.enumerate() if each.name == "tally-loop"} <= before


TRIO = """
import tallystick as tally, trio
agent = tally.Agent(lambda messages: "```python\\nFINAL(7)\\n```", ledger="memory:", config=None)
async def main():
    run = await trio.to_thread.run_sync(lambda: agent.run("x", answer=int, strategy="code"))
    print(run.value)
trio.run(main)
"""


@pytest.mark.slow
def test_trio_calls_an_agent_in_a_thread() -> None:
    pytest.importorskip("trio", reason="no trio here")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", TRIO], capture_output=True, text=True, check=False
    )

    assert (done.stdout, done.stderr) == ("7\n", "")


def test_importing_the_package_imports_nothing_that_costs() -> None:
    asked = "import sys; before = set(sys.modules); import tallystick; print(*set(sys.modules) - before)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", asked], capture_output=True, text=True, check=True
    )

    assert {"typing", "re", "msgspec", "asyncio"}.isdisjoint(done.stdout.split())
