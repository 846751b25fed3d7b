"""The same tasks without the helps for weak models, with each of them alone, and with all.

    .venv/bin/python bench/real/small.py --url http://127.0.0.1:8080/v1 --model NAME
        --seed 7101,7102,7103 --kept ~/replies.db

Replies are kept in a file, so a configuration costs only the requests that no other one has made.
Results are written after each seed; an interrupted measurement goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# A script starts with its own directory in the path; these modules are named from the root.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.real import ours
from bench.real.kept import KeptReplies
from bench.real.outcome import ROOT, Allowed, Server, about
from bench.real.table import Row, header_line, row_line, stored, total_lines
from bench.real.tasks import EVERY, SMALL, tasks_of

from tallystick.core.records import AIDS

__all__ = ["CONFIGURATIONS", "markdown"]

CONFIGURATIONS: dict[str, tuple[str, ...]] = {
    "before": (),
    **{aid: (aid,) for aid in AIDS},
    "all": AIDS,
}
_RESULTS = ROOT / "bench" / "results" / "real-small.json"
_ALLOWED = Allowed(turns=4, reply_tokens=300, seconds=3_600)


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    names = [name for name in given.tasks.split(",") if name] or list(SMALL)
    seeds = [int(seed) for seed in given.seed.split(",")]
    chosen = [name for name in given.configurations.split(",") if name]
    unknown = [name for name in names if name not in EVERY]
    unknown += [name for name in chosen if name not in CONFIGURATIONS]
    if unknown:
        print(
            f"there is no {unknown[0]!r}: name tasks of tasks.py, and of the configurations "
            f"{', '.join(CONFIGURATIONS)}",
            file=sys.stderr,
        )
        return 2
    server = Server(url=given.url, model=given.model, key=os.environ.get(given.key_env, ""))
    kept = KeptReplies(Path(given.kept), alone=given.only_kept)
    facts = about("tallystick", ours.VERSION, server, _ALLOWED)
    facts |= {"seeds": seeds, "load_at_start": os.getloadavg()[0]}
    rows: dict[str, list[Row]] = {name: [] for name in chosen}
    alike: dict[str, list[Row]] = {}
    left_out: set[tuple[str, int]] = set()
    print(header_line())
    # By seeds, so that an interrupted measurement has whole ones.
    for seed in seeds:
        for name in chosen:
            run = ours.runner(server, _ALLOWED, kept=kept, aids=CONFIGURATIONS[name])
            for task in tasks_of(seed, names):
                missed = kept.missed
                row = Row(runtime=name, task=task, outcome=run(task))
                if kept.alone and kept.missed > missed:
                    left_out.add((task.name, seed))
                    continue
                rows[name].append(row)
                print(row_line(row), flush=True)
        facts |= {
            "not_measured": sorted(f"{name} {number}" for name, number in left_out),
            "load_at_end": os.getloadavg()[0],
            "replies_served_from_the_file": kept.served,
            "seconds_of_the_model_for_those": round(kept.seconds),
        }
        # A task that one configuration lacks is counted for none: they would not be alike.
        alike = {
            name: [row for row in held if (row.task.name, row.task.seed) not in left_out]
            for name, held in rows.items()
        }
        _write(Path(given.out), facts, alike)
    print("\n" + "\n".join(line for held in alike.values() for line in total_lines(held)))
    print(f"written to {given.out}")
    return 0


def _write(path: Path, facts: Mapping[str, Any], rows: Mapping[str, Sequence[Row]]) -> None:
    configurations = {
        name: {"totals": total_lines(held), "rows": [stored(row) for row in held]}
        for name, held in rows.items()
        if held
    }
    results = {**facts, "configurations": configurations}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(markdown(results), encoding="utf-8")


def markdown(results: Mapping[str, Any]) -> str:
    """Return the tables of results: what was solved by kind, and what the helps cost."""
    held: dict[str, list[dict[str, Any]]] = {
        name: each["rows"] for name, each in results["configurations"].items()
    }
    kinds = list(dict.fromkeys(row["task"] for rows in held.values() for row in rows))
    lines = [
        "# Small models, without and with each help",
        "",
        f"{results['model']} at temperature {results['limits']['temperature']:g}, "
        f"commit {results['commit']}, seeds {', '.join(map(str, results['seeds']))}; at most "
        f"{results['limits']['turns']} turns of {results['limits']['reply_tokens']} tokens. "
        "Written by `bench/real/small.py`.",
        *_left_out(results.get("not_measured", [])),
        "",
        f"| solved | {' | '.join(held)} |",
        f"| --- |{' ---: |' * len(held)}",
    ]
    for kind in kinds:
        cells = [_share([row for row in rows if row["task"] == kind]) for rows in held.values()]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    lines.append(f"| **all kinds** | {' | '.join(_share(rows) for rows in held.values())} |")
    lines += ["", *_costs(held)]
    return "\n".join(lines) + "\n"


def _left_out(named: Sequence[str]) -> list[str]:
    """Return a paragraph about runs that were not measured, if there are some."""
    if not named:
        return []
    return ["", f"Not measured, and not counted: {', '.join(named)}."]


def _share(rows: Sequence[Mapping[str, Any]]) -> str:
    return f"{sum(row['solved'] for row in rows)} of {len(rows)}"


def _costs(held: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return a table of what tasks cost that were right before: tokens of the prompt, and turns."""
    if "before" not in held:
        return []
    right = {(row["task"], row["seed"]): row for row in held["before"] if row["solved"]}
    lines = [
        "Tasks that were right before: how much longer the first prompt is, at most and on "
        "average, and all turns of these tasks.",
        "",
        "| | most tokens more | tokens more on average | turns before | turns now | still right |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, rows in held.items():
        pairs = [(right[key], row) for row in rows if (key := (row["task"], row["seed"])) in right]
        if name == "before" or not pairs:
            continue
        more = [now["tokens_in_first"] - then["tokens_in_first"] for then, now in pairs]
        lines.append(
            f"| {name} | {max(more)} | {sum(more) / len(more):.1f} | "
            f"{sum(then['turns'] for then, _ in pairs)} | {sum(now['turns'] for _, now in pairs)} "
            f"| {_share([now for _, now in pairs])} |"
        )
    return lines


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--url", default=os.environ.get("TALLYSTICK_MODEL_URL", ""))
    parser.add_argument("--model", required=True)
    parser.add_argument("--key-env", default="TALLYSTICK_MODEL_KEY")
    parser.add_argument("--seed", required=True, help="seeds, separated by commas")
    parser.add_argument("--tasks", default="", help="names; those of SMALL in tasks.py unless told")
    parser.add_argument("--configurations", default=",".join(CONFIGURATIONS))
    parser.add_argument("--kept", required=True, help="file of replies, outside of the repository")
    parser.add_argument(
        "--only-kept", action="store_true", help="ask no model: leave out what has no kept replies"
    )
    parser.add_argument("--out", default=str(_RESULTS))
    return parser


if __name__ == "__main__":
    sys.exit(main())
