"""List the capabilities of the package: for each its commands, its Python names and its page.

`make reference` writes the list into docs/reference/surfaces.md, and `tests/shape/test_surfaces.py`
compares it with the code. Each command and each name of a public module has exactly one row, and
each cell has something: a `Reason` says why there is no command, or no name. Errors have no rows:
docs/reference/errors.md has all of them, made from the code.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass

import click

from tallystick.cli import main
from tallystick.core.errors import Cancelled, TallystickError
from tools.public import public_modules, public_names


class Reason(str):
    """A sentence in the place of a command or a name that is not there on purpose."""


@dataclass(frozen=True)
class Surface:
    """One capability. Commands are separated by commas, names by spaces.

    A name is one of `tallystick` itself, or has the name of its public module in front, such as
    `memory.Note`. A method stands for what it does: `Agent.fork`. A command that has a row of its
    own may help in another with one option, `run --file`, and a function with one argument,
    `Agent.run(inputs=)`. The page is a path in docs/.
    """

    what: str
    commands: str
    python: str
    page: str

    @property
    def all_commands(self) -> list[str]:
        """The commands, without options as well as with one; none if there is a reason."""
        return [] if isinstance(self.commands, Reason) else self.commands.split(", ")

    @property
    def all_names(self) -> list[str]:
        """The names, without arguments as well as with one; none if there is a reason."""
        return [] if isinstance(self.python, Reason) else self.python.split()


# -- what the code has -----------------------------------------------------------------------------


def commands() -> dict[str, click.Command]:
    """Return every command by its words after `tally`, groups only if they do something alone."""
    return dict(_commands(main.cli, click.Context(main.cli, info_name="tally"), ()))


def _commands(
    command: click.Command, context: click.Context, words: tuple[str, ...]
) -> Iterator[tuple[str, click.Command]]:
    alone = not isinstance(command, click.Group) or command.invoke_without_command
    if words and alone:
        yield " ".join(words), command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                inside = click.Context(below, info_name=name, parent=context)
                yield from _commands(below, inside, (*words, name))


def found(name: str) -> object:
    """Return what a name of a row stands for. Raise `AttributeError` if there is nothing."""
    first, *rest = name.split(".")
    module = f"tallystick.{first}"
    thing: object = importlib.import_module("tallystick")
    if module in public_modules():
        thing = importlib.import_module(module)
    else:
        rest = [first, *rest]
    for each in rest:
        thing = getattr(thing, each)
    return thing


def names() -> list[str]:
    """List the public names that need a row: those of all modules, and methods of two classes.

    Most of what users do is a method of `Agent` or `Memory`. Errors need no row.
    """
    wanted = []
    for module in public_modules():
        prefix = "".join(f"{each}." for each in module.split(".")[1:])
        wanted += [f"{prefix}{name}" for name in public_names(module)]
    wanted = [name for name in wanted if not _is_error(found(name))]
    for owner in ("Agent", "Memory"):
        members = vars(found(owner)) | vars(inspect.getmro(found(owner))[1])  # type: ignore[arg-type]
        wanted += [f"{owner}.{name}" for name in members if not name.startswith("_")]
    return wanted


def _is_error(thing: object) -> bool:
    return inspect.isclass(thing) and issubclass(thing, TallystickError | Cancelled)


# -- the rows --------------------------------------------------------------------------------------


OWN_CODE = Reason("It is about Python code of your own.")

SURFACES = (
    # -- runs --------------------------------------------------------------------------------------
    Surface(
        "Run a goal",
        "run",
        "run arun Agent Agent.run Agent.arun Agent.start Agent.astart Agent.chat Agent.close "
        "Agent.aclose Agent.engine Agent.capabilities Run Charge",
        "start.md",
    ),
    Surface(
        "Give a run files and texts",
        "run --file",
        "Agent.run(inputs=) inputs.read_inputs inputs.given_text inputs.Input",
        "guides/ask-over-files.md",
    ),
    Surface("Give programs tools", OWN_CODE, "tool effect_key", "guides/tools.md"),
    Surface("Resume a run", "resume", "Agent.resume Agent.aresume", "guides/resume.md"),
    Surface(
        "Settle calls in doubt",
        "resolve",
        "upkeep.runs_in_doubt upkeep.DoubtfulRun upkeep.close_calls upkeep.ClosedCalls "
        "model.NOT_RECEIVED model.UNKNOWN",
        "guides/resume.md",
    ),
    Surface(
        "Decide about a program that waits",
        "approve, deny",
        "Agent.approve Agent.aapprove Agent.deny Agent.adeny Agent.resume(decision=)",
        "guides/check-programs.md",
    ),
    Surface("Fork a run", "fork", "Agent.fork Agent.afork", "guides/fork-and-compare.md"),
    Surface(
        "Compare two runs",
        "diff",
        "upkeep.difference_of upkeep.RunDifference",
        "guides/fork-and-compare.md",
    ),
    Surface("Replay a run", "replay", "Agent.replay Agent.areplay", "concepts/replay.md"),
    Surface(
        "Limit what runs may use",
        "run --max-usd",
        "Agent.run(limits=) RunLimits Budget",
        "guides/cap-spending.md",
    ),
    Surface(
        "Limit all runs of a ledger together",
        "total",
        "upkeep.read_total upkeep.change_total upkeep.Total",
        "guides/cap-spending.md",
    ),
    Surface(
        "Name parts of your own code, with budgets",
        OWN_CODE,
        "step steps.step steps.step_log steps.completed_steps steps.StepLog steps.CompletedStep "
        "steps.StepUsage steps.StepDefinition steps.StepRegistry steps.current_step "
        "steps.charge_step steps.is_budget_error steps.ActiveStep steps.enter_step "
        "steps.mark_escalated steps.reset_steps steps.step_model steps.within_step",
        "guides/steps.md",
    ),
    Surface(
        "Repeat recorded steps",
        OWN_CODE,
        "Agent.resume_steps Agent.replay_steps steps.StepsReport steps.StepDivergence",
        "guides/steps.md",
    ),
    Surface(
        "Try it without a key",
        "demo",
        Reason("It is a tour for a person, of what the other rows have."),
        "start.md",
    ),
    Surface(
        "Follow a run while it happens",
        "inspect --follow",
        "follow stream Agent.stream",
        "guides/resume.md",
    ),
    Surface("Stop a run of any process", "stop", "stop", "guides/resume.md"),
    # -- models ------------------------------------------------------------------------------------
    Surface(
        "See which models can be asked",
        "models",
        Reason("It is about the machine; `settings.open_model` opens one by its name."),
        "guides/choose-a-model.md",
    ),
    Surface(
        "Choose a model",
        "run --model",
        "Agent(model=) settings.open_model Agent.use Agent.model_of "
        "Agent.models_of_programs model.Model model.ModelRequest model.ModelReply "
        "model.ModelUsage",
        "guides/choose-a-model.md",
    ),
    Surface(
        "Say what calls cost",
        "run --allow-unpriced",
        "Agent(pricing=) model.Pricing model.PriceTable",
        "guides/cap-spending.md",
    ),
    Surface(
        "Put a script or a record in the place of a model",
        Reason("`tally run -m` takes both as names: `scripted:FILE` and `recorded:RUN`."),
        "model.ScriptedModel model.ScriptedReply model.ScriptedUsage model.RecordedModel",
        "guides/test-your-agent.md",
    ),
    # -- recorded runs -----------------------------------------------------------------------------
    Surface(
        "Keep runs in a ledger",
        Reason("The ledger of the user is always there; `TALLYSTICK_DATA_DIR` moves it."),
        "ledger.Ledger ledger.SqliteLedger ledger.MemoryLedger Agent.ledger upkeep.Stores "
        "upkeep.open_stores",
        "concepts/ledger.md",
    ),
    Surface(
        "List runs",
        "ls",
        "ledger.SqliteLedger.runs ledger.RunRow ledger.RunFilter upkeep.resolve_run",
        "guides/audit.md",
    ),
    Surface(
        "Read a run turn by turn",
        "inspect",
        "upkeep.records_of upkeep.outline_of upkeep.Outline upkeep.tree_of upkeep.Node",
        "guides/audit.md",
    ),
    Surface(
        "Read what a run or a step cost",
        "receipt",
        "upkeep.step_lines upkeep.StepLine",
        "guides/audit.md",
    ),
    Surface(
        "Check the hashes of the ledger",
        "verify",
        "upkeep.verify_records ledger.verify_ledger ledger.VerifyReport ledger.BadEntry",
        "guides/audit.md",
    ),
    Surface(
        "Keep the head of a run elsewhere",
        "head",
        "upkeep.head_of upkeep.read_head upkeep.verify_head upkeep.HeadFile upkeep.HeadReport "
        "ledger.Head",
        "guides/audit.md",
    ),
    Surface(
        "Prove an entry",
        "prove",
        "upkeep.proof_of upkeep.read_proof upkeep.verify_proof upkeep.Proof upkeep.ProofReport",
        "guides/audit.md",
    ),
    Surface(
        "Export and import runs",
        "export, import",
        "upkeep.export_run_with_attachments upkeep.import_run_with_attachments upkeep.Transferred",
        "concepts/ledger.md",
    ),
    Surface(
        "Exchange runs with other tools",
        "export --format",
        "interop.export_trajectory interop.Exported interop.TrajectoryEvent interop.encode_event "
        "interop.decode_event interop.import_rlms_log interop.ImportedLog",
        "reference/events.md",
    ),
    Surface(
        "Delete the content of old runs",
        "prune",
        "upkeep.Pruner upkeep.Pruned upkeep.Kept",
        "guides/delete-data.md",
    ),
    Surface("Delete a run", "rm", "upkeep.remove_run_with_attachments", "guides/delete-data.md"),
    # -- sessions ----------------------------------------------------------------------------------
    Surface(
        "Make, list and remove sessions",
        "session new, session ls, session show, session rm",
        "Agent.sessions sessions.Sessions sessions.Sessions.new sessions.Sessions.list "
        "sessions.Sessions.remove sessions.SessionInfo sessions.SessionRun sessions.EarlierRun "
        "sessions.BudgetStatus sessions.BudgetStatus.near_exhaustion "
        "sessions.SessionBook.update_budget sessions.SessionBook.assign_vm",
        "guides/sessions.md",
    ),
    Surface(
        "Give a session an end, or a later one",
        "session extend, session resume",
        "sessions.SessionBook sessions.Sessions.extend sessions.Sessions.resume "
        "sessions.Sessions.set_expiry sessions.Period",
        "guides/sessions.md",
    ),
    Surface(
        "Pause a session, and end it for good",
        "session pause, session terminate",
        "sessions.Sessions.pause sessions.Sessions.terminate",
        "guides/sessions.md",
    ),
    Surface(
        "Bound what sessions keep on the disk",
        "session prune",
        "sessions.Sessions.oldest sessions.Sessions.disk_bytes",
        "guides/sessions.md",
    ),
    Surface(
        "Set context variables",
        "session set",
        "sessions.SessionBook.set_variables sessions.SessionBook.set_variable",
        "guides/sessions.md",
    ),
    Surface(
        "Read the values of a session",
        "session export",
        "sessions.Sessions.values sessions.ExportedValues",
        "guides/sessions.md",
    ),
    Surface(
        "Save and restore the variables of a session",
        "snapshot create, snapshot ls, snapshot restore, snapshot rm",
        "sessions.Sessions.snapshot sessions.Sessions.snapshots sessions.Sessions.restore "
        "sessions.Sessions.delete_snapshot sessions.KeptSnapshot",
        "guides/sessions.md",
    ),
    # -- sandboxes ---------------------------------------------------------------------------------
    Surface(
        "Run a program without a model",
        "exec",
        "sandbox.WasmSandbox sandbox.WasmInterpreter sandbox.ProcessSandbox sandbox.Sandbox "
        "sandbox.SandboxInterpreter sandbox.ExecutionContext sandbox.ExecutionResult "
        "sandbox.Limits sandbox.ProgramCharge sandbox.ProgramError sandbox.CallRecord",
        "concepts/sandbox.md",
    ),
    Surface(
        "Give a program functions and texts",
        "exec --text",
        "sandbox.HostTable sandbox.HostFunction sandbox.HostText",
        "guides/tools.md",
    ),
    Surface(
        "Repeat a program on its record",
        Reason("`tally replay` repeats whole runs; a program alone has no record."),
        "sandbox.RecordedHost sandbox.Rerun",
        "python.md",
    ),
    Surface(
        "Save the state of an interpreter",
        "exec --session",
        "sandbox.SnapshotId sandbox.SnapshotStore sessions.open_snapshots sessions.SessionImages",
        "guides/sessions.md",
    ),
    Surface(
        "Put a script in the place of a sandbox",
        Reason("A script of results is for tests in Python."),
        "sandbox.ScriptedSandbox sandbox.Scripted",
        "reference/python-sandbox.md",
    ),
    Surface(
        "Test what sandboxes can do here",
        "doctor",
        "sandbox.WasmSandbox.self_test sandbox.ProcessSandbox.self_test",
        "guides/shell-and-native.md",
    ),
    Surface(
        "Complete commands in a shell",
        "completion bash, completion zsh, completion fish",
        Reason("It is about the command line."),
        "reference/commands.md",
    ),
    Surface("Compile the sandbox now", "warm", "sandbox.WasmSandbox.load", "concepts/sandbox.md"),
    # -- the vocabulary ----------------------------------------------------------------------------
    Surface(
        "Check the names that a program uses",
        "check",
        "vocabulary.check_program vocabulary.Vocabulary vocabulary.ValidationResult "
        "vocabulary.ValidationResult.with_suggestions "
        "vocabulary.Uncovered vocabulary.Rules vocabulary.PERMISSIVE vocabulary.NORMAL "
        "vocabulary.STRICT vocabulary.read_python vocabulary.read_shell vocabulary.Program "
        "vocabulary.validate",
        "guides/check-programs.md",
    ),
    Surface(
        "Check the programs of runs",
        "run --vocabulary",
        "Agent(vocabulary=) vocabulary.read_vocabulary vocabulary.VocabularyAsked "
        "vocabulary.read_thesaurus vocabulary.Thesaurus vocabulary.decide vocabulary.Decision "
        "vocabulary.Pass vocabulary.Retry vocabulary.Warn vocabulary.Block vocabulary.Escalate",
        "guides/check-programs.md",
    ),
    # -- skills ------------------------------------------------------------------------------------
    Surface(
        "Find skills, and give them to runs",
        "skills list, skills show",
        "Skills skills.Skills skills.find_skills skills.Registry skills.Skill skills.Card "
        "skills.Manifest skills.Shadowed skills.Failed skills.LAYER_ORDER",
        "guides/skills.md",
    ),
    Surface(
        "See the catalog of skills",
        "skills catalog",
        "skills.fit_catalog skills.Catalog skills.Evidence skills.CardEvidence "
        "skills.MatchEvidence skills.evidence_of_run skills.reference_catalog "
        "skills.ReferenceCatalog skills.ReferenceEvidence",
        "guides/skills.md",
    ),
    Surface(
        "See which skills fit a prompt",
        "skills match",
        "skills.match_skills skills.Matching skills.Match",
        "guides/skills.md",
    ),
    Surface(
        "See why a skill was used, or was not",
        "skills why",
        "skills.why_here skills.why_in_run skills.Why skills.SkillDrift",
        "guides/skills.md",
    ),
    Surface("Check a skill", "skills lint", "skills.lint skills.Problem", "guides/skills.md"),
    Surface(
        "Make and install skills",
        "skills new, skills install",
        "skills.new_skill skills.install_skill skills.Installed",
        "guides/skills.md",
    ),
    Surface(
        "Trust and sign skills",
        "skills trust, skills untrust, skills sign, skills verify",
        "skills.SkillTrust skills.write_signature skills.check_signature skills.SignatureReport",
        "guides/skills.md",
    ),
    # -- memory ------------------------------------------------------------------------------------
    Surface(
        "Keep a note",
        "remember",
        "Memory Memory.open Memory.close Memory.prepare Memory.reader Memory.remember "
        "Memory.remember_all Memory.new_note memory.NewNote memory.Note memory.MemoryType "
        "memory.NoteScope memory.SourceType memory.Remembered",
        "guides/memory.md",
    ),
    Surface(
        "Recall notes",
        "recall",
        "Memory.recall Memory.score memory.Recalled memory.Filters memory.Profile "
        "memory.Profile.weighed",
        "guides/memory.md",
    ),
    Surface(
        "Recall with a program",
        "recall --program",
        "Memory.run_program memory.read_program memory.Program memory.PYTHON_FORM memory.Recall "
        "memory.Score memory.Cite memory.Budget memory.Bundle memory.Bundle.best_first "
        "memory.RecallHit memory.TokenCount "
        "memory.Tokenizer memory.code_mode_estimate memory.json_mode_estimate "
        "memory.estimated_tokens memory.first_difference",
        "guides/memory.md",
    ),
    Surface(
        "List, show and count notes",
        "memory ls, memory show, memory stats",
        "memory.list_notes memory.Page Memory.note memory.Seen Memory.resolve "
        "memory.NoteCitation memory.memory_stats memory.MemoryStats",
        "guides/memory.md",
    ),
    Surface(
        "Review notes that are held back",
        "memory review",
        "memory.review_queue memory.review memory.Held memory.Verdict",
        "guides/memory.md",
    ),
    Surface("Find notes by meaning", "memory embed", "Memory.embed", "guides/memory.md"),
    Surface(
        "Check a memory and its receipts",
        "memory verify",
        "memory.check_memory memory.Checked Memory.receipt Memory.verify Memory.forget_receipt "
        "Memory.verify_forget memory.RecallReceipt memory.Tokens memory.Verified "
        "memory.ForgetReceipt memory.VerifiedForget",
        "guides/memory.md",
    ),
    Surface(
        "Give a receipt away",
        "memory receipt",
        "Memory.receipt_file memory.receipt_file_bytes memory.read_receipt_file "
        "memory.verify_receipt_file memory.ReceiptFile memory.CheckedReceipt",
        "guides/memory.md",
    ),
    Surface(
        "Keys that sign receipts",
        "memory keys",
        "memory.open_keys memory.add_key memory.MemoryKeys",
        "guides/memory.md",
    ),
    Surface(
        "Export and import notes",
        "memory export, memory import",
        "memory.export_notes memory.read_export memory.import_notes memory.ExportedNotes "
        "memory.Imported",
        "guides/memory.md",
    ),
    Surface(
        "Share notes with other agents",
        "memory share",
        "Memory.share Memory.unshare Memory.shares memory.Share memory.Permission",
        "guides/memory.md",
    ),
    Surface(
        "Relate notes",
        "memory relate",
        "Memory.relate Memory.relations memory.Relation",
        "guides/memory.md",
    ),
    Surface(
        "Let notes fade, and put one in the place of several",
        "memory decay, memory consolidate",
        "Memory.decay memory.Faded Memory.consolidate",
        "guides/memory.md",
    ),
    Surface(
        "Forget notes wherever they are",
        "forget",
        "Memory.forget memory.Criteria memory.ForgetStrategy upkeep.forget_notes upkeep.Which "
        "upkeep.Erased",
        "guides/delete-data.md",
    ),
    # -- attachments -------------------------------------------------------------------------------
    Surface(
        "Keep, read and release attachments",
        "attach put, attach get, attach ls, attach rm",
        "attachments.SessionAttachments attachments.Attachments attachments.MemoryAttachments "
        "attachments.AttachmentRef attachments.Reference Agent.attachments "
        "Agent.attachments_of",
        "guides/attachments.md",
    ),
    Surface(
        "Keep attachments in a store of your own",
        Reason("The commands use the store beside the ledger."),
        "attachments.Manifest attachments.NoManifest attachments.Intent "
        "attachments.Intent.canonical_uri attachments.Persistence attachments.Persistence.tier "
        "attachments.SessionAttachments.tier attachments.DurabilityTier",
        "reference/python-attachments.md",
    ),
    Surface(
        "Delete what nobody holds",
        "attach gc",
        "attachments.reclaim attachments.ReclaimPolicy attachments.ReclaimReport "
        "attachments.EmptyRootSet",
        "guides/attachments.md",
    ),
    Surface(
        "Check the bytes of attachments",
        "attach verify",
        "attachments.verify_attachments attachments.VerifyReport upkeep.verify_references",
        "guides/attachments.md",
    ),
    # -- errors ------------------------------------------------------------------------------------
    Surface(
        "Tell other tools what went wrong",
        Reason("`--json` of the commands about sessions has the codes."),
        "interop.error_report interop.ErrorReport interop.ERROR_CODES interop.ErrorCode "
        "interop.entry_of_stop",
        "reference/python-interop.md",
    ),
    # -- set up ------------------------------------------------------------------------------------
    Surface(
        "Read the settings",
        "config",
        "Agent(config=) settings.load_settings settings.Settings settings.Setting "
        "settings.data_directory settings.cache_directory settings.config_directory "
        "settings.ledger_path",
        "reference/settings.md",
    ),
    Surface(
        "Trust the settings of a project",
        "config trust, config untrust",
        "settings.TrustStore",
        "reference/settings.md",
    ),
    Surface(
        "Sign with a key of your own",
        "head --sign",
        "settings.open_signing_key settings.SigningKey settings.read_public_key settings.PublicKey",
        "guides/audit.md",
    ),
)
