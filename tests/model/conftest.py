"""The fake server, as a fixture."""

from collections.abc import Iterator

import pytest
from tests.model.fake_server import FakeServer


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running
