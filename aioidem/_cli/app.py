"""The commands and their flags, as Typer sees them; what they mean is decided in the plans.

Invariants:

* A command only gathers its flags, has them checked by a plan and runs it. None means "not given",
  so that the plan can tell a contradiction from a default.
* Whatever a user can get wrong ends here as one line on standard error and status 2.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
import typer.main

from aioidem import __version__
from aioidem._load import plan as plans
from aioidem._load.properties import spread_values, without_values
from aioidem._load.screen import silence
from aioidem._load.usage import UsageError, terminal_line

__all__ = ["aioidem", "app", "audit", "broker", "perf", "run"]

app = typer.Typer(
    name="aioidem",
    help="An idempotent Kafka producer that keeps long links full: load test and test broker.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def run(argv: list[str]) -> int:
    """Parse and run; see `aioidem._cli.main`."""
    command = typer.main.get_command(app)
    name = "aioidem"
    if argv and not argv[0].startswith("-"):
        name = f"aioidem {argv[0]}"
    try:
        status = command.main(spread_values(argv), prog_name="aioidem", standalone_mode=False)
    except typer.TyperException as error:
        # What it quotes may be a password behind the wrong flag.
        return _refuse(name, without_values(error.format_message(), argv), error.exit_code)
    except UsageError as error:
        return _refuse(name, str(error), 2)
    except typer.Abort:
        return 130
    except BrokenPipeError:
        # The reader of the help or of an address went away (`| head`).
        silence(sys.stdout)
        return 1
    return status if isinstance(status, int) else 0


def _refuse(name: str, message: str, status: int) -> int:
    line = terminal_line(message)
    # No arguments at all: Typer has printed the help and has nothing to add.
    if line:
        print(f"{name}: {line}", file=sys.stderr)
    return status


def _warn(name: str, lines: tuple[str, ...]) -> None:
    for line in lines:
        print(f"{name}: warning: {terminal_line(line)}", file=sys.stderr)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"aioidem {__version__}")
        raise typer.Exit


@app.callback()
def aioidem(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print and exit.")
    ] = False,
) -> None:
    """An idempotent Kafka producer that keeps long links full: load test and test broker."""


_LOAD = "Load"
_PRODUCER = "Producer"
_TARGET = "Target"
_SPARK = "Spark"
_OUTPUT = "Output"

# Kafka 4.2's name for it (KIP-1147), and the one before.
_CONFIG_FLAGS = ("--command-config", "--producer.config")
_CONFIG_HELP = "Read properties from FILE, in Java's format; for passwords, with mode 0600."


@app.command()
def perf(
    topic: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Topic to write to; needed with --bootstrap-server. On the embedded cluster, the"
            " prefix of one topic per run.",
            show_default=plans.DEFAULT_TOPIC,
            rich_help_panel=_LOAD,
        ),
    ] = None,
    num_records: Annotated[
        int | None,
        typer.Option(metavar="N", help="Records per run.", rich_help_panel=_LOAD),
    ] = None,
    duration: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            help="Seconds per run, instead of --num-records.",
            show_default=f"{plans.DEFAULT_DURATION:g} on the embedded cluster",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    record_size: Annotated[
        int | None,
        typer.Option(
            metavar="BYTES",
            help="Size of a record's value.",
            show_default=str(plans.DEFAULT_RECORD_SIZE),
            rich_help_panel=_LOAD,
        ),
    ] = None,
    payload_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Take the values from a file, in turn, instead of --record-size.",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    payload_delimiter: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="What separates the values in --payload-file.",
            show_default=r"\n",
            rich_help_panel=_LOAD,
        ),
    ] = None,
    throughput: Annotated[
        float,
        typer.Option(
            metavar="N",
            help="Records per second not to exceed; -1 for no limit.",
            rich_help_panel=_LOAD,
        ),
    ] = -1,
    in_flight: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="max.in.flight.requests.per.connection, one run for each, e.g. 1,5,20.",
            show_default=str(plans.DEFAULT_IN_FLIGHT),
            rich_help_panel=_PRODUCER,
        ),
    ] = None,
    producer_props: Annotated[
        list[str] | None,
        typer.Option(
            "--producer-props",
            "--command-property",
            metavar="NAME=VALUE...",
            help="Producer properties by their Java names, several after one flag:"
            " linger.ms=5 batch.size=65536. A value may be env:NAME or file:PATH.",
            rich_help_panel=_PRODUCER,
        ),
    ] = None,
    config_file: Annotated[
        Path | None,
        typer.Option(*_CONFIG_FLAGS, metavar="FILE", help=_CONFIG_HELP, rich_help_panel=_PRODUCER),
    ] = None,
    transactional_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Send in transactions, under this id.",
            show_default="performance-producer- and a UUID, with --transaction-duration-ms",
            rich_help_panel=_PRODUCER,
        ),
    ] = None,
    transaction_duration_ms: Annotated[
        int | None,
        typer.Option(
            metavar="MS",
            help="Commit a transaction when it is that old.",
            show_default=f"{plans.DEFAULT_TRANSACTION_DURATION_MS} with a transactional id",
            rich_help_panel=_PRODUCER,
        ),
    ] = None,
    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT,...",
            help="Servers to use. Without it, an embedded cluster is started.",
            rich_help_panel=_TARGET,
        ),
    ] = None,
    rtt: Annotated[
        float | None,
        typer.Option(
            metavar="MS",
            help="Embedded cluster: round trip of its links.",
            show_default="0",
            rich_help_panel=_TARGET,
        ),
    ] = None,
    retain: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Embedded cluster: producer.state.batches.to.retain, the window it announces.",
            show_default=str(plans.DEFAULT_RETAIN),
            rich_help_panel=_TARGET,
        ),
    ] = None,
    brokers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Embedded cluster: number of brokers.",
            show_default="1",
            rich_help_panel=_TARGET,
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Embedded cluster: partitions of a topic.",
            show_default="1",
            rich_help_panel=_TARGET,
        ),
    ] = None,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            help="Write the results as a list of objects.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html",
            help="Draw the results as a page. Needs plotly, the extra report.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    print_metrics: Annotated[
        bool,
        typer.Option(
            "--print-metrics",
            help="Print the producer's statistics after each run.",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    spark: Annotated[
        bool,
        typer.Option(
            "--spark",
            help="Share the run among tasks on Spark. Needs the extra spark, and Java.",
            rich_help_panel=_SPARK,
        ),
    ] = False,
    master: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Spark's master.",
            show_default="a thread of this machine per task",
            rich_help_panel=_SPARK,
        ),
    ] = None,
    tasks: Annotated[
        int | None,
        typer.Option(metavar="N", help="How many tasks; needed.", rich_help_panel=_SPARK),
    ] = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Keep what became of each record there, as Parquet, for `aioidem audit`.",
            rich_help_panel=_SPARK,
        ),
    ] = None,
) -> None:
    """Measure how fast records are acknowledged.

    Takes the flags of kafka-producer-perf-test. Without --bootstrap-server it starts an embedded
    cluster, whose links can be as long as you like:

    aioidem perf --rtt 150 --retain 20 --in-flight 1,5,20

    Exit status: 0 when every record was acknowledged, 1 when not, 2 on bad usage, 130 on Ctrl-C.
    """
    plan = plans.plan_perf(
        topic=topic,
        num_records=num_records,
        duration=duration,
        record_size=record_size,
        payload_file=payload_file,
        payload_delimiter=payload_delimiter,
        throughput=throughput,
        producer_props=producer_props or (),
        config_file=config_file,
        transactional_id=transactional_id,
        transaction_duration_ms=transaction_duration_ms,
        print_metrics=print_metrics,
        bootstrap_server=bootstrap_server,
        rtt_ms=rtt,
        retain=retain,
        brokers=brokers,
        partitions=partitions,
        in_flight=in_flight,
        json_file=json_file,
        report_file=report,
    )
    _warn("aioidem perf", plan.warnings)
    if spark or (master, tasks, ledger) != (None, None, None):
        raise typer.Exit(
            _perf_on_spark(plan, spark=spark, master=master, tasks=tasks, ledger=ledger)
        )
    # Imported late: bad usage and --help answer before a producer and a broker are loaded.
    from aioidem._load.perf import perf as run_perf

    raise typer.Exit(run_perf(plan))


def _perf_on_spark(
    plan: plans.PerfPlan, *, spark: bool, master: str | None, tasks: int | None, ledger: str | None
) -> int:
    if not spark:
        raise UsageError("--master, --tasks, --ledger: only with --spark")
    if tasks is None:
        raise UsageError("--tasks: needed with --spark")
    if plan.transaction_duration is not None:
        raise UsageError("--spark: tasks with one transactional id would fence one another")
    from aioidem._spark.load import perf_on_spark, plan_spark

    return perf_on_spark(plan_spark(plan, tasks=tasks, ledger=ledger, master=master))


@app.command()
def audit(
    ledger: Annotated[
        str,
        typer.Option(metavar="DIR", help="The folder that `aioidem perf --spark` kept ledgers in."),
    ],
    bootstrap_server: Annotated[
        str, typer.Option(metavar="HOST:PORT,...", help="Servers to read the topic from.")
    ],
    topic: Annotated[str, typer.Option(metavar="NAME", help="The topic to audit.")],
    out: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Where to write records, anomalies and latency as Parquet.",
            show_default="the ledger's name and -audit",
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write what was found.")
    ] = None,
    bucket: Annotated[
        int, typer.Option(metavar="SECONDS", help="Step of time of throughput and latency.")
    ] = 10,
    consumer_props: Annotated[
        list[str] | None,
        typer.Option(
            "--consumer-props",
            "--command-property",
            metavar="NAME=VALUE...",
            help="Consumer properties by their Java names: security.protocol=SSL."
            " A value may be env:NAME or file:PATH.",
        ),
    ] = None,
    config_file: Annotated[
        Path | None, typer.Option(*_CONFIG_FLAGS, metavar="FILE", help=_CONFIG_HELP)
    ] = None,
    master: Annotated[str, typer.Option(metavar="URL", help="Spark's master.")] = "local[*]",
    spark_conf: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE...", help="Spark properties: spark.driver.memory=1g."),
    ] = None,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Audit a load that runs, until Ctrl-C: a line per batch."),
    ] = False,
    every: Annotated[
        int, typer.Option(metavar="SECONDS", help="With --follow: time between batches.")
    ] = 10,
) -> None:
    """Hold ledgers against the topic, on Spark: what is lost, doubled, reordered, torn, and more.

    Needs the extra spark, Java, and Maven Central the first time, for Spark's Kafka source.

    Exit status: 0 when nothing is wrong, 1 when something is, 2 on bad usage.
    """
    from aioidem._cli.audit import audit as run_audit
    from aioidem._cli.audit import plan_audit

    command = plan_audit(
        ledger=ledger,
        bootstrap_server=bootstrap_server,
        topic=topic,
        out=out,
        consumer_props=consumer_props or (),
        config_file=config_file,
        bucket=bucket,
        master=master,
        spark_conf=spark_conf or (),
        json_file=json_file,
        follow=follow,
        every=every,
    )
    _warn("aioidem audit", command.warnings)
    raise typer.Exit(run_audit(command))


@app.command()
def broker(
    brokers: Annotated[int, typer.Option(metavar="N", help="Number of brokers.")] = 1,
    retain: Annotated[
        int,
        typer.Option(
            metavar="N", help="producer.state.batches.to.retain, the window it announces."
        ),
    ] = plans.DEFAULT_RETAIN,
    rtt: Annotated[float, typer.Option(metavar="MS", help="Round trip of its links.")] = 0.0,
    port: Annotated[
        int,
        typer.Option(
            # Its name is said: Typer before 0.28 makes one of a metavar that equals it.
            "--port",
            metavar="PORT",
            help="Port of the first broker, the others follow; 0 for free ones.",
        ),
    ] = 0,
    topic: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[:PARTITIONS]", help="Topic to create; may be repeated."),
    ] = None,
) -> None:
    """Run an embedded cluster until Ctrl-C, for tests and demonstrations.

    Prints its bootstrap address. It keeps its records in memory, a bounded number of them.
    """
    from aioidem._cli.broker import plan_broker, serve

    plan = plan_broker(brokers=brokers, retain=retain, rtt_ms=rtt, port=port, topics=topic or ())
    try:
        status = serve(plan)
    except OSError as error:
        print(f"aioidem broker: {terminal_line(error.strerror or str(error))}", file=sys.stderr)
        raise typer.Exit(1) from error
    raise typer.Exit(status)
