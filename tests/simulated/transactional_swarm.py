"""What one seed of transactions draws by swarm testing: a random subset of all faults.

As in `swarm`, each seed leaves out most kinds of fault, chosen at random. The features are those of
the swarm that a transactional producer can have, and those that only transactions have: requests to
coordinators that are lost, late or refused, coordinators that fail and move, markers that are late,
twins, killed processes, transactions that outlive their timeout.

A topic may be recreated, also inside a transaction: what of the transaction was in the deleted log
is gone, and the rest is committed as a whole or not at all. Not drawn are the other faults that
lose acknowledged data (unclean elections): under them nothing is promised about a transaction.

Some seeds have a small buffer, and some have brokers of KIP-758. Of those, half lose answers only:
no record may end UNKNOWN there.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Collection
from typing import Any

from kio.schema.errors import ErrorCode

from .schedule import Glitch, Oddities, Schedule
from .swarm import FEATURES, ONLY_HERE, SwarmDrawer
from .transactional import AFTERWARDS, FATAL, ODD, RETRIED, TransactionalDrawer, kind_of

__all__ = ["OWN_FEATURES", "SHARED_FEATURES", "draw_transactional_swarm"]

SHARED_FEATURES = (
    *("append time", "cut", "drop", "delay", "zombie", "block", "round trips", "stall", "kill"),
    *("move", "flap", "retain", "throttle", "hold", "pause", "in-sync replicas", "refuse", "after"),
    *("permanent", "limit", "stamps", "odd answer", "absurd window", "garbage"),
    *("stale metadata", "hidden topic", "leaderless", "spurious", "rolling upgrade", "clock skew"),
    *("lowered expiration", "boast", "partial write", "byte by byte", "hang-ups", "no configs"),
    *("unnamed config",),
)
"""The features of the swarm that schedules of transactions have as well."""

_MOST_FAULTS = 24
# The shares of the schedules with small buffers, with brokers of KIP-758, and with each oddity.
_SMALL, _RANGE, _ODD_SHARE = 0.1, 0.15, 0.12
# The share of those in which something happens to many requests to coordinators.
_DENSE_SHARE = 0.25
_APPLICATIONS = {"crash", "twin", "recreate"}
"""The faults that are kept besides."""


class _Drawer(TransactionalDrawer, SwarmDrawer):
    """The drawer of one schedule."""

    def __init__(
        self, seed: int, always: Collection[str], *, doubts: bool, oddities: bool, dense: bool
    ) -> None:
        SwarmDrawer.__init__(self, seed, kind_of(seed))
        self.always = always
        self.doubts, self.oddities, self.dense = doubts, oddities, dense
        self.r = random.Random(f"transactional swarm {seed}")
        self.coordination = []

    def draw(self) -> Schedule:
        self._cluster()
        self._options()
        self._transactions()
        self.features = self._chosen()
        for name in self.features:
            once, add = _FEATURES[name]
            for _ in range(1 if once else self.rate):
                if len(self.faults) + len(self.glitches) + len(self.coordination) < _MOST_FAULTS:
                    add(self)
        self._room()
        self._oddities()
        self._dense()
        return dataclasses.replace(
            self._schedule({*ONLY_HERE, "recreate"}), features=tuple(self.features)
        )

    def _chosen(self) -> list[str]:
        r = self.r
        share = r.choice((0.04, 0.08, 0.15, 0.3))
        self.rate = r.choice((1, 2, 4)) if share < 0.1 else r.choice((1, 1, 2))
        chosen = [name for name in _FEATURES if r.random() < share or name in self.always]
        return chosen or [r.choice(list(_FEATURES))]

    def _room(self) -> None:
        """Draw a small buffer, and brokers of KIP-758.

        They are drawn apart, so that the seeds without them keep their meaning.
        """
        self.r = r = random.Random(f"transactional room {self.seed}")
        if r.random() < _SMALL:
            self.values["options"]["buffer_memory"] = r.choice((4000, 10_000))
        if r.random() < _RANGE or self.doubts:
            self._range()
            if r.random() < 0.5 or self.doubts:
                self._heal_in_time()

    def _oddities(self) -> None:
        """Draw what few applications and coordinators do, apart as the small buffer is.

        The application tells which brokers coordinate groups. A coordinator answers a success that
        does not say what it was asked for. A commit is refused, so that it has to be an abort.
        """
        self.r = r = random.Random(f"transactional oddities {self.seed}")
        share = 0.6 if self.oddities else _ODD_SHARE
        told, hollow, refused = (r.random() < share for _ in range(3))
        if self.values.get("all_acked"):
            return
        if told:
            self.values["odd"] = Oddities(tells_coordinators=True)
        for _ in range(r.choice((1, 1, 2)) if hollow else 0):
            self._fault("strike", r.choice((10, 22, 26)), "hollow")
        if refused:
            self._fault("strike", 26, "refuse", int(ErrorCode.transaction_abortable))

    def _dense(self) -> None:
        """Draw something for four requests in ten to coordinators, in many short transactions.

        Most faults need what another fault has left: an abort after a commit without an answer, or
        an old request beside a new epoch.
        """
        self.r = r = random.Random(f"transactional dense {self.seed}")
        if self.values.get("all_acked") or not (r.random() < _DENSE_SHARE or self.dense):
            return
        self.faults = [each for each in self.faults if each.kind in _APPLICATIONS]
        self.glitches.clear()
        v = self.values
        for _ in range(r.choice((0, 2, 4))):
            self._fault("strike", r.choice((24, 25, 26, 26, 26, 28)), "refuse", r.choice(ODD))
        recreates = r.random() < 0.4
        pauses = (0.0, 0.0, 0.05, 3.0) if recreates else (0.0, 0.0, 0.05, 0.3)
        v["odd"] = dataclasses.replace(v.get("odd", Oddities()), misuses=r.random() < 0.3)
        v["work"] = tuple(
            dataclasses.replace(
                work,
                records=work.records[: r.choice((0, 1, 1, 3))],
                groups=r.choice(((), (), ("g",), ("g", "h"))),
                end=r.choice(("commit", "commit", "commit", "abort", "raise")),
                dawdle=min(work.dawdle, 0.05),
                pause=r.choice(pauses),
            )
            for work in (*v["work"], *v["work"])
        )
        if recreates:
            v["options"]["metadata_max_age"] = 1.0  # so that it is noticed in a pause
            self.until = sum(work.pause for work in v["work"]) + 1.0
            for _ in range(r.choice((1, 3, 6))):
                self.recreate()
        taken = {each.request for each in self.coordination}
        for request in range(6 * len(v["work"])):
            if r.random() < 0.4 and request not in taken:
                kind, *args = self._dense_trouble()
                self.coordination.append(Glitch(request, kind, tuple(args)))

    def _dense_trouble(self) -> tuple[Any, ...]:
        """Draw what happens to one request of many to a coordinator."""
        r, rtt = self.r, self.values["rtt"]
        return r.choice(
            (
                *[("drop", r.random() < 0.6, r.random() < 0.1)] * 3,
                *[("refuse", r.choice(RETRIED))] * 3,
                *[("after", r.choice(AFTERWARDS))] * 2,
                ("refuse", r.choice((*ODD, *ODD, *ODD, *ODD, *FATAL))),
                ("zombie", r.choice((2.5, 6, 12)) * rtt),
                ("delay", r.choice((0.5, 2.5)) * rtt),
                ("hollow",),
            )
        )

    def _heal_in_time(self) -> None:
        """Draw no fault but lost answers to many batches, after which no record may end UNKNOWN."""
        self.faults.clear()
        self.glitches.clear()
        self.coordination.clear()
        for _ in self._times(1, 6):
            self._glitch("drop", True, self.r.random() < 0.8)
        # If the answer to a TxnOffsetCommit is lost, other offsets make the transaction abortable.
        work = tuple(dataclasses.replace(each, groups=()) for each in self.values["work"])
        self.values |= {"all_acked": True, "topic_configs": {}, "work": work}
        self.values["options"] |= {
            "request_timeout": 2.0,
            "delivery_timeout": 120.0,
            "transaction_timeout": 600.0,
            "max_block": 200.0,
            "max_in_flight_requests_per_connection": 20,
            "batch_size": 1,
            "late_sealing": False,
        }

    # -- what only transactions have ---------------------------------------------------------------

    def late_coordination(self) -> None:
        """Serve a request to a coordinator long after its connection was closed."""
        rtt = self.values["rtt"]
        self._coordination("zombie", self.r.choice((2.5 * rtt, 6 * rtt, 12 * rtt, 0.5, 2.0, 30.0)))

    def late_call(self) -> None:
        """Serve the next request that adds partitions or offsets late: in v1 it opens anew."""
        seconds = self.r.choice((4, 8, 16, 40)) * self.values["rtt"]
        self._fault("strike", self.r.choice((24, 25, 28)), "zombie", seconds)

    def lost_coordination(self) -> None:
        """Lose a request to a coordinator, or its answer."""
        self._coordination("drop", self.r.random() < 0.6, self.r.random() < 0.3)

    def slow_coordination(self) -> None:
        """Serve a request to a coordinator late, on a connection that stays open."""
        self._coordination("delay", self._duration())

    def refused_coordination(self) -> None:
        """Refuse a request to a coordinator for now."""
        self._coordination("refuse", self.r.choice(RETRIED))

    def odd_coordination(self) -> None:
        """Refuse a request to a coordinator with a code that changes the transaction's state."""
        self._coordination("refuse", self.r.choice((*ODD, *ODD, *FATAL)))

    def garbled_coordination(self) -> None:
        """Cut a coordinator's answer short."""
        self._coordination("garbage", self.r.choice((0, 5, 9, 30)))

    def failing_coordinator(self) -> None:
        """Let a coordinator load, be unavailable, or have moved, for a while."""
        key, code = self._key(), self.r.choice((14, 15, 16))
        self._fault("fail_coordinator", key, code, self._duration())

    def moving_coordinator(self) -> None:
        """Move a coordinator to another broker."""
        self._fault("move_coordinator", self._key(), self._broker())

    def _key(self) -> str:
        return str(self.r.choice(("tx", "tx", "tx", "g", "h")))

    def late_markers(self) -> None:
        """Hold or delay the markers that end transactions."""
        self._marker_trouble()

    def heir(self) -> None:
        """Kill the process, or start a twin."""
        self._heir()

    def transactional_code(self) -> None:
        """Refuse a batch with a code that only transactions have."""
        self._transactional_codes()

    def short_timeout(self) -> None:
        """Draw transactions that outlive their timeout at the coordinator."""
        self._outlive()

    def few_epochs(self) -> None:
        """Draw a transactional id with few epochs left."""
        self.values["used_epochs"] = 32766 - self.r.randint(0, 6)

    def recreate(self) -> None:
        """Delete a topic, and create it again."""
        # A Metadata request must not create the topic meanwhile, with fewer partitions.
        self.values["broker_configs"]["auto.create.topics.enable"] = "false"
        super().recreate()

    def other_ids(self) -> None:
        """Change the producer's transactional id between transactions; twins have any of the ids.

        This is drawn last, because it changes faults that were drawn before.
        """
        r, v = self.r, self.values
        ids = ("tx", "ty", "tz")[: r.choice((2, 2, 3))]
        v["work"] = tuple(
            dataclasses.replace(work, transactional_id=r.choice(ids)) for work in v["work"]
        )
        if r.random() < 0.5:
            self._heir()
        if r.random() < 0.5:
            # An InitProducerId is lost, or comes late: perhaps once the producer has left the id.
            late = ("zombie", r.choice((4, 8, 16, 40, 100)) * v["rtt"])
            self._fault("strike", 22, *r.choice((late, late, ("drop", True, False))))
        for index, fault in enumerate(self.faults):
            if fault.kind == "twin":
                args = (*fault.args, r.choice(ids))
            elif fault.args and fault.args[0] == "tx":
                args = (r.choice(ids), *fault.args[1:])
            else:
                continue
            self.faults[index] = dataclasses.replace(fault, args=args)


_D = _Drawer
OWN_FEATURES: dict[str, Callable[[Any], None]] = {
    "late coordination": _D.late_coordination,
    "late call": _D.late_call,
    "lost coordination": _D.lost_coordination,
    "slow coordination": _D.slow_coordination,
    "refused coordination": _D.refused_coordination,
    "odd coordination": _D.odd_coordination,
    "garbled coordination": _D.garbled_coordination,
    "failing coordinator": _D.failing_coordinator,
    "moving coordinator": _D.moving_coordinator,
    "late markers": _D.late_markers,
    "heir": _D.heir,
    "transactional code": _D.transactional_code,
    "short timeout": _D.short_timeout,
    "few epochs": _D.few_epochs,
    "recreate": _D.recreate,
    "other ids": _D.other_ids,
}
"""The features that only schedules of transactions have, with what adds each."""

_ONCE = ("short timeout", "few epochs", "other ids")

_FEATURES: dict[str, tuple[bool, Callable[[Any], None]]] = {
    **{name: (FEATURES[name].once, FEATURES[name].add) for name in SHARED_FEATURES},
    **{name: (name in _ONCE, add) for name, add in OWN_FEATURES.items()},
}


def draw_transactional_swarm(
    seed: int,
    *,
    other_ids: bool = False,
    doubts: bool = False,
    oddities: bool = False,
    dense: bool = False,
) -> Schedule:
    """Return the schedule that the swarm of transactions draws for a seed.

    Args:
        seed: the seed.
        other_ids: whether the feature "other ids" is drawn in any case.
        doubts: whether it has brokers of KIP-758, and no fault but lost answers, in any case.
        oddities: whether most seeds have what few applications and coordinators do.
        dense: whether something happens to many requests to coordinators in any case.
    """
    always = ["other ids"] * other_ids
    return _Drawer(seed, always, doubts=doubts, oddities=oddities, dense=dense).draw()
