"""End the transactions that a killed query left open, before it is started again.

Readers of committed data wait at an open transaction. The task that left it open ends it when it
runs again. But a restarted query may run that task late, or never if it needs fewer tasks; then
readers wait until the transaction times out. With Spark's Python API the driver knows neither how
many tasks the last batch had nor that a query is restarted. So users call `end_open_transactions`
before `start()`. The function asks all brokers (ListTransactions, KIP-664) for open transactions
under the query's prefix, and fences the producer of each.

Invariants:

- Only open transactions of that query are affected; nothing is committed or written.
- The function may be called at any time: an attempt that still runs is fenced, and Spark repeats
  it.
- `_ASK_SECONDS` bounds the time for the requests that find the transactions. The producer's option
  `max.block.ms` bounds the time for ending one transaction.

Rejected: fencing when each batch is planned (it needs a connection to every broker per batch, for
something that happens once per restart); storing the number of tasks in the marker (`marker.py`),
because tasks do not know this number.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import anyio

from aioidem import errors
from aioidem._admin.asking import Place, ask, until_known
from aioidem._config import ProducerConfig
from aioidem._network.connection import Connection
from aioidem._producer.native import Producer
from aioidem._protocol.messages import request_type
from aioidem._protocol.metadata import metadata_request, metadata_update
from aioidem._protocol.versions import ApiKey
from aioidem._spark.marker import PREFIX
from aioidem._spark.options import EXACTLY_ONCE, SinkOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["end_open_transactions", "end_transactions_of", "query_id"]

_ONGOING: Final = "Ongoing"
_ASK_SECONDS: Final = 60.0

logger = logging.getLogger("aioidem.spark")


def end_open_transactions(
    spark: SparkSession, checkpoint: str, options: Mapping[str, str]
) -> tuple[str, ...]:
    """End the open transactions of a query; see `aioidem.spark.end_open_transactions`."""
    sink = SinkOptions.read(options, streaming=True)
    if sink.mode != EXACTLY_ONCE:
        raise errors.ConfigError(f"mode: {sink.mode} has no transactions")
    query = query_id(spark, checkpoint)
    return () if query is None else anyio.run(end_transactions_of, sink.looked_up(), query)


def query_id(spark: SparkSession, checkpoint: str) -> str | None:
    """Return the id that Spark keeps in a checkpoint; None if it has not written one yet.

    Raises:
        ConfigError: the folder contains something that is not a checkpoint.
    """
    from pyspark.errors import AnalysisException

    path = f"{checkpoint.rstrip('/')}/metadata"
    try:
        text = "".join(row.value for row in spark.read.text(path).collect())
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None
        raise
    try:
        found: Any = json.loads(text)["id"]
    except (ValueError, KeyError, TypeError):
        found = None
    if not isinstance(found, str) or not found:
        raise errors.ConfigError(f"{path}: not the metadata of a query's checkpoint")
    return found


async def end_transactions_of(options: SinkOptions, query: str) -> tuple[str, ...]:
    """End the open transactions of the query with this id, and return their transactional ids."""
    config = options.config(f"{PREFIX}.{query}")
    names = await _open(config, f"{PREFIX}.{query}.")
    for name in names:
        # InitProducerId fences the current owner of the id, and ends its transaction.
        async with Producer(config=options.config(name)):
            logger.info("ended the transaction that %s left open", name)
    return names


async def _open(config: ProducerConfig, prefix: str) -> tuple[str, ...]:
    """Return the transactional ids with this prefix that have an open transaction on any broker."""

    async def find(server: Place) -> set[str]:
        brokers = await _brokers(config, server)
        return {name for broker in brokers async for name in _listed(config, broker)}

    found = await until_known(config, "open transactions", _ASK_SECONDS, find)
    # The query's ids are the prefix and a task's number; no others are touched, of any form.
    return tuple(
        sorted(
            name
            for name in found
            if name.startswith(prefix) and name.removeprefix(prefix).isdecimal()
        )
    )


async def _brokers(config: ProducerConfig, server: Place) -> list[Place]:
    def make(connection: Connection) -> Any:
        version = connection.versions.choose(ApiKey.METADATA)
        return metadata_request(version, (), allow_auto_create=False)

    update = metadata_update(await ask(config, server, ApiKey.METADATA, make))
    return [Place(each.host, each.port) for each in update.brokers]


async def _listed(config: ProducerConfig, broker: Place) -> AsyncIterator[str]:
    def make(connection: Connection) -> Any:
        version = connection.versions.choose(ApiKey.LIST_TRANSACTIONS)
        schema: Any = request_type(ApiKey.LIST_TRANSACTIONS, version)
        return schema(state_filters=(_ONGOING,))

    answer = await ask(config, broker, ApiKey.LIST_TRANSACTIONS, make)
    if answer.error_code:
        raise errors.broker_error(int(answer.error_code), "open transactions")
    for each in answer.transaction_states:
        if each.transaction_state == _ONGOING:
            yield each.transactional_id
