"""HumanEval: the reference solutions of all 164 problems pass their own tests in the sandbox."""

import gzip
import json
import os
from pathlib import Path

import pytest
from tests.wasm_session import open_session

from tallystick.sandbox.wasm.sandbox import WasmSandbox

DATA = Path(os.environ.get("TALLYSTICK_EVAL_DATA", "")) / "HumanEval.jsonl.gz"


@pytest.mark.skipif(
    not DATA.is_file(),
    reason="HumanEval.jsonl.gz is not there: set TALLYSTICK_EVAL_DATA to the directory that has it",
)
def test_all_reference_solutions_pass(sandbox: WasmSandbox) -> None:
    with gzip.open(DATA, "rt", encoding="utf-8") as lines:
        problems = [json.loads(line) for line in lines]
    failed = {}
    for problem in problems:
        program = (
            f"{problem['prompt']}{problem['canonical_solution']}\n{problem['test']}\n"
            f"check({problem['entry_point']})\n'passed'"
        )
        with open_session(sandbox) as session:
            result = session.run(program)
        if result.value != "'passed'":
            failed[problem["task_id"]] = result.error

    assert len(problems) == 164
    assert failed == {}
