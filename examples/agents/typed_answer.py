"""A typed answer: the model is asked again until it fits."""

from dataclasses import dataclass

import tallystick as tally


@dataclass
class Total:
    invoices: int
    euro: float


run = tally.run(
    "How many invoices are unpaid, and what do they come to?",
    files=["examples/books.csv"],
    answer=Total,
    model="scripted:examples/agents/typed_answer.jsonl",
    max_usd="0.50",
)
print(run.value.invoices, run.value.euro, run.turns)
