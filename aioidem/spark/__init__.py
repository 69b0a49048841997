"""aioidem on Spark: a sink, a load generator of many tasks, and an audit of what came of it.

* `register(spark)` makes the data source `aioidem` known: `df.write.format("aioidem")`, and
  `writeStream` likewise (`sink`, `writing`).
* `end_open_transactions(spark, checkpoint, options)`, before a killed query is started again.
* `load` spreads `aioidem perf` over tasks that keep ledgers (`ledger`); `audit` holds ledgers
  against the topic, `follow` does so while a load still runs.

Invariants:

* Importing this package needs nothing: pyspark and pyarrow belong to the extra `spark`, and what
  needs them says so in one line.
* Executors import aioidem by name: it is installed wherever a Python worker of Spark's runs.

Rejected: a distribution of its own (one version to pin instead of two), and `foreachPartition` with
a producer inside, which people write by hand (it has no hook for a commit, and forgets to flush).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["end_open_transactions", "register"]


def register(spark: SparkSession) -> None:
    """Make the data source `aioidem` known to a session.

    Adds `kafka.ssl.keystore.key` and `kafka.sasl.jaas.config` to the options whose values the
    session hides in plans, the event log and the UI (`spark.sql.redaction.options.regex`).

    Args:
        spark: the session whose `write.format("aioidem")` and `writeStream` are to know it.

    Raises:
        SparkUnavailableError: the extra `spark` is not installed.
    """
    from aioidem._spark.session import require_extra

    require_extra()
    from aioidem._spark.redaction import hide_credentials
    from aioidem._spark.sink import AioidemDataSource

    hide_credentials(spark)
    spark.dataSource.register(AioidemDataSource)


def end_open_transactions(
    spark: SparkSession, checkpoint: str, options: Mapping[str, str]
) -> tuple[str, ...]:
    """End what a killed query left open, so that readers of committed data need not wait for it;
    for before the query is started again. Blocks.

    Args:
        spark: reads the checkpoint, wherever it is.
        checkpoint: the query's `checkpointLocation`.
        options: those of the query's sink. What they name (`env:NAME`, `file:PATH`) is looked up
            here, on the driver, which connects by itself.

    Returns:
        The transactional ids whose transactions were open; none if the query never ran.

    Raises:
        SparkUnavailableError: the extra `spark` is not installed.
        ConfigError: an option is illegal, the mode is not exactly-once, or there is something else
            than a checkpoint.
        KafkaTimeoutError: not every broker has answered in a minute.
        IncompatibleBrokerVersion: brokers tell since Kafka 3.0.
        TransactionalIdAuthorizationFailed: one may not be fenced. Ids that may not be described
            are not seen at all.
        KafkaError: the cluster cannot be reached.
    """
    from aioidem._spark.session import require_extra

    require_extra()
    from aioidem._spark import open_transactions

    return open_transactions.end_open_transactions(spark, checkpoint, options)
