"""The drill of a whole engine: in which order it does what is due, and whether it leaves any out.

In a run an engine is rarely refused a question, or told anything in an unusual order. Here a real
`ProducerCore` is told all that can happen to it, in any order, and so is a second one that leaves
nothing out (`turned_bench`). What each call must have changed is derived from plain rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from random import Random
from typing import Any, Final

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine import steps
from aioidem._engine.core import ProducerCore
from aioidem._engine.transactions import OffsetCommit
from aioidem._protocol.txn_offset_commit import GroupMember, TxnOffset
from aioidem.structs import DeliveryStatus

from .turned_answers import Brokers
from .turned_bench import Engines, Silent
from .turned_facts import Facts
from .turned_wire import Wire

__all__ = ["drill_turned"]

_OPS: Final = 45
_PAUSES: Final = (0,) * 16 + (1,) * 8 + (2, 2, 3, 5, 17, 17, 17, 40)
"""How much time passes between two operations, in ticks: perhaps more than a request may take."""
_USUAL: Final[dict[str, Any]] = {
    "linger": 0.0,
    "request_timeout": 2.0,
    "delivery_timeout": 5.0,
    "retry_backoff": 0.125,
    "retry_backoff_max": 0.5,
    "reconnect_backoff": 0.125,
    "reconnect_backoff_max": 0.5,
    "metadata_max_age": 6.0,
    "max_block": 3.0,
    "batch_size": 120,
    "connections_max_idle": 1.5,
    "late_sealing": False,
    "window_discovery": "off",
}
_SECRET: Final[dict[str, Any]] = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "SCRAM-SHA-256",
    "sasl_username": "me",
    "sasl_password": "secret",
}
_CONFIGS: Final[tuple[dict[str, Any], ...]] = (
    {},
    {"connections_max_idle": None, "metadata_max_age": 60.0},
    {"connections_max_idle": 0.5, "metadata_max_age": 60.0, "delivery_timeout": 9.0},
    {"max_in_flight_requests_per_connection": 1, "producer_id_expiration": 3.0},
    {"producer_id_expiration": 5.0, "max_in_flight_requests_per_connection": 2},
    {"late_sealing": True, "window_discovery": "auto", "metadata_max_age": 60.0},
    {"compression_type": "gzip", "window_discovery": "on"},
    {"transactional_id": "x"},
    {"transactional_id": "x", "connections_max_idle": None},
    {"linger": 0.25, **_SECRET},
    {"enable_idempotence": False, "acks": 1},
    {"delivery_timeout": 2.0, "broker_dedup": "range", "late_sealing": True},
)


@cache
def _config(number: int) -> ProducerConfig:
    return ProducerConfig.build("b1:9092,b2:9092", **{**_USUAL, **_CONFIGS[number]})


def drill_turned(dice: Random) -> Iterator[str]:
    """Yield what an engine does, leaves out or says that does not follow from what happened."""
    drill = _Drill(dice)
    try:
        for wrong in drill.run():
            yield wrong
            return
    except Silent:
        return  # the two engines may differ from here on


class _Drill:
    """An engine, its brokers, and what happens to them."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._config = config = _config(dice.randrange(len(_CONFIGS)))
        self._world = Brokers(dice)
        self._world.named_config = dice.random() < 0.6
        timed = config.producer_id_expiration is not None or dice.random() < 0.5
        self._pair = Engines(config, dice, timed=timed)
        self._facts = Facts(self._pair)
        self._wire = Wire(dice, self._pair, self._world, self._facts)
        # How old records are when they are queued. It is the same for all: a poll judges whether a
        # leader may have forgotten the producer, and older records could be batched after that.
        self._age_ms = dice.choice((0, 0, 1000, 2000))
        # Whether records are sent and answered mostly, and how often all goes well.
        self._flow = dice.random() < 0.5
        self._health = 0.8 if self._flow else dice.choice((0.2, 0.5, 0.6))
        if config.transactional_id is not None:
            self._flow, self._health = False, 0.8
            self._facts.may_be_fatal()
        elif config.sasl_password is not None:
            self._flow, self._health = False, 0.2

    def run(self) -> Iterator[str]:
        """Let anything happen, then nothing bad any more, and then the end."""
        pair, dice = self._pair, self._dice
        pair.tell(lambda core: core.accumulator.topic("t"))
        self._world.well = dice.random() < 0.3 + self._health
        if self._world.well:
            self._wire.settle_down(6)
        for _ in range(_OPS):
            self._world.well = dice.random() < self._health
            pair.pass_time(dice.choice(_PAUSES))
            (self._flowing if self._flow and dice.random() < 0.85 else self._any)()
            pair.turn()
            yield from (*pair.wrong, *self._facts.wrong())
        if dice.random() < 0.6:
            yield from self._recover()
        yield from self._close()

    def _any(self) -> None:
        operations: list[Callable[[], None]] = [self._wire.serve_some] * 16 + [self._send] * 8
        operations += [
            self._wire.lose,
            self._wire.lose,
            self._wire.withdraw,
            self._wire.withdraw,
            self._wire.progress,
            self._wire.late,
            self._move,
            self._move,
            self._move,
            self._burst,
            self._burst,
            self._flush,
            self._want,
            self._wire.strange_call,
            self._credentials,
        ]
        operations += [self._fatal] * (self._dice.random() < 0.1)
        operations += [self._credentials] * (6 * (self._config.sasl_password is not None))
        operations += [self._transact] * (12 * (self._config.transactional_id is not None))
        self._dice.choice(operations)()

    def _flowing(self) -> None:
        """Send records, and serve what waits."""
        if self._dice.random() < 0.6:
            self._send()
            self._pair.turn()
        self._wire.serve_some()

    # -- what callers do ---------------------------------------------------------------------------

    def _send(self) -> None:
        dice, pair = self._dice, self._pair
        topic = "u" if dice.randrange(12) == 0 else "t"
        index = dice.choice((0, 0, 0, 1, None)) if topic == "t" else dice.choice((0, None))
        if dice.randrange(30) == 0:
            index = 5
        for _ in range(dice.choice((1, 1, 2, 5))):
            key = dice.choice((None, b"k"))
            refused = pair.append(topic, index, key, self._age_ms)
            self._facts.refused(refused)

    def _burst(self) -> None:
        """Lose the connection with several batches in flight; then resends are out of order."""
        pair, self._world.well = self._pair, True
        for _ in range(4):
            pair.append("t", 0, None, self._age_ms)
        pair.turn()
        sent = [each for each in pair.waiting.values() if isinstance(each, steps.SendProduce)]
        if len(sent) > 1:
            self._wire.lose(sent[-1].link_id, errors.KafkaConnectionError("reset"))
            self._world.out_of_order = 3
            self._wire.settle_down(3)

    def _flush(self) -> None:
        self._pair.tell(lambda core: core.accumulator.begin_flush())

    def _transact(self) -> None:
        commit = OffsetCommit(GroupMember("g"), {("in", 0): TxnOffset(1)})
        calls: list[Callable[[ProducerCore], object]] = [
            lambda core: core.coordination.begin(),
            lambda core: core.coordination.begin(),
            lambda core: core.coordination.commit(),
            lambda core: core.coordination.abort(),
            lambda core: core.transactions.commit_offsets(
                OffsetCommit(commit.group, {("in", 0): TxnOffset(1)})
            ),
            lambda core: core.coordination.init(),
        ]
        self._pair.tell(self._dice.choice(calls))

    # -- what brokers do, and the application ------------------------------------------------------

    def _move(self) -> None:
        """Have another leader elected, or a topic made, refused, or deleted and made again."""
        dice, world = self._dice, self._world
        match dice.randrange(4):
            case 0 | 1:
                place = dice.choice([*world.leaders])
                leader, epoch = world.leaders[place]
                world.leaders[place] = (dice.choice((3 - abs(leader), -1)), epoch + 1)
            case 2:
                world.generation += 1
            case _:
                world.codes["u"] = dice.choice((0, 3, 5, 29))
        self._want()

    def _want(self) -> None:
        self._pair.tell(lambda core: core.metadata.want())

    # -- the end -----------------------------------------------------------------------------------

    def _credentials(self) -> None:
        self._pair.tell(lambda core: core.on_new_credentials())
        self._facts.renewed()

    def _fatal(self) -> None:
        error = errors.KafkaError("the end")
        self._pair.tell(lambda core: core.fatal(error))
        self._facts.fatal(error)

    def _ended(self) -> bool:
        return self._pair.core.fatal_error is not None

    def _recover(self) -> Iterator[str]:
        """Let all go well: what waits gets an outcome, and what is sent then is acknowledged."""
        pair, config = self._pair, self._config
        self._world.well, self._wire.lacks = True, None
        self._world.codes.clear()
        self._world.out_of_order = 0
        for place, (_, epoch) in [*self._world.leaders.items()]:
            self._world.leaders[place] = (1, epoch + 1)
        self._want()
        for _ in range(10):
            self._wire.settle_down(8)
            if pair.wrong or not pair.unsettled:
                break
        yield from (*pair.wrong, *self._facts.wrong())
        if pair.unsettled:
            yield f"{len(pair.unsettled)} records have no outcome long after their deadline, not 0"
        pair.pass_time(26)  # no broker throttles any more
        if config.transactional_id is not None:
            for prepare in (_init, _abort, _init, _begin):
                pair.tell(prepare)
                self._wire.settle_down(16)
        if self._ended():
            return
        for index in (0, 1):
            pair.append("t", index, None, self._age_ms)
        self._wire.settle_down(16)
        yield from (*pair.wrong, *self._facts.wrong())
        if self._ended():
            return
        statuses = {row.status for row in pair.rows[-2:]}
        if statuses != {DeliveryStatus.ACKED}:
            yield f"all goes well, and the last two records are {statuses}, not ACKED"

    def _close(self) -> Iterator[str]:
        """Close the engine: what was in flight is unknown, all else that waits is not written."""
        pair = self._pair
        outstanding = [
            number
            for step in pair.waiting.values()
            if isinstance(step, steps.SendProduce)
            for number in pair.carried(step)
            if pair.rows[number].status is None
        ]
        up, (woken, waiters) = [*pair.links], self._facts.wait_for_room()
        if self._dice.random() < 0.2:
            self._fatal()
        ended = pair.core.fatal_error
        todo, whys = pair.close()
        due = type(ended) if ended else errors.ProducerClosed
        self._facts.expect("errors of unwritten records at the end", whys - {due}, set())
        closed = [each.link_id for each in todo if isinstance(each, steps.CloseLink)]
        self._facts.expect("connections closed, and steps", (closed, len(todo)), (up, len(up)))
        self._facts.expect("callers woken by the end", woken, waiters)
        pair.core.budget.release(1 if waiters else 0)
        self._facts.expect("records without an outcome after the end", len(pair.unsettled), 0)
        refused = pair.append("t", 0, None, self._age_ms)
        self._facts.expect("a record is queued after the end", refused is None, expected=False)
        for number in outstanding:
            self._facts.expect(
                f"record {number}, in flight at the end",
                pair.rows[number].status,
                DeliveryStatus.UNKNOWN,
            )
        yield from (*pair.wrong, *self._facts.wrong())


def _init(core: ProducerCore) -> None:
    core.coordination.init()


def _abort(core: ProducerCore) -> None:
    core.coordination.abort()


def _begin(core: ProducerCore) -> None:
    core.coordination.begin()
