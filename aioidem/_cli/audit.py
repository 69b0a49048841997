"""`aioidem audit`: check its flags, run the audit on Spark, and show the result.

Invariants:

- A mistake in the flags is found before a JVM is started, and reported in one line.
- Exit status: 0 no anomaly, 1 an anomaly or the audit could not be made, 2 bad usage.
- The output on the screen shows the contents of the JSON result; nothing is computed here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

from aioidem._config import validate_topic
from aioidem._load.properties import gather_properties
from aioidem._load.render import write_whole
from aioidem._load.usage import UsageError, one_line, output_file, reason, terminal_line
from aioidem._protocol.foreign_text import printable
from aioidem.errors import RecordError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from aioidem._spark.audit import AuditPlan

__all__ = ["AuditCommand", "audit", "example_lines", "findings_table", "plan_audit"]

MAX_BUCKET = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditCommand:
    """The checked flags of one `aioidem audit`.

    `bucket` is the interval for throughput and latency over time, and `every` the time between
    Spark's micro-batches, both in seconds.
    """

    ledger: str
    bootstrap: str
    topic: str
    out: str
    options: Mapping[str, str] = field(repr=False)  # this and `settings` may contain passwords
    bucket: int
    master: str
    settings: Mapping[str, str] = field(repr=False)
    json_file: Path | None
    follow: bool
    every: int
    warnings: tuple[str, ...] = ()


def plan_audit(
    *,
    ledger: str,
    bootstrap_server: str,
    topic: str,
    out: str | None = None,
    consumer_props: Sequence[str] = (),
    config_file: Path | None = None,
    bucket: int = 10,
    master: str = "local[*]",
    spark_conf: Sequence[str] = (),
    json_file: Path | None = None,
    follow: bool = False,
    every: int = 10,
) -> AuditCommand:
    """Check the flags of `aioidem audit`, and return what they ask for.

    Raises:
        UsageError: a flag is malformed or out of range.
    """
    try:
        validate_topic(topic)
    except RecordError as error:
        raise UsageError(f"--topic: {one_line(error)}") from error
    if not 1 <= bucket <= MAX_BUCKET:
        raise UsageError(f"--bucket: {bucket} is not from 1 to {MAX_BUCKET}")
    if not 1 <= every <= MAX_BUCKET:
        raise UsageError(f"--every: {every} is not from 1 to {MAX_BUCKET}")
    if follow and json_file is not None:
        raise UsageError("--json: not with --follow, which has no end to report")
    remote = "://" in ledger
    if not remote:
        _check_ledger(Path(ledger), follow=follow)
    output_file("--json", json_file)
    properties = gather_properties(consumer_props, config_file, flag="--consumer-props")
    settings = gather_properties(spark_conf, flag="--spark-conf")
    return AuditCommand(
        ledger=ledger if remote else str(Path(ledger).absolute()),
        bootstrap=bootstrap_server,
        topic=topic,
        out=_out(ledger, out),
        options={f"kafka.{name}": value for name, value in properties.values.items()},
        bucket=bucket,
        master=master,
        settings=settings.values,
        json_file=json_file,
        follow=follow,
        every=every,
        warnings=(*properties.warnings, *settings.warnings),
    )


def _check_ledger(folder: Path, *, follow: bool) -> None:
    try:
        if follow:
            folder.mkdir(parents=True, exist_ok=True)  # a load that starts later writes there
        found = folder.is_dir()
    except OSError as error:
        raise UsageError(f"--ledger: {folder}: {reason(error)}") from error
    if not found:
        raise UsageError(f"--ledger: {folder} is not a folder")


def _out(ledger: str, out: str | None) -> str:
    folder = out if out is not None else f"{ledger.rstrip('/')}-audit"
    return folder if "://" in folder else str(Path(folder).absolute())


def audit(command: AuditCommand) -> int:
    """Run the audit, show its result and write the JSON.

    Returns:
        The exit status.
    """
    # Imported here, because py4j and pyspark are installed only with the extra spark.
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from aioidem._spark.audit import AuditPlan
    from aioidem._spark.session import SparkUnavailableError, job_failure, open_session

    plan = AuditPlan(
        ledger=command.ledger,
        bootstrap=command.bootstrap,
        topic=command.topic,
        out=command.out,
        options=command.options,
        bucket=command.bucket,
    )
    try:
        with open_session(
            "aioidem audit", master=command.master, kafka=True, settings=command.settings
        ) as spark:
            if command.follow:
                return _follow(spark, plan, command.every)
            return _audit_once(spark, plan, command)
    except SparkUnavailableError as error:
        return _refuse(one_line(error))
    except (PySparkException, Py4JError) as error:
        return _refuse(job_failure(error))
    except OSError as error:
        return _refuse(str(error))


def _refuse(message: str) -> int:
    console = Console(stderr=True, highlight=False)
    console.print(f"aioidem audit: {terminal_line(message)}", markup=False, soft_wrap=True)
    return 1


def _audit_once(spark: SparkSession, plan: AuditPlan, command: AuditCommand) -> int:
    from aioidem._spark.audit import audit as audit_on_spark

    found = audit_on_spark(spark, plan)
    # The file comes first: whoever reads the output may be gone after so long.
    if command.json_file is not None:
        write_whole(command.json_file, json.dumps(found, indent=2, allow_nan=False) + "\n")
    console = Console(highlight=False)
    console.print(findings_table(found))
    for line in example_lines(found):
        console.print(line, markup=False, soft_wrap=True)
    console.print(f"written to {command.out}", markup=False, soft_wrap=True)
    return 1 if any(found["anomalies"].values()) else 0


def _follow(spark: SparkSession, plan: AuditPlan, every: int) -> int:
    """Print a line for each micro-batch until Ctrl-C or the query's end; return the exit status."""
    from aioidem._spark.follow import FollowPlan, follow

    console = Console(highlight=False)
    wrong = 0

    def show(told: Mapping[str, Any]) -> None:
        nonlocal wrong
        wrong += sum(told["anomalies"].values())
        line = f"batch {told['batch']}: {told['records']} records judged, {told['acked']} acked"
        named = [f"{count} {name}" for name, count in told["anomalies"].items() if count]
        console.print(f"{line}; {', '.join(named) or 'nothing wrong'}", soft_wrap=True)

    query = follow(spark, FollowPlan(audit=plan, every=every), show)
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
    return 1 if wrong else 0


def example_lines(found: Mapping[str, Any]) -> list[str]:
    """Return a line for each kind of anomaly, with its examples in ``found``.

    The examples contain the producers' names, which are read from records and may be any text.
    """
    return [
        f"{finding}: {'; '.join(map(printable, examples))}"
        for finding, examples in found["examples"].items()
    ]


def findings_table(found: Mapping[str, Any]) -> Table:
    """Return a table of an audit's result: the totals, and the count of each kind of anomaly.

    The totals are the integers in ``found``.
    """
    table = Table(box=box.ASCII, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    sums = [(name, value) for name, value in found.items() if isinstance(value, int)]
    for name, value in [*sums, *found["anomalies"].items()]:
        table.add_row(name.replace("_", " "), str(value))
    return table
