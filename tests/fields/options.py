"""Rows for the classes whose objects are arguments: prices, rules, filters, budgets of recalls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from tests.fields.runs import TWO
from tests.fields.table import Row, World, ran, refused

from tallystick import Memory
from tallystick.ledger import MemoryLedger, RunFilter
from tallystick.memory import Budget, Cite, Filters, Program, Recall, Score, list_notes
from tallystick.model import PriceTable, Pricing, ScriptedModel, ScriptedReply, ScriptedUsage
from tallystick.testing.models import PRICING, block
from tallystick.testing.runs import ROOMY
from tallystick.vocabulary import Rules, Vocabulary, check_program, decide, read_thesaurus

Seen = Callable[[World, Any], object]


def scripted(world: World, reply: ScriptedReply) -> object:
    """Look at a run whose model gives one reply, and then a good one."""
    model = ScriptedModel([reply, ScriptedReply(text=block("FINAL(2)"))])
    run = ran("FINAL(1)", options={"model": model}, limits=ROOMY)
    return run.result, run.played.run.charge.tokens_in, run.played.run.charge.tokens_out


def with_reply(**fields: Any) -> ScriptedReply:
    return ScriptedReply(**{"text": block("FINAL(1)"), **fields})


def usage(**fields: int) -> ScriptedReply:
    return with_reply(usage=ScriptedUsage(**{"tokens_in": 1, "tokens_out": 1, **fields}))


def priced(world: World, pricing: Pricing) -> object:
    run = ran(*TWO, pricing=pricing, limits=msgspec.structs.replace(ROOMY, usd=10**12))
    return run.played.run.stop, run.played.run.charge.usd


WORDS = b"""
{"term": "invoice", "related": ["customer"]}
{"term": "customer"}
{"term": "boat", "related": ["harbour"]}
{"term": "harbour"}
"""
TERMS = Vocabulary(
    functions=["FINAL"], tools=["crm.find"], thesaurus=read_thesaurus(WORDS, name="words")
)


def checked(source: str) -> Seen:
    """Return a look at the verdict on a program, and at what follows from it, under rules."""

    def see(world: World, rules: Rules) -> object:
        found = check_program(source, TERMS, rules, sandbox=world.wasm)
        follows = decide(
            found, strictness=rules.strictness, retry_count=1, max_retries=rules.retries_max
        )
        return found.is_valid, follows.kind

    return see


def recalled(world: World, budget: Budget) -> object:
    with Memory.open(directory=world.fresh(), embedder=None) as memory:
        memory.remember("the ferry leaves at nine")
        program = Program(operations=(Recall(query="ferry", k=1),))
        return refused(lambda: memory.run_program(program, budget=budget)).partition(":")[0]


def recall_of(world: World, operation: Any) -> object:
    with Memory.open(directory=world.fresh(), embedder=None) as memory:
        ids = [memory.remember(text).id for text in ("the ferry leaves at nine", "ferry two")]
        if isinstance(operation, Score | Cite):
            operation = msgspec.structs.replace(operation, memory_id=ids[int(operation.memory_id)])
        bundle = memory.run_program(
            Program(operations=(Recall(query="ferry", k=2), operation)),
            budget=Budget(wall_ms=60_000),
        )
        return (
            [hit.content for hit in bundle.recalled],
            [ids.index(each) for each in bundle.scores],
            len(bundle.receipts),
        )


def listed(world: World, filters: Filters) -> object:
    """Look at the notes that filters choose, of two that differ in everything."""
    with Memory.open(directory=world.fresh(), embedder=None) as memory:
        memory.remember("one", tags=["a"], author="Ann", thread_id="t", importance=0.9, key="k")
        memory.remember("two", memory_type="procedural", scope="public")
        return [each.note.content for each in list_notes(memory, filters).notes]


def filtered(**fields: Any) -> tuple[Filters, Filters]:
    return Filters(**fields), Filters()


def found_rows(world: World, chosen: RunFilter) -> object:
    """Look at the rows that a filter chooses: of a run with a child, and of one alone."""
    ledger = MemoryLedger()
    ran("FINAL(1)", ledger=ledger)
    return len(list(ledger.runs(chosen)))


ROWS = [
    Row("Pricing.declared", "result", PRICING, Pricing(declared=PriceTable.of_user(
        {"fake:*": {"input": "2", "output": "8"}})), priced),
    Row("Pricing.waived", "result", Pricing(waived=True), Pricing(), priced),
    Row("ScriptedReply.text", "result", with_reply(), with_reply(text=block("FINAL(3)")), scripted),
    Row("ScriptedReply.usage", "result", usage(tokens_in=7), with_reply(), scripted),
    Row("ScriptedReply.error", "result", with_reply(error="no"), with_reply(), scripted),
    Row("ScriptedReply.reason", "result", with_reply(error="no", reason="content_policy"),
        with_reply(error="no", reason="server_error"), scripted),
    Row("ScriptedUsage.tokens_in", "result", usage(tokens_in=7), usage(), scripted),
    Row("ScriptedUsage.tokens_out", "result", usage(tokens_out=7), usage(), scripted),
    Row("Rules.strictness", "result", Rules(strictness="strict"), Rules(), checked("crm.fnd(1)")),
    Row("Rules.ratio_min", "result", Rules(ratio_min=0.9), Rules(ratio_min=0.1), checked(
        "crm.find('invoice')\nabc(1)\nd(2)")),
    Row("Rules.retries_max", "result", Rules(strictness="strict", retries_max=1), Rules(
        strictness="strict", retries_max=5), checked("crm.fnd(1)")),
    Row("Rules.arguments", "result", Rules(ratio_min=0.9, arguments=True), Rules(ratio_min=0.9),
        checked("crm.find('nosuch')")),
    Row("Rules.connected", "result", Rules(
        strictness="strict", connected=True), Rules(strictness="strict"), checked(
        "crm.find('invoice')\ncrm.find('boat')")),
    Row("memory.Budget.fuel", "refusal", Budget(fuel=0), Budget(), recalled),
    Row("memory.Budget.wall_ms", "refusal", Budget(wall_ms=0), Budget(wall_ms=60_000), recalled),
    Row("memory.Recall.query", "result", Recall(query="two", k=1), Recall(query="nine", k=1),
        recall_of),
    Row("memory.Recall.k", "result", Recall(query="ferry", k=1), Recall(query="ferry", k=2),
        recall_of),
    Row("memory.Score.memory_id", "result", Score(memory_id="0"), Score(memory_id="1"), recall_of),
    Row("memory.Filters.tags", "result", *filtered(tags=("a",)), listed),
    Row("memory.Filters.author", "result", *filtered(author="Ann"), listed),
    Row("memory.Filters.thread_id", "result", *filtered(thread_id="t"), listed),
    Row("memory.Filters.key", "result", *filtered(key="k"), listed),
    Row("memory.Filters.min_importance", "result", *filtered(min_importance=0.85), listed),
    Row("memory.Filters.memory_types", "result", *filtered(memory_types=("procedural",)), listed),
    Row("memory.Filters.scopes", "result", *filtered(scopes=("public",)), listed),
    Row("memory.Filters.after", "result", *filtered(after=1 << 45), listed),
    Row("memory.Filters.before", "result", *filtered(before=1), listed),
    Row("ledger.RunFilter.prefix", "result", RunFilter(prefix="nosuch"), RunFilter(), found_rows),
    Row("ledger.RunFilter.parent", "result", RunFilter(parent="nosuch"), RunFilter(), found_rows),
    Row("ledger.RunFilter.caller", "result", RunFilter(caller="nosuch"), RunFilter(), found_rows),
    Row("ledger.RunFilter.session", "result", RunFilter(session="nosuch"), RunFilter(), found_rows),
    Row("ledger.RunFilter.grown_from", "result", RunFilter(grown_from="nosuch"), RunFilter(),
        found_rows),
    Row("ledger.RunFilter.open_only", "result", RunFilter(open_only=True), RunFilter(), found_rows),
]  # fmt: skip
