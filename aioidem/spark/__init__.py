"""aioidem on Spark: a sink, a load generator with many tasks, and an audit of their records.

- `register(spark)` adds the data source `aioidem`, for `df.write.format("aioidem")` and
  `df.writeStream`, and `aioidem-topic`, which reads a topic.
- `end_open_transactions(spark, checkpoint, options)` is for use before a killed query is started
  again.
- The commands `aioidem perf --spark` and `aioidem audit` use the load generator and the audit. The
  tasks of the load generator write ledgers of the records that they sent and of the outcomes; the
  audit compares the ledgers with the topic.

Invariants:

- Importing this package needs no extra. pyspark and pyarrow belong to the extra `spark`; a function
  that needs them says so in one line if they are missing.
- Executors import aioidem by name, so it must be installed wherever Spark's Python workers run.

Rejected: a separate distribution (users would have to pin two versions); `foreachPartition` with a
producer inside, which is often written by hand (it has no hook for a commit, and the flush is
easily forgotten).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["end_open_transactions", "register"]


def register(spark: SparkSession) -> None:
    """Add the data sources `aioidem` and `aioidem-topic` to a session.

    `aioidem` is the sink. `aioidem-topic` reads a topic from its beginning, for audits; it needs no
    jars, and its options are a few of those of Spark's Kafka source.

    It also adds `kafka.ssl.keystore.key` and `kafka.sasl.jaas.config` to the options whose values
    the session hides in plans, the event log and the UI (`spark.sql.redaction.options.regex`).

    If Spark's workers on this machine run another Python than this one, one line is logged.

    Args:
        spark: the session in which `format("aioidem")` can be used afterwards.

    Raises:
        SparkUnavailableError: the extra `spark` is not installed.
    """
    from aioidem._spark.session import require_extra

    require_extra()
    from aioidem._spark.redaction import hide_credentials
    from aioidem._spark.session import tell_other_python
    from aioidem._spark.sink import AioidemDataSource
    from aioidem._spark.topic_source import TopicDataSource

    tell_other_python(spark)
    hide_credentials(spark)
    spark.dataSource.register(AioidemDataSource)
    spark.dataSource.register(TopicDataSource)


def end_open_transactions(
    spark: SparkSession, checkpoint: str, options: Mapping[str, str]
) -> tuple[str, ...]:
    """End the transactions that a killed query left open; call this before you start it again.

    Readers of committed data would otherwise wait until the transactions time out. The call blocks.

    Args:
        spark: a session that can read the checkpoint.
        checkpoint: the query's `checkpointLocation`.
        options: the options of the query's sink. Values `env:NAME` and `file:PATH` are looked up on
            the driver, which connects to the cluster.

    Returns:
        The transactional ids whose transactions were open; none if the query never ran.

    Raises:
        SparkUnavailableError: the extra `spark` is not installed.
        ConfigError: an option is illegal, the mode is not exactly-once, or the folder contains
            something that is not a checkpoint.
        KafkaTimeoutError: not every broker answered within a minute.
        IncompatibleBrokerVersion: a broker is older than Kafka 3.0, which added ListTransactions.
        TransactionalIdAuthorizationFailed: a transactional id may not be used. Ids that may not be
            described are not found at all.
        KafkaError: the cluster cannot be reached.
    """
    from aioidem._spark.session import require_extra

    require_extra()
    from aioidem._spark import open_transactions

    return open_transactions.end_open_transactions(spark, checkpoint, options)
