"""Space: the contents of the worlds that are explored, their faults, and what must hold."""

from __future__ import annotations

import dataclasses
from functools import cached_property
from typing import Any

from aioidem._config import ProducerConfig

__all__ = ["EXACTLY_ONCE", "Space"]

EXACTLY_ONCE = frozenset({"once", "in order", "acked", "not written", "all acked", "no alarm"})
"""What must hold where every fault heals; `judge` says what each of these means."""


@dataclasses.dataclass(frozen=True)
class Space:
    """One set of worlds. All of them begin with records in flight on an open first-ack gate."""

    name: str
    about: str
    """Which question the space answers, in a few words."""
    kinds: frozenset[str] = frozenset()
    """The faults that may happen; `world` has a list."""
    faults: int = 2
    """How many of them happen at most."""
    everyday: int = 1
    """How many of them happen at most in `make check`, which has seconds for all spaces."""
    records: int = 3
    """Records per partition that are queued when the exploration begins."""
    primed: int = 1
    """Records per partition that are acknowledged before that, which opens the first-ack gate."""
    late: int = 0
    """Records that the caller queues at any time during the exploration."""
    partitions: int = 1
    brokers: int = 2
    retains: int = 5
    """Batches per producer that a leader remembers."""
    successor_retains: int | None = None
    """The same for the other brokers; None if they remember as many."""
    version: int = 13
    """The Produce version that the brokers offer."""
    in_flight: int = 5
    """Requests in flight per connection."""
    per_batch: int = 1
    """Records in a batch."""
    next_sequence: int = 0
    """The sequence of the first record after the primed ones; 0 means that it continues theirs."""
    epoch: int = 0
    """The producer epoch that is granted first."""
    producers: str = "denied"
    """How DescribeProducers is answered: "denied", "granted" or "lies"."""
    age: float = 0.0
    """How old the records' timestamps are, in seconds, when the caller queues them."""
    readable: bool = True
    """Whether the engine may read the log."""
    page: int = 0
    """How many batches an answer to Fetch has at most; 0: all that there are."""
    holds: frozenset[str] = EXACTLY_ONCE
    """What must hold in every state, or at the end."""
    timed: bool = False
    """Whether records reach their deadlines: then all times tell worlds apart."""
    transactions: str = ""
    """ "v1" or "v2" if the producer has a transactional id."""
    verifies: bool = True
    """Whether leaders ask the coordinator before they append the first batch of a transaction."""
    script: tuple[int, ...] = ()
    """The caller's transactions: how many records each has; negative if the caller aborts it."""
    rests: bool = False
    """Whether anything may happen between two transactions of the script."""
    options: tuple[tuple[str, Any], ...] = ()
    """Options of the producer that replace those in `config`."""

    @cached_property
    def config(self) -> ProducerConfig:
        """The configuration of the engine: short and constant back-offs, and no deadline in sight.

        All times are multiples of an eighth of a second, which floating-point numbers represent
        exactly. So states that were reached at different times can be equal.
        """
        options: dict[str, Any] = {
            # A batch takes 61 bytes, and 8 for each record.
            "batch_size": 1 if self.per_batch == 1 else 65 + 8 * self.per_batch,
            "late_sealing": False,
            "linger": 0.0,
            "retry_backoff": 0.125,
            "retry_backoff_max": 0.125,
            "reconnect_backoff": 0.125,
            "reconnect_backoff_max": 0.125,
            "request_timeout": 128.0,
            "delivery_timeout": 1e6,
            "metadata_max_age": 1e6,
            "connections_max_idle": None,
            "max_in_flight_requests_per_connection": self.in_flight,
        }
        if self.transactions:
            options["transactional_id"] = "x"
        return ProducerConfig.build("b1:9092", **{**options, **dict(self.options)})
