"""Profiles: weights as data with a digest."""

from __future__ import annotations

import math

import msgspec
import pytest

from tallystick.core.errors import UsageError
from tallystick.memory.recall.scope import DEFAULT, FIRST_RULES, FORMER, RULES, Profile

# What receipts name. If this test fails, old receipts can no longer be checked: give the changed
# weights or rules a new default profile, and keep the old one readable.
DIGESTS = {
    FIRST_RULES: "462422339c1626450272251edc52239134598313233a34aee5b9ec67806bef6e",
    RULES: "b7ee3e996c1b6e0bfa9e59e46dbede24ef22dd81815eea1bb6c57cd85b82a65a",
}


def test_the_default_profiles_of_all_rules_keep_their_digests() -> None:
    found = {rules: profile.digest for rules, profile in FORMER.items()}
    assert {**found, DEFAULT.rules: DEFAULT.digest} == DIGESTS


@pytest.mark.parametrize("name", ["tells", "passage", "decay"])
def test_the_first_rules_have_none_of_the_later_lanes(name: str) -> None:
    with pytest.raises(UsageError, match="has no"):
        msgspec.structs.replace(FORMER[FIRST_RULES], **{name: 0.1})


def test_single_weights_are_replaced_and_others_stay() -> None:
    changed = DEFAULT.weighed({"decay": 0.5, "recency_half_life_hours": 24})

    assert (changed.decay, changed.recency_half_life_hours) == (0.5, 24.0)
    assert changed.dense == DEFAULT.dense
    assert DEFAULT.weighed({}) == DEFAULT


@pytest.mark.parametrize("weights", [{"rules": 1}, {"x": 1}, {"decay": -1}, {"decay": True}])
def test_what_is_no_weight_is_refused_by_name(weights: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(weights))):
        DEFAULT.weighed(weights)


@pytest.mark.parametrize(
    "name", [field for field in Profile.__struct_fields__ if field not in ("rules", "terms")]
)
def test_every_field_changes_the_digest(name: str) -> None:
    changed = msgspec.structs.replace(DEFAULT, **{name: getattr(DEFAULT, name) / 2 or 1})

    assert changed.digest != DEFAULT.digest


def test_a_profile_is_read_back_as_it_was_written() -> None:
    written = msgspec.json.encode(Profile(recency=0.25))

    assert msgspec.json.decode(written, type=Profile) == Profile(recency=0.25)


@pytest.mark.parametrize(
    "field", [{"lexical": -1.0}, {"dense": math.nan}, {"author": math.inf}, {"token": 101.0},
              {"floor": 0}, {"token_notes": -1}, {"recency_half_life_hours": 0.0}, {"length": 1.5}],
)  # fmt: skip
def test_what_is_no_weight_is_refused(field: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(field))):
        msgspec.structs.replace(DEFAULT, **field)


@pytest.mark.parametrize("field", [{"terms": "other"}, {"rules": "other"}])
def test_a_profile_of_other_rules_is_refused_by_name(field: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"not by .*other"):
        msgspec.json.decode(msgspec.json.encode(field), type=Profile)
