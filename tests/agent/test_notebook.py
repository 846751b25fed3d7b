"""The plain calls work where an event loop runs already: in a notebook, and beside trio."""

from __future__ import annotations

import json
import subprocess
import sys
import threading

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
    "import threading\n"
    "[each.name for each in threading.enumerate() if each.name.startswith('tally')]",
]


# Runs each cell in a kernel, and prints what it shows. Anything that a cell prints is an error. It
# is a process of its own, because the client of a kernel leaves its sockets open.
DRIVER = """
import json, sys
from jupyter_client.manager import start_new_kernel

kernel, client = start_new_kernel(kernel_name="python3")
shown = []
try:
    for cell in json.loads(sys.argv[1]):
        data = {}

        def output(message):
            content = message["content"]
            assert message["msg_type"] not in ("error", "stream"), content
            if message["msg_type"] == "execute_result":
                data.update(content["data"])

        client.execute_interactive(cell, timeout=120, output_hook=output)
        shown.append(data)
finally:
    client.stop_channels()
    kernel.shutdown_kernel(now=True)
print(json.dumps(shown))
"""


@pytest.mark.slow
def test_a_real_kernel_runs_plain_and_awaited_calls_and_shows_a_run_as_a_table() -> None:
    pytest.importorskip("jupyter_client", reason="no jupyter_client here")
    pytest.importorskip("ipykernel", reason="no ipykernel here")
    done = subprocess.run(
        [sys.executable, "-c", DRIVER, json.dumps(CELLS)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    texts = [each.get("text/plain") for each in shown]
    assert texts[2:5] == ["42", "42", "True"]
    assert shown[5]["text/html"].startswith("<table>")
    assert "tally-loop" not in texts[6]


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
    asked = (
        "import sys; before = set(sys.modules); import tallystick\n"
        "print(*set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)

    assert {"typing", "re", "msgspec", "asyncio"}.isdisjoint(done.stdout.split())
