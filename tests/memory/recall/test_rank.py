"""Ranking: the laws that hold for any notes, and what each lane is for."""

from __future__ import annotations

import hashlib
import math
import subprocess
import sys
from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.core.errors import InvalidLimit, UsageError
from tallystick.memory.recall import codes
from tallystick.memory.recall.codes import pack_tokens, pack_vector
from tallystick.memory.recall.rank import Hit, Ranked, rank
from tallystick.memory.recall.scope import (
    DEFAULT,
    FIRST_RULES,
    FORMER,
    Embedded,
    ListScope,
    NoteFields,
    Profile,
)
from tallystick.memory.recall.words import count_statistics

_DIMENSIONS = 16
_DAY_MS = 86_400_000
_MAY_3_2023 = 19_480 * _DAY_MS


class HashedWords:
    """An embedder without a model: each word has a direction, a text has the mean of its words."""

    digest = "e" * 64

    def embed(self, text: str) -> Embedded:
        each = [_direction(word) for word in text.lower().split()]
        mean = [sum(column) for column in zip(*each, strict=True)] or [0.0] * _DIMENSIONS
        length = math.hypot(*mean) or 1.0
        return Embedded(
            vector=pack_vector([value / length for value in mean]),
            tokens=pack_tokens([value for row in each for value in row]),
        )


def _direction(word: str) -> list[float]:
    bits = hashlib.sha256(word.encode("utf-8", "replace")).digest()[:_DIMENSIONS]
    values = [byte - 127.5 for byte in bits]
    length = math.hypot(*values)
    return [value / length for value in values]


MODEL = HashedWords()


def scope_of(notes: Mapping[str, NoteFields], *, dense: bool = True) -> ListScope:
    embedded = {id: MODEL.embed(note.text) for id, note in notes.items()} if dense else None
    return ListScope(notes, embedded=embedded)


def said(*texts: str) -> dict[str, NoteFields]:
    return {f"n{number}": NoteFields(text=text) for number, text in enumerate(texts)}


def ids(ranked: Ranked) -> list[str]:
    return [hit.id for hit in ranked.hits]


def lanes(hit: Hit) -> dict[str, float]:
    return dict(hit.lanes)


_WORDS = st.sampled_from(["lake", "camp", "tent", "Anna", "Ben", "rain", "the", "May", "\x00", '"'])
texts = st.lists(_WORDS, max_size=6).map(" ".join)
fields = st.builds(
    NoteFields,
    text=texts,
    author=st.sampled_from(["", "Anna", "Ben"]),
    session=st.sampled_from(["", "s1", "s2"]),
    position=st.none() | st.integers(0, 3),
    created_at=st.sampled_from([0, _MAY_3_2023]),
    importance=st.floats(0, 1),
    related=st.lists(st.sampled_from(["n0", "n1", "zz"]), max_size=2).map(tuple),
)
note_sets = st.dictionaries(st.sampled_from([f"n{number}" for number in range(9)]), fields)
profiles = st.sampled_from(
    [
        Profile(),
        Profile(floor=2, token_notes=2),
        Profile(recency=0.3, importance=0.2, related=0.4),
        Profile(lexical=0, token=0),
        FORMER[FIRST_RULES],
    ]
)
embedders = st.sampled_from([None, MODEL])


def ranked_by(query: str, scope: ListScope, profile: Profile, dense: HashedWords | None) -> Ranked:
    return rank(query, scope, k=100, profile=profile, embedder=dense, now=_MAY_3_2023)


# -- laws -----------------------------------------------------------------------------------------


@given(texts, note_sets, profiles, embedders)
def test_the_order_of_the_notes_does_not_matter(
    query: str, notes: dict[str, NoteFields], profile: Profile, dense: HashedWords | None
) -> None:
    turned = dict(reversed(notes.items()))

    forth = ranked_by(query, scope_of(notes), profile, dense)

    assert ranked_by(query, scope_of(turned), profile, dense) == forth


@given(texts, note_sets, profiles, embedders, st.integers(0, 5), st.integers(0, 5))
def test_a_larger_k_only_appends(
    query: str,
    notes: dict[str, NoteFields],
    profile: Profile,
    dense: HashedWords | None,
    few: int,
    more: int,
) -> None:
    scope = scope_of(notes)

    short = rank(query, scope, k=few, profile=profile, embedder=dense, now=0)
    long = rank(query, scope, k=few + more, profile=profile, embedder=dense, now=0)

    assert long.hits[:few] == short.hits
    assert (long.notes, long.vector) == (short.notes, short.vector)


@given(texts, note_sets, profiles, embedders)
def test_lanes_add_up_to_the_score_and_scores_descend(
    query: str, notes: dict[str, NoteFields], profile: Profile, dense: HashedWords | None
) -> None:
    hits = ranked_by(query, scope_of(notes), profile, dense).hits

    for hit in hits:
        assert hit.score == round(math.fsum(value for _, value in hit.lanes), 9)
        assert all(math.isfinite(value) and value >= 0 for _, value in hit.lanes)
    keys = [(-hit.score, hit.id) for hit in hits]
    assert keys == sorted(keys)
    assert len({hit.id for hit in hits}) == len(hits)


@settings(max_examples=40)
@given(texts, note_sets, profiles)
def test_numpy_changes_nothing(query: str, notes: dict[str, NoteFields], profile: Profile) -> None:
    with_numpy = ranked_by(query, scope_of(notes), profile, MODEL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(codes, "has_numpy", lambda: False)

        without = ranked_by(query, scope_of(notes), profile, MODEL)

    assert without == with_numpy


@given(texts, note_sets)
def test_a_short_list_with_the_statistics_of_the_whole_keeps_the_lexical_scores(
    query: str, notes: dict[str, NoteFields]
) -> None:
    profile = Profile(author=0, when=0, before=0, after=0, session=0)
    whole = scope_of(notes, dense=False)
    found = rank(query, whole, k=3, profile=profile)
    every = rank(query, whole, k=100, profile=profile)
    asked = sorted({term for id in notes for term in whole.counts(id)})
    statistics = count_statistics(asked, [whole.counts(id) for id in notes])
    authors = {notes[id].author for id in notes}
    kept = [id for id in ids(found) if authors == {notes[id].author}]

    part = scope_of({id: notes[id] for id in kept}, dense=False)
    again = rank(query, part, k=3, profile=profile, statistics=statistics)

    scores = {hit.id: hit.score for hit in every.hits}
    assert {hit.id: hit.score for hit in again.hits} == {id: scores[id] for id in kept}


# -- lanes ----------------------------------------------------------------------------------------


def test_without_an_embedder_recall_is_lexical_and_says_so() -> None:
    notes = said("we went to the lake", "rain all day")

    found = rank("lake", scope_of(notes, dense=False), k=10)

    assert ids(found) == ["n0"]
    assert "dense: left out, there is no embedder" in found.notes
    assert (found.model, found.vector) == ("", "")


def test_the_dense_lane_names_its_model_and_the_querys_vector() -> None:
    found = rank("lake", scope_of(said("lake")), k=1, embedder=MODEL)

    assert found.model == MODEL.digest
    assert found.vector == hashlib.sha256(MODEL.embed("lake").vector).hexdigest()
    assert lanes(found.hits[0])["dense"] == pytest.approx(1.0, abs=1e-3)


def test_notes_without_vectors_still_take_part() -> None:
    notes = said("lake", "tent")
    scope = ListScope(notes, embedded={"n1": MODEL.embed("tent")})

    found = rank("lake", scope, k=10, embedder=MODEL)

    assert ids(found)[0] == "n0"
    assert "dense: 1 of 2 notes have no vector" in found.notes
    assert any(note.startswith("token: left out") for note in found.notes)


def test_a_long_note_is_as_near_as_the_nearest_of_its_windows() -> None:
    class Windows(ListScope):
        def vectors(self, id: str) -> tuple[bytes, ...]:
            return MODEL.embed("rain").vector, MODEL.embed("lake").vector

    found = rank("lake", Windows(said("rain lake")), k=1, embedder=MODEL)

    assert lanes(found.hits[0])["dense"] == pytest.approx(1.0, abs=1e-3)


def test_vectors_of_another_length_are_refused() -> None:
    scope = ListScope(said("lake"), embedded={"n0": Embedded(vector=b"\0\0", tokens=b"")})

    with pytest.raises(UsageError, match="cannot be compared"):
        rank("lake", scope, k=1, embedder=MODEL)


def test_an_author_who_is_named_comes_first_and_the_name_is_no_term() -> None:
    notes = {
        "a": NoteFields(text="the lake was cold", author="Anna Smith"),
        "b": NoteFields(text="the lake was cold, Anna", author="Ben"),
    }

    found = rank("What did Anna's lake trip feel like?", scope_of(notes, dense=False), k=2)

    assert ids(found) == ["a", "b"]
    assert lanes(found.hits[0])["author"] == 0.4
    assert lanes(found.hits[1])["author"] == 0.0


def test_an_author_lends_nothing_to_the_notes_beside_but_by_the_first_rules() -> None:
    notes = {
        "a": NoteFields(text="the lake", author="Anna", session="s", position=0),
        "b": NoteFields(text="the lake", author="Ben", session="s", position=1),
    }

    def before(profile: Profile) -> list[float]:
        scope = scope_of(notes, dense=False)
        found = rank("Anna lake", scope, k=2, profile=profile)
        return [lanes(hit)["before"] for hit in found.hits if hit.id == "b"]

    assert before(DEFAULT) == [0.0]
    assert before(FORMER[FIRST_RULES]) == [0.12]


class Told(HashedWords):
    """A model that keeps what it was given."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def embed(self, text: str) -> Embedded:
        self.texts.append(text)
        return super().embed(text)


@pytest.mark.parametrize(
    ("query", "spoken", "without"),
    [
        ("What did Anna paint?", "What did I paint?", "What did paint?"),
        ("Anna's horse and ANNA", "my horse and I", "horse and"),
        ("which lake?", "which lake?", "which lake?"),
        ("Anna?", "Anna?", "Anna?"),
    ],
)
def test_the_model_gets_the_question_as_the_author_would_put_it(
    query: str, spoken: str, without: str
) -> None:
    scope = scope_of({"a": NoteFields(text="a horse", author="Anna")}, dense=True)
    for profile, expected in ((DEFAULT, spoken), (FORMER[FIRST_RULES], without)):
        model = Told()
        rank(query, scope, k=1, profile=profile, embedder=model)
        assert model.texts == [expected]


def test_a_note_that_tells_is_before_one_that_asks() -> None:
    notes = {
        "a": NoteFields(text="How was the lake? Cold?"),
        "b": NoteFields(text="How cold the lake was"),
        "c": NoteFields(text="The lake was cold. Was it?"),
    }
    found = rank("cold lake", scope_of(notes, dense=False), k=3)

    assert {hit.id: lanes(hit)["tells"] for hit in found.hits} == pytest.approx(
        {"a": 0.0, "b": 0.3, "c": 0.2}
    )
    assert ids(found)[-1] == "a"


def test_a_long_note_counts_by_its_nearest_passage() -> None:
    filler = " ".join(f"w{number}" for number in range(60))
    notes = {"a": NoteFields(text=f"{filler} red ferry {filler}"), "b": NoteFields(text=filler)}
    found = rank("red ferry", scope_of(notes, dense=True), k=2, embedder=MODEL)

    assert lanes(found.hits[0])["passage"] > 0.1
    assert ids(found)[0] == "a"
    plain = rank("ferry red", scope_of({"c": NoteFields(text="red ferry")}, dense=True), k=1,
                 embedder=MODEL)  # fmt: skip
    assert lanes(plain.hits[0])["passage"] == pytest.approx(0.0, abs=1e-3)


def test_relations_count_by_their_weights_but_by_the_first_rules() -> None:
    notes = {
        "a": NoteFields(text="lake", related=("b", "c", "d"), ties=(1.0, 0.4, 0.0)),
        **{id: NoteFields(text="x") for id in "bcd"},
    }

    def related(profile: Profile) -> dict[str, float]:
        found = rank("lake", scope_of(notes, dense=False), k=9, profile=profile)
        return {hit.id: lanes(hit)["related"] for hit in found.hits}

    assert related(Profile(related=1)) == {"a": 1.0, "b": 0.5, "c": 0.2}
    first = msgspec.structs.replace(FORMER[FIRST_RULES], related=1.0)
    assert related(first) == {"a": 1.0, "b": 0.5, "c": 0.5, "d": 0.5}


def test_a_query_of_nothing_but_a_name_looks_for_the_name() -> None:
    notes = {
        "a": NoteFields(text="hello Ben", author="Anna"),
        "b": NoteFields(text="x", author="Ben"),
    }

    assert ids(rank("Ben?", scope_of(notes, dense=False), k=2)) == ["a"]


def test_who_wrote_it_when_and_how_important_it_is_are_no_evidence() -> None:
    notes = {"a": NoteFields(text="x", author="Anna", created_at=_MAY_3_2023, importance=1.0)}
    profile = Profile(recency=1, importance=1)

    found = rank(
        "Anna unheard 3 May 2023", scope_of(notes, dense=False), k=5, profile=profile, now=0
    )

    assert found.hits == ()


def test_a_day_that_is_named_prefers_notes_of_then() -> None:
    notes = {
        "a": NoteFields(text="lake", created_at=_MAY_3_2023 - 40 * _DAY_MS),
        "b": NoteFields(text="lake", created_at=_MAY_3_2023 + 5 * _DAY_MS),
        "c": NoteFields(text="lake", created_at=_MAY_3_2023 + 1),
    }

    found = rank("the lake on May 3, 2023", scope_of(notes, dense=False), k=3)

    assert ids(found) == ["c", "b", "a"]


def test_neighbours_of_a_good_note_come_before_others() -> None:
    notes = {
        str(place): NoteFields(text=text, session="s", position=place)
        for place, text in enumerate(["hm", "and then?", "we saw the lake", "wow", "bye"])
    }

    found = rank("lake", scope_of(notes, dense=False), k=5, profile=Profile(session=0))

    assert ids(found) == ["2", "3", "1"]
    assert lanes(found.hits[1])["before"] > lanes(found.hits[2])["after"] > 0


def test_positions_that_are_not_next_to_each_other_are_no_neighbours() -> None:
    notes = {
        "a": NoteFields(text="lake", session="s", position=1),
        "b": NoteFields(text="x", session="s", position=3),
        "c": NoteFields(text="x", session="t", position=2),
        "d": NoteFields(text="x", position=2),
    }

    assert ids(rank("lake", scope_of(notes, dense=False), k=5, profile=Profile(session=0))) == ["a"]


def test_a_session_with_good_notes_lifts_its_others() -> None:
    notes = {
        "a": NoteFields(text="lake lake", session="s"),
        "b": NoteFields(text="lake tent", session="s"),
        "c": NoteFields(text="lake tent", session="t"),
        "d": NoteFields(text="lake rain camp boat", session="u"),
    }

    assert ids(rank("lake", scope_of(notes, dense=False), k=4)) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("dense", [None, MODEL])
def test_lanes_whose_data_is_absent_drop_out(dense: HashedWords | None) -> None:
    found = rank("lake in May 2023", scope_of(said("lake", "rain")), k=2, embedder=dense)

    assert ids(found)[0] == "n0"
    kinds = {note.split(":")[0] for note in found.notes if "left out" in note}
    assert {"author", "when", "before", "session"} <= kinds
    assert not {"author", "when", "before", "session"} & lanes(found.hits[0]).keys()


def test_words_that_many_notes_have_are_not_shown_to_the_model() -> None:
    asked = []

    class Listening(HashedWords):
        def embed(self, text: str) -> Embedded:
            asked.append(text)
            return super().embed(text)

    notes = said(*(f"Oslo {number}" for number in range(40)), "a lake")

    rank("the Oslo lake?", scope_of(notes), k=1, embedder=Listening())
    rank("Oslo?", scope_of(notes), k=1, embedder=Listening())

    assert asked == ["the lake?", "Oslo?"]


def test_recency_and_importance_count_only_if_asked() -> None:
    notes = {
        "a": NoteFields(text="lake", created_at=0, importance=0.1),
        "b": NoteFields(text="lake", created_at=168 * 3_600_000, importance=0.9),
    }
    scope = scope_of(notes, dense=False)
    now = 168 * 3_600_000

    assert ids(rank("lake", scope, k=2)) == ["a", "b"]
    newer = rank("lake", scope, k=2, profile=Profile(recency=0.2), now=now)
    assert [(hit.id, lanes(hit)["recency"]) for hit in newer.hits] == [("b", 0.2), ("a", 0.1)]
    assert ids(rank("lake", scope, k=2, profile=Profile(importance=0.2))) == ["b", "a"]
    with pytest.raises(UsageError, match="recency needs the time"):
        rank("lake", scope, k=2, profile=Profile(recency=0.2))


def test_relations_are_followed_two_steps_both_ways_if_asked() -> None:
    notes = {
        "a": NoteFields(text="lake", related=("b", "gone")),
        "b": NoteFields(text="x"),
        "c": NoteFields(text="y", related=("b",)),
        "d": NoteFields(text="z", related=("c",)),
    }
    scope = scope_of(notes, dense=False)

    found = rank("lake", scope, k=9, profile=Profile(related=0.4))

    assert [(hit.id, lanes(hit)["related"]) for hit in found.hits] == [
        ("a", 0.4),
        ("b", 0.2),
        ("c", 0.1),
    ]
    assert ids(rank("lake", scope, k=9)) == ["a"]


# -- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        "",
        "   ",
        "???",
        "\x00\x1b[2J",
        "the of and",
        "\ud800",
        '" OR 1=1 --',
        "NEAR(a b)",
        "*:*",
        "a" * 9_000,
    ],
)
@pytest.mark.parametrize("dense", [None, MODEL])
def test_a_hostile_query_is_only_text(query: str, dense: HashedWords | None) -> None:
    found = rank(query, scope_of(said("lake", "tent")), k=5, embedder=dense)

    assert all(math.isfinite(hit.score) for hit in found.hits)


def test_ten_megabytes_of_query_are_read_up_to_a_limit() -> None:
    found = rank("lake " + "x y z " * 1_700_000, scope_of(said("lake")), k=5, embedder=MODEL)

    assert ids(found) == ["n0"]
    assert "query: read as far as 8,000 characters" in found.notes


def test_a_negative_k_is_refused_and_zero_is_nothing() -> None:
    scope = scope_of(said("lake"))

    assert rank("lake", scope, k=0).hits == ()
    assert ids(rank("lake", scope, k=10_000)) == ["n0"]
    with pytest.raises(InvalidLimit, match="k"):
        rank("lake", scope, k=-1)


def test_an_empty_scope_has_no_hits() -> None:
    assert rank("lake", scope_of({}), k=5, embedder=MODEL).hits == ()


def test_lexical_ranking_imports_nothing_of_the_extra() -> None:
    program = (
        "import sys\n"
        "for name in ('numpy', 'onnxruntime', 'tokenizers'): sys.modules[name] = None\n"
        "from tallystick.memory.recall.rank import rank\n"
        "from tallystick.memory.recall.scope import ListScope, NoteFields\n"
        "import tallystick.memory.recall.minilm\n"
        "import tallystick.memory.recall.codes, tallystick.memory.recall.postings\n"
        "scope = ListScope({'a': NoteFields(text='the lake')})\n"
        "print([hit.id for hit in rank('lake', scope, k=3).hits])\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert (done.stdout, done.stderr) == ("['a']\n", "")
