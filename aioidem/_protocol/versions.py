"""Choose the version of each API on a connection from what both sides offer (KIP-35, KIP-511).

Invariants:

- The versions that this client speaks are in one table (`SPOKEN`). Those that a broker offers are
  kept for each connection, because the brokers of a cluster differ during an upgrade.
- `VersionNegotiation` sends at most one request per version of ApiVersions: each further request
  has a lower version, whatever the answers say.
- An impossible range (negative, or the lowest above the highest) counts as not offered.
- A peer without a common version of Produce is refused here, before anything is queued for it.

Rejected: remembering versions by address (the broker at an address may be upgraded).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from functools import lru_cache
from struct import Struct
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from aioidem._protocol.messages import (
    decode_response,
    encode_request,
    request_type,
    response_type,
)
from aioidem.errors import IncompatibleBrokerVersion, ProtocolError, broker_error

__all__ = ["SPOKEN", "ApiKey", "ApiVersionTable", "VersionNegotiation"]


class ApiKey(IntEnum):
    """The APIs that the producer and the tools use, under Kafka's names."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36
    INCREMENTAL_ALTER_CONFIGS = 44
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    LIST_TRANSACTIONS = 66


SPOKEN: Final[Mapping[int, tuple[int, int]]] = MappingProxyType(
    {
        # Produce v3 is the first with record batches v2, v14 is KIP-1269's.
        ApiKey.PRODUCE: (3, 14),
        ApiKey.FETCH: (4, 17),
        ApiKey.LIST_OFFSETS: (1, 9),
        # v4 is the first with which a client can forbid that the topic is created. Every broker
        # with Produce v3 has it.
        ApiKey.METADATA: (4, 13),
        # v7 is the first with require_stable (KIP-447) and the last for a single group.
        ApiKey.OFFSET_FETCH: (7, 7),
        ApiKey.FIND_COORDINATOR: (0, 6),
        # After a handshake of v0 the SASL messages would have no Kafka header.
        ApiKey.SASL_HANDSHAKE: (1, 1),
        ApiKey.API_VERSIONS: (0, 4),
        ApiKey.CREATE_TOPICS: (2, 7),
        ApiKey.DELETE_TOPICS: (1, 6),
        # v6 only adds two-phase commit with external coordinators (KIP-939).
        ApiKey.INIT_PRODUCER_ID: (0, 5),
        # v4 and up are for requests between brokers (KIP-890).
        ApiKey.ADD_PARTITIONS_TO_TXN: (0, 3),
        ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
        ApiKey.END_TXN: (0, 5),
        ApiKey.TXN_OFFSET_COMMIT: (0, 5),
        ApiKey.DESCRIBE_CONFIGS: (1, 4),
        ApiKey.SASL_AUTHENTICATE: (0, 2),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
        # v1 is the first with times (KIP-836).
        ApiKey.DESCRIBE_QUORUM: (1, 2),
        ApiKey.DESCRIBE_CLUSTER: (0, 2),
        ApiKey.DESCRIBE_PRODUCERS: (0, 0),
        # Brokers have had this API since Kafka 3.0 (KIP-664).
        ApiKey.LIST_TRANSACTIONS: (0, 0),
    }
)
"""The lowest and the highest version of each API that we speak."""

_TRANSACTIONS: Final = "transaction.version"
# The requests that the second part of KIP-890 changes, each with the first version so changed.
_OF_TRANSACTIONS_V2: Final = (
    (ApiKey.PRODUCE, 12),
    (ApiKey.END_TXN, 5),
    (ApiKey.TXN_OFFSET_COMMIT, 5),
)
_ERROR_CODE: Final = Struct(">h")


class ApiVersionTable(NamedTuple):
    """The versions and features that the broker of one connection offers.

    ``offered`` has the lowest and highest version by API key, ``features`` the finalized level by
    name, for example of ``transaction.version`` (KIP-584).
    """

    offered: Mapping[int, tuple[int, int]]
    features: Mapping[str, int] = MappingProxyType({})

    @classmethod
    def from_response(cls, response: Any) -> ApiVersionTable:
        """Read an ApiVersions response of any version.

        Raises:
            IncompatibleBrokerVersion: The broker offers no version of Produce that we speak.
        """
        table = cls(
            MappingProxyType(dict(_ranges(response.api_keys))),
            MappingProxyType(dict(_features(response))),
        )
        table.choose(ApiKey.PRODUCE)
        return table

    @property
    def transaction_version(self) -> int:
        """The version of the transaction protocol to use; version 2 is the second part of KIP-890.

        The value is the cluster's finalized ``transaction.version``, but at most 1 if this broker
        lacks one of the requests of v2. This is possible because the version is that of the whole
        cluster, and this broker may not be upgraded yet.
        """
        level = self.features.get(_TRANSACTIONS, 0)
        whole = all(self.supports(key, version) for key, version in _OF_TRANSACTIONS_V2)
        return level if whole else min(level, 1)

    def supports(self, api_key: int, version: int | None = None) -> bool:
        """Return whether both sides speak this version of the API, or any version if it is None."""
        lowest, highest = self._common(api_key)
        return lowest <= highest if version is None else lowest <= version <= highest

    def choose(self, api_key: int, *, at_least: int = 0, at_most: int | None = None) -> int:
        """Return the highest version of the API that both sides speak.

        Args:
            api_key: The API.
            at_least: The lowest version wanted.
            at_most: The highest version wanted.

        Raises:
            IncompatibleBrokerVersion: There is no such version.
        """
        lowest, highest = self._common(api_key)
        if at_most is not None:
            highest = min(highest, at_most)
        if max(lowest, at_least) > highest:
            raise IncompatibleBrokerVersion(self._no_common_version(api_key, at_least, at_most))
        return highest

    def _common(self, api_key: int) -> tuple[int, int]:
        ours, theirs = SPOKEN.get(api_key), self.offered.get(api_key)
        if ours is None or theirs is None:
            return 0, -1
        return max(ours[0], theirs[0]), min(ours[1], theirs[1])

    def _no_common_version(self, api_key: int, at_least: int, at_most: int | None) -> str:
        name = ApiKey(api_key).name if api_key in ApiKey.__members__.values() else str(api_key)
        limit = "" if at_most is None else f", but at most {at_most} was asked for"
        limit += f", but at least {at_least} is needed" if at_least else ""
        return (
            f"no common version of {name}: the broker offers {_span(self.offered.get(api_key))}, "
            f"aioidem speaks {_span(SPOKEN.get(api_key))}{limit}"
        )


class VersionNegotiation:
    """The exchange of ApiVersions with which every connection begins, without IO.

    The caller sends `request` and passes the response to `answer`, and repeats this as long as
    `answer` returns None.
    """

    __slots__ = ("_client_id", "_software", "_version")

    def __init__(self, client_id: str | None, software: tuple[str, str]) -> None:
        self._client_id = client_id
        self._software = software
        self._version = SPOKEN[ApiKey.API_VERSIONS][1]

    @property
    def version(self) -> int:
        """The version of ApiVersions that `request` uses next."""
        return self._version

    def request(self, correlation_id: int) -> bytes:
        """Return the request as a frame."""
        schema: Any = request_type(ApiKey.API_VERSIONS, self._version)
        name, version = self._software
        entity = (
            schema(client_software_name=name, client_software_version=version)
            if self._version >= 3
            else schema()
        )
        return encode_request(entity, correlation_id=correlation_id, client_id=self._client_id)

    def answer(self, frame: bytes) -> ApiVersionTable | None:
        """Return the table in a response, or None if `request` must be sent in an older version.

        Raises:
            IncompatibleBrokerVersion: There is no version left to try.
            BrokerResponseError: The broker answered with another error.
            ProtocolError: The answer is malformed.
        """
        error = _peek_error(frame)
        # A broker that does not know the version of the request answers in v0 (KIP-511).
        version = 0 if error == ErrorCode.unsupported_version else self._version
        if not error:
            return _table(version, frame)
        schema: Any = response_type(ApiKey.API_VERSIONS, version)
        _, response = decode_response(schema, frame)
        if error == ErrorCode.unsupported_version:
            self._go_lower(response)
            return None
        raise broker_error(error, "the broker refused ApiVersions")

    def _go_lower(self, response: Any) -> None:
        if self._version == 0:
            raise IncompatibleBrokerVersion("the broker supports no version of ApiVersions")
        _, highest = dict(_ranges(response.api_keys)).get(ApiKey.API_VERSIONS, (0, 0))
        self._version = highest if highest < self._version else 0


@lru_cache(maxsize=16)
def _table(version: int, frame: bytes) -> ApiVersionTable:
    """Read a response without an error.

    A broker gives each of its connections the same answer, whose decoding takes 2.5 ms: so the
    tables of the last answers are kept.
    """
    schema: Any = response_type(ApiKey.API_VERSIONS, version)
    _, response = decode_response(schema, frame)
    return ApiVersionTable.from_response(response)


def _peek_error(frame: bytes) -> int:
    if len(frame) < 6:
        raise ProtocolError(f"ApiVersions response of {len(frame)} bytes")
    error: int = _ERROR_CODE.unpack_from(frame, 4)[0]
    return error


def _ranges(api_keys: Iterable[Any]) -> Iterable[tuple[int, tuple[int, int]]]:
    for each in api_keys:
        if 0 <= each.min_version <= each.max_version:
            yield each.api_key, (each.min_version, each.max_version)


def _features(response: Any) -> Iterable[tuple[str, int]]:
    for each in getattr(response, "finalized_features", ()):
        yield each.name, each.max_version_level


def _span(versions: tuple[int, int] | None) -> str:
    return "none" if versions is None else f"{versions[0]} to {versions[1]}"
