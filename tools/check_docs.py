"""Check the prose of the pages in docs/: length of sentences, links of terms, links and anchors.

Run it as `python tools/check_docs.py [PAGE ...]`. Without pages it checks all pages of the site.
Each finding is one line, and the exit code is 1 if there is any. `tests/docs` calls the same
functions.

A page may use one of the terms only in its everyday sense ("three steps to install"). Then it says
so in a comment, and the term is not checked on that page: `<!-- everyday: step, turn -->`.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"

LONGEST_IN_GUIDES = 25
LONGEST = 30

# Words that are nouns or verbs count as a term only where they are clearly a noun.
_DETERMINER = (
    r"(?:a|an|the|this|that|each|every|one|another|any|same|new|whole|no|of|per|your|its|child|parent|"
    r"first|last|recorded|interrupted|finished|ended|stopped|these|those|two|three|several|many|all|"
    r"other|some|old|long)\s+"
)
TERMS = {
    "run": rf"{_DETERMINER}runs?\b|^Runs\b",
    "turn": rf"{_DETERMINER}turns?\b(?! into)|^Turns\b|\bturn \d",
    "program": r"programs?",
    "step": rf"{_DETERMINER}steps?\b|^Steps\b",
    "sandbox": r"sandbox(?:es)?",
    "guest": r"guests?",
    "ledger": r"ledgers?",
    "reservation": r"reservations?",
    "in doubt": r"in\s+doubt",
    "fuel": r"fuel",
    "replay": r"replay(?:s|ed)?",
    "fork": r"forks?|forked",
    "session": r"sessions?",
    "snapshot": r"snapshots?",
    "receipt": r"receipts?",
}

_FENCE = re.compile(
    r"^( {0,3}(?:> )?\s*)(```+|~~~+)[^\n]*\n.*?^\s*(?:> )?\s*\2[ \t]*$\n?", re.S | re.M
)
_COMMENT = re.compile(r"<!--.*?-->", re.S)
# Code ends at the end of its paragraph, or an odd backtick would turn all prose after it into code.
_CODE = re.compile(r"(?<!`)(`+)(?!`)(?:(?!\n\s*\n)(?!\n\|).)+?(?<!`)\1(?!`)", re.S)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(\s*<?([^)>\s]*)>?(?:\s+\"[^\"]*\")?\s*\)")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
_HEADING = re.compile(r"^(#{1,6})\s+(.*?)\s*#*$")
_EVERYDAY = re.compile(r"<!--\s*everyday:\s*([^>]*?)\s*-->")


class Finding(NamedTuple):
    """One thing to mend in a page."""

    page: Path
    line: int
    what: str

    def __str__(self) -> str:
        """Return it as `PAGE:LINE: WHAT`, which editors understand."""
        shown = self.page.relative_to(ROOT) if self.page.is_relative_to(ROOT) else self.page
        return f"{shown}:{self.line}: {self.what}"


class Block(NamedTuple):
    """A paragraph, an item of a list or a cell of a table, with the line where it begins."""

    line: int
    text: str


def site_pages() -> list[Path]:
    """List the pages of the site whose prose is checked, decisions not included."""
    single = [
        DOCS / f"{name}.md"
        for name in ("index", "start", "python", "moved", "glossary", "compare", "security")
    ]
    folders = [
        page
        for name in ("guides", "concepts", "reference")
        for page in sorted((DOCS / name).glob("*.md"))
    ]
    return [page for page in single if page.exists()] + folders


def linked_pages() -> list[Path]:
    """List the pages whose links and anchors are checked: those of the site, and the decisions."""
    return [*site_pages(), *sorted((DOCS / "adr").glob("*.md"))]


def longest_sentence(page: Path) -> int:
    """Return how many words a sentence of the page may have."""
    guide = page.parent.name == "guides" or (
        page.parent.name == "docs" and page.name in ("index.md", "start.md", "python.md")
    )
    return LONGEST_IN_GUIDES if guide else LONGEST


def _blanked(match: re.Match[str]) -> str:
    """Replace text by as many line breaks as it has, so that line numbers stay right."""
    return "\n" * match[0].count("\n")


def prose(text: str) -> str:
    """Return a page without its code blocks and comments, with the same lines."""
    text = re.sub(r"\A---\n.*?^---\n", _blanked, text, flags=re.S | re.M)
    text = _COMMENT.sub(_blanked, _FENCE.sub(_blanked, text))
    kept: list[str] = []
    lines, in_list, after_blank = text.split("\n"), False, True
    for line in lines:
        indented = line.startswith("    ") and line.strip()
        if _ITEM.match(line) and not (indented and not in_list):
            in_list = True
        elif line.strip() and not line.startswith(" "):
            in_list = False
        code = indented and not in_list and (after_blank or not kept[-1].strip())
        kept.append("" if code else line)
        after_blank = not line.strip() or bool(code)
    return "\n".join(kept)


def blocks(text: str) -> Iterator[Block]:
    """Split prose into the pieces that hold whole sentences; headings are left out."""
    gathered: list[str] = []
    begun = 0
    for number, line in enumerate([*prose(text).split("\n"), ""], start=1):
        bare = re.sub(r"^\s*>\s?", "", line)
        row = bare.lstrip().startswith("|")
        ends = not bare.strip() or bool(_HEADING.match(bare)) or bool(_ITEM.match(bare)) or row
        if ends and gathered:
            yield Block(begun, " ".join(gathered))
            gathered = []
        if row:
            for cell in re.split(r"(?<!\\)\|", bare.strip().strip("|")):
                if cell.strip() and not re.fullmatch(r"[\s:-]+", cell):
                    yield Block(number, cell.strip())
        elif bare.strip() and not _HEADING.match(bare):
            if not gathered:
                begun = number
            gathered.append(_ITEM.sub("", bare).strip())


def _plain(text: str) -> str:
    """Return prose as it is read aloud: code is one word, and a link is its text."""
    text = _CODE.sub("CODE", text)
    text = _LINK.sub(lambda match: match[2], text)
    return re.sub(r"[*_]{1,3}(?=\S)|(?<=\S)[*_]{1,3}", "", text)


def sentences(text: str) -> list[str]:
    """Split a paragraph into its sentences."""
    text = re.sub(
        r"\b(e\.g|i\.e|etc|vs|no)\.", lambda match: match[1].replace(".", ""), _plain(text)
    )
    return [
        each
        for each in re.split(r"(?<=[.!?…])[\"”’)]*\s+(?=[\"“(]*[A-Z0-9`])", text)
        if each.strip()
    ]


def words(sentence: str) -> int:
    """Count the words of a sentence; a mark that stands alone is none."""
    return sum(bool(re.search(r"\w", each)) for each in sentence.split())


def long_sentences(page: Path) -> list[Finding]:
    """List the sentences of a page that have too many words."""
    most = longest_sentence(page)
    return [
        Finding(page, block.line, f"{words(sentence)} words (at most {most}): {sentence}")
        for block in blocks(page.read_text(encoding="utf-8"))
        for sentence in sentences(block.text)
        if words(sentence) > most
    ]


def everyday_terms(text: str) -> set[str]:
    """Return the terms that a page declares to use in their everyday sense only."""
    return {term.strip() for match in _EVERYDAY.finditer(text) for term in match[1].split(",")}


def _masked(text: str) -> str:
    """Return prose of the same length, with headings, code and the targets of links blanked."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    text = re.sub(r"^\s*#{1,6} .*$", blank, text, flags=re.M)
    return _CODE.sub(blank, text)


def _links_of_term(text: str, term: str) -> tuple[list[int], list[tuple[int, int]]]:
    """Return where a term is linked to the glossary, and the spans of all other links."""
    anchor, linked, others = f"glossary.md#{term.replace(' ', '-')}", [], []
    for match in _LINK.finditer(text):
        if match[3].endswith(anchor):
            linked.append(match.start())
        others.append(match.span())
    return linked, others


def first_use(text: str, term: str) -> tuple[int, int] | None:
    """Return the span of the first use of a term in masked prose, outside of links."""
    _, links = _links_of_term(text, term)
    for match in re.finditer(rf"(?<![\w-])(?:{TERMS[term]})(?![\w-])", text, re.I | re.M):
        inside = any(
            begin <= match.start() < end or begin < match.end() <= end for begin, end in links
        )
        if not inside:
            return match.span()
    return None


def unlinked_terms(page: Path) -> list[Finding]:
    """List the terms whose first use on a page has no link to the glossary."""
    whole = page.read_text(encoding="utf-8")
    if page.name == "glossary.md":
        return []
    text, found = _masked(prose(whole)), []
    for term in TERMS.keys() - everyday_terms(whole):
        linked, _ = _links_of_term(text, term)
        use = first_use(text, term)
        if use and not any(place <= use[0] for place in linked):
            line = text.count("\n", 0, use[1]) + 1
            shown = " ".join(text[use[0] : use[1]].split())
            found.append(
                Finding(
                    page, line, f"first use of “{term}” ({shown}) is not a link to the glossary"
                )
            )
    return sorted(found)


def link_terms(text: str, glossary: str) -> str:
    """Link the first use of each term on a generated page; `glossary` is the path to that page."""
    for term in TERMS.keys() - everyday_terms(text):
        masked = _masked(prose_in_place(text))
        use = first_use(masked, term)
        if use is None or any(place <= use[0] for place in _links_of_term(masked, term)[0]):
            continue
        begin, end = use
        # A determiner before the noun stays outside of the link.
        spoken = re.search(rf"\b{term.split()[0]}.*", text[begin:end], re.I | re.S)
        begin += spoken.start() if spoken else 0
        text = f"{text[:begin]}[{text[begin:end]}]({glossary}#{term.replace(' ', '-')}){text[end:]}"
    return text


def prose_in_place(text: str) -> str:
    """Return a page with its code blocks and comments blanked character by character."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    text = _COMMENT.sub(blank, _FENCE.sub(blank, text))
    return re.sub(r"^    .*$", blank, text, flags=re.M)


def anchors(text: str) -> list[str]:
    """Return the anchors of the headings of a page, as the site generator makes them."""
    found = []
    for line in _FENCE.sub(_blanked, text).split("\n"):
        heading = _HEADING.match(line)
        if heading:
            shown = _LINK.sub(lambda match: match[2], heading[2].replace("`", ""))
            slug = re.sub(r"[^\w\s-]", "", shown).strip().lower()
            found.append(re.sub(r"[-\s]+", "-", slug))
    return found


def broken_links(page: Path) -> list[Finding]:
    """List the links of a page that lead to no page, to no heading, or out of docs/."""
    found = []
    whole = page.read_text(encoding="utf-8")
    text = _CODE.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), prose_in_place(whole))
    for match in _LINK.finditer(text):
        target, line = match[3], text.count("\n", 0, match.start()) + 1
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page.resolve()
        if not path.is_file():
            found.append(Finding(page, line, f"link to {target}: there is no such file"))
        elif not path.is_relative_to(DOCS):
            found.append(Finding(page, line, f"link to {target}: outside of docs/"))
        elif anchor and path.suffix == ".md":
            there = anchors(path.read_text(encoding="utf-8"))
            if there.count(anchor) != 1:
                what = "no such heading" if anchor not in there else "several such headings"
                found.append(Finding(page, line, f"link to {target}: {what}"))
    return found


def main(arguments: list[str]) -> int:
    """Print the findings of the pages that are named, or of all."""
    pages = [Path(each).resolve() for each in arguments] or site_pages()
    found = [
        each
        for page in pages
        for check in (long_sentences, unlinked_terms, broken_links)
        for each in check(page)
    ]
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(pages)} pages, {len(found)} to mend", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
