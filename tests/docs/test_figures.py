"""The figures of the docs are those that the script draws, and can be read in light and dark."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tools import figures

ROOT = Path(__file__).resolve().parents[2]
SHADES = pytest.mark.parametrize("dark", [0, 1], ids=["light", "dark"])


def luminance(colour: str) -> float:
    """Return the relative luminance of `#rrggbb`, as WCAG defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [
        each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    light, dark = sorted((luminance(first), luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_is_what_the_script_draws(name: str) -> None:
    drawn = figures.FIGURES[name]().drawn()

    assert (figures.FOLDER / f"{name}.svg").read_text(encoding="utf-8") == drawn


def test_no_other_file_lies_beside_the_figures() -> None:
    assert {path.name for path in figures.FOLDER.iterdir()} == {
        f"{name}.svg" for name in figures.FIGURES
    }


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_is_valid_xml_and_has_a_title_that_is_read_aloud(name: str) -> None:
    root = ElementTree.fromstring(figures.FIGURES[name]().drawn())
    space = {"svg": "http://www.w3.org/2000/svg"}
    title = root.find("svg:title", space)

    assert root.get("role") == "img"
    assert title is not None
    assert title.text


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_figure_is_shown_on_a_page_with_a_description(name: str) -> None:
    shown = re.compile(rf"!\[([^\]]+)\]\([./]*figures/{name}\.svg\)")

    assert [page for page in (ROOT / "docs").rglob("*.md") if shown.search(page.read_text("utf-8"))]


@SHADES
@pytest.mark.parametrize("kind", figures._KINDS)
def test_text_in_a_box_stands_out_from_its_background(kind: str, dark: int) -> None:
    fill, _, text = figures._KINDS[kind][dark]
    behind = [figures._PAPER[dark]] if fill == "none" else [fill, figures._PAPER[dark]]

    assert min(contrast(text, each) for each in behind) >= 4.5


@SHADES
def test_text_outside_of_boxes_stands_out_from_the_paper(dark: int) -> None:
    paper = figures._PAPER[dark]

    assert min(contrast(each[dark], paper) for each in (figures._INK, figures._SOFT)) >= 4.5
    assert contrast(figures._STROKE[dark], paper) >= 3


def test_text_that_does_not_fit_is_an_error() -> None:
    figure = figures.Figure("a figure", height=100)

    with pytest.raises(ValueError, match="does not fit"):
        figure.box(0, 0, 40, 40, "far too long for this box")
