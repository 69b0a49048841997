"""Write a folder of Parquet files to a topic with a Spark batch job, one record per row.

    spark-submit examples/spark_batch.py INPUT localhost:9092 orders
    python examples/spark_batch.py INPUT localhost:9092 orders

Each row becomes JSON, with its column `id` as key. A task writes with aioidem's producer, and
succeeds when every one of its records is acknowledged. A task that fails is repeated and writes its
rows again, so this job is at-least-once.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

import aioidem.spark


def main(source: str, servers: str, topic: str) -> None:
    """Copy the folder `source` to `topic`."""
    spark = SparkSession.builder.appName("orders to Kafka").getOrCreate()
    aioidem.spark.register(spark)
    orders = spark.read.parquet(source)
    records = orders.select(
        F.col("id").cast("string").alias("key"),
        F.to_json(F.struct("*")).alias("value"),
    )
    (
        records.write.format("aioidem")
        .mode("append")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.compression.type", "zstd")
        .option("topic", topic)
        .save()
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
