"""Sets of small modules that import from one another, drawn at random and written as text.

Programs are made from a table of instructions with their types, so every draw assembles. Calls
go to functions made before, and loops count down from a small number; through a table a function
may still come to call itself, which is why those who run these programs do so with little fuel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from hypothesis import strategies as st

NUMBERS = ("i32", "i64", "f32", "f64")
TYPES = (*NUMBERS, "v128")

# Instruction, what it takes, what it gives. Those that can trap are few, or nothing would run.
PLAIN: list[tuple[str, tuple[str, ...], str]] = [
    *((f"{t}.{op}", (t, t), t) for t in ("i32", "i64") for op in ("add", "sub", "mul", "xor")),
    *((f"{t}.{op}", (t, t), t) for t in ("i32", "i64") for op in ("shl", "shr_s", "rotl")),
    *((f"{t}.{op}", (t, t), "i32") for t in ("i32", "i64") for op in ("eq", "lt_s", "ge_u")),
    *((f"{t}.{op}", (t,), t) for t in ("i32", "i64") for op in ("clz", "popcnt", "extend8_s")),
    *((f"{t}.{op}", (t, t), t) for t in ("f32", "f64") for op in ("add", "div", "min", "copysign")),
    *((f"{t}.{op}", (t,), t) for t in ("f32", "f64") for op in ("neg", "sqrt", "nearest")),
    ("i32.div_u", ("i32", "i32"), "i32"),
    ("i32.eqz", ("i32",), "i32"),
    ("i32.extend16_s", ("i32",), "i32"),
    ("i64.extend32_s", ("i64",), "i64"),
    ("i32.wrap_i64", ("i64",), "i32"),
    ("i64.extend_i32_s", ("i32",), "i64"),
    ("i32.reinterpret_f32", ("f32",), "i32"),
    ("f64.reinterpret_i64", ("i64",), "f64"),
    ("f32.convert_i32_s", ("i32",), "f32"),
    ("f64.promote_f32", ("f32",), "f64"),
    ("i32.trunc_sat_f64_s", ("f64",), "i32"),
    ("i64.trunc_sat_f32_u", ("f32",), "i64"),
    ("i32x4.splat", ("i32",), "v128"),
    ("f64x2.splat", ("f64",), "v128"),
    ("i32x4.add", ("v128", "v128"), "v128"),
    ("i8x16.swizzle", ("v128", "v128"), "v128"),
    ("i16x8.extmul_low_i8x16_s", ("v128", "v128"), "v128"),
    ("i8x16.shuffle 0 17 2 19 4 21 6 23 8 25 10 27 12 29 14 31", ("v128", "v128"), "v128"),
    ("v128.bitselect", ("v128", "v128", "v128"), "v128"),
    ("i32x4.extract_lane 3", ("v128",), "i32"),
    ("i64x2.replace_lane 1", ("v128", "i64"), "v128"),
    ("i8x16.bitmask", ("v128",), "i32"),
    ("memory.size", (), "i32"),
]
LOADS = {
    "i32": ("i32.load", "i32.load8_s offset=3", "i32.load16_u align=1"),
    "i64": ("i64.load", "i64.load32_u offset=200"),
    "f32": ("f32.load",),
    "f64": ("f64.load align=4",),
    "v128": ("v128.load", "v128.load8x8_u", "v128.load32_zero"),
}
STORES = {
    "i32": ("i32.store", "i32.store8 offset=1000"),
    "i64": ("i64.store", "i64.store16"),
    "f32": ("f32.store",),
    "f64": ("f64.store",),
    "v128": ("v128.store", "v128.store16_lane 7"),
}
CONSTANTS = {
    "i32": ("0", "1", "-1", "64", "0x7fffffff", "-123456"),
    "i64": ("0", "-1", "0x7fffffffffffffff", "-98765432100"),
    "f32": ("0", "-0.5", "inf", "1e30"),
    "f64": ("-0", "2.25", "nan", "-1e300"),
    "v128": ("i32x4 1 -2 3 -4", "f64x2 0.5 -1.5"),
}


@dataclass(frozen=True, slots=True)
class Function:
    """A function some module exports."""

    label: str
    name: str
    parameters: tuple[str, ...]
    results: tuple[str, ...]

    @property
    def type(self) -> str:
        return _params(self.parameters) + _results(self.results)


@dataclass(frozen=True, slots=True)
class Global:
    """A global some module exports."""

    label: str
    name: str
    type: str
    mutable: bool


@dataclass(slots=True)
class ModuleSet:
    """Modules in the order in which they can be linked, and what can be called or looked at."""

    texts: dict[str, str] = field(default_factory=dict)
    functions: list[Function] = field(default_factory=list)
    globals: list[Global] = field(default_factory=list)


def _params(types: tuple[str, ...]) -> str:
    return "".join(f" (param {each})" for each in types)


def _results(types: tuple[str, ...]) -> str:
    return "".join(f" (result {each})" for each in types)


@st.composite
def module_sets(draw: st.DrawFn, *, seen_only: bool = False) -> ModuleSet:
    """Draw a set. With `seen_only`, programs change nothing but memory and globals."""
    random = draw(st.randoms(use_true_random=False))
    found = ModuleSet()
    for number in range(random.randint(2, 3)):
        _Writer(random, found, f"m{number}", seen_only=seen_only).write()
    return found


class _Writer:
    """Writes one module, knowing what the earlier ones export."""

    def __init__(self, random: Random, found: ModuleSet, label: str, *, seen_only: bool) -> None:
        self.random = random
        self.seen_only = seen_only
        self.found = found
        self.label = label
        self.first = label == "m0"
        # Each has a name in the text: `$label.name`, imported or not.
        self.callable = list(found.functions)
        self.globals = list(found.globals)
        self.locals: list[str] = []

    def write(self) -> None:
        imports = self._imports()
        globals_ = [self._global(number) for number in range(self.random.randint(1, 3))]
        functions = [self._function(number) for number in range(self.random.randint(1, 3))]
        self.found.texts[self.label] = "\n".join(
            ["(module", *imports, *globals_, *self._segments(), *functions, ")"]
        )

    def _imports(self) -> list[str]:
        if self.first:
            return [
                '(memory (export "memory") 1 5)',
                '(table $shared (export "table") 12 20 funcref)',
                '(tag $tag (export "tag") (param i32))',
            ]
        # Leaving some out shifts all numbers that follow.
        functions = [each for each in self.callable if self.random.random() < 0.7]
        globals_ = [each for each in self.globals if self.random.random() < 0.7]
        self.callable, self.globals = functions, globals_
        lines = [
            '(import "m0" "memory" (memory 1))',
            '(import "m0" "table" (table $shared 12 funcref))',
            '(import "m0" "tag" (tag $tag (param i32)))',
        ]
        for function in functions:
            name = f"${function.label}.{function.name}"
            lines.append(
                f'(import "{function.label}" "{function.name}" (func {name}{function.type}))'
            )
        for each in globals_:
            kind = f"(mut {each.type})" if each.mutable else each.type
            lines.append(
                f'(import "{each.label}" "{each.name}" (global ${each.label}.{each.name} {kind}))'
            )
        self.random.shuffle(lines)
        return lines

    def _global(self, number: int) -> str:
        # The engine's binding can not read a global vector, so there must be none in a snapshot.
        kind = self.random.choice(NUMBERS if self.seen_only else TYPES)
        made = Global(self.label, f"g{number}", kind, self.random.random() < 0.7)
        same = [each for each in self.globals if each.type == kind and not each.mutable]
        if same and self.random.random() < 0.5:
            chosen = self.random.choice(same)
            initial = f"(global.get ${chosen.label}.{chosen.name})"
        else:
            initial = f"({kind}.const {self.random.choice(CONSTANTS[kind])})"
        self.globals.append(made)
        self.found.globals.append(made)
        form = f"(mut {kind})" if made.mutable else kind
        return f'(global ${self.label}.{made.name} (export "{made.name}") {form} {initial})'

    def _segments(self) -> list[str]:
        place = int(self.label[1:]) * 3
        return [
            "(table $own 3 6 funcref)",
            f"(elem (table $shared) (i32.const {place}) func $self ${self.label}.f0)",
            f"(elem $passive func $self ${self.label}.f0 $self)",
            "(elem (table $own) (i32.const 1) funcref (ref.func $self) (ref.null func))",
            f'(data (i32.const {place * 40}) "active {self.label}")',
            f'(data $passive "passive {self.label}")',
            f"(func $self (param i32) (result i32) (i32.add (local.get 0) (i32.const {place})))",
        ]

    def _function(self, number: int) -> str:
        random = self.random
        parameters = tuple(random.choice(NUMBERS) for _ in range(random.randint(0, 2)))
        results = tuple(random.choice(NUMBERS) for _ in range(random.randint(0, 2)))
        made = Function(self.label, f"f{number}", parameters, results)
        declared = [random.choice(TYPES) for _ in range(2)]
        # The last local counts loops down; nothing else writes to it.
        self.locals = [*parameters, *declared, "i32"]
        body = [self._statement(2) for _ in range(random.randint(1, 3))]
        body += [self._value(kind, 3) for kind in results]
        self.callable.append(made)
        self.found.functions.append(made)
        locals_ = " ".join(f"(local {kind})" for kind in self.locals[len(parameters) :])
        name = f'${self.label}.f{number} (export "f{number}")'
        return f"(func {name}{made.type} {locals_}\n  " + "\n  ".join(body) + ")"

    # Values: each of these leaves one value of the type it is asked for.

    def _value(self, kind: str, depth: int) -> str:
        if depth == 0:
            return self._leaf(kind)
        choices = [
            self._plain,
            self._plain,
            self._load,
            self._conditional,
            self._branches,
            self._call,
            self._many_values,
        ]
        if kind == "i32":
            choices += [
                self._indirect,
                self._own_indirect,
                self._is_null,
                self._sized,
                self._caught,
            ]
        return self.random.choice(choices)(kind, depth)

    def _leaf(self, kind: str) -> str:
        locals_ = [f"local.get {n}" for n, each in enumerate(self.locals) if each == kind]
        globals_ = [
            f"global.get ${each.label}.{each.name}" for each in self.globals if each.type == kind
        ]
        constant = f"{kind}.const {self.random.choice(CONSTANTS[kind])}"
        return self.random.choice([constant, *locals_, *globals_])

    def _plain(self, kind: str, depth: int) -> str:
        name, takes, _ = self.random.choice([each for each in PLAIN if each[2] == kind])
        return " ".join([*(self._value(each, depth - 1) for each in takes), name])

    def _address(self, depth: int) -> str:
        return f"{self._value('i32', depth - 1)} i32.const 0x3fff i32.and"

    def _load(self, kind: str, depth: int) -> str:
        return f"{self._address(depth)} {self.random.choice(LOADS[kind])}"

    def _conditional(self, kind: str, depth: int) -> str:
        condition = self._value("i32", depth - 1)
        one, two = self._value(kind, depth - 1), self._value(kind, depth - 1)
        if self.random.random() < 0.3:
            return f"{one} {two} {condition} select (result {kind})"
        return f"{condition} if (result {kind}) {one} else {two} end"

    def _branches(self, kind: str, depth: int) -> str:
        """Leave one of two nested blocks, by a table."""
        value, number = self._value(kind, depth - 1), self._value("i32", depth - 1)
        return (
            f"block (result {kind}) block (result {kind}) {value} {number} br_table 0 1 1 0 end end"
        )

    def _many_values(self, kind: str, depth: int) -> str:
        """Pass two values into a block and take two out, which needs a type of its own."""
        other = self.random.choice(TYPES)
        first, second = self._value(kind, depth - 1), self._value(other, depth - 1)
        keep = "" if self.random.random() < 0.5 else f"{self._statement(0)}"
        return (
            f"{first} {second} block (param {kind} {other}) (result {kind} {other}) {keep} end drop"
        )

    def _call(self, kind: str, depth: int) -> str:
        fitting = [each for each in self.callable if each.results and each.results[0] == kind]
        if not fitting:
            return self._leaf(kind)
        chosen = self.random.choice(fitting)
        arguments = [self._value(each, depth - 1) for each in chosen.parameters]
        drops = ["drop"] * (len(chosen.results) - 1)
        return " ".join([*arguments, f"call ${chosen.label}.{chosen.name}", *drops])

    def _indirect(self, kind: str, depth: int) -> str:
        entry = self.random.choice((0, 3, 6, 1))
        value = self._value("i32", depth - 1)
        return f"{value} i32.const {entry} call_indirect $shared (param i32) (result i32)"

    def _own_indirect(self, kind: str, depth: int) -> str:
        value = self._value("i32", depth - 1)
        return f"{value} i32.const 1 call_indirect $own (param i32) (result i32)"

    def _is_null(self, kind: str, depth: int) -> str:
        table = self.random.choice(("$own", "$shared"))
        return f"i32.const {self.random.randint(0, 3)} table.get {table} ref.is_null"

    def _sized(self, kind: str, depth: int) -> str:
        choices = [f"i32.const {self.random.randint(0, 2)} memory.grow", "table.size $own"]
        if not self.seen_only:
            choices.append("ref.func $self i32.const 1 table.grow $own")
        return self.random.choice(choices)

    def _caught(self, kind: str, depth: int) -> str:
        value = self._value("i32", depth - 1)
        return (
            "block $caught (result i32) try_table (catch $tag $caught)"
            f" {value} throw $tag end unreachable end"
        )

    # Statements: these leave nothing.

    def _statement(self, depth: int) -> str:
        choices = [self._set_local, self._set_global, self._store, self._bulk]
        if not self.seen_only:
            choices.append(self._unseen)
        if depth:
            choices += [self._loop, self._if]
        return self.random.choice(choices)(depth)

    def _set_local(self, depth: int) -> str:
        number = self.random.randrange(len(self.locals) - 1)
        return f"{self._value(self.locals[number], depth)} local.set {number}"

    def _set_global(self, depth: int) -> str:
        mutable = [each for each in self.globals if each.mutable]
        if not mutable:
            return "nop"
        chosen = self.random.choice(mutable)
        return f"{self._value(chosen.type, depth)} global.set ${chosen.label}.{chosen.name}"

    def _store(self, depth: int) -> str:
        kind = self.random.choice(TYPES)
        store = self.random.choice(STORES[kind])
        return f"{self._address(depth + 1)} {self._value(kind, depth)} {store}"

    def _bulk(self, depth: int) -> str:
        to = f"i32.const {self.random.randint(0, 2000)}"
        return self.random.choice(
            [
                f"{to} i32.const 1 i32.const 7 memory.init $passive",
                f"{to} i32.const 100 i32.const 64 memory.copy",
                f"{to} {self._value('i32', depth)} i32.const 32 memory.fill",
            ]
        )

    def _unseen(self, depth: int) -> str:
        slot = f"i32.const {self.random.randint(0, 2)}"
        return self.random.choice(
            [
                f"{slot} ref.func $self table.set $own",
                f"{slot} i32.const 0 i32.const 2 table.init $shared $passive",
                f"{slot} i32.const 1 i32.const 1 table.copy $shared $own",
                f"{slot} ref.null func i32.const 1 table.fill $own",
                "elem.drop $passive",
                "data.drop $passive",
            ]
        )

    def _loop(self, depth: int) -> str:
        counter = len(self.locals) - 1
        # An inner loop would take over the counter, so there is none.
        body = self._statement(0)
        return (
            f"i32.const {self.random.randint(1, 4)} local.set {counter} loop {body}"
            f" local.get {counter} i32.const 1 i32.sub local.tee {counter} br_if 0 end"
        )

    def _if(self, depth: int) -> str:
        condition = self._value("i32", depth - 1)
        return f"{condition} if {self._statement(depth - 1)} else {self._statement(depth - 1)} end"
