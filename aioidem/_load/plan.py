"""Check the flags of `aioidem perf`, and turn them into one frozen `PerfPlan`.

Invariants:

- Every mistake in the flags is found here, before a socket is opened or a broker is started, and is
  raised as `UsageError` with one line that names the flag.
- A `PerfPlan` is complete and consistent, so the code that runs it checks nothing again.
- Nothing here awaits, reads a clock or prints. Only files that a flag names are read.

Rejected: range checks by the option parser. Its messages name the parameter but not the reason, and
the important rules (which flags exclude each other) span several flags anyway.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from aioidem._config import ProducerConfig, validate_topic
from aioidem._engine.memory import COPIES_SHARE
from aioidem._engine.record import RECORD_MEMORY
from aioidem._load.payload import Numbers, choose_values, longest, mean_size
from aioidem._load.properties import gather_properties
from aioidem._load.usage import UsageError, apart, between, one_line, output_file, shown, whole
from aioidem._records import BATCH_OVERHEAD, payload_size, record_size, record_size_bound
from aioidem.errors import ConfigError, RecordError

__all__ = [
    "DEFAULT_DURATION",
    "DEFAULT_IN_FLIGHT",
    "DEFAULT_RETAIN",
    "DEFAULT_TOPIC",
    "DEFAULT_TRANSACTION_DURATION_MS",
    "PerfPlan",
    "parse_in_flight",
    "plan_perf",
]

DEFAULT_TOPIC = "perf"
DEFAULT_DURATION = 5.0
"""How many seconds an embedded cluster's run lasts if neither count nor duration is given."""
DEFAULT_IN_FLIGHT = 5
DEFAULT_RETAIN = 5
"""The number of batches per producer and partition that a broker remembers.

It is Kafka's constant NUM_BATCHES_TO_RETAIN, and the default of KIP-1269.
"""

DEFAULT_TRANSACTION_DURATION_MS = 3000
"""The default of kafka-producer-perf-test.sh, for a transactional id without a duration."""

MAX_RUNS = 64
MAX_IN_FLIGHT = 1_000_000
MAX_DURATION = 7 * 86_400.0
MAX_RECORDS = 2**63 - 1
MAX_INTERVAL_MS = 86_400_000
MAX_RETAIN = 1_000_000
MAX_RTT_MS = 60_000.0
MAX_BROKERS = 16
MAX_PARTITIONS = 1_000

# The offset delta and the timestamp delta (ms) that the estimate of a record's size assumes: those
# of a typical record in a batch that fills while others are in flight. As varints they make a
# difference of one or two bytes.
_OFFSET_DELTA = 15
_TIMESTAMP_DELTA = 100

_IN_FLIGHT_PROPERTY = "max.in.flight.requests.per.connection"
_SERVERS = "bootstrap.servers"
_TRANSACTIONAL_ID = "transactional.id"


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfPlan:
    """The checked flags of one call of `aioidem perf`.

    Attributes:
        topic: the topic to write to; on the embedded cluster the prefix of one new topic per run.
        in_flight: the largest number of requests in flight in each run, in the order of the runs.
        num_records: the records of each run, or None if `duration` (seconds) ends it.
        values: the record values, sent in turn.
        warmup_records: the first records of each run, which the figures of its steady state leave
            out; 0 for no such figures.
        throughput: the limit in records per second; `math.inf` for none.
        transaction_duration: the seconds after which a transaction is committed; None for no
            transactions.
        properties: the producer's properties by their Java names, without the servers and the
            in-flight limit, which differ per run.
        bootstrap: the servers to use, or None for the embedded cluster.
        rtt: the round trip of the embedded cluster's links, in seconds.
        retain: how many batches per producer and partition the embedded brokers remember.
        brokers: the number of embedded brokers.
        partitions: the number of partitions of each embedded topic.
        reporting_interval: the seconds between two lines of progress; None for the screen's own.
        warnings: lines to show to the user before the run.
    """

    topic: str
    in_flight: tuple[int, ...]
    num_records: int | None
    duration: float | None
    values: Sequence[bytes] = dataclasses.field(repr=False)  # the user's records
    warmup_records: int
    throughput: float
    transaction_duration: float | None
    properties: Mapping[str, str] = dataclasses.field(repr=False)  # may contain passwords
    bootstrap: str | None
    rtt: float
    retain: int
    brokers: int
    partitions: int
    json_file: Path | None
    report_file: Path | None
    print_metrics: bool
    reporting_interval: float | None = None
    warnings: tuple[str, ...] = ()

    @property
    def record_size(self) -> int:
        """The size of a record's value in bytes; the rounded mean if they differ."""
        return mean_size(self.values)

    @property
    def monotonic(self) -> bool:
        """Whether each record's value is the record's number."""
        return isinstance(self.values, Numbers)

    def config(self, in_flight: int, bootstrap: str) -> ProducerConfig:
        """Return the configuration of the run to `bootstrap` with `in_flight` requests in flight.

        If a run ends after a duration and no batch outgrows `batch.size`, its buffer has room for
        two windows (twice the batches that may be in flight at once), unless the user has set
        `buffer.memory`. On a long link, Kafka's default of 32 MiB would hold so many records
        that it takes minutes to send them, and the end of the run would have to wait for them.
        Two windows are enough: while one is in flight, the other is ready to be sent. A fraction of
        a third window would cost one more round trip at the end of the run.

        With the option `late.sealing`, batches outgrow `batch.size` while no further batch may be
        in flight. Such batches need the whole buffer, and empty it quickly.

        Raises:
            ConfigError: a property is unknown, malformed or contradicts another.
        """
        config = ProducerConfig.from_properties(
            {
                **self.properties,
                _SERVERS: bootstrap,
                _IN_FLIGHT_PROPERTY: str(in_flight),
            }
        )
        if self.duration is None or config.late_sealing or "buffer.memory" in self.properties:
            return config
        return dataclasses.replace(config, buffer_memory=self._two_windows(config))

    def _two_windows(self, config: ProducerConfig) -> int:
        value = longest(self.values)
        encoded = record_size(payload_size(None, value, ()), _OFFSET_DELTA, _TIMESTAMP_DELTA)
        per_batch = max(1, (config.batch_size - BATCH_OVERHEAD) // encoded)
        # A record takes more of `buffer.memory`, which also counts the record's Python objects,
        # than of `batch.size`, which counts encoded bytes only.
        batch = per_batch * (record_size_bound(None, value, ()) + RECORD_MEMORY)
        batches = 2 * config.max_in_flight_requests_per_connection
        records = batches * batch * self.partitions
        # Records may take all of the buffer but 1 / COPIES_SHARE, which is kept for the encoded
        # copies of batches in flight.
        return min(config.buffer_memory, -(-records * COPIES_SHARE // (COPIES_SHARE - 1)))


def parse_in_flight(text: str) -> tuple[int, ...]:
    """Parse `"1,5,20"` as `(1, 5, 20)`.

    Raises:
        UsageError: an entry is not a whole number in range, or there are too many.
    """
    words = [word.strip() for word in text.split(",")]
    if len(words) > MAX_RUNS:
        raise UsageError(f"--in-flight: {len(words)} runs, at most {MAX_RUNS} are allowed")
    runs: list[int] = []
    for word in words:
        # isdecimal alone accepts the digits of other scripts, and so does int().
        number = int(word) if word.isascii() and word.isdecimal() and len(word) <= 9 else 0
        if not 1 <= number <= MAX_IN_FLIGHT:
            raise UsageError(
                f"--in-flight: {word!r} in {shown(text)} is not a whole number from 1 to"
                f" {MAX_IN_FLIGHT}; write it like 1,5,20"
            )
        runs.append(number)
    return tuple(runs)


def plan_perf(
    *,
    topic: str | None = None,
    num_records: int | None = None,
    duration: float | None = None,
    record_size: int | None = None,
    payload_file: Path | None = None,
    payload_delimiter: str | None = None,
    payload_monotonic: bool = False,
    warmup_records: int | None = None,
    throughput: float = -1.0,
    producer_props: Sequence[str] = (),
    config_file: Path | None = None,
    transactional_id: str | None = None,
    transaction_duration_ms: int | None = None,
    print_metrics: bool = False,
    reporting_interval_ms: int | None = None,
    bootstrap_server: str | None = None,
    rtt_ms: float | None = None,
    retain: int | None = None,
    brokers: int | None = None,
    partitions: int | None = None,
    in_flight: str | None = None,
    json_file: Path | None = None,
    report_file: Path | None = None,
) -> PerfPlan:
    """Check all flags of `aioidem perf`, and return the plan; None stands for an absent flag.

    Raises:
        UsageError: a flag is malformed, out of range, or contradicts another.
    """
    gathered = gather_properties(producer_props, config_file)
    properties = dict(gathered.values)
    transaction_duration = _transactions(transactional_id, transaction_duration_ms, properties)
    bootstrap = _bootstrap(bootstrap_server, properties)
    embedded_only = {
        "--rtt": rtt_ms,
        "--retain": retain,
        "--brokers": brokers,
        "--partitions": partitions,
    }
    _refuse_with_bootstrap(bootstrap, embedded_only)
    count, seconds = _limits(num_records, duration, embedded=bootstrap is None)
    plan = PerfPlan(
        topic=_topic(topic, embedded=bootstrap is None),
        in_flight=_in_flight(in_flight, properties),
        num_records=count,
        duration=seconds,
        values=choose_values(
            record_size, payload_file, payload_delimiter, monotonic=payload_monotonic, count=count
        ),
        warmup_records=_warmup(warmup_records, count),
        throughput=_throughput(throughput),
        transaction_duration=transaction_duration,
        properties=MappingProxyType(properties),
        bootstrap=bootstrap,
        rtt=between("--rtt", 0.0 if rtt_ms is None else rtt_ms, 0.0, MAX_RTT_MS) / 1000,
        # The default is also the minimum: the broker refuses a value below 5.
        retain=whole("--retain", retain, DEFAULT_RETAIN, DEFAULT_RETAIN, MAX_RETAIN),
        brokers=whole("--brokers", brokers, 1, 1, MAX_BROKERS),
        partitions=whole("--partitions", partitions, 1, 1, MAX_PARTITIONS),
        json_file=output_file("--json", json_file),
        report_file=output_file("--report", report_file),
        print_metrics=print_metrics,
        reporting_interval=_interval(reporting_interval_ms),
        warnings=gathered.warnings,
    )
    apart({"--payload-file": payload_file, "--json": json_file, "--report": report_file})
    _check_report_extra(report_file)
    flags = {_SERVERS: ("--bootstrap-server", bootstrap_server)}
    flags[_TRANSACTIONAL_ID] = ("--transactional-id", transactional_id)
    own = {name: flag for name, (flag, value) in flags.items() if value is not None}
    _check_configs(plan, own, "--producer-props" if producer_props else "--command-config")
    return plan


def _transactions(
    flag: str | None, duration_ms: int | None, properties: dict[str, str]
) -> float | None:
    """Return the duration of a transaction in seconds, or None without transactions.

    The transactional id is put into `properties`. It comes from `--transactional-id` or from the
    producer's properties; if only a duration was given, it is made up as Kafka's own tool does.
    """
    prop = properties.get(_TRANSACTIONAL_ID)
    if flag is not None and prop is not None and flag != prop:
        raise UsageError(
            f"--transactional-id {flag} contradicts --producer-props {_TRANSACTIONAL_ID}={prop}"
        )
    if (flag, prop, duration_ms) == (None, None, None):
        return None
    named = flag if flag is not None else prop
    properties[_TRANSACTIONAL_ID] = (
        named if named is not None else f"performance-producer-{uuid.uuid4()}"
    )
    flag_name, most = "--transaction-duration-ms", round(MAX_DURATION * 1000)
    return whole(flag_name, duration_ms, DEFAULT_TRANSACTION_DURATION_MS, 1, most) / 1000


def _bootstrap(flag: str | None, properties: dict[str, str]) -> str | None:
    """Return the servers that the flag or a property names, and remove the property."""
    prop = properties.pop(_SERVERS, None)
    if flag is not None and prop is not None and flag != prop:
        raise UsageError(
            f"--bootstrap-server {flag} contradicts --producer-props bootstrap.servers={prop}"
        )
    return flag if flag is not None else prop


def _refuse_with_bootstrap(bootstrap: str | None, flags: Mapping[str, object]) -> None:
    if bootstrap is None:
        return
    given = [name for name, value in flags.items() if value is not None]
    if given:
        raise UsageError(
            f"{', '.join(given)}: only for the embedded cluster, which --bootstrap-server replaces"
        )


def _topic(topic: str | None, *, embedded: bool) -> str:
    if topic is None:
        if not embedded:
            raise UsageError("--topic: needed with --bootstrap-server")
        return DEFAULT_TOPIC
    try:
        validate_topic(topic)
    except RecordError as error:
        raise UsageError(f"--topic: {one_line(error)}") from error
    return topic


def _limits(
    num_records: int | None, duration: float | None, *, embedded: bool
) -> tuple[int | None, float | None]:
    if num_records is not None and duration is not None:
        raise UsageError("--num-records and --duration exclude each other: give one")
    if num_records is not None:
        return whole("--num-records", num_records, 0, 1, MAX_RECORDS), None
    if duration is None:
        if not embedded:
            raise UsageError("give --num-records or --duration: how much to send is up to you")
        return None, DEFAULT_DURATION
    if not 0 < duration <= MAX_DURATION:
        raise UsageError(
            f"--duration: {duration:.15g} is not above 0 and at most {MAX_DURATION:g} seconds"
        )
    return None, duration


def _in_flight(text: str | None, properties: dict[str, str]) -> tuple[int, ...]:
    """Return each run's limit on requests in flight, and remove it from the properties."""
    prop = properties.pop(_IN_FLIGHT_PROPERTY, None)
    if prop is None:
        return (DEFAULT_IN_FLIGHT,) if text is None else parse_in_flight(text)
    if text is not None and text != prop:
        raise UsageError(
            f"--in-flight {text} contradicts --producer-props {_IN_FLIGHT_PROPERTY}={prop}"
        )
    runs = parse_in_flight(prop)
    if len(runs) != 1:
        raise UsageError(
            f"--producer-props: {_IN_FLIGHT_PROPERTY}={prop}: one number; lists go to --in-flight"
        )
    return runs


def _warmup(records: int | None, count: int | None) -> int:
    warmup = whole("--warmup-records", records, 0, 0, MAX_RECORDS)
    if count is not None and warmup >= count:
        raise UsageError(
            f"--warmup-records: {warmup} of --num-records {count} leave no record for the steady"
            " state; give fewer"
        )
    return warmup


def _interval(milliseconds: int | None) -> float | None:
    if milliseconds is None:
        return None
    return whole("--reporting-interval", milliseconds, 0, 1, MAX_INTERVAL_MS) / 1000


def _throughput(records_per_second: float) -> float:
    if records_per_second == -1:
        return math.inf
    if not 0 < records_per_second < math.inf:
        raise UsageError(
            f"--throughput: {records_per_second:g} is not a positive number of records per second;"
            " -1 means no limit"
        )
    return records_per_second


def _check_configs(plan: PerfPlan, own: Mapping[str, str], others: str) -> None:
    """Raise UsageError, before the first run, if a property is wrong or contradicts a flag.

    Args:
        plan: the plan.
        own: the flags that were given in the place of a property, by the property's name.
        others: the flag that gave all other properties.
    """
    bootstrap = "localhost:9092" if plan.bootstrap is None else plan.bootstrap
    try:
        configs = [plan.config(in_flight, bootstrap) for in_flight in plan.in_flight]
    except ConfigError as error:
        text = one_line(error)
        culprit = own.get(text.partition("=")[0], others)
        raise UsageError(f"{culprit}: {text}") from error
    largest = record_size_bound(None, longest(plan.values), ())
    for config in configs:
        limit = min(config.max_request_size, config.buffer_memory)
        if largest > limit:
            raise UsageError(
                f"a record of {largest} bytes is larger than max.request.size"
                f" ({config.max_request_size}) or buffer.memory ({config.buffer_memory})"
            )
        duration = plan.transaction_duration
        if duration is not None and duration >= config.transaction_timeout:
            raise UsageError(
                f"--transaction-duration-ms: the coordinator aborts a transaction after"
                f" transaction.timeout.ms, {config.transaction_timeout:g} s"
            )


def _check_report_extra(report_file: Path | None) -> None:
    if report_file is not None and importlib.util.find_spec("plotly") is None:
        raise UsageError("--report: needs plotly: pip install 'aioidem[report]'")
