"""The pages of the site: short sentences, terms that are explained, links that lead somewhere."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tools import check_docs
from tools.check_docs import DOCS, ROOT, TERMS

SITE = check_docs.site_pages()
LINKED = check_docs.linked_pages()
CONFIG = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS))


@pytest.mark.parametrize("page", SITE, ids=name_of)
def test_a_page_has_no_sentence_that_is_too_long(page: Path) -> None:
    assert [str(each) for each in check_docs.long_sentences(page)] == []


@pytest.mark.parametrize("page", SITE, ids=name_of)
def test_a_page_links_each_term_to_the_glossary_where_it_first_stands(page: Path) -> None:
    assert [str(each) for each in check_docs.unlinked_terms(page)] == []


@pytest.mark.parametrize("page", LINKED, ids=name_of)
def test_every_link_of_a_page_leads_to_a_page_and_a_heading(page: Path) -> None:
    assert [str(each) for each in check_docs.broken_links(page)] == []


def test_there_are_at_most_fifteen_terms_and_the_glossary_has_them() -> None:
    there = check_docs.anchors((DOCS / "glossary.md").read_text(encoding="utf-8"))

    assert len(TERMS) <= 15
    assert {term.replace(" ", "-") for term in TERMS} <= {*there}


def entries(nav: Any) -> Iterator[str]:
    """Yield the pages of a navigation, whichever way they are nested."""
    if isinstance(nav, str):
        yield nav
    for each in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from entries(each)


def test_the_navigation_has_every_page_once() -> None:
    shown = [*entries(CONFIG["nav"])]
    decisions = {"architecture.md", "dependencies.md"}

    assert sorted(shown) == sorted({*map(name_of, LINKED), *decisions})


def test_the_navigation_names_decisions_by_their_titles() -> None:
    titles = {
        path: title
        for section in CONFIG["nav"]
        for pages in section.values()
        if isinstance(pages, list)
        for each in pages
        if isinstance(each, dict)
        for title, path in each.items()
    }

    for page in sorted((DOCS / "adr").glob("0*.md")):
        heading = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        assert titles[f"adr/{page.name}"] == heading


def test_the_report_of_tests_stays_out_of_the_site() -> None:
    assert "status.md" in CONFIG["exclude_docs"].split()


# -- the checks themselves -------------------------------------------------------------------------


def page_of(directory: Path, text: str, name: str = "page.md") -> Path:
    page = directory / name
    page.write_text(text, encoding="utf-8")
    return page


@pytest.mark.parametrize(
    ("text", "longest"),
    [
        ("One two three. Four five.", 3),
        ("One `a long code with words` three.", 3),
        ("A [link with text](x.md) ends here.", 6),
        ("- first item\n- second item\n  goes on here\n", 5),
        ("| a cell of five words | two words |\n| --- | --- |\n", 5),
        ("```text\nthis is code and no sentence at all\n```\nShort.\n", 1),
        ("Text.\n\n    indented code is no sentence either\n", 1),
        ("For example, e.g. this one goes on. Then not.", 7),
        ("An odd ` backtick here.\n\nAnd a longer paragraph with an odd ` one.", 8),
    ],
)
def test_sentences_are_counted_as_they_are_read(text: str, longest: int) -> None:
    found = [
        check_docs.words(sentence)
        for block in check_docs.blocks(text)
        for sentence in check_docs.sentences(block.text)
    ]

    assert max(found) == longest


def test_a_long_sentence_is_named_with_its_line(tmp_path: Path) -> None:
    text = "# Title\n\nShort.\n\n" + "word " * 30 + "end.\n"

    (found,) = check_docs.long_sentences(page_of(tmp_path, text))

    assert str(found).endswith("end.")
    assert (found.line, found.what.split()[0]) == (5, "31")


@pytest.mark.parametrize(
    "text",
    [
        "The ledger is a file.",
        "A file, `ledger`, and a ledger.",
        "The ledger, then [ledger](../glossary.md#ledger).",
        "A [ledger](elsewhere.md), and then a ledger.",
        "| the ledger | x |\n| --- | --- |\n",
    ],
)
def test_a_term_without_its_link_is_found(tmp_path: Path, text: str) -> None:
    (found,) = check_docs.unlinked_terms(page_of(tmp_path, text))

    assert "“ledger”" in found.what


@pytest.mark.parametrize(
    "text",
    [
        "The [ledger](../glossary.md#ledger) is a file. The ledger is one file.",
        "[Ledgers](glossary.md#ledger) are files.",
        "# The ledger\n\nA file.",
        "Type `tally ledger`.\n\n```text\nthe ledger\n```\n",
        "In three steps: the first step.\n\n<!-- everyday: step -->\n",
        "It runs programs.\n\n<!-- everyday: program -->\n",
    ],
)
def test_a_term_with_its_link_or_outside_of_prose_is_not_found(tmp_path: Path, text: str) -> None:
    assert check_docs.unlinked_terms(page_of(tmp_path, text)) == []


def test_a_generated_page_gets_its_links_once() -> None:
    text = "# Runs\n\nA run writes to the ledger. The ledger holds it.\n"
    linked = check_docs.link_terms(text, "../glossary.md")

    assert linked == (
        "# Runs\n\nA [run](../glossary.md#run) writes to the [ledger](../glossary.md#ledger). "
        "The ledger holds it.\n"
    )
    assert check_docs.link_terms(linked, "../glossary.md") == linked


@pytest.mark.parametrize(
    ("target", "what"),
    [
        ("nosuch.md", "no such file"),
        ("#nosuch", "no such heading"),
        ("#twice", "several such headings"),
        ("../outside.md", "outside of docs/"),
    ],
)
def test_a_link_that_leads_nowhere_is_named(
    target: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check_docs, "DOCS", tmp_path)
    (tmp_path.parent / "outside.md").write_text("# Outside\n", encoding="utf-8")
    page = page_of(tmp_path, f"# Page\n\n## Twice\n\n## Twice\n\n[text]({target})\n")

    (found,) = check_docs.broken_links(page)

    assert what in found.what


def test_a_link_inside_code_is_no_link(tmp_path: Path) -> None:
    text = "`[a](nosuch.md)`\n\n```text\n[b](nosuch.md)\n```\n"

    assert check_docs.broken_links(page_of(tmp_path, text)) == []


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("## tally run", "tally-run"),
        ("### run.started", "runstarted"),
        ("## `--max-usd` and more", "-max-usd-and-more"),
        ("## What a [link](x.md) does", "what-a-link-does"),
    ],
)
def test_anchors_are_those_of_the_site_generator(heading: str, anchor: str) -> None:
    assert check_docs.anchors(heading) == [anchor]
