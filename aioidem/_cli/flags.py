"""The flags of the commands: name, type and help of each, grouped as `--help` shows them.

A command names the types of this module as annotations of its parameters, and Typer reads the flags
from there. A flag that may contradict another one is None if it was not given. Its real default is
filled in after the check for contradictions, and `--help` shows that default.

Rejected: writing the options into the signatures of the commands; the signature of `perf` had 200
lines.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from aioidem._load import payload
from aioidem._load import plan as plans

# The flag's name since Kafka 4.2 (KIP-1147), and its earlier name.
_CONFIG: Final = ("--command-config", "--producer.config")
_CONFIG_HELP: Final = "Read properties from FILE, in Java's format; for passwords, with mode 0600."
_PROPERTIES: Final = "NAME=VALUE..."
_SERVERS: Final = "HOST:PORT,..."
_VALUE_HELP: Final = "A value may be env:NAME or file:PATH."

# --- aioidem perf: the load -----------------------------------------------------------------------

_load = partial(typer.Option, rich_help_panel="Load")

PerfTopic = Annotated[
    str | None,
    _load(
        metavar="NAME",
        help="Topic to write to; needed with --bootstrap-server. On the embedded cluster, the"
        " prefix of one topic per run.",
        show_default=plans.DEFAULT_TOPIC,
    ),
]
NumRecords = Annotated[int | None, _load(metavar="N", help="Records per run.")]
Duration = Annotated[
    float | None,
    _load(
        metavar="SECONDS",
        help="Seconds per run, instead of --num-records.",
        show_default=f"{plans.DEFAULT_DURATION:g} on the embedded cluster",
    ),
]
RecordSize = Annotated[
    int | None,
    _load(
        metavar="BYTES",
        help="Size of a record's value.",
        show_default=str(payload.DEFAULT_RECORD_SIZE),
    ),
]
PayloadFile = Annotated[
    Path | None,
    _load(metavar="FILE", help="Take the values from a file, in turn, instead of --record-size."),
]
PayloadDelimiter = Annotated[
    str | None,
    _load(metavar="TEXT", help="What separates the values in --payload-file.", show_default=r"\n"),
]
PayloadMonotonic = Annotated[
    bool,
    _load(
        "--payload-monotonic",
        help="Send each record's number, 0, 1, 2, ..., instead of --record-size.",
    ),
]
WarmupRecords = Annotated[
    int | None,
    _load(
        metavar="N",
        help="Also measure the run without its first N records.",
        show_default="0, for no such figures",
    ),
]
Throughput = Annotated[
    float, _load(metavar="N", help="Records per second not to exceed; -1 for no limit.")
]

# --- aioidem perf: the producer -------------------------------------------------------------------

_producer = partial(typer.Option, rich_help_panel="Producer")

InFlight = Annotated[
    str | None,
    _producer(
        metavar="N,N,...",
        help="max.in.flight.requests.per.connection, one run for each, e.g. 1,5,20.",
        show_default=str(plans.DEFAULT_IN_FLIGHT),
    ),
]
ProducerProps = Annotated[
    list[str] | None,
    _producer(
        "--producer-props",
        "--command-property",
        metavar=_PROPERTIES,
        help="Producer properties by their Java names, several after one flag:"
        f" linger.ms=5 batch.size=65536. {_VALUE_HELP}",
    ),
]
ProducerConfigFile = Annotated[
    Path | None,
    _producer(
        *_CONFIG,
        metavar="FILE",
        # A terminal of 80 columns has no room for two names in the column of the names.
        help=f"{_CONFIG_HELP} Kafka before 4.2 calls it --producer.config.",
    ),
]
TransactionalId = Annotated[
    str | None,
    _producer(
        metavar="ID",
        help="Send in transactions, under this id.",
        show_default="performance-producer- and a UUID, with --transaction-duration-ms",
    ),
]
TransactionDuration = Annotated[
    int | None,
    _producer(
        metavar="MS",
        help="Commit each transaction after this time.",
        show_default=f"{plans.DEFAULT_TRANSACTION_DURATION_MS} with a transactional id",
    ),
]

# --- aioidem perf: the cluster --------------------------------------------------------------------

_target = partial(typer.Option, rich_help_panel="Target")

PerfServers = Annotated[
    str | None,
    _target(metavar=_SERVERS, help="Servers to use. Without it, an embedded cluster is started."),
]
PerfRtt = Annotated[
    float | None,
    _target(metavar="MS", help="Embedded cluster: round trip of its links.", show_default="0"),
]
PerfRetain = Annotated[
    int | None,
    _target(
        metavar="N",
        help="Embedded cluster: producer.state.batches.to.retain, the window it announces.",
        show_default=str(plans.DEFAULT_RETAIN),
    ),
]
PerfBrokers = Annotated[
    int | None,
    _target(metavar="N", help="Embedded cluster: number of brokers.", show_default="1"),
]
PerfPartitions = Annotated[
    int | None,
    _target(metavar="N", help="Embedded cluster: partitions of a topic.", show_default="1"),
]

# --- aioidem perf: the output ---------------------------------------------------------------------

_output = partial(typer.Option, rich_help_panel="Output")

PerfJson = Annotated[
    Path | None,
    _output(
        "--json",
        metavar="FILE",
        help="Write the results as a list of objects.",
    ),
]
Report = Annotated[
    Path | None,
    _output(
        metavar="FILE.html",
        help="Draw the results as a page. Needs plotly, the extra report.",
    ),
]
PrintMetrics = Annotated[
    bool,
    _output(
        "--print-metrics",
        help="Print the producer's statistics after each run.",
    ),
]

ReportingInterval = Annotated[
    int | None,
    _output(
        metavar="MS",
        help="Print a line of progress after each interval, on a terminal too.",
        show_default="1000 in a pipe, a bar on a terminal",
    ),
]

# --- aioidem perf: on Spark -----------------------------------------------------------------------

_spark = partial(typer.Option, rich_help_panel="Spark")

OnSpark = Annotated[
    bool,
    _spark(
        "--spark",
        help="Share the run among tasks on Spark. Needs the extra spark, and Java.",
    ),
]
PerfMaster = Annotated[
    str | None,
    _spark(
        metavar="URL",
        help="Spark's master.",
        show_default="local, with one thread of this machine per task",
    ),
]
Tasks = Annotated[int | None, _spark(metavar="N", help="Number of tasks; needed with --spark.")]
PerfLedger = Annotated[
    str | None,
    _spark(
        metavar="DIR",
        help="Write each record's outcome there, as Parquet, for `aioidem audit`.",
    ),
]

# --- aioidem audit --------------------------------------------------------------------------------

AuditLedger = Annotated[
    str, typer.Option(metavar="DIR", help="The folder with the ledgers of `aioidem perf --spark`.")
]
AuditServers = Annotated[
    str, typer.Option(metavar=_SERVERS, help="Servers to read the topic from.")
]
AuditTopic = Annotated[str, typer.Option(metavar="NAME", help="The topic to audit.")]
AuditOut = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Where to write records, anomalies and latency as Parquet.",
        show_default="the ledger's name and -audit",
    ),
]
AuditJson = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the findings as JSON.")
]
Bucket = Annotated[
    int, typer.Option(metavar="SECONDS", help="Interval for throughput and latency over time.")
]
ConsumerProps = Annotated[
    list[str] | None,
    typer.Option(
        "--consumer-props",
        "--command-property",
        metavar=_PROPERTIES,
        help=f"Consumer properties by their Java names: security.protocol=SSL. {_VALUE_HELP}",
    ),
]
ConsumerConfigFile = Annotated[
    Path | None, typer.Option(*_CONFIG, metavar="FILE", help=_CONFIG_HELP)
]
AuditMaster = Annotated[str, typer.Option(metavar="URL", help="Spark's master.")]
SparkConf = Annotated[
    list[str] | None,
    typer.Option(metavar=_PROPERTIES, help="Spark properties: spark.driver.memory=1g."),
]
Follow = Annotated[
    bool,
    typer.Option("--follow", help="Audit a running load until Ctrl-C, with one line per batch."),
]
Every = Annotated[int, typer.Option(metavar="SECONDS", help="With --follow: time between batches.")]

# --- aioidem resolve ------------------------------------------------------------------------------

IncidentFile = Annotated[
    Path, typer.Option(metavar="FILE", help="The incidents, as `error.incident.to_json()` returns.")
]
ResolveServers = Annotated[
    str, typer.Option(metavar=_SERVERS, help="Servers of the cluster to which they were sent.")
]
ResolveTimeout = Annotated[float, typer.Option(metavar="SECONDS", help="For all incidents.")]
ResolveWait = Annotated[
    bool,
    typer.Option(
        "--wait", help="Read on until the timeout while a copy may still arrive (NOT_FENCED)."
    ),
]
ResolveJson = Annotated[
    Path | None, typer.Option("--json", metavar="FILE", help="Write the verdicts as JSON.")
]

# --- aioidem broker -------------------------------------------------------------------------------

Brokers = Annotated[int, typer.Option(metavar="N", help="Number of brokers.")]
Retain = Annotated[
    int,
    typer.Option(metavar="N", help="producer.state.batches.to.retain, the window it announces."),
]
Rtt = Annotated[float, typer.Option(metavar="MS", help="Round trip of its links.")]
Port = Annotated[
    int,
    typer.Option(
        # Without this name, Typer before 0.28 would take the metavar for the name of the flag.
        "--port",
        metavar="PORT",
        help="Port of the first broker, the others follow; 0 for free ones.",
    ),
]
Topics = Annotated[
    list[str] | None,
    typer.Option("--topic", metavar="NAME[:PARTITIONS]", help="Topic to create; may be repeated."),
]

# --- aioidem doctor -------------------------------------------------------------------------------

DoctorServers = Annotated[
    str, typer.Option(metavar=_SERVERS, help="Servers to examine, as the producer's bootstrap.")
]
DoctorTopics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", metavar="NAME", help="A topic that the producer writes to; may be repeated."
    ),
]
DoctorRate = Annotated[
    str | None,
    typer.Option(
        # Without this name, Typer before 0.28 would take the metavar for the name of the flag.
        "--rate",
        metavar="RATE",
        help="What the producer has to reach in each topic: 5MB/s, or records/s with"
        " --record-size.",
    ),
]
DoctorRecordSize = Annotated[
    int | None, typer.Option(metavar="BYTES", help="Size of a record, for --rate.")
]
WriteTo = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Also write a few records to this topic, to see how many batches its leader"
        " remembers, and its clock.",
    ),
]
DoctorTimeout = Annotated[
    float, typer.Option(metavar="SECONDS", help="The most time for the whole examination.")
]
DoctorJson = Annotated[bool, typer.Option("--json", help="Print one JSON object in place of text.")]

# --- aioidem replay -------------------------------------------------------------------------------

FlightFile = Annotated[Path, typer.Argument(metavar="FILE", help="The flight record.")]
ReplayPartition = Annotated[
    str | None,
    typer.Option("--partition", metavar="NAME", help="Show only this partition: orders-3."),
]
ReplayHtml = Annotated[
    Path | None, typer.Option("--html", metavar="PAGE", help="Write the timeline as one HTML page.")
]
ToTest = Annotated[
    Path | None,
    typer.Option("--to-test", metavar="FILE", help="Write a pytest file that replays the record."),
]
ReplayIncidents = Annotated[
    Path | None,
    typer.Option(
        "--incidents",
        metavar="FILE",
        help="Write the batches that ended UNKNOWN, for aioidem resolve --incident.",
    ),
]
Full = Annotated[bool, typer.Option("--full", help="Print more than the last 200 rows.")]
