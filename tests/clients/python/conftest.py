"""Provides one gateway for all tests of a file, and asyncio for the SDKs."""

from collections.abc import Iterator

import pytest

from gateway import Gateway


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    started = Gateway()
    yield started
    started.stop()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
