"""What the producer asks brokers, as it is on the wire."""

from __future__ import annotations

from typing import Any

import pytest

from aioidem._engine import steps
from aioidem._producer import questions


@pytest.mark.parametrize(("version", "named"), [(8, None), (9, 7), (12, 7)])
def test_the_log_is_read_under_the_leader_epoch_that_is_known(
    version: int, named: int | None
) -> None:
    """A broker that is a follower by now would send its own log from version 11 on (KIP-392)."""
    asked = questions.read_back(steps.ReadBack(1, 1, "t", None, 3, 40, leader_epoch=7))
    request: Any = asked.make(version)
    ((part,),) = (topic.partitions for topic in request.topics)
    assert (part.partition, part.fetch_offset) == (3, 40)
    assert getattr(part, "current_leader_epoch", None) == named
