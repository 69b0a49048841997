"""`aioidem perf --spark`: run the load loop in many Spark tasks at once, with one common result.

Each task is a process with its own producer, in which `aioidem._load.perf` runs and measures the
task's share of the load. The outcomes of its records are written to a ledger (`ledger.py`). Each
task sends its counts, a few kilobytes, to the driver, which adds counters, timelines and histograms
of all tasks.

Invariants:

- The number of records and the throughput are those of the whole run; each task gets its share.
- When Spark repeats a task, the new attempt's producer has another name. So an audit does not take
  its records for duplicates of the first attempt's.
- Times are seconds since the epoch, read once per task and then advanced by a monotonic clock.
  Across machines they are as accurate as the machines' clocks.

Rejected: Spark's barrier mode, which starts all tasks at once or none. A cluster with fewer slots
would refuse the run; here some tasks start later, and the timeline shows it.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from aioidem import __version__
from aioidem._load.load import Clock
from aioidem._load.measure import RunLabel, RunResult, Tally
from aioidem._load.perf import (
    Interrupt,
    PerfOutcome,
    Target,
    loop_options,
    run_tallied,
    write_files,
)
from aioidem._load.plan import PerfPlan
from aioidem._load.render import failures
from aioidem._load.screen import PlainScreen, Screen, choose_screen
from aioidem._load.usage import UsageError, one_line
from aioidem._spark.ledger import Ledger, NumberedRecords, smallest_value
from aioidem._spark.session import SparkUnavailableError, job_failure, open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "MAX_TASKS",
    "SparkLoad",
    "merge",
    "perf_on_spark",
    "plan_spark",
    "run_load_on_spark",
    "share",
]

MAX_TASKS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkLoad:
    """The checked flags of one `aioidem perf --spark`.

    Attributes:
        plan: the load as a whole.
        tasks: the number of tasks that share it.
        ledger: the folder for the ledgers, under a name that is valid in every task; None: write no
            ledgers.
        master: Spark's master URL; None: a local master with as many threads as tasks.
        run: the prefix of the producers' names.
    """

    plan: PerfPlan
    tasks: int
    ledger: str | None
    master: str | None
    run: str

    def producer_name(self, in_flight: int, task: int, attempt: int) -> str:
        """Return a name for a task's producer that is unique among the ledgers in the folder."""
        return f"{self.run}-{in_flight}-{task:05}.{attempt}"


def plan_spark(
    plan: PerfPlan, *, tasks: int, ledger: Path | str | None, master: str | None
) -> SparkLoad:
    """Check the flags that only a run on Spark has.

    Raises:
        UsageError: a flag is out of range, or the plan cannot be divided among tasks.
    """
    if plan.bootstrap is None:
        raise UsageError("--spark: needs --bootstrap-server: its tasks are processes of their own")
    if not 1 <= tasks <= MAX_TASKS:
        raise UsageError(f"--tasks: {tasks} is not from 1 to {MAX_TASKS}")
    if plan.num_records is not None and plan.num_records < tasks:
        raise UsageError(f"--num-records: {plan.num_records} are too few for {tasks} tasks")
    if ledger is not None and len({*plan.in_flight}) < len(plan.in_flight):
        raise UsageError("--in-flight: a number is given twice, and the ledgers would be the same")
    where = None if ledger is None else _absolute(str(ledger))
    load = SparkLoad(
        # A mapping proxy cannot be pickled.
        plan=replace(plan, properties=dict(plan.properties)),
        tasks=tasks,
        ledger=where,
        master=master,
        run=secrets.token_hex(4),
    )
    needed = smallest_value(load.producer_name(max(plan.in_flight), MAX_TASKS, 99), plan.topic)
    if ledger is not None and plan.record_size < needed:
        raise UsageError(
            f"--record-size: {plan.record_size} is less than the {needed} bytes that a value needs"
            " for its own identity"
        )
    return load


def _absolute(folder: str) -> str:
    return folder if "://" in folder else str(Path(folder).absolute())


def perf_on_spark(load: SparkLoad) -> int:
    """Run the load, show its results and write its files.

    Returns:
        The exit status of `aioidem perf`.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    with choose_screen() as screen:
        try:
            with open_session(
                "aioidem perf", master=load.master or f"local[{load.tasks}]"
            ) as spark:
                results = run_load_on_spark(spark, load, screen)
        except SparkUnavailableError as error:
            screen.trouble(f"aioidem perf: {one_line(error)}")
            return 1
        except (PySparkException, Py4JError) as error:
            screen.trouble(f"aioidem perf: {job_failure(error)}")
            return 1
        screen.table(results)
        written = write_files(load.plan, results, screen)
    status = PerfOutcome(tuple(results)).exit_status
    return status if written else status or 1


def run_load_on_spark(spark: SparkSession, load: SparkLoad, screen: Screen) -> list[RunResult]:
    """Make one run, in which all tasks take part, for each number in the plan's `in_flight`."""
    results = []
    for in_flight in load.plan.in_flight:
        name = f"{in_flight} in flight, {load.tasks} tasks"
        screen.begin(name, None)
        numbers = spark.sparkContext.parallelize(range(load.tasks), load.tasks)
        told = numbers.map(partial(_run_task, load, in_flight)).collect()
        result = merge(load, in_flight, told)
        screen.end(name, result)
        for line in failures(name, result):
            screen.trouble(f"aioidem perf: {line}")
        results.append(result)
    return results


def merge(load: SparkLoad, in_flight: int, told: list[dict[str, Any]]) -> RunResult:
    """Merge the counts of all tasks into the result of the run."""
    label = RunLabel(
        client="aioidem",
        version=__version__,
        in_flight=in_flight,
        record_size=load.plan.record_size,
    )
    return Tally.merged(part["tally"] for part in told).result(
        label,
        window=_highest(part["window"] for part in told),
        rtt_ms=_highest(part["rtt_ms"] for part in told),
        max_span=_highest(part["max_span"] for part in told),
    )


def _highest(values: Iterable[Any]) -> Any:
    return max((value for value in values if value is not None), default=None)


def _run_task(load: SparkLoad, in_flight: int, task: int) -> dict[str, Any]:
    """Run a task's share of the load, and return its counts; called in the task."""
    from pyspark import TaskContext

    context = TaskContext.get()
    attempt = 0 if context is None else context.attemptNumber()
    name = load.producer_name(in_flight, task, attempt)
    tally, result = anyio.run(
        _task, share(load, task), load.ledger, name, in_flight, backend_options=loop_options()
    )
    return {
        "tally": tally.state(),
        "window": result.window,
        "rtt_ms": result.rtt_ms,
        "max_span": result.max_span,
    }


def share(load: SparkLoad, task: int) -> PerfPlan:
    """Return a task's share of the plan; the shares add up to exactly the plan's records."""
    plan = load.plan
    count = plan.num_records
    if count is not None:
        count = count // load.tasks + (task < count % load.tasks)
    rate = plan.throughput if plan.throughput == math.inf else plan.throughput / load.tasks
    return replace(plan, num_records=count, throughput=rate, print_metrics=False)


async def _task(
    plan: PerfPlan, folder: str | None, name: str, in_flight: int
) -> tuple[Tally, RunResult]:
    clock = _wall_clock()
    target = Target(plan.bootstrap or "", (plan.topic,))
    ledger = Ledger(folder, name, plan.topic, in_flight) if folder is not None else None
    journal = NumberedRecords(ledger, plan.record_size) if ledger is not None else None

    async def run() -> tuple[Tally, RunResult]:
        return await run_tallied(
            plan,
            target,
            plan.topic,
            in_flight,
            _quiet_screen(),
            Interrupt(),
            clock=clock,
            journal=journal,
        )

    return await run() if ledger is None else await ledger.kept_while(run)


def _wall_clock() -> Clock:
    started = time.time() - time.perf_counter()
    return lambda: started + time.perf_counter()


def _quiet_screen() -> Screen:
    """Return a screen for a task: it shows only errors, which go to the executor's log."""
    from rich.console import Console

    quiet = PlainScreen(Console(quiet=True), Console(stderr=True, highlight=False))
    quiet.interval = 86_400.0
    return quiet
