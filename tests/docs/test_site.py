"""The site as it is built: strictly, without another origin, and with an index that finds all."""

from __future__ import annotations

import html
import json
import re
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import get_args

import click
import pytest
from tools import reference
from tools.check_docs import ROOT

import tallystick
from tallystick.cli import main
from tallystick.core.errors import TallystickError
from tallystick.core.records import Record
from tallystick.interop.trajectory_events import TrajectoryEvent
from tallystick.settings.schema import PROVIDER_KEYS, SETTINGS

pytestmark = pytest.mark.slow

# What makes a browser ask for something by itself. A link is followed by a person.
ASKS = {"src", "srcset", "data", "poster", "action"}
ASKING_LINKS = {
    "stylesheet",
    "icon",
    "preconnect",
    "preload",
    "prefetch",
    "manifest",
    "modulepreload",
}
# Scripts that the theme loads if a page uses diagrams, galleries or a live editor. None does.
UNUSED = re.compile(
    r"mermaid|glightbox|ace-builds|pyodide|resize-observer|api\.github\.com|/api/v4/|w3\.org"
)


@pytest.fixture(scope="module")
def site() -> Path:
    made = subprocess.run(
        ["make", "--no-print-directory", "docs"], cwd=ROOT, capture_output=True, text=True
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return ROOT / "build" / "site"


class Asked(HTMLParser):
    """Collects the addresses that a page asks for by itself, and its elements that need scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.classes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.classes |= {*values.get("class", "").split()}
        self.addresses += [value for name, value in values.items() if name in ASKS]
        if tag == "link" and ASKING_LINKS & {*values.get("rel", "").split()}:
            self.addresses.append(values.get("href", ""))


def read(page: Path) -> Asked:
    asked = Asked()
    asked.feed(page.read_text(encoding="utf-8"))
    return asked


def test_no_page_asks_another_origin(site: Path) -> None:
    pages = [*site.rglob("*.html")]
    outside = [
        (page.name, address)
        for page in pages
        for address in read(page).addresses
        if re.match(r"([a-z]+:)?//", address)
    ]

    assert len(pages) > 40
    assert outside == []


def test_no_page_shows_marks_of_markdown_that_were_not_understood(site: Path) -> None:
    found = []
    for page in site.rglob("*.html"):
        article = re.search(r"<article.*?</article>", page.read_text(encoding="utf-8"), re.S)
        prose = re.sub(r"<pre.*?</pre>", "", article[0] if article else "", flags=re.S)
        marks = re.findall(r".{0,30}(?:```|\\\||\]\([\w./#-]+\)|\|\s*---).{0,30}", prose)
        found += [(page.name, each) for each in marks]

    assert found == []


def test_no_style_asks_another_origin(site: Path) -> None:
    styles = "\n".join(each.read_text(encoding="utf-8") for each in site.rglob("*.css"))

    assert re.findall(r"(?:url\(|@import)\s*['\"]?((?:https?:)?//[^)'\"]*)", styles) == []


def test_no_page_uses_what_the_theme_would_load_from_elsewhere(site: Path) -> None:
    scripts = "\n".join(each.read_text(encoding="utf-8") for each in site.rglob("assets/**/*.js"))
    used = set[str]().union(*(read(page).classes for page in site.rglob("*.html")))

    assert [
        address for address in re.findall(r"https?://[^\s\"'`)<>]+", scripts)
        if not UNUSED.search(address)
    ] == []  # fmt: skip
    assert not used & {"mermaid", "glightbox", "pyodide", "md-source"}


def test_every_page_is_in_the_site_and_the_report_of_tests_is_not(site: Path) -> None:
    assert (site / "index.html").exists()
    assert (site / "reference" / "commands.html").exists()
    assert not [*site.rglob("status*")]


# -- search ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def index(site: Path) -> str:
    """Everything that the search knows of the reference, as plain text."""
    items = json.loads((site / "search.json").read_text(encoding="utf-8"))["items"]
    texts = [
        f"{each['title']}\n{each['text']}"
        for each in items
        if each["location"].startswith("reference/")
    ]
    return html.unescape(re.sub(r"<[^>]*>", "", "\n".join(texts)))


def commands(
    command: click.Command = main.cli, above: click.Context | None = None, name: str = "tally"
) -> Iterator[tuple[str, click.Command]]:
    """Yield every command with its name, groups before what is in them."""
    context = click.Context(command, info_name=name, parent=above)
    yield context.command_path, command
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            assert below is not None
            yield from commands(below, context, each)


def missing(names: set[str], index: str) -> list[str]:
    return sorted(
        name for name in names if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", index)
    )


def test_the_search_finds_every_command_and_option(index: str) -> None:
    found = [*commands()]
    options = {
        name
        for path, command in found
        if path != "tally"
        for each in command.params
        if isinstance(each, click.Option) and not each.hidden
        for name in each.opts
    }

    assert len(found) > 50
    assert missing({path for path, _ in found} | options, index) == []


def test_the_search_finds_every_setting(index: str) -> None:
    variables = {spec.variable for spec in SETTINGS.values() if spec.variable}

    assert missing({*SETTINGS, *PROVIDER_KEYS, *variables}, index) == []


def test_the_search_finds_every_event_and_every_record(index: str) -> None:
    structs = [*get_args(Record), *get_args(TrajectoryEvent)]

    assert missing({str(each.__struct_config__.tag) for each in structs}, index) == []


def test_the_search_finds_every_error(index: str) -> None:
    reference.import_everything()
    errors = [each for _, each in reference.error_classes(TallystickError)]
    codes = {str(each.code) for each in errors if issubclass(each, TallystickError)}

    assert len(errors) > 80
    assert missing({each.__name__ for each in errors} | codes, index) == []


def test_the_search_finds_every_name_of_the_package(index: str) -> None:
    assert missing({*tallystick.__all__}, index) == []
