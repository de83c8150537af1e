"""One gateway for all tests of a file; asyncio for the SDKs."""

from collections.abc import Iterator

import pytest

from gateway import Gateway


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    own = Gateway()
    yield own
    own.stop()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
