"""The rules by which a task writes, skips or fails, depending on the committed markers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aioidem._spark.marker import (
    Answer,
    IdentityUsedError,
    Marker,
    MarkerAheadError,
    MarkerError,
    MarkerMissingError,
    TaskIdentity,
    decide,
)

NOW = 1_000_000.0
WEEK = 7 * 86_400.0


def marker(next_batch: int, age: float = 0.0, run: str = "") -> Marker:
    return Marker(next_batch, 3, 4, run=run, at=NOW - age)


def answer(
    batch: int,
    own: Marker | None,
    first: Marker | None = None,
    *,
    task: int = 1,
    missing_ok: bool = False,
    run: str = "",
) -> Answer:
    identity = TaskIdentity("q", batch, task, run)
    return decide(identity, own, first, now=NOW, retention=WEEK, missing_ok=missing_ok)


@pytest.mark.parametrize(
    ("batch", "own", "expected"),
    [
        (0, None, Answer.WRITE),
        (0, marker(1), Answer.SKIP),
        (5, marker(6), Answer.SKIP),
        (5, marker(5), Answer.WRITE),
        (5, marker(2), Answer.WRITE),  # the task had no rows in the batches in between
    ],
)
def test_a_marker_of_its_own(batch: int, own: Marker | None, expected: Answer) -> None:
    """A task skips a batch if its own marker says that the batch is written, or else writes it."""
    assert answer(batch, own) is expected


def test_the_first_tasks_marker_of_another_run_is_a_used_identity() -> None:
    """A write outside of a streaming query fails if another run has used its identity before.

    The marker of task 0 names the run that wrote it.
    """
    with pytest.raises(IdentityUsedError):
        answer(0, None, marker(1, run="one"), run="another")
    assert answer(0, None, marker(1, run="one"), run="one") is Answer.WRITE


def test_a_marker_ahead_is_a_rolled_back_checkpoint() -> None:
    """A marker of a later batch fails the task: the query started from an older checkpoint."""
    for ahead in (7, 8, 100):
        with pytest.raises(MarkerAheadError, match="older checkpoint"):
            answer(5, marker(ahead))
    with pytest.raises(MarkerAheadError):
        answer(0, marker(2))


@pytest.mark.parametrize("first", [marker(5, 6 * WEEK), marker(3), marker(6, WEEK / 2 - 1)])
def test_a_task_without_a_marker_asks_task_0(first: Marker) -> None:
    """A task that has no marker writes if task 0's marker shows that markers have not expired."""
    assert answer(5, None, first) is Answer.WRITE


@pytest.mark.parametrize("first", [None, marker(6, WEEK / 2 + 1), marker(7)])
def test_a_marker_that_may_have_expired(first: Marker | None) -> None:
    """A task without a marker fails if markers may have expired, unless `marker=missing-ok`."""
    with pytest.raises(MarkerMissingError, match="marker=missing-ok"):
        answer(5, None, first)
    assert answer(5, None, first, missing_ok=True) is Answer.WRITE


def test_task_0_without_a_marker_may_write_batch_0_only() -> None:
    """Task 0 without a marker may write batch 0 only."""
    with pytest.raises(MarkerMissingError):
        answer(5, None, None, task=0)
    assert answer(0, None, None, task=0) is Answer.WRITE


def test_a_batch_write_s_identity_is_its_own() -> None:
    """A batch write skips what its own run wrote, and fails if another run used its identity."""
    assert answer(0, None, run="a") is Answer.WRITE
    assert answer(0, marker(1, run="a"), run="a") is Answer.SKIP
    with pytest.raises(IdentityUsedError):
        answer(0, marker(1, run="b"), run="a")


def test_a_marker_is_read_as_it_was_committed() -> None:
    """A marker survives being committed as an offset's metadata and read again."""
    given = replace(marker(6, run="r"), at=123.5)
    assert Marker.read(6, given.metadata) == given


@pytest.mark.parametrize(
    "metadata",
    [
        "",
        "{}",
        "[]",
        '{"v":2}',
        '{"v":1,"rows":1,"digest":1,"run":"","at":1}',
        '{"v":2,"rows":"x"}',
        '{"v":2,"rows":1e999,"digest":1,"run":"","at":1}',
        '{"v":2,"rows":1,"digest":1,"run":"","at":1' + "0" * 400 + "}",
        '{"v":2,"rows":1,"digest":1,"run":"","at":NaN}',
        "[" * 100_000,
        "offsets of somebody",
    ],
    ids=lambda metadata: metadata[:50],
)
def test_what_somebody_else_committed_is_no_marker(metadata: str) -> None:
    """Reading the metadata of another program's offset as a marker raises MarkerError."""
    with pytest.raises(MarkerError, match="which program"):
        Marker.read(6, metadata)
