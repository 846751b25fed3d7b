"""The pages of docs/reference say what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import reference

from tallystick.settings.schema import PROVIDER_KEYS, SETTINGS

PAGES = reference.pages()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_what_the_code_makes_of_it(page: Path) -> None:
    written = page.read_text(encoding="utf-8")

    # `make reference` writes it anew.
    assert reference.rewritten(written) == written


def test_every_part_stands_on_one_page() -> None:
    found = [match["name"] for page in PAGES for match in reference.regions(page)]

    assert sorted(found) == sorted(reference.REGIONS)


def test_every_setting_has_a_meaning() -> None:
    assert reference.MEANINGS.keys() == SETTINGS.keys()
    assert reference.PROVIDER_MEANINGS.keys() == PROVIDER_KEYS.keys()


def test_a_page_that_was_changed_by_hand_is_found() -> None:
    (page,) = [each for each in PAGES if each.name == "settings.md"]
    written = page.read_text(encoding="utf-8")
    changed = written.replace("a whole number from 0 to 100 ", "any number ", 1)

    assert changed != written
    assert reference.rewritten(changed) == written
