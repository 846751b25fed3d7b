"""Slots: first come first served, and passed on."""

import threading
import time

import pytest

from tallystick.sandbox.scheduling import Slots


def test_no_more_are_active_than_there_are_slots() -> None:
    slots, active, most = Slots(2), [0], [0]
    guard = threading.Lock()

    def work() -> None:
        slots.acquire()
        with guard:
            active[0] += 1
            most[0] = max(most[0], active[0])
        time.sleep(0.01)
        with guard:
            active[0] -= 1
        slots.release()

    threads = [threading.Thread(target=work) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert most[0] == 2
    assert slots.waiting == 0


def test_who_waits_longest_is_next() -> None:
    slots, order = Slots(1), []
    slots.acquire()

    def work(number: int) -> None:
        slots.acquire()
        order.append(number)
        slots.release()

    threads = []
    for number in range(4):
        thread = threading.Thread(target=work, args=(number,))
        thread.start()
        threads.append(thread)
        while slots.waiting < number + 1:
            time.sleep(0.001)
    slots.release()
    for thread in threads:
        thread.join()

    assert order == [0, 1, 2, 3]


def test_a_share_is_used_up_only_if_others_wait() -> None:
    slots = Slots(1)
    slots.acquire()

    assert not slots.used_up(time.monotonic() - 10)

    waiting = threading.Thread(target=slots.acquire)
    waiting.start()
    while not slots.waiting:
        time.sleep(0.001)
    assert slots.used_up(time.monotonic() - 10)
    assert not slots.used_up(time.monotonic())
    slots.release()
    waiting.join()


def test_there_is_at_least_one_slot() -> None:
    with pytest.raises(ValueError, match="at least one"):
        Slots(0)
