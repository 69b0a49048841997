"""The functions that Typer calls for the commands; `flags` has the flags of the commands.

Invariants:

- A command passes its flags to a function that checks them and returns a plan, then runs the plan.
  A flag that may contradict another one is None if it was not given; its default is filled in
  after the check for contradictions.
- Every mistake of a user is reported here as one line on standard error, with status 2.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
import typer.main

from aioidem import build_info
from aioidem._cli import flags
from aioidem._load import plan as plans
from aioidem._load.properties import (
    refuse_misplaced_secrets,
    spread_values,
    without_secrets,
    without_values,
)
from aioidem._load.spool import output_failed
from aioidem._load.usage import UsageError, one_line, terminal_line
from aioidem.errors import InternalError

__all__ = ["aioidem", "app", "audit", "broker", "doctor", "perf", "replay", "resolve", "run"]

app = typer.Typer(
    name="aioidem",
    help="An idempotent Kafka producer that keeps long links full: load test and test broker.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
)


def run(argv: list[str]) -> int:
    """Parse the command line and run the command; see `aioidem._cli.main`."""
    command = typer.main.get_command(app)
    name = "aioidem"
    if argv and not argv[0].startswith("-"):
        name = f"aioidem {argv[0]}"
    try:
        words = spread_values(argv)
        refuse_misplaced_secrets(words)
        status = command.main(words, prog_name="aioidem", standalone_mode=False)
    except typer.TyperException as error:
        # The message may quote a password that was given with the wrong flag: remove the values.
        return _refuse(name, without_values(error.format_message(), argv), error.exit_code)
    except UsageError as error:
        return _refuse(name, without_secrets(str(error), argv), 2)
    except typer.Abort:
        return 130
    except OSError as error:
        # The disk is full to which the output goes, nobody reads it, or a file cannot be used as it
        # was to be.
        return output_failed(name, error)
    return status if isinstance(status, int) else 0


def _refuse(name: str, message: str, status: int) -> int:
    line = terminal_line(message)
    # Without any arguments Typer has printed the help, and the message is empty.
    if line:
        print(f"{name}: {line}", file=sys.stderr)
    return status


def _warn(name: str, lines: tuple[str, ...]) -> None:
    for line in lines:
        print(f"{name}: warning: {terminal_line(line)}", file=sys.stderr)


def _version(wanted: bool) -> None:
    if wanted:
        print(build_info())
        raise typer.Exit


@app.callback()
def aioidem(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print and exit.")
    ] = False,
) -> None:
    """Load-test an idempotent Kafka producer, examine a cluster, or run a broker for tests."""


@app.command()
def perf(
    *,
    topic: flags.PerfTopic = None,
    num_records: flags.NumRecords = None,
    duration: flags.Duration = None,
    record_size: flags.RecordSize = None,
    payload_file: flags.PayloadFile = None,
    payload_delimiter: flags.PayloadDelimiter = None,
    payload_monotonic: flags.PayloadMonotonic = False,
    warmup_records: flags.WarmupRecords = None,
    throughput: flags.Throughput = -1,
    in_flight: flags.InFlight = None,
    producer_props: flags.ProducerProps = None,
    config_file: flags.ProducerConfigFile = None,
    transactional_id: flags.TransactionalId = None,
    transaction_duration_ms: flags.TransactionDuration = None,
    bootstrap_server: flags.PerfServers = None,
    rtt: flags.PerfRtt = None,
    retain: flags.PerfRetain = None,
    brokers: flags.PerfBrokers = None,
    partitions: flags.PerfPartitions = None,
    json_file: flags.PerfJson = None,
    report: flags.Report = None,
    print_metrics: flags.PrintMetrics = False,
    reporting_interval: flags.ReportingInterval = None,
    spark: flags.OnSpark = False,
    master: flags.PerfMaster = None,
    tasks: flags.Tasks = None,
    ledger: flags.PerfLedger = None,
) -> None:
    """Measure how fast records are acknowledged.

    Takes the flags of kafka-producer-perf-test. Without --bootstrap-server it starts an embedded
    cluster, whose links have the round trip you choose:

    aioidem perf --rtt 150 --retain 20 --in-flight 1,5,20

    Exit status: 0 if every record was acknowledged, 1 if not, 2 on bad usage, 130 on Ctrl-C.
    """
    plan = plans.plan_perf(
        topic=topic,
        num_records=num_records,
        duration=duration,
        record_size=record_size,
        payload_file=payload_file,
        payload_delimiter=payload_delimiter,
        payload_monotonic=payload_monotonic,
        warmup_records=warmup_records,
        throughput=throughput,
        producer_props=producer_props or (),
        config_file=config_file,
        transactional_id=transactional_id,
        transaction_duration_ms=transaction_duration_ms,
        print_metrics=print_metrics,
        reporting_interval_ms=reporting_interval,
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
            _perf_on_spark(
                plan, payload_file, spark=spark, master=master, tasks=tasks, ledger=ledger
            )
        )
    # Imported here, so that --help and bad usage need not wait for the producer to be imported.
    from aioidem._load.perf import perf as run_perf

    raise typer.Exit(run_perf(plan))


def _perf_on_spark(
    plan: plans.PerfPlan,
    payload_file: Path | None,
    *,
    spark: bool,
    master: str | None,
    tasks: int | None,
    ledger: str | None,
) -> int:
    if not spark:
        raise UsageError("--master, --tasks, --ledger: only with --spark")
    if tasks is None:
        raise UsageError("--tasks: needed with --spark")
    if ledger is not None and payload_file is not None:
        raise UsageError("--payload-file: not with --ledger, whose values name their records")
    if plan.transaction_duration is not None:
        raise UsageError(
            "--spark: not with transactions: tasks with one transactional id fence each other"
        )
    if plan.warmup_records or plan.reporting_interval is not None or plan.monotonic:
        raise UsageError(
            "--spark: not with --warmup-records, --reporting-interval or --payload-monotonic: each"
            " task is a run of its own"
        )
    from aioidem._spark.load import perf_on_spark, plan_spark

    return perf_on_spark(plan_spark(plan, tasks=tasks, ledger=ledger, master=master))


@app.command()
def audit(
    *,
    ledger: flags.AuditLedger,
    bootstrap_server: flags.AuditServers,
    topic: flags.AuditTopic,
    out: flags.AuditOut = None,
    json_file: flags.AuditJson = None,
    bucket: flags.Bucket = 10,
    consumer_props: flags.ConsumerProps = None,
    config_file: flags.ConsumerConfigFile = None,
    master: flags.AuditMaster = "local[*]",
    spark_conf: flags.SparkConf = None,
    follow: flags.Follow = False,
    every: flags.Every = 10,
) -> None:
    """Compare ledgers with the topic, on Spark: find lost, duplicate, reordered records and more.

    Needs the extra spark, Java, and Maven Central the first time, for Spark's Kafka source.

    Exit status: 0 without an anomaly, 1 with one, 2 on bad usage.
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
def replay(
    *,
    file: flags.FlightFile,
    partition: flags.ReplayPartition = None,
    html: flags.ReplayHtml = None,
    to_test: flags.ToTest = None,
    incidents: flags.ReplayIncidents = None,
    full: flags.Full = False,
) -> None:
    """Replay a flight record in the engine, and show what happened to each partition.

    Exit status: 0 if the engine decides what was recorded and breaks no rule, 1 if not, 2 on bad
    usage or a damaged file.
    """
    from aioidem._cli.replay import replay as run_replay

    raise typer.Exit(
        run_replay(
            file, partition=partition, html=html, to_test=to_test, incidents=incidents, full=full
        )
    )


@app.command()
def resolve(
    *,
    incident: flags.IncidentFile,
    bootstrap_server: flags.ResolveServers,
    timeout: flags.ResolveTimeout = 30.0,
    wait: flags.ResolveWait = False,
    consumer_props: flags.ConsumerProps = None,
    config_file: flags.ConsumerConfigFile = None,
    json_file: flags.ResolveJson = None,
) -> None:
    """Look in the log for records that ended UNKNOWN: WRITTEN, ABSENT or UNDECIDED.

    FILE has what `error.incident.to_json()` returns, one object for each incident. Reads only;
    needs the ACL READ on the topics.

    Exit status: 0 if each incident is decided, 1 if not, 2 on bad usage, 130 on Ctrl-C.
    """
    from aioidem._cli.resolve import plan_resolve
    from aioidem._cli.resolve import resolve as run_resolve

    command = plan_resolve(
        incident=incident,
        bootstrap_server=bootstrap_server,
        timeout=timeout,
        wait=wait,
        consumer_props=consumer_props or (),
        config_file=config_file,
        json_file=json_file,
    )
    _warn("aioidem resolve", command.warnings)
    raise typer.Exit(run_resolve(command))


@app.command()
def broker(
    *,
    brokers: flags.Brokers = 1,
    retain: flags.Retain = plans.DEFAULT_RETAIN,
    rtt: flags.Rtt = 0.0,
    port: flags.Port = 0,
    topic: flags.Topics = None,
) -> None:
    """Run an embedded cluster until Ctrl-C, for tests and demonstrations.

    Prints its bootstrap address. It keeps a bounded number of records, in memory.
    """
    from aioidem._cli.broker import plan_broker, serve

    plan = plan_broker(brokers=brokers, retain=retain, rtt_ms=rtt, port=port, topics=topic or ())
    try:
        status = serve(plan)
    except OSError as error:
        raise typer.Exit(_refuse("aioidem broker", error.strerror or str(error), 1)) from error
    except InternalError as error:
        raise typer.Exit(_refuse("aioidem broker", one_line(error), 1)) from error
    raise typer.Exit(status)


@app.command()
def doctor(
    *,
    bootstrap_server: flags.DoctorServers,
    topic: flags.DoctorTopics = None,
    producer_props: flags.ProducerProps = None,
    config_file: flags.ProducerConfigFile = None,
    rate: flags.DoctorRate = None,
    record_size: flags.DoctorRecordSize = None,
    write_to: flags.WriteTo = None,
    timeout: flags.DoctorTimeout = 30.0,
    json: flags.DoctorJson = False,
) -> None:
    """Connect as a producer with these options would, and say what is wrong and what to do.

    Writes nothing, unless --write-to names a topic; needs no more rights than a producer has.

    Exit status: 0 with nothing worse than a note, 1 with a warning or an error, 2 on bad usage.
    """
    from aioidem._cli.doctor import doctor as run_doctor
    from aioidem._cli.doctor import plan_doctor

    plan = plan_doctor(
        bootstrap_server=bootstrap_server,
        topics=topic or (),
        producer_props=producer_props or (),
        config_file=config_file,
        rate=rate,
        record_size=record_size,
        write_to=write_to,
        timeout=timeout,
        json=json,
    )
    _warn("aioidem doctor", plan.warnings)
    raise typer.Exit(run_doctor(plan))
