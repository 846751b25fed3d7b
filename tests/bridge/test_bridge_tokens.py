"""Laws of the bridge's tokens: none does more than the one above it, or lives longer."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bridge.test_bridge import SCOPE, Clock

from tallystick.bridge.protocol import BridgeRefused
from tallystick.bridge.server import Pace
from tallystick.bridge.tokens import IssuedToken, TokenBook, TokenScope
from tallystick.core.errors import InvalidLimit, UsageError

MODELS = st.none() | st.frozensets(st.sampled_from("abc"))
SCOPES = st.builds(
    TokenScope,
    session=st.just("S"),
    models=MODELS,
    tokens_out_max=st.none() | st.integers(1, 9),
    depth=st.integers(0, 3),
    depth_max=st.integers(0, 5),
)
TTLS = st.integers(1, 5_000)
# Issue under one that was issued before, or revoke one, or let time pass.
ACTIONS = st.one_of(
    st.tuples(st.just("issue"), st.none() | st.integers(0, 9), SCOPES, TTLS),
    st.tuples(st.just("revoke"), st.integers(0, 9)),
    st.tuples(st.just("wait"), st.integers(0, 3_000)),
)


@given(SCOPES, TTLS, SCOPES, TTLS)
def test_a_token_may_do_no_more_than_the_one_above_it(
    above: TokenScope, above_ms: int, below: TokenScope, below_ms: int
) -> None:
    book = TokenBook(clock=Clock())
    parent = book.issue(above, ttl_ms=above_ms).grant
    child = book.issue(below, ttl_ms=below_ms, parent=parent).grant
    may = child.scope

    assert child.expires_at == min(parent.expires_at, 1_000 + below_ms / 1000)
    assert may.depth > parent.scope.depth
    assert may.depth_max <= parent.scope.depth_max
    for name in "abc":
        allowed = [each is None or name in each for each in (above.models, below.models)]
        assert (may.models is None or name in may.models) == all(allowed)
    for tokens in range(1, 11):
        caps = [above.tokens_out_max, below.tokens_out_max]
        allowed = [each is None or tokens <= each for each in caps]
        assert (may.tokens_out_max is None or tokens <= may.tokens_out_max) == all(allowed)


@given(st.lists(ACTIONS, max_size=30))
def test_a_token_is_found_while_it_and_all_above_it_hold(actions: list[tuple[object, ...]]) -> None:
    clock = Clock()
    book = TokenBook(clock=clock)
    issued: list[IssuedToken] = []
    # What each one's end is, and those above it, by a count of our own.
    ends: list[float] = []
    lines: list[list[int]] = []
    revoked: set[int] = set()

    def holds(number: int) -> bool:
        return all(each not in revoked and clock.now < ends[each] for each in lines[number])

    for action in actions:
        match action:
            case ("issue", at, TokenScope() as scope, int(ttl)):
                above = at if isinstance(at, int) and at < len(issued) else None
                if above is not None and not holds(above):
                    with pytest.raises(UsageError, match="not valid any more"):
                        book.issue(scope, ttl_ms=ttl, parent=issued[above].grant)
                    continue
                parent = None if above is None else issued[above].grant
                lines.append([len(issued), *([] if above is None else lines[above])])
                ends.append(clock.now + ttl / 1000)
                issued.append(book.issue(scope, ttl_ms=ttl, parent=parent))
            case ("revoke", int(which)) if which < len(issued):
                book.revoke(issued[which].grant)
                revoked.add(which)
            case ("wait", int(ms)):
                clock.now += ms / 1000
            case _:
                pass
        for number, each in enumerate(issued):
            found = book.find(each.text, session="S")

            assert found is (each.grant if holds(number) else None)
            assert book.find(each.text, session="T") is None


def test_a_token_is_thirty_two_random_bytes_and_the_book_does_not_have_it() -> None:
    book = TokenBook(clock=Clock())
    made = [book.issue(SCOPE).text for _ in range(100)]

    assert len(set(made)) == 100
    assert {len(base64.urlsafe_b64decode(each + "=")) for each in made} == {32}
    held = repr([(key, vars(each)) for key, each in book._grants.items()])
    assert not any(each in held for each in made)


@given(st.text(max_size=300))
def test_what_was_not_issued_is_not_found(text: str) -> None:
    book = TokenBook(clock=Clock())
    book.issue(SCOPE)

    assert book.find(text) is None
    assert book.find(None) is None


def test_tokens_whose_time_is_over_are_forgotten() -> None:
    clock = Clock()
    book = TokenBook(clock=clock)
    for _ in range(50):
        book.issue(SCOPE, ttl_ms=10)
        clock.now += 1

    assert len(book) == 1


def test_nothing_is_issued_under_what_was_revoked_with_another() -> None:
    book = TokenBook(clock=Clock())
    first = book.issue(SCOPE).grant
    second = book.issue(SCOPE, parent=first).grant

    book.revoke(first)
    with pytest.raises(UsageError, match="not valid any more"):
        book.issue(SCOPE, parent=second)
    assert len(book) == 0


def test_a_token_cannot_be_issued_under_one_of_another_session() -> None:
    book = TokenBook(clock=Clock())
    parent = book.issue(SCOPE).grant

    with pytest.raises(UsageError, match="same session"):
        book.issue(TokenScope(session="T"), parent=parent)


@pytest.mark.parametrize(
    ("scope", "ttl_ms", "says"),
    [
        (TokenScope(session=""), 1, "needs a session"),
        (SCOPE, 0, "ttl_ms"),
        (SCOPE, -5, "ttl_ms"),
        (TokenScope(session="S", depth=-1), 1, "depth"),
        (TokenScope(session="S", depth_max=-1), 1, "depth_max"),
        (TokenScope(session="S", tokens_out_max=0), 1, "tokens_out_max"),
        (TokenScope(session="S", tokens_out_max=True), 1, "tokens_out_max"),
    ],
)
def test_a_scope_that_is_none_is_refused(scope: TokenScope, ttl_ms: int, says: str) -> None:
    with pytest.raises((UsageError, InvalidLimit), match=says):
        TokenBook(clock=Clock()).issue(scope, ttl_ms=ttl_ms)


@given(st.integers(1, 20), st.integers(1, 20), st.lists(st.tuples(st.integers(0, 20), TTLS)))
def test_no_stretch_of_time_has_more_queries_than_its_pace(
    per_second: int, burst: int, asked: list[tuple[int, int]]
) -> None:
    clock = Clock()
    pace = Pace(per_second=per_second, burst=burst, clock=clock)
    taken: list[tuple[float, int]] = []
    for count, ms in asked:
        clock.now += ms / 1000
        try:
            pace.take(count)
        except BridgeRefused as error:
            refused = error
        else:
            taken.append((clock.now, count))
            continue
        # Whoever waits as long as it was told is let through, where so many ever are.
        if count <= burst:
            clock.now += (refused.retry_after_ms or 0) / 1000
            pace.take(count)
            taken.append((clock.now, count))

    for first, (begin, _) in enumerate(taken):
        for end in range(first, len(taken)):
            total = sum(count for _, count in taken[first : end + 1])
            assert total <= burst + (taken[end][0] - begin) * per_second + 1e-6
