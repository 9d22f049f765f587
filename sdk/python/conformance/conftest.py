"""A client's view of any daemon. ``CLOCHE_HOST`` and ``CLOCHE_TOKEN`` are all that it takes."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator

import pytest

import cloche

IMAGE = "host"
"""Needs no registry."""


@pytest.fixture
def client() -> Iterator[cloche.SandboxClient]:
    if not os.environ.get("CLOCHE_HOST"):
        pytest.skip("needs a daemon: set CLOCHE_HOST")
    with cloche.SandboxClient() as c:
        yield c


@pytest.fixture
def mark() -> str:
    """A label that only the sandboxes of one test have."""
    return uuid.uuid4().hex


@pytest.fixture
def make(client: cloche.SandboxClient, mark: str) -> Iterator[Callable[..., cloche.SandboxHandle]]:
    """Makes sandboxes that end with the test."""

    def create(**fields: object) -> cloche.SandboxHandle:
        given: dict[str, object] = {"image": IMAGE, "labels": {"test": mark}, **fields}
        return client.create(**given)  # type: ignore[arg-type]

    yield create
    for left in client.list(labels={"test": mark}):
        left.remove()


@pytest.fixture
def sandbox(make: Callable[..., cloche.SandboxHandle]) -> cloche.SandboxHandle:
    return make()
