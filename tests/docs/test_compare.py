"""Every figure of the page that compares comes from a result file of the benches."""

import re

import pytest
from tools import compare

PAGE = compare.PAGE.read_text(encoding="utf-8")
# Below this heading behaviours are compared, not measured.
MEASURED = PAGE.partition("\n## Programs written for rlms\n")[0]
TABLE = re.compile(r"<!-- table: ([\w-]+) -->\n(.*?)<!-- end -->", re.S)


def test_the_tables_of_the_page_are_those_of_the_results() -> None:
    assert compare.with_tables(PAGE) == PAGE


def test_every_table_is_on_the_page_once() -> None:
    assert sorted(match[1] for match in TABLE.finditer(PAGE)) == sorted(compare.TABLES)


def test_where_tallystick_loses_stands_first() -> None:
    tables = [match[1] for match in TABLE.finditer(PAGE)]

    assert tables.index("slower") < tables.index("slower-than-bare") < tables.index("faster")


@pytest.mark.parametrize("row", compare.SLOWER, ids=[row.what for row in compare.SLOWER])
def test_a_row_among_the_slower_ones_is_slower_than_a_peer(row: compare.Row) -> None:
    ours = compare._measured(row, "tallystick", row.ours)["median"]
    peers = [
        compare._measured(row, peer, name or row.ours)["median"] for peer, name in row.peers.items()
    ]

    assert ours > min(peers)


@pytest.mark.parametrize(
    "row",
    [*compare.FASTER, *compare.DURABLE],
    ids=[row.what for row in (*compare.FASTER, *compare.DURABLE)],
)
def test_a_row_among_the_faster_ones_is_ahead_of_every_peer(row: compare.Row) -> None:
    ours = compare._measured(row, "tallystick", row.ours)["median"]
    peers = [
        compare._measured(row, peer, name or row.ours)["median"] for peer, name in row.peers.items()
    ]

    assert ours < min(peers)


def test_no_figure_is_written_beside_the_tables() -> None:
    prose = re.sub(r"`[^`]*`", "", TABLE.sub("", MEASURED))
    figures = re.findall(r"[\d.,]*\d+ ?(?:ms|s|µs|KB|MiB|%|times|x|tokens)\b", prose)

    assert figures == []


def test_a_result_that_is_missing_is_an_error() -> None:
    row = compare.Row("nothing", "nothing", "nothing", {})

    with pytest.raises(LookupError, match=r"exec\.json has no row tallystick, nothing, nothing"):
        compare._measured(row, "tallystick", row.ours)
