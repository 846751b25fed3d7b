"""Recall of evidence: how many of the turns that answer a question are among the best ten.

    TALLYSTICK_EVAL_DATA=... .venv/bin/python -m bench.memory.locomo [--without] [--out FILE]

Writes bench/results/memory-locomo.json: figures only, and nothing of the data but the names of the
conversations.

Question: does our ranking find what BM25, the dense model and their fusion by rank do not? Guess:
0.62, 0.44, 0.57, and 0.76 for ours. Everything is computed in one run, on the same vectors. The
weights were chosen on the first three conversations of the file; the others are reported apart.
They are not untouched: they were looked at once before the lane for dates and the rule for common
words were added. Only conversations that are not in the file give a clean figure. Each conversation
is also reported alone, with mean and spread over all of them, the profile being the same for all.
"""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.measure import ROOT
from bench.memory.conversations import CATEGORIES, find_file, read_conversations
from bench.memory.methods import METHODS, WITHOUT, Method, Prepared, Remembered, prepare

from tallystick.core.json_text import digest
from tallystick.memory.recall.minilm import MiniLm, missing
from tallystick.memory.recall.scope import DEFAULT
from tallystick.settings.paths import cache_directory

__all__ = ["beside", "figures", "main", "measure", "spread"]

_CHOSEN_ON = 3
_KS = (5, 10, 20)
_RRF = "RRF(BM25, MiniLM)"
_OURS = "tallystick"
_OUT = ROOT / "bench" / "results" / "memory-locomo.json"
# What the part that was held out has to reach.
_TARGETS = {"R@10": 0.75, "times BM25": 1.15, f"times {_RRF}": 1.3}


def main(arguments: Sequence[str]) -> int:
    path = find_file()
    if path is None:
        print("skipped: TALLYSTICK_EVAL_DATA names no file of conversations", file=sys.stderr)
        return 2
    if missing():
        print(f"skipped: {missing()}", file=sys.stderr)
        return 2
    methods = {**METHODS, **(WITHOUT if "--without" in arguments else {})}
    embedder = Remembered(MiniLm.load(cache=cache_directory()))
    began = time.process_time()
    prepared = [prepare(each, embedder) for each in read_conversations(path)]
    embedding = time.process_time() - began
    parts = {"chosen on": prepared[:_CHOSEN_ON], "held out": prepared[_CHOSEN_ON:]}
    result: dict[str, Any] = {
        "data": digest(path.read_bytes()),
        "profile": DEFAULT.digest,
        "model": embedder.digest,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.python_version()}",
        "embedding_cpu_s": round(embedding, 1),
        "parts": {},
    }
    for part, conversations in parts.items():
        if conversations:
            rows = measure(conversations, methods)
            names = [each.conversation.name for each in conversations]
            result["parts"][part] = {"conversations": names, "rows": rows, "ours": beside(rows)}
            print(_table(part, names, rows), flush=True)
    result["targets"] = _TARGETS
    result["alone"] = {
        each.conversation.name: beside(measure([each], METHODS)) for each in prepared
    }
    result["spread"] = spread(result["alone"].values())
    print(_shown_spread(result["spread"]), flush=True)
    out = Path(arguments[arguments.index("--out") + 1]) if "--out" in arguments[:-1] else _OUT
    out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"written to {out}")
    return 0


def measure(
    conversations: Sequence[Prepared], methods: Mapping[str, Method]
) -> dict[str, dict[str, float]]:
    """A row of figures for each method."""
    rows = {}
    for name, method in methods.items():
        answers = []
        began = time.process_time()
        for prepared in conversations:
            for question in prepared.conversation.questions:
                found = method(prepared, question.text)
                answers.append((question.category, question.evidence, found))
        spent = time.process_time() - began
        rows[name] = {**figures(answers), "cpu_ms": round(1000 * spent / max(1, len(answers)), 1)}
    return rows


def figures(answers: Sequence[tuple[int, frozenset[str], Sequence[str]]]) -> dict[str, float]:
    """Mean recall at several k, at ten by category, and how high the first evidence stands."""
    row = {f"R@{k}": _mean([_recall(right, found, k) for _, right, found in answers]) for k in _KS}
    row["MRR"] = _mean([_first(right, found) for _, right, found in answers])
    for number, name in CATEGORIES.items():
        of_kind = [each for each in answers if each[0] == number]
        row[name] = _mean([_recall(right, found, 10) for _, right, found in of_kind])
    return {**row, "questions": len(answers)}


def beside(rows: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Ours at ten, the others, and how many times theirs it is."""
    ours = rows[_OURS]["R@10"]
    found = {"questions": rows[_OURS]["questions"], "R@10": ours}
    for name in ("BM25", _RRF):
        theirs = rows[name]["R@10"]
        found[f"R@10 of {name}"] = theirs
        found[f"times {name}"] = round(ours / theirs, 3) if theirs else math.nan
    return found


def spread(alone: Iterable[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Of conversations taken one by one: the mean, how far they lie apart, least and most."""
    listed = list(alone)
    return {
        name: {
            "mean": _mean(values := [each[name] for each in listed]),
            "deviation": round(statistics.stdev(values), 4) if len(values) > 1 else 0.0,
            "least": min(values),
            "most": max(values),
        }
        for name in listed[0]
        if name != "questions"
    }


def _recall(evidence: frozenset[str], found: Sequence[str], k: int) -> float:
    return len(evidence.intersection(found[:k])) / len(evidence)


def _first(evidence: frozenset[str], found: Sequence[str]) -> float:
    return next((1 / place for place, id in enumerate(found, 1) if id in evidence), 0.0)


def _mean(values: Sequence[float]) -> float:
    return round(statistics.fmean(values), 4) if values else math.nan


def _table(part: str, names: Sequence[str], rows: Mapping[str, Mapping[str, float]]) -> str:
    columns = [*(f"R@{k}" for k in _KS), "MRR", *CATEGORIES.values(), "cpu_ms"]
    questions = int(next(iter(rows.values()))["questions"])
    lines = [f"{part}: {', '.join(names)}; {questions} questions", f"{'':34}" + _cells(columns)]
    for name, row in rows.items():
        shown = [
            f"{row[column]:.1f}" if column == "cpu_ms" else f"{row[column]:.3f}"
            for column in columns
        ]
        lines.append(f"{name:34}" + _cells(shown))
    ours = beside(rows)
    times = ", ".join(f"{ours[f'times {name}']:.2f} times {name}" for name in ("BM25", _RRF))
    return "\n".join((*lines, f"ours at ten: {ours['R@10']:.3f}, {times}", ""))


def _shown_spread(figures: Mapping[str, Mapping[str, float]]) -> str:
    lines = ["each conversation alone"]
    for name, each in figures.items():
        told = ", ".join(f"{what} {value:.3f}" for what, value in each.items())
        lines.append(f"{name:34}{told}")
    return "\n".join((*lines, ""))


def _cells(values: Sequence[str]) -> str:
    return "".join(f"{value:>12}" for value in values)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
