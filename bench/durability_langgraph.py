"""LangGraph's SqliteSaver, a node to a turn: run by the peer's own Python, whose calls are counted.

Reads {"folder", "turns", "bytes", "durability"}; a durability of null is the default. Prints one
line of JSON: the turns taken and the version. The state holds the last reply only, which is the
least that a graph can store.
"""

import json
import sys
from importlib.metadata import version
from typing import Any, TypedDict

from langgraph.checkpoint.sqlite import SqliteSaver  # type: ignore[import-not-found]
from langgraph.graph import END, START, StateGraph  # type: ignore[import-not-found]


class State(TypedDict):
    """What a turn leaves: its number and its reply."""

    turn: int
    reply: str


def main(folder: str, turns: int, bytes: int, durability: str | None) -> dict[str, Any]:
    def taken(state: State) -> State:
        return {"turn": state["turn"] + 1, "reply": f"{state['turn']:08d}".ljust(bytes, ".")}

    graph = StateGraph(State)
    graph.add_node("turn", taken)
    graph.add_edge(START, "turn")
    graph.add_conditional_edges(
        "turn", lambda state: END if state["turn"] >= turns else "turn", ["turn", END]
    )
    config = {"configurable": {"thread_id": "bench"}, "recursion_limit": turns + 10}
    chosen = {} if durability is None else {"durability": durability}
    with SqliteSaver.from_conn_string(f"{folder}/langgraph.db") as saver:
        ended = graph.compile(checkpointer=saver).invoke({"turn": 0, "reply": ""}, config, **chosen)
    versions = f"langgraph {version('langgraph')}, {version('langgraph-checkpoint-sqlite')}"
    return {"turns": ended["turn"], "version": versions}


if __name__ == "__main__":
    print(json.dumps(main(**json.load(sys.stdin))))
