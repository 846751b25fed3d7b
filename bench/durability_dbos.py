"""DBOS on SQLite, a step to a turn: run by the peer's own Python, whose calls are counted.

Reads {"folder", "turns", "bytes"}; prints one line of JSON: the turns taken and the version.
"""

import json
import sys
from importlib.metadata import version
from typing import Any

from dbos import DBOS  # type: ignore[import-not-found]


def main(folder: str, turns: int, bytes: int) -> dict[str, Any]:
    DBOS(
        config={
            "name": "bench",
            "system_database_url": f"sqlite:///{folder}/dbos.db",
            "run_admin_server": False,
            "log_level": "ERROR",
        }
    )

    @DBOS.step()  # type: ignore[untyped-decorator]
    def taken(turn: int) -> str:
        return f"{turn:08d}".ljust(bytes, ".")

    @DBOS.workflow()  # type: ignore[untyped-decorator]
    def work() -> int:
        return sum(len(taken(turn)) == bytes for turn in range(turns))

    DBOS.launch()
    try:
        return {"turns": work(), "version": f"dbos {version('dbos')}"}
    finally:
        DBOS.destroy()


if __name__ == "__main__":
    print(json.dumps(main(**json.load(sys.stdin))))
