"""What no client can exclude, each shown by a path on which a promise does not hold.

DESIGN.md lists these cases. If a test here fails, the producer can do what is said there to be
impossible, and the list is wrong.
"""

from __future__ import annotations

import dataclasses

import pytest

from .search import replay
from .spaces import SPACES


@pytest.mark.parametrize(
    ("path", "promise", "what"),
    [
        pytest.param(
            "serve 2; silence; wait; forget 0; serve 3",
            "once",
            "a record is written twice: [0, 1, 1]",
            id="a resend is a second copy",
        ),
        pytest.param(
            "fail 2; deliver 2; forget 0; fill 0; serve 2; deliver 2",
            "acked",
            "record 1 is ACKED, and it is not in the log",
            id="somebody else's record fills the gap",
        ),
        pytest.param(
            "serve 2; silence; wait; refuse 2; forget 0; serve 2; serve 3; deliver 3; forget 0;"
            " serve 3; deliver 3",
            "acked",
            "record 2 is ACKED, and it is not in the log",
            id="a second copy fills the gap",
        ),
    ],
)
def test_a_broker_that_forgets_the_producer_early(path: str, promise: str, what: str) -> None:
    """A leader forgets the producer, though no record is old enough for that."""
    space = dataclasses.replace(SPACES["forgotten"], holds=frozenset({promise}))
    assert replay(space, tuple(path.split("; "))) == what


def test_a_leader_that_returns_without_state() -> None:
    """A leader loses its turn and gets it again on the same connection, without its state.

    It refuses one batch while another broker leads, and accepts the next one later. Somebody else's
    record fills the gap, so not even the offset shows it.
    """
    path = (
        "cut 2; wait; serve 4; deliver 4; move 0 bare; serve 4; deliver 4; move 0 bare; fill 0;"
        " serve 4; deliver 4"
    )
    what = "record 2 is ACKED, and it is not in the log"
    assert replay(SPACES["a leader without state"], tuple(path.split("; "))) == what


@pytest.mark.parametrize(
    ("version", "path", "told"),
    [
        (
            "v1",
            (
                "cut 2; wait; serve 4; deliver 4; serve 3; deliver 3; serve 4; mark 0; serve 2;"
                " deliver 4; serve 4; mark 0; deliver 4; wait; serve 4; deliver 4"
            ),
            ["committed", "none", "none"],
        ),
        (
            "v2",
            (
                "serve 3; deliver 3; serve 2; deliver 2; abort; cut 3; serve 2; mark 0; deliver 2;"
                " serve 3; serve 2; mark 0; deliver 2; wait; serve 2; deliver 2"
            ),
            ["committed", "aborted", "none"],
        ),
    ],
)
def test_a_late_request_that_begins_a_transaction(version: str, path: str, told: list[str]) -> None:
    """InitProducerId aborts what a late request began, and refuses its own repetition."""
    space = dataclasses.replace(
        SPACES[f"transactions {version}"],
        script=(1, -1, 1),
        holds=frozenset({"all ended as wanted"}),
    )
    wanted = ["committed", "aborted", "committed"]
    found = replay(space, tuple(path.split("; ")))
    assert found == f"the caller wanted {wanted}, and was told {told}"


def test_an_epoch_that_is_used_up() -> None:
    """A new producer id does not fence the old one: a late copy is appended after later records."""
    space = dataclasses.replace(SPACES["last epoch"], holds=frozenset({"in order"}))
    path = (
        "serve 2; serve 2; deliver 2; deliver 2; cut 2; send; wait; reject 4; deliver 4; serve 4;"
        " serve 2"
    )
    assert replay(space, tuple(path.split("; "))) == "records are out of order: [0, 1, 2, 4, 3]"
