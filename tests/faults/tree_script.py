"""A tree of runs that is played: what each of them is asked to do, and its programs, turn by turn.

Four levels: the root has two children at once, one of them a grandchild, and that one a run of its
own. Model calls of programs, effects and attachments are on different levels, and in the root and
in both children variables of the first turn are used in the second.
"""

from __future__ import annotations

__all__ = ["FAMILY_GOAL", "FAMILY_PROGRAMS", "QUERIES"]

FAMILY_GOAL = "Have the shelves counted and enter the sum."
# How many model calls the programs of one of the children make.
QUERIES = 3
FAMILY_PROGRAMS: dict[str, tuple[str, ...]] = {
    FAMILY_GOAL: (
        """
shelves = ["oak", "elm"]
counts = rlm_query_batched(
    [f"Count the {name} shelf." for name in shelves],
    contexts=[f"The {name} shelf has books." for name in shelves],
)
label = attachments.put(f"{shelves} {counts}", label="counts")
print(counts)
""",
        """
done = enter(f"sum of {shelves[0]} and {shelves[1]}")
FINAL(f"{done}: {counts}, {attachments.get(label['id'])}")
""",
    ),
    "Count the oak shelf.": (
        """
weight = rlm_query("Weigh the oak shelf.", context=f"{context} They are heavy.")
print(weight)
""",
        """
FINAL(f"{context[4:7]} weighs {weight}")
""",
    ),
    "Weigh the oak shelf.": (
        """
note = attachments.put(f"{context} " * 3_000, label="note")
name = rlm_query("Name the oak shelf.")
FINAL(f"{name}, {note['byte_len']}, {len(attachments.get(note['id']))}")
""",
    ),
    "Name the oak shelf.": (
        """
FINAL(enter("oak"))
""",
    ),
    "Count the elm shelf.": (
        f"""
asked = [f"How large is book {{number}} of {{context}}?" for number in range({QUERIES})]
sizes = llm_query_batched(asked)
total = sum(int(size) for size in sizes)
print(total)
""",
        """
FINAL(f"{total} by {enter('elm')}, {len(context)}")
""",
    ),
}
