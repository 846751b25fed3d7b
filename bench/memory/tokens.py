"""Tokens of twenty questions: notes by JSON tool calls, beside programs that read them.

    .venv/bin/python -m bench.memory.tokens [--out FILE]     bench/results/memory-tokens.json

Question: what does a program save, and where does it not? Guess: nothing where one note is enough,
nine tenths where a hundred notes are read for a number. Both ways are run: the calls against a
memory of some six hundred notes, the programs in the sandbox against the same memory. Both ask the
same queries for as many notes: five or ten where few are enough, a hundred where all are wanted,
since nobody knows beforehand how many there are.

A question is right in the JSON way if every note that its answer follows from stood in the context:
a reader who makes no mistake is assumed. It is right in the code way if the program printed the
answer, or that note.

Counted are the messages in one plain frame. JSON results have id, content and score, as the tool
gives them; `lean` is the same with the contents alone, one in a line, which no tool could undercut.
The tokenizer is the one of the embedder, which counts no blanks and so favours programs; with
TALLYSTICK_MODEL_URL there is a second table by the served model's.
"""

from __future__ import annotations

import datetime
import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import httpx
import msgspec
from bench.measure import ROOT, World
from bench.memory.tokens_table import CODE_MANUAL, JSON_TOOL, Counted
from bench.memory.workshop import Workshop
from bench.memory.workshop_questions import Question, questions

from tallystick.core.errors import UsageError
from tallystick.core.json_text import canonical
from tallystick.memory.code_mode.operations import Budget, RecallHit, emitted
from tallystick.memory.code_mode.python import run_python
from tallystick.memory.note import NewNote
from tallystick.memory.recall.minilm import DIMENSIONS, MODEL_DIGEST, MiniLm, missing
from tallystick.memory.recall.recall import Asking, recall
from tallystick.memory.recall.scope import Embedder
from tallystick.memory.receipts.receipt import Key
from tallystick.memory.remember import remember_all
from tallystick.memory.store.sqlite import SqliteMemory
from tallystick.memory.store.vectors import embed_missing
from tallystick.sandbox.wasm.sandbox import WasmSandbox
from tallystick.settings.paths import cache_directory

__all__ = ["Count", "Done", "Store", "answered", "filled", "main", "table", "word_pieces"]

Count = Callable[[str], int]
# Far above what a program here takes, so that a busy machine changes nothing.
_BUDGET = Budget(fuel=20_000_000_000, mem_pages=1_024, wall_ms=120_000)
_KEY = Key(id="bench", secret=b"b" * 32)
_AGENT = "workshop"
_OUT = ROOT / "bench" / "results" / "memory-tokens.json"


class Store:
    """The memory as a recall program sees it, and as the JSON tool does."""

    def __init__(self, memory: SqliteMemory, embedder: Embedder | None) -> None:
        self._memory = memory
        self._embedder = embedder

    def recall(self, query: str, k: int) -> Sequence[RecallHit]:
        asking = Asking(agent_id=_AGENT, reader=_AGENT, k=k)
        made = recall(self._memory, query, asking, key=_KEY, embedder=self._embedder)
        return [
            RecallHit(id=hit.id, content=made.notes[hit.id].content, score=hit.score)
            for hit in made.hits
        ]

    def score(self, memory_id: str) -> float:
        raise UsageError("only recall is compared here")

    def cite(self, memory_id: str) -> str:
        raise UsageError("only recall is compared here")


def filled(memory: SqliteMemory, shop: Workshop, embedder: Embedder | None) -> Store:
    """Remember what the workshop wrote down, a thread for each day."""
    notes = [
        NewNote(
            agent_id=_AGENT,
            content=text,
            created_at=_ms(day),
            thread_id=day.isoformat(),
        )
        for day, text in shop.notes
    ]
    remember_all(memory, notes)
    if embedder is not None:
        embed_missing(memory, embedder, dimensions=DIMENSIONS)
    return Store(memory, embedder)


def _ms(day: datetime.date) -> int:
    return 1000 * int(
        datetime.datetime(day.year, day.month, day.day, tzinfo=datetime.UTC).timestamp()
    )


def _memory(folder: Path) -> SqliteMemory:
    """A memory whose ids are the same every time: they are counted."""
    return SqliteMemory(
        folder / "memory.db",
        clock=lambda: _ms(datetime.date(2025, 7, 1)),
        entropy=Random(1).randbytes,
    )


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """A question worked through: for each reply, the messages it was given; and all at the end."""

    requests: tuple[str, ...]
    replies: tuple[str, ...]
    held: str

    def counted(self, count: Count) -> Counted:
        return Counted(
            held=count(self.held),
            sent=sum(map(count, self.requests)),
            written=sum(map(count, self.replies)),
        )


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """A question after both ways: their chats, whether they were right, and notes they read."""

    question: Question
    json: Chat
    lean: Chat
    code: Chat
    json_right: bool
    code_right: bool
    json_records: int
    records_seen: int
    records_emitted: int


def answered(question: Question, store: Store, sandbox: WasmSandbox, run: Run) -> Done:
    """Work a question through in both ways."""
    rounds = [[store.recall(query, k) for query, k in calls] for calls in question.rounds]
    given = [hit for results in rounds for hits in results for hit in hits]
    bundles = [
        run(run_python(source, store, sandbox=sandbox, budget=_BUDGET))
        for source in question.programs
    ]
    printed = [bundle.final_answer for bundle in bundles]
    seen = [hit for bundle in bundles for hit in bundle.recalled]
    if question.computed:
        right = printed[-1].strip() == question.answer
    else:
        right = all(note in printed[-1] for note in question.needed)
    return Done(
        question=question,
        json=_json_chat(question, rounds, lambda hits: canonical(hits).decode()),
        lean=_json_chat(question, rounds, lambda hits: "\n".join(hit.content for hit in hits)),
        code=_code_chat(question, printed),
        json_right=question.needed <= {hit.content for hit in given},
        code_right=right,
        json_records=len(given),
        records_seen=len(seen),
        records_emitted=emitted(seen, "\n".join((*printed, question.answer))),
    )


Run = Callable[[Any], Any]


def _json_chat(
    question: Question,
    rounds: Sequence[Sequence[Sequence[RecallHit]]],
    told: Callable[[Sequence[RecallHit]], str],
) -> Chat:
    """Calls of one round stand in one reply, and each result is a message."""
    turns = []
    for calls, results in zip(question.rounds, rounds, strict=True):
        asked = [
            canonical({"name": "recall", "arguments": {"query": query, "k": k}}).decode()
            for query, k in calls
        ]
        turns.append(("\n".join(asked), [("tool", told(hits)) for hits in results]))
    return _chat(("tools", JSON_TOOL), question, turns)


def _code_chat(question: Question, printed: Sequence[str]) -> Chat:
    turns = [
        (source, [("user", output)])
        for source, output in zip(question.programs, printed, strict=True)
    ]
    return _chat(("system", CODE_MANUAL), question, turns)


def _chat(
    manual: tuple[str, str],
    question: Question,
    turns: Iterable[tuple[str, Sequence[tuple[str, str]]]],
) -> Chat:
    """Both ways end in the same answer, which the model writes."""
    messages = [manual, ("user", question.text)]
    requests, replies = [], []
    for reply, results in (*turns, (question.answer, ())):
        requests.append(_framed(messages))
        replies.append(reply)
        messages += [("assistant", reply), *results]
    return Chat(requests=tuple(requests), replies=tuple(replies), held=_framed(messages))


def _framed(messages: Sequence[tuple[str, str]]) -> str:
    return "".join(f"<|{role}|>\n{text}\n" for role, text in messages)


# -- tokenizers ------------------------------------------------------------------------------------


def word_pieces(model: MiniLm) -> Count:
    """Count by the embedder's own tokenizer, which reads word by word and is cut at 254 tokens."""
    piece = functools.lru_cache(maxsize=1 << 16)(model.count)
    return lambda text: sum(piece(word) for word in text.split())


def served(url: str, key: str) -> tuple[str, Count] | None:
    """Count by asking the server of a model; None if it does not say."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    client = httpx.Client(headers=headers, timeout=60)
    root = url.rstrip("/").removesuffix("/v1")
    try:
        about = client.get(f"{root}/v1/models").raise_for_status().json()["data"][0]
        client.post(f"{root}/tokenize", json={"content": "x"}).raise_for_status()
    except (httpx.HTTPError, LookupError, ValueError):
        return None

    @functools.lru_cache(maxsize=1 << 12)
    def count(text: str) -> int:
        reply = client.post(f"{root}/tokenize", json={"content": text})
        return len(reply.raise_for_status().json()["tokens"])

    words = about.get("meta", {}).get("n_vocab", 0)
    return f"the served model {about['id']!r}, a vocabulary of {words:,}", count


# -- the table -------------------------------------------------------------------------------------


def table(done: Sequence[Done], *, tokenizer: str, count: Count) -> dict[str, Any]:
    """Figures of every question, of every kind, and of all."""
    rows = [_row(each, count) for each in done]
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    groups = {kind: [row for row in rows if row["kind"] == kind] for kind in kinds} | {"all": rows}
    return {
        "tokenizer": tokenizer,
        "rows": rows,
        "totals": {name: _total(each) for name, each in groups.items()},
    }


def _row(done: Done, count: Count) -> dict[str, Any]:
    return {
        "kind": done.question.kind,
        "question": done.question.text,
        "json": msgspec.structs.asdict(done.json.counted(count)),
        "lean": msgspec.structs.asdict(done.lean.counted(count)),
        "code": msgspec.structs.asdict(done.code.counted(count)),
        "json_records": done.json_records,
        "records_seen": done.records_seen,
        "records_emitted": done.records_emitted,
        "right": {"json": done.json_right, "code": done.code_right},
    }


def _total(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {"questions": len(rows)}
    for way in ("json", "lean", "code"):
        fields = Counted.__struct_fields__
        total[way] = {name: sum(row[way][name] for row in rows) for name in fields}
    for name in ("json_records", "records_seen", "records_emitted"):
        total[name] = sum(row[name] for row in rows)
    total["right"] = {way: sum(row["right"][way] for row in rows) for way in ("json", "code")}
    for way in ("json", "lean"):
        total[f"saved_of_{way}"] = {
            name: round(1 - total["code"][name] / total[way][name], 3) for name in ("held", "sent")
        }
    return total


def rendered(figures: dict[str, Any]) -> str:
    """The table as Markdown."""
    names = ("held", "sent", "written")
    lines = [
        f"Tokens by {figures['tokenizer']}.",
        "",
        "| question | JSON held | sent | written | lean held | sent | code held | sent | written "
        "| JSON records | code seen | emitted | right |",
        f"|{'---|' * 13}",
    ]
    every = [(row["question"], row) for row in figures["rows"]]
    every += [(f"**{name}**", total) for name, total in figures["totals"].items()]
    for name, row in every:
        right = row["right"]
        cells = [
            *(row["json"][each] for each in names), *(row["lean"][each] for each in names[:2]),
            *(row["code"][each] for each in names),
            row["json_records"], row["records_seen"], row["records_emitted"],
        ]  # fmt: skip
        told = f"{int(right['json'])}, {int(right['code'])}"
        lines.append(f"| {name} | " + " | ".join(f"{cell:,}" for cell in cells) + f" | {told} |")
    for name, total in figures["totals"].items():
        lean = total["saved_of_lean"]
        saved = ", ".join(
            f"{share:.0%} of {what}" for what, share in total["saved_of_json"].items()
        )
        lines.append(f"\n{name}: saved {saved}; {lean['held']:.0%} and {lean['sent']:.0%} of lean")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    if missing():
        print(f"skipped: {missing()}", file=sys.stderr)
        return 2
    out = Path(arguments[arguments.index("--out") + 1]) if "--out" in arguments[:-1] else _OUT
    model = MiniLm.load(cache=cache_directory())
    counters = {"WordPiece of all-MiniLM-L6-v2": word_pieces(model)}
    url = os.environ.get("TALLYSTICK_MODEL_URL", "")
    if url:
        found = served(url, os.environ.get("TALLYSTICK_MODEL_KEY", ""))
        if found is None:
            print("the served model does not count tokens: no table by it", file=sys.stderr)
        else:
            counters[found[0]] = found[1]
    shop = Workshop()
    with World.open() as world, _memory(world.directory) as memory:
        store = filled(memory, shop, model)
        done = [answered(each, store, world.sandbox, world.do) for each in questions(shop)]
    tables = [table(done, tokenizer=name, count=count) for name, count in counters.items()]
    shown = "\n".join(map(rendered, tables))
    print(shown, flush=True)
    result = {"notes": len(shop.notes), "model": MODEL_DIGEST, "tables": tables}
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    out.with_suffix(".md").write_text(shown, encoding="utf-8")
    print(f"written to {out}, and as a table beside it")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
