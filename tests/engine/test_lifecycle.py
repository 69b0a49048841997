"""States and events of life cycles are found and hashed without a function written in Python."""

from __future__ import annotations

import pytest

from aioidem._engine.batch import BatchEvent, BatchState, Evidence, Persistence
from aioidem._engine.discovery import DiscoveryState
from aioidem._engine.lifecycle import Named
from aioidem._engine.links import LinkState
from aioidem._engine.recovery import Rung
from aioidem._engine.requests import RequestKind


@pytest.mark.parametrize(
    "kind",
    [
        BatchState,
        BatchEvent,
        DiscoveryState,
        Evidence,
        LinkState,
        Persistence,
        RequestKind,
        Rung,
    ],
)
def test_members_are_attributes_of_their_class(kind: type[Named]) -> None:
    """Each member is in the class's own dictionary, and its hash is that of any object."""
    for member in kind:
        assert vars(kind)[member.name] is member
        assert hash(member) == object.__hash__(member)
