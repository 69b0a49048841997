"""Write the events of a folder to a topic with a structured streaming job, for as long as it runs.

    spark-submit examples/spark_streaming.py INPUT CHECKPOINT localhost:9092 events

Files with JSON lines that appear in INPUT are written record by record; the checkpoint remembers
which files were written.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import aioidem.spark

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

SCHEMA = "user string, action string, at timestamp"


def start(
    source: str, checkpoint: str, servers: str, topic: str, *, once: bool = False
) -> StreamingQuery:
    """Start the query; with `once` it ends when all existing files are written."""
    # A batch that is repeated must be divided into the same tasks: adaptive execution would change
    # them (Spark before 4.2 turns it off in streams itself), and so would another number of cores.
    builder = SparkSession.builder.config("spark.sql.adaptive.enabled", "false")
    spark = builder.appName("events to Kafka").getOrCreate()
    aioidem.spark.register(spark)
    events = spark.readStream.schema(SCHEMA).json(source)
    header = F.struct(F.lit("job").alias("key"), F.lit(b"events").alias("value"))
    records = events.select(
        F.col("user").alias("key"),
        F.to_json(F.struct("user", "action", "at")).alias("value"),
        F.array(header).alias("headers"),
        F.col("at").alias("timestamp"),
    )
    writer = (
        records.writeStream.format("aioidem")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", topic)
        .option("checkpointLocation", checkpoint)
    )
    return (writer.trigger(availableNow=True) if once else writer).start()


if __name__ == "__main__":
    start(*sys.argv[1:]).awaitTermination()
