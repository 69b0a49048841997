"""What one seed draws for a transactional producer: transactions, and faults around them.

Everything is drawn as in `schedule`, in a fixed order, including that module's faults of links,
brokers, codes and answers. This module adds the faults that only transactions can have:
coordinators that fail, load and move; answers of coordinators that are lost, late or odd; markers
that are delayed; a twin (a second producer with the same transactional id); a producer that is
killed and replaced; transactions that time out.

Faults that lose acknowledged data (unclean elections) were rejected: under them nothing is promised
about a transaction. Topics are recreated only by `transactional_swarm`.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Collection
from typing import Any

from kio.schema.errors import ErrorCode

from .schedule import Call, Drawer, Glitch, Schedule, Work
from .whole import FAULTS, GLITCHES

__all__ = [
    "AFTERWARDS",
    "CLEANUP_INTERVAL",
    "FATAL",
    "GROUPS",
    "ODD",
    "PROFILES",
    "RETRIED",
    "TransactionalDrawer",
    "draw_transactional",
    "kind_of",
]

GROUPS = ("g", "h")

# How many of 1000 schedules are drawn from each profile, on average.
PROFILES: dict[str, int] = {
    "quiet": 60,
    "coordinators": 260,
    "brokers": 160,
    "links": 120,
    "codes": 120,
    "heirs": 120,
    "slow": 60,
    "storm": 100,
}


def _numbers(*codes: int) -> tuple[int, ...]:
    """Return codes as plain numbers, which is how a schedule is printed."""
    return tuple(int(code) for code in codes)


RETRIED = _numbers(
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.concurrent_transactions,
    ErrorCode.request_timed_out,
    ErrorCode.unknown_server_error,
)
# The codes that a coordinator may answer after it carried the request out. If a coordinator does
# not learn whether its log append succeeded, it answers COORDINATOR_NOT_AVAILABLE or
# NOT_COORDINATOR.
AFTERWARDS = _numbers(
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.request_timed_out,
    ErrorCode.unknown_server_error,
    999,
)
ODD = _numbers(
    ErrorCode.transaction_abortable,
    ErrorCode.invalid_request,
    999,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.invalid_txn_state,
)
FATAL = _numbers(
    ErrorCode.transactional_id_authorization_failed,
    ErrorCode.producer_fenced,
    ErrorCode.invalid_producer_id_mapping,
)
CLEANUP_INTERVAL = "transaction.abort.timed.out.transaction.cleanup.interval.ms"


def kind_of(seed: int) -> str:
    """Return the event loop that a seed runs on."""
    return "asyncio" if seed % 3 == 0 else "trio"


def draw_transactional(seed: int, profile: str | None = None) -> Schedule:
    """Return the schedule of a seed."""
    return TransactionalDrawer(seed, profile).draw()


class TransactionalDrawer(Drawer):
    """The drawer of one schedule."""

    coordination: list[Glitch]

    def __init__(self, seed: int, profile: str | None) -> None:
        super().__init__(seed, None)
        self.r = random.Random(f"transactional {seed}")
        drawn = self.r.choices(list(PROFILES), weights=list(PROFILES.values()))[0]
        self.profile = profile or drawn
        self.coordination = []

    def draw(self) -> Schedule:
        self._cluster()
        self._options()
        self._transactions()
        getattr(self, f"_with_{self.profile}")()
        if self.profile != "quiet":
            self._strikes()
        return self._schedule()

    def _schedule(self, others: Collection[str] = ()) -> Schedule:
        """Return what was drawn, without faults that a transactional producer is not tested with.

        Args:
            others: further kinds of fault to keep.
        """
        kept = FAULTS | _OWN_FAULTS | frozenset(others)
        faults = [fault for fault in self.faults if fault.kind in kept]
        if any(fault.kind == "rtt" for fault in faults):
            # A start takes five round trips, which the fault "rtt" makes long.
            self.values["options"]["max_block"] = 10.0
        return Schedule(
            self.seed,
            self.profile,
            backend=kind_of(self.seed),
            faults=tuple(sorted(faults, key=lambda fault: fault.at)),
            glitches=tuple(
                sorted(
                    (g for g in self.glitches if g.kind in GLITCHES), key=lambda each: each.request
                )
            ),
            coordination=tuple(sorted(self.coordination, key=lambda each: each.request)),
            **self.values,
        )

    # -- the cluster -------------------------------------------------------------------------------

    def _cluster(self) -> None:
        r, v = self.r, self.values
        super()._cluster()
        v["transaction_version"] = version = r.choice((0, 2, 2))
        v["first_sequence"] = v["first_epoch"] = 0
        v["topics"] = (("t", r.choice((1, 2, 3))), *((("u", 1),) if r.random() < 0.3 else ()))
        v["versions"] = tuple(
            14 if r.random() < 0.7 else r.choice((13,) if version else (9, 11, 13))
            for _ in v["retain"]
        )
        v["broker_configs"] = {CLEANUP_INTERVAL: "100"}
        v["grants_describe"] = True
        if r.random() < 0.15:
            v["used_epochs"] = 32766 - r.randint(0, 6)

    def _options(self) -> None:
        r, v = self.r, self.values
        super()._options()
        v["options"] |= {
            "delivery_timeout": v["options"]["linger"]
            + v["options"]["request_timeout"]
            + r.choice((1.0, 5.0, 20.0, 90.0)),
            "transactional_id": "tx",
            "transaction_timeout": 60.0,
        }
        v["options"].pop("buffer_memory", None)

    def _transactions(self) -> None:
        r, v = self.r, self.values
        work = []
        self.until = 0.3
        self.requests = 0
        for _ in range(r.randint(2, 7)):
            work.append(self._work())
            last = work[-1]
            took = last.records[-1].at if last.records else 0.0
            self.until += last.pause + took + last.dawdle + 8 * v["rtt"]
            self.requests += len(last.records)
        v["work"] = tuple(work)

    def _work(self) -> Work:
        r, v = self.r, self.values
        at, records = 0.0, []
        spacing = r.choice((0.0, 0.0, 0.003, 0.02))
        for _ in range(r.choice((0, 1, 2, 5, 8, 15))):
            topic, partitions = r.choice(v["topics"])
            partition = r.randrange(partitions) if r.random() < 0.9 else None
            records.append(Call(round(at, 6), topic, partition, None, r.choice((0, 60, 150))))
            at += spacing * 2 * r.random()
        groups = r.choices(((), GROUPS[:1], GROUPS), weights=(5, 4, 1))[0]
        return Work(
            tuple(records),
            groups,
            end=r.choices(("commit", "abort", "raise"), weights=(7, 2, 1))[0],
            block=r.random() < 0.4,
            pause=r.choice((0.0, 0.0, 0.01, 0.3)),
            dawdle=r.choice((0.0, 0.0, 0.0, 0.05, 0.5)),
            patience=r.choice((None, None, None, 0.001, 0.05, 0.5)),
            restless=r.random() < 0.25,
        )

    # -- faults ------------------------------------------------------------------------------------

    def _coordination(self, kind: str, *args: Any) -> None:
        r = self.r
        if self.coordination and r.random() < 0.5:
            request = r.choice(self.coordination).request + r.randint(1, 3)
        else:
            request = r.randrange(4 + 4 * len(self.values["work"]))
        if all(each.request != request for each in self.coordination):
            self.coordination.append(Glitch(request, kind, args))

    def _coordinator_trouble(self) -> None:
        r = self.r
        key = r.choice(("tx", "tx", "tx", *GROUPS))
        match r.choice(
            (
                *("drop", "drop", "drop", "late", "late", "late", "refuse", "after", "odd"),
                *("fail", "move", "bytes"),
            )
        ):
            case "drop":
                # The arguments are (whether the broker carries the request out, whether the
                # connection stays open without an answer).
                self._coordination("drop", r.random() < 0.6, r.random() < 0.3)
            case "late":
                kind = r.choice(("delay", "zombie", "zombie"))
                rtt = self.values["rtt"]
                seconds = r.choice((2.5 * rtt, 6 * rtt, 12 * rtt, 0.1, 0.5, 2.0, 30.0))
                self._coordination(kind, seconds if kind == "zombie" else min(seconds, 2.0))
            case "refuse":
                self._coordination("refuse", r.choice(RETRIED))
            case "after":
                self._coordination("after", r.choice(AFTERWARDS))
            case "odd":
                self._coordination("refuse", r.choice((*ODD, *ODD, *ODD, *FATAL)))
            case "bytes":
                if r.random() < 0.5:
                    self._coordination("garbage", r.choice((0, 5, 9, 30)))
                else:
                    way = r.choice(("up", "down"))
                    self._fault("reset", self._broker(), r.randint(0, 500), way)
            case "fail":
                self._fault("fail_coordinator", key, r.choice((14, 15, 16)), self._duration())
            case "move":
                self._fault("move_coordinator", key, self._broker())

    def _strikes(self) -> None:
        """Add "strikes": each is a fault of the next request with one API key."""
        self.r = r = random.Random(f"strikes {self.seed}")
        if r.random() < 0.5:
            return
        for _ in self._times(1, 2):
            rtt = self.values["rtt"]
            # The keys of AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit and
            # InitProducerId.
            api_key = r.choice((24, 25, 26, 26, 28, 28, 22))
            what: tuple[Any, ...] = r.choice(
                (
                    ("drop", r.random() < 0.6, r.random() < 0.3),
                    ("zombie", r.choice((4 * rtt, 8 * rtt, 16 * rtt, 1.0))),
                    ("refuse", r.choice(RETRIED)),
                    ("after", r.choice(AFTERWARDS)),
                )
            )
            self._fault("strike", api_key, *what)
        if r.random() < 0.3:
            # A TxnOffsetCommit is carried out late: after its call timed out, and after the
            # application committed other offsets instead.
            self._fault("strike", 28, "zombie", r.choice((6, 10, 14)) * self.values["rtt"])
            self.values["work"] = tuple(
                dataclasses.replace(
                    work, groups=GROUPS[:1], patience=0.001, dawdle=20 * self.values["rtt"]
                )
                for work in self.values["work"]
            )

    def _marker_trouble(self) -> None:
        if self.r.random() < 0.5:
            self._fault("hold_markers", self._duration())
        else:
            self._fault("delay_markers", self.r.choice((0.01, 0.2, 1.0)), self._duration())

    def _heir(self) -> None:
        r = self.r
        if r.random() < 0.5:
            self._fault("crash")
        else:
            # The arguments are (how many records the twin sends, how its transaction ends).
            self._fault("twin", r.randint(0, 6), r.choice(("commit", "abort", "leave")))

    def _transactional_codes(self) -> None:
        code = self.r.choice((120, 120, 51, 51, 48, 47, 59, 49, 90))
        self._glitch("refuse", code, self._only())

    def _with_quiet(self) -> None:
        """Draw no fault: every transaction that the application commits must be committed."""
        v = self.values
        v["all_acked"] = True
        v["options"] |= {"request_timeout": 5.0, "delivery_timeout": 60.0, "max_block": 60.0}

    def _with_coordinators(self) -> None:
        for _ in self._times(1, 6):
            self._coordinator_trouble()
        for _ in self._times(0, 2):
            self.r.choice((self._marker_trouble, self._broker_trouble, self._link_trouble))()

    def _with_brokers(self) -> None:
        for _ in self._times(1, 5):
            self._broker_trouble()
        for _ in self._times(0, 2):
            self.r.choice((self._marker_trouble, self._coordinator_trouble, self._link_trouble))()

    def _with_links(self) -> None:
        for _ in self._times(1, 6):
            self._link_trouble()
        for _ in self._times(0, 2):
            self._coordinator_trouble()

    def _with_codes(self) -> None:
        for _ in self._times(1, 4):
            self.r.choice((self._code_trouble, self._transactional_codes, self._lie))()
        for _ in self._times(0, 2):
            self.r.choice((self._coordinator_trouble, self._link_trouble))()

    def _with_heirs(self) -> None:
        for _ in self._times(1, 3):
            self._heir()
        for _ in self._times(0, 4):
            self.r.choice((self._coordinator_trouble, self._link_trouble, self._broker_trouble))()

    def _with_slow(self) -> None:
        self._outlive()
        for _ in self._times(0, 4):
            self.r.choice((self._coordinator_trouble, self._link_trouble, self._broker_trouble))()

    def _outlive(self) -> None:
        """Draw transactions that outlive their timeout at the coordinator."""
        r, v = self.r, self.values
        timeout = v["options"]["transaction_timeout"] = r.choice((0.2, 1.0)) + 20 * v["rtt"]
        v["work"] = tuple(
            dataclasses.replace(work, dawdle=r.choice((0.0, 0.7, 1.5)) * timeout)
            for work in v["work"]
        )
        self.until += sum(work.dawdle for work in v["work"])

    def _with_storm(self) -> None:
        if self.r.random() < 0.2:
            self.values["options"]["transaction_timeout"] = 0.5 + 20 * self.values["rtt"]
        for _ in self._times(4, 12):
            self.r.choice(
                (
                    *(self._link_trouble, self._broker_trouble, self._code_trouble),
                    *(self._answer_trouble, self._coordinator_trouble, self._coordinator_trouble),
                    *(self._marker_trouble, self._heir, self._transactional_codes, self._lie),
                )
            )()


_OWN_FAULTS = frozenset(
    {
        "strike",
        "fail_coordinator",
        "move_coordinator",
        "hold_markers",
        "delay_markers",
        "twin",
        "crash",
    }
)
