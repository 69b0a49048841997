"""Paths on which the exploration found the engine wrong; it must stay right on them."""

from __future__ import annotations

import pytest

from .search import replay
from .spaces import SPACES


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(
            # Connection 2 carries three batches when the brokers fall silent. The first of them is
            # resent on connection 3. Late, the copy of the first is refused for a reason that
            # passes, and that of the second founds the leader's state anew.
            ("silence; wait; refuse 2; forget 0; serve 2; serve 3; deliver 3; serve 3; deliver 3"),
            id="a late copy is accepted first",
        ),
        pytest.param(
            "fail 2; deliver 2; forget 0; serve 2; deliver 2",
            id="the next batch is accepted first",
        ),
        pytest.param(
            "silence; wait; serve 3; deliver 3; refuse 3; deliver 3; forget 0; serve 3; deliver 3",
            id="the batch after a refused one is accepted first",
        ),
    ],
)
def test_a_success_over_a_gap_proves_nothing_where_the_leader_forgot_the_producer(
    path: str,
) -> None:
    """A leader forgets the producer, though no record is old enough for that.

    Then it accepts a batch without those before it. Its success must not acknowledge them.
    """
    assert replay(SPACES["forgotten"], tuple(path.split("; "))) is None
