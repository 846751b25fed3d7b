"""Every hostile program, by its class."""

from tests.escape.case import Case
from tests.escape.programs import exhaustion, imports, outside, probes, raw_calls, walks

CLASSES: dict[str, list[Case]] = {
    "host files": outside.HOST_FILES,
    "environment": outside.ENVIRONMENT,
    "network": outside.NETWORK,
    "processes": outside.PROCESSES,
    "dunder walks": walks.DUNDER_WALKS,
    "frame walks": walks.FRAME_WALKS,
    "format-string walks": walks.FORMAT_WALKS,
    "import tricks": imports.IMPORT_TRICKS,
    "raw ABI calls": raw_calls.RAW_ABI,
    "forged results": raw_calls.FORGED_RESULTS,
    "patching our own prelude": raw_calls.PATCHED_PRELUDE,
    "C-level loops": exhaustion.C_LOOPS,
    "ReDoS": exhaustion.REDOS,
    "big integers": exhaustion.BIG_INTEGERS,
    "memory bombs": exhaustion.MEMORY_BOMBS,
    "deep recursion": exhaustion.DEEP_RECURSION,
    "output floods": exhaustion.OUTPUT_FLOODS,
    "except BaseException loops": exhaustion.STUBBORN,
    "odd endings": exhaustion.ODD_ENDINGS,
    "threads": exhaustion.THREADS,
    "clock and randomness probes": probes.PROBES,
}
