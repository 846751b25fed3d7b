"""Names that a stranger cannot decode stay out of the package: each had to be looked up."""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "tallystick"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if "_image" not in path.parts)

# What each was called, without leading underscores. Those on the right say what the thing is.
CLASSES = {
    "Account": "ScopeTree",
    "Asked": "CallLog",
    "Branch": "RunNode",
    "DoubtfulHost": "InDoubtHost",
    "Family": "ChildRuns",
    "FamilyTally": "RunTree",
    "Given": "RunInputs",
    "Joined": "SessionLease",
    "Layout": "InputLayout",
    "NotedHost": "ReplayingHost",
    "Passage": "Continuation",
    "Place": "ScopeRef",
    "Purse": "RunScopes",
    "SharedPurse": "SharedCap",
    "Shelf": "RunAttachments",
    "Standing": "StepView, RunStatus, NoteStatus",
    "StepsAgain": "StepReplay",
    "Stored": "StoredInputs",
    "Teller": "ModelDoor",
    "Terms": "CallTerms",
    "Ticket": "ReservedCall",
    "Till": "ClientScopes",
    "Together": "CallBatch",
    "Writing": "PendingWrite",
    "WrittenHost": "RecordingHost",
}
CLASS_ENDINGS = ("Desk", "Pen")
FUNCTIONS = {
    "gone_on": "continued",
    "gone_on_with": "continue_run",
    "driven_again": "drive_continued",
    "in_session": "run_in_session",
    "kill": "drop",
    "passage": "continuation",
    "rejoined": "lease_again",
    "ride": "append_later",
    "so_far": "a noun that says of what",
    "think": "set_state",
    "thought": "add_past",
    "watched": "watched_by_session",
}
MODULE_NAMES = {
    "active_step", "carry", "desk", "driving_again", "erased", "given", "going", "going_on",
    "mention", "names", "needles", "opening", "passage", "pen", "purse", "remarks", "shelf",
    "so_far",
    "step_again", "teller", "till", "together", "told", "touched_runs",
}  # fmt: skip


@functools.cache
def defined() -> list[tuple[str, str, str]]:
    """List the place, kind and name of every definition, assigned types among them."""
    found = []
    for path in MODULES:
        place = str(path.relative_to(PACKAGE))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                found.append((place, "class", node.name.lstrip("_")))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                found.append((place, "function", node.name.lstrip("_")))
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                found.append((place, "class", node.targets[0].id.lstrip("_")))
    return found


def test_no_class_is_called_by_an_old_name() -> None:
    old = [
        (place, name)
        for place, kind, name in defined()
        if kind == "class" and (name in CLASSES or name.endswith(CLASS_ENDINGS))
    ]

    assert old == []


def test_no_function_is_called_by_an_old_name() -> None:
    # Inside the guest, functions stand in for the standard library and have its names.
    old = [
        (place, name)
        for place, kind, name in defined()
        if kind == "function" and name in FUNCTIONS and not place.startswith("guest/prelude/")
    ]

    assert old == []


def test_no_module_is_called_by_an_old_name() -> None:
    # The records and the prelude of what a run was given are named for the field that holds it.
    allowed = {"core/records/given.py", "guest/prelude/tallystick_guest/given.py"}
    old = [
        str(path.relative_to(PACKAGE))
        for path in MODULES
        if path.stem in MODULE_NAMES and str(path.relative_to(PACKAGE)) not in allowed
    ]

    assert old == []


def test_no_identifier_says_that_a_run_is_gone_on_with() -> None:
    said = [
        f"{path.relative_to(PACKAGE)}: {match.group()}"
        for path in MODULES
        for match in re.finditer(r"\w*gone_on\w*", path.read_text(encoding="utf-8"), re.I)
    ]

    assert said == []


def test_there_are_definitions_to_look_at() -> None:
    assert len(defined()) > 5_000
