"""What one run of one client does: the job, its records, and the figures that it prints.

`short_link.py` writes a `Job` as JSON for `short_link_clients.py`, or as arguments for
`ShortLinkProducer.java`. Both print one line of JSON at the end: `Figures`, or ``{"cannot": WHY}``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

WAYS = ("await", "one", "queue", "bulk", "table", "paced", "start", "idle")
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DISTINCT = 1000
"""How many different records there are at most; each run sends them in turn."""
DISTINCT_BYTES = 16_000_000
KEY_SIZE = 36

Record = tuple[bytes, bytes | None]
"""A value and a key."""


class CannotError(Exception):
    """A client has no way to run a scenario."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of one client.

    Args:
        client: The client's name, one of `short_link_scenarios.CLIENTS`.
        way: How records are sent, one of `WAYS`.
        bootstrap: The servers.
        topic: The topic to write to.
        size: The size of a value in bytes.
        keyed: Whether each record has a key of 36 bytes.
        codec: The compression, one of `CODECS`.
        tasks: How many tasks await records, for the way `await`.
        queued: How many records may be unacknowledged, for the ways that queue.
        warm_up: Seconds before the measurement.
        seconds: Seconds of the measurement.
        rate: Records per second for the way `paced`; 0 is half of the client's own peak.
        spawned: When the process was started, by the machine's monotonic clock, in seconds.
        uvloop: Whether asyncio's clients run on uvloop.
        profile: The file for a profile of the run, or empty.
    """

    client: str
    way: str
    bootstrap: str
    topic: str
    size: int = 100
    keyed: bool = False
    codec: str = "none"
    tasks: int = 1000
    queued: int = 20_000
    warm_up: float = 1.0
    seconds: float = 2.0
    rate: float = 0.0
    spawned: float = 0.0
    uvloop: bool = False
    profile: str = ""

    def records(self) -> list[Record]:
        """Return the values and keys: half of a value is random digits, the rest is constant."""
        drawn = random.Random(1)
        digits = self.size // 2
        distinct = max(1, min(DISTINCT, DISTINCT_BYTES // self.size))
        values = [
            f"{drawn.getrandbits(4 * digits):0{digits}x}".encode().ljust(self.size, b".")
            for _ in range(distinct)
        ]
        keys = [
            f"{number:0{KEY_SIZE}d}".encode() if self.keyed else None for number in range(distinct)
        ]
        return list(zip(values, keys, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one run measured.

    Args:
        version: The client's version, and the form that ran where there are two.
        acked: How many records were acknowledged during the measurement.
        records_per_sec: Their rate.
        cpu_us_per_record: The CPU time of the client's process per record, in microseconds.
        cpu_percent: Its CPU time as a share of the time of one core.
        peak_rss_mb: The most memory that the process had, in 10^6 bytes.
        latency_ms: Latencies by name (p50, p99, p99.9, max), in milliseconds.
        late_ms: The 99th percentile of how late the schedule of `paced` was kept, in milliseconds.
        asked_rate: The records per second that `paced` had to send.
        first_ack_s: Seconds from the start of the process to the first acknowledgement.
        note: What a reader of the figures has to know.
    """

    version: str
    acked: int = 0
    records_per_sec: float | None = None
    cpu_us_per_record: float | None = None
    cpu_percent: float | None = None
    peak_rss_mb: float | None = None
    latency_ms: dict[str, float] | None = None
    late_ms: float | None = None
    asked_rate: float | None = None
    first_ack_s: float | None = None
    note: str = ""
