"""Places of live children: a tree never waits for itself, and never has too many interpreters."""

from __future__ import annotations

import asyncio

from tallystick.runtime.spend.slots import ChildSlots


def test_a_tree_wider_than_there_are_places_does_not_wait_for_itself() -> None:
    live, most, begun = 0, 0, 0

    async def node(slots: ChildSlots, depth: int) -> int:
        nonlocal live, most, begun
        async with slots.hold(depth=depth):
            live, begun = live + 1, begun + 1
            most = max(most, live)
            await asyncio.sleep(0)
            total = 1
            if depth < 4:
                live -= 1
                async with slots.lend(depth=depth):
                    total += sum(await asyncio.gather(*(node(slots, depth + 1) for _ in range(4))))
                live += 1
            live -= 1
        return total

    async def tree() -> int:
        slots = ChildSlots(2)
        return sum(await asyncio.gather(*(node(slots, 1) for _ in range(4))))

    assert asyncio.run(asyncio.wait_for(tree(), 20)) == 4 + 16 + 64 + 256
    assert most <= 2


def test_a_place_is_given_back_when_whoever_waits_is_cancelled() -> None:
    async def scene() -> None:
        slots = ChildSlots(1)
        async with slots.hold(depth=1):
            waiting = asyncio.ensure_future(held(slots))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
        await held(slots)

    async def held(slots: ChildSlots) -> None:
        async with slots.hold(depth=1):
            pass

    asyncio.run(asyncio.wait_for(scene(), 5))


def test_a_tree_has_no_more_interpreters_than_a_few_branches_need() -> None:
    begun = most = 0

    async def node(slots: ChildSlots, depth: int) -> None:
        nonlocal begun, most
        async with slots.hold(depth=depth):
            begun += 1
            most = max(most, begun)
            await asyncio.sleep(0)
            if depth < 5:
                async with slots.lend(depth=depth):
                    await asyncio.gather(*(node(slots, depth + 1) for _ in range(4)))
            begun -= 1

    async def tree() -> None:
        slots = ChildSlots(8, 16)
        await asyncio.gather(*(node(slots, 1) for _ in range(4)))

    asyncio.run(asyncio.wait_for(tree(), 20))
    # At least one for each level, or nothing would ever end; and a thousand runs in all.
    assert 5 <= most <= 16 + 4 * 5
