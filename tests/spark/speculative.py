"""Run a job with two attempts at one task at once: an exactly-once batch write with speculation.

    python tests/spark/speculative.py MASTER SERVERS TOPIC IDENTITY FOLDER

In the first attempt at task 0, a row in the middle waits until the test creates `go` in FOLDER.
Spark takes the task for slow and starts a second attempt on another host. Each attempt writes its
number into FOLDER when it reaches that row.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StringType

from aioidem._spark.session import open_session
from aioidem.spark import register

ROWS, TASKS = 8000, 4
# The row in the middle of task 0, at which attempt 0 waits.
MIDDLE = ROWS // TASKS // 2
PATIENCE = 60.0
SETTINGS = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.adaptive.enabled": "false",
    # Each task gets a Python process of its own: the process in which attempt 0 waits is not
    # reused.
    "spark.python.worker.reuse": "false",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
}


def main(master: str, servers: str, topic: str, identity: str, folder: str) -> None:
    """Write the rows; the first attempt at task 0 waits at row MIDDLE for the file `go`."""

    def slow(value: str) -> str:
        context = TaskContext.get()
        if int(value) == MIDDLE and context is not None:
            attempt = context.attemptNumber()
            Path(folder, f"attempt-{attempt}").touch()
            until = time.monotonic() + PATIENCE
            while not attempt and not Path(folder, "go").exists():
                if time.monotonic() > until:
                    raise TimeoutError("nobody lets the first attempt go on")
                time.sleep(0.05)
        return value

    with open_session("speculation", master=master, settings=SETTINGS) as spark:
        register(spark)
        rows = spark.range(0, ROWS, 1, TASKS).selectExpr("cast(id AS string) value")
        writer = rows.select(
            F.udf(slow, StringType(), useArrow=False)("value").alias("value")
        ).write
        writer = writer.format("aioidem").mode("append").option("topic", topic)
        writer = writer.option("kafka.bootstrap.servers", servers)
        writer.option("identity", identity).option("speculation", "allow").save()


if __name__ == "__main__":
    main(*sys.argv[1:])
