"""What few clusters and callers have: APIs that are missing, brokers that move, refused passwords.

Also partitioners of the user's that fail, records that suddenly do not compress any more, and
brokers that refuse Produce v14 by its error code. Only schedules of the mix "odd" have these.
Each is drawn by itself, so that a new one leaves most schedules as they were.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from kio.schema.errors import ErrorCode

from .schedule import Call, Fault, Glitch, Schedule

__all__ = ["VARIATIONS", "with_variations"]

_EXPIRATION = "producer.id.expiration.ms"
_LATE = {"cluster", "split", "recreate", "unclean"}
"""Faults after which a topic or a cluster is another one than before."""

_SHORT_IDLE = (0.2, 0.35, 0.7, 1.1, 2.3, 3.0)
"""Seconds; their sums with other times are rounded."""

_SHARE = 0.25
"""The share of schedules that have one more variation, for each of the others."""

_Vary = Callable[[Schedule, random.Random], Schedule]


def with_variations(schedule: Schedule) -> Schedule:
    """Return a schedule with variations that its seed chooses, one at least if one can be had.

    Its end is judged by no rules of its own any more, such as that every record is acknowledged.
    """
    schedule = dataclasses.replace(
        schedule, all_acked=False, wide_at_end=False, noticed=False, round_trips=None
    )
    rank = {name: random.Random(f"{schedule.seed} has {name}").random() for name in VARIATIONS}
    first, *others = sorted(VARIATIONS, key=rank.__getitem__)
    for name in [first, *(other for other in others if rank[other] < _SHARE)]:
        varied = VARIATIONS[name](schedule, random.Random(f"{schedule.seed} {name}"))
        if varied is not schedule:
            schedule = dataclasses.replace(varied, features=(*schedule.features, name))
    return schedule


def _odd(schedule: Schedule, **values: object) -> Schedule:
    odd = dataclasses.replace(schedule.odd, **values)  # type: ignore[arg-type]
    return dataclasses.replace(schedule, odd=odd)


def _with_options(schedule: Schedule, **options: object) -> Schedule:
    return dataclasses.replace(schedule, options={**schedule.options, **options})


def _with_faults(schedule: Schedule, *faults: Fault) -> Schedule:
    together = sorted([*schedule.faults, *faults], key=lambda fault: fault.at)
    return dataclasses.replace(schedule, faults=tuple(together))


def _span(schedule: Schedule) -> tuple[float, float]:
    """Return when the first and the last call are made, in seconds."""
    times = [call.at for call in schedule.calls]
    return min(times), max(times)


def _lacking(schedule: Schedule, chance: random.Random) -> Schedule:
    """Let some brokers not offer requests that the producer can do without."""
    if chance.random() < 0.7:
        schedule = _with_options(schedule, window_discovery="auto")
    lacks = [
        (broker, chance.choice((1, 32, 61)))
        for broker in range(schedule.brokers)
        if chance.random() < 0.8
    ]
    keys = {key for _, key in lacks}
    if not lacks or (32 in keys and _EXPIRATION in schedule.broker_configs):
        return schedule
    return dataclasses.replace(
        _odd(schedule, lacks=tuple(lacks)),
        grants_read=schedule.grants_read and keys <= {32},
        grants_describe=schedule.grants_describe and 32 not in keys,
    )


def _moving(schedule: Schedule, chance: random.Random) -> Schedule:
    """Let a broker move to another address, where it is known by the same id."""
    kinds = {fault.kind for fault in schedule.faults}
    if schedule.brokers == 1 or kinds & {"cluster", "split"}:
        return schedule
    begin, end = _span(schedule)
    broker = chance.randrange(schedule.brokers)
    moves = [
        Fault(chance.uniform(begin, end + schedule.rtt), "address", (broker,))
        for _ in range(chance.choice((1, 1, 3)))
    ]
    return _with_faults(schedule, *moves)


def _refused(schedule: Schedule, chance: random.Random) -> Schedule:
    """Let brokers refuse the password for a while; the producer may get another one meanwhile."""
    begin, end = _span(schedule)
    at = chance.uniform(begin, end + schedule.rtt)
    seconds = chance.choice((0.1, 1.0, 5.0))
    renewed = chance.uniform(0, seconds) if chance.random() < 0.5 else None
    options = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-256",
        "sasl_username": "user",
        "sasl_password": "password",
        **schedule.options,
    }
    faults = [Fault(at, "credentials", (seconds, renewed))]
    faults += [
        Fault(at + schedule.rtt * chance.uniform(0, 3), "cut", (broker, 0.5, True, 0.0))
        for broker in range(schedule.brokers)
        if chance.random() < 0.8
    ]
    return _with_faults(dataclasses.replace(schedule, options=options), *faults)


def _without_v14(schedule: Schedule, chance: random.Random) -> Schedule:
    """Let brokers answer UNSUPPORTED_VERSION to some Produce requests."""
    taken = {glitch.request for glitch in schedule.glitches}
    code = int(ErrorCode.unsupported_version)
    new = [
        Glitch(number, "refuse", (code, None))
        for number in sorted(chance.sample(range(30), chance.choice((1, 2, 6))))
        if number not in taken
    ]
    glitches = sorted([*schedule.glitches, *new], key=lambda glitch: glitch.request)
    return dataclasses.replace(schedule, glitches=tuple(glitches))


def _partitioned(schedule: Schedule, chance: random.Random) -> Schedule:
    """Let a partitioner of the user's choose, which fails for some keys."""
    if any(fault.kind in _LATE for fault in schedule.faults):
        return schedule
    share = chance.choice((0.2, 0.7))
    calls = tuple(
        dataclasses.replace(call, partition=None, key=b"k%d" % chance.randrange(12))
        if chance.random() < share
        else call
        for call in schedule.calls
    )
    return dataclasses.replace(_odd(schedule, partitioner=True), calls=calls)


def _swelling(schedule: Schedule, chance: random.Random) -> Schedule:
    """Let records compress well at first, and from some time on not at all."""
    begin, end = _span(schedule)
    codec = chance.choice(("gzip", "lz4", "zstd"))
    size = chance.choice((60, 200, 600))
    calls = tuple(
        Call(call.at, call.topic, call.partition, call.key, call.size + size, call.age)
        for call in schedule.calls
    )
    schedule = _with_options(schedule, compression_type=codec)
    return dataclasses.replace(_odd(schedule, swells_at=chance.uniform(begin, end)), calls=calls)


def _denied(schedule: Schedule, chance: random.Random) -> Schedule:
    """Let the producer lose its permission for a topic, and get it back after a while."""
    begin, end = _span(schedule)
    topics = [topic for topic, _ in schedule.topics]
    faults = [
        Fault(
            chance.uniform(begin - schedule.rtt, end),
            "denied",
            (chance.choice(topics), chance.choice((0.2, 1.0, 5.0))),
        )
        for _ in range(chance.choice((1, 1, 3)))
    ]
    return _with_faults(schedule, *faults)


def _snappy(schedule: Schedule, _chance: random.Random) -> Schedule:
    """Let batches be compressed with snappy, which has no library of its own in the others."""
    return _with_options(schedule, compression_type="snappy")


def _small_requests(schedule: Schedule, chance: random.Random) -> Schedule:
    """Let a request have room for one batch, or for a few."""
    size: int = schedule.options.get("batch_size", 300)
    most = int(size * chance.choice((0.8, 1.3, 2.5, 4.0)))
    return _with_options(schedule, max_request_size=most)


def _backing_off(schedule: Schedule, chance: random.Random) -> Schedule:
    """Let the producer wait for other times before it tries again, and close no idle connection.

    Idle connections are closed after nine minutes otherwise.
    """
    longest = {
        f"{name}_max": max(schedule.options.get(name, 0.1), chance.choice((0.01, 0.1, 0.3, 5.0)))
        for name in ("retry_backoff", "reconnect_backoff")
    }
    idle = chance.choice((None, 540.0))
    return _with_options(schedule, **longest, connections_max_idle=idle)


def _loyal(schedule: Schedule, _chance: random.Random) -> Schedule:
    """Let a producer end rather than go to another cluster."""
    if not {fault.kind for fault in schedule.faults} & {"cluster", "split"}:
        return schedule
    return _with_options(schedule, on_cluster_change="fail")


def _tidy(schedule: Schedule, chance: random.Random) -> Schedule:
    """Let connections be closed after a short idle time, also while records wait for a resend."""
    return _with_options(schedule, connections_max_idle=chance.choice(_SHORT_IDLE))


VARIATIONS: dict[str, _Vary] = {
    "missing APIs": _lacking,
    "other addresses": _moving,
    "refused password": _refused,
    "v14 refused": _without_v14,
    "partitioner": _partitioned,
    "swelling records": _swelling,
    "denied topic": _denied,
    "snappy": _snappy,
    "small requests": _small_requests,
    "other back-offs": _backing_off,
    "short idle times": _tidy,
    "one cluster only": _loyal,
}
"""By name: what makes a variation of a schedule."""
