"""A long idle time at the end of a schedule, and one record behind it whose answer may be lost.

By the time of that record the brokers may have forgotten the producer (KIP-854), or be about to. It
is the only one without an outcome, so it may be resent all the same.
"""

from __future__ import annotations

import dataclasses
import random

from .schedule import IDLE_TIME, Call, Fault, Schedule

__all__ = ["with_idle_time"]

_SHARE = 0.12
"""The share of schedules that get an idle time."""
_EXPIRATION = "producer.id.expiration.ms"
_INTERVAL = "producer.id.expiration.check.interval.ms"
_CHECKS = 4000
"""The number of times that brokers may look for expired producers while nothing else happens."""
_ON_THE_WAY = 9
"""Within how many round trips the record is sent, if its connection is closed."""


def with_idle_time(schedule: Schedule) -> Schedule:
    """Return a schedule that ends with an idle time and one record, or the schedule as it is.

    Its seed decides. A schedule whose end is judged by other rules stays as it is, and so does one
    in which the producer has much to do while nothing is sent.
    """
    chance = random.Random(f"{schedule.seed} idle")
    ruled = schedule.all_acked or schedule.wide_at_end or schedule.noticed
    ruled = ruled or schedule.round_trips is not None or schedule.close_at is not None
    busy = "metadata_max_age" in schedule.options or not schedule.calls
    if chance.random() >= _SHARE or ruled or busy:
        return schedule
    short = {_EXPIRATION: chance.choice(("40000", "200000")), _INTERVAL: "100"}
    configs, options = {**short, **schedule.broker_configs}, schedule.options
    kept, interval = (int(configs[name]) / 1000 for name in (_EXPIRATION, _INTERVAL))
    if not schedule.grants_describe:
        options = {"producer_id_expiration": kept, **options}
    idle = kept * chance.uniform(0.55, 1.3)
    if idle / interval > _CHECKS:
        return schedule
    last = max([*(call.at for call in schedule.calls), *(fault.at for fault in schedule.faults)])
    at = last + idle
    old = chance.choice(schedule.calls)
    new = Call(at, old.topic, old.partition, old.key, old.size)
    cuts = [
        Fault(
            at + schedule.rtt * chance.uniform(0, _ON_THE_WAY),
            "cut",
            (broker, chance.choice((0.0, 1.0)), True, 0.0),
        )
        for broker in range(schedule.brokers)
        for _ in range(2)
    ]
    return dataclasses.replace(
        schedule,
        broker_configs=configs,
        options=options,
        calls=(*schedule.calls, new),
        faults=tuple(sorted([*schedule.faults, *cuts], key=lambda fault: fault.at)),
        features=(*schedule.features, IDLE_TIME),
    )
