"""Compare the sink in both modes with Spark's own sink, on one real broker, by number of tasks.

    python benchmarks/spark_sink.py --rows 64000 --tasks 2,8,32

Each row of the table is one batch write with all of its tasks at once, after a first write that
starts Python's workers. Requests to coordinators, and connections, are counted at the broker's
proxy.

Invariants: every wait is bounded. The exit status is 0 if the topic has every row of each write
once.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from collections import Counter

from anyio.from_thread import BlockingPortal, start_blocking_portal
from pyspark.sql import SparkSession

import aioidem.spark
from aioidem._protocol.versions import ApiKey
from aioidem._spark.session import open_session
from aioidem.testing import Action, FrameSeen, KafkaCluster

_OFFSET_FETCH = 9
_COORDINATORS = {
    ApiKey.FIND_COORDINATOR,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.ADD_PARTITIONS_TO_TXN,
    ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.END_TXN,
    ApiKey.TXN_OFFSET_COMMIT,
    _OFFSET_FETCH,
}
_SINKS = ("at-least-once", "exactly-once", "Spark's own")


class Watch:
    """A proxy hook that counts the requests to coordinators, and the connections."""

    def __init__(self) -> None:
        self.calls = 0
        self.connections: set[int] = set()

    def __call__(self, seen: FrameSeen) -> Action | None:
        """Count a request and its connection."""
        self.calls += seen.api_key in _COORDINATORS
        self.connections.add(seen.connection)
        return None


def write(spark: SparkSession, servers: str, topic: str, sink: str, rows: int, tasks: int) -> float:
    """Write all rows in one batch write, and return the seconds that it took."""
    frame = spark.range(0, rows, 1, tasks).selectExpr(
        "cast(id AS string) AS key", "repeat('x', 100) AS value"
    )
    own = sink == _SINKS[2]
    writer = frame.write.format("kafka" if own else "aioidem").mode("append")
    writer = writer.option("kafka.bootstrap.servers", servers).option("topic", topic)
    if sink == "exactly-once":
        writer = writer.option("identity", secrets.token_hex(4)).option("adaptive", "allow")
    began = time.monotonic()
    writer.save()
    return time.monotonic() - began


def written(spark: SparkSession, servers: str, topic: str) -> Counter[str]:
    """Return each row of the topic with the number of its copies."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", servers)
    reader = reader.option("kafka.isolation.level", "read_committed").option("subscribe", topic)
    keys = reader.load().selectExpr("cast(key AS string) AS key")
    return Counter({row.key: row["count"] for row in keys.groupBy("key").count().collect()})


def compare(
    portal: BlockingPortal, kafka: KafkaCluster, tasks: int, options: argparse.Namespace
) -> bool:
    """Run all sinks with this many tasks; return whether every row is in the topic once."""
    fine = True
    with open_session("sinks", master=f"local[{tasks}]", kafka=True) as spark:
        aioidem.spark.register(spark)
        for sink in _SINKS:
            topics = [f"t{secrets.token_hex(4)}" for _ in range(2)]
            for topic in topics:
                portal.call(kafka.create_topic, topic, 8)
            write(spark, kafka.bootstrap_servers, topics[0], sink, tasks * 10, tasks)
            watch = Watch()
            kafka.proxy.on_request = watch
            took = write(spark, kafka.bootstrap_servers, topics[1], sink, options.rows, tasks)
            kafka.proxy.on_request = None
            counts = written(spark, kafka.bootstrap_servers, topics[1])
            right = len(counts) == counts.total() == options.rows
            fine &= right
            print(
                f"| {tasks} | {sink} | {took:.2f} | {options.rows / took:,.0f} | {watch.calls} |"
                f" {len(watch.connections)} | {'yes' if right else 'no'} |"
            )
            sys.stdout.flush()
    return fine


def main() -> int:
    """Compare the sinks with each number of tasks, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, default=64_000)
    parser.add_argument("--tasks", default="2,8,32", metavar="N,N,...")
    options = parser.parse_args()
    print("| tasks | sink | s | rows/s | calls to coordinators | connections | each row once |")
    print("|---|---|---|---|---|---|---|")
    fine = True
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(KafkaCluster()) as kafka,
    ):
        for tasks in map(int, options.tasks.split(",")):
            fine &= compare(portal, kafka, tasks, options)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
