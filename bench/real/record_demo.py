"""Records the replies of `tally demo` again, from a real model behind an OpenAI-compatible server.

    python bench/real/record_demo.py --url http://127.0.0.1:8790/v1 --model qwen \
        --made-with "Qwen2.5-Coder-1.5B-Instruct (Q4_K_M)"

The key is read from TALLYSTICK_MODEL_KEY. The recording is written only if the run is answered, and
rightly: a demonstration that shows a wrong answer shows nothing. What the model did on the way is
kept as it was.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import msgspec

from tallystick.cli.commands.demo import corpus_sha256
from tallystick.client import Session
from tallystick.core.charge import RunLimits
from tallystick.core.records import AskModel, ModelReplied
from tallystick.demo import recording
from tallystick.demo.corpus import QUESTION, expected_answer, harbour
from tallystick.ledger.memory import MemoryLedger
from tallystick.model.endpoint import Endpoint, Secret
from tallystick.model.http import HttpModel
from tallystick.runtime.context.inputs import given_text
from tallystick.runtime.runs.history import records_of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--url", default=os.environ.get("TALLYSTICK_MODEL_URL", ""))
    parser.add_argument("--model", required=True)
    parser.add_argument("--made-with", required=True, help="how the demonstration names the model")
    parser.add_argument("--temperature", type=float, default=0.0)
    arguments = parser.parse_args()
    key = os.environ.get("TALLYSTICK_MODEL_KEY")
    endpoint = Endpoint(
        provider="local",
        dialect="openai",
        base_url=arguments.url,
        model=arguments.model,
        key=Secret(key) if key else None,
    )
    texts = harbour()
    ledger = MemoryLedger()
    with Session(model=HttpModel(endpoint), ledger=ledger) as session:
        run = session.run(
            QUESTION,
            inputs=[given_text(text, name=name) for name, text in texts.items()],
            limits=RunLimits(wall_ms=1_800_000),
            temperature=arguments.temperature,
            watch=lambda _, record: (
                print(record, file=sys.stderr) if isinstance(record, ModelReplied) else None
            ),
        )
    print(run.stop, run.answer, f"{run.turns} turns", file=sys.stderr)
    if not run.answered or not all(part in (run.answer or "") for part in expected_answer()):
        print(
            f"not written: the answer should name {' and '.join(expected_answer())}",
            file=sys.stderr,
        )
        return 1
    records = list(records_of(ledger, run.run))
    asked = {record.intent: record for record in records if isinstance(record, AskModel)}
    kept = recording.Recording(
        version=1,
        made_with=arguments.made_with,
        model=HttpModel(endpoint).name,
        question=QUESTION,
        temperature=arguments.temperature,
        corpus_sha256=corpus_sha256(texts),
        exchanges=tuple(
            (asked[record.intent], record) for record in records if isinstance(record, ModelReplied)
        ),
    )
    path = Path(recording.__file__).with_name(recording.FILE)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(kept), indent=1) + b"\n")
    print(path, file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
