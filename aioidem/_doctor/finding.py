"""A finding: what was seen, what it costs, and what to do.

`FindingName` has the name of each finding. docs/doctor.md explains them all; a test compares the
two.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple

__all__ = ["Finding", "FindingName", "Severity"]


class Severity(IntEnum):
    """How much a finding matters; a higher number matters more."""

    OK = 0
    """Nothing to do."""
    NOTE = 1
    """Good to know: it costs something, or is a matter of choice."""
    WARNING = 2
    """It works now, but slowly or not for long, or some records will fail."""
    ERROR = 3
    """Records cannot be written, or some of them cannot."""

    @property
    def word(self) -> str:
        """The severity as users read it."""
        return self.name.lower()


class FindingName(Enum):
    """The stable name of each finding; the text is what users see."""

    # Connections.
    BOOTSTRAP = "bootstrap"
    NAME_NOT_KNOWN = "name-not-known"
    REFUSED = "refused"
    UNREACHABLE = "unreachable"
    NO_ANSWER = "no-answer"
    HUNG_UP = "hung-up"
    NOT_KAFKA = "not-kafka"
    TOO_OLD = "too-old"
    NOT_ALLOWED = "not-allowed"
    CONNECTION_FAILED = "connection-failed"
    LOOPBACK_LISTENER = "loopback-listener"
    SHARED_LISTENER = "shared-listener"
    WRONG_BROKER = "wrong-broker"
    TWO_CLUSTERS = "two-clusters"
    # TLS and SASL.
    LISTENER_SPEAKS_TLS = "listener-speaks-tls"
    LISTENER_SPEAKS_PLAINTEXT = "listener-speaks-plaintext"
    TLS_UNTRUSTED = "tls-untrusted"
    TLS_HOST_NAME = "tls-host-name"
    TLS_OUT_OF_DATE = "tls-out-of-date"
    TLS_CLIENT_CERTIFICATE = "tls-client-certificate"
    TLS_FAILED = "tls-failed"
    LISTENER_WANTS_SASL = "listener-wants-sasl"
    LISTENER_WITHOUT_SASL = "listener-without-sasl"
    SASL_MECHANISM = "sasl-mechanism"
    SASL_REFUSED = "sasl-refused"
    IDENTITY_PROVIDER = "identity-provider"
    CREDENTIALS_READABLE = "credentials-readable"
    # The cluster.
    FEATURES = "features"
    VERSIONS_DIFFER = "versions-differ"
    TRANSACTIONS_V1 = "transactions-v1"
    ROUND_TRIP = "round-trip"
    NOT_FINISHED = "not-finished"
    # Permissions.
    PRODUCER_ID_REFUSED = "producer-id-refused"
    TRANSACTIONAL_ID_REFUSED = "transactional-id-refused"
    COORDINATOR_MISSING = "coordinator-missing"
    TOPIC_NOT_FOUND = "topic-not-found"
    TOPIC_NOT_VISIBLE = "topic-not-visible"
    WRITE_NOT_GRANTED = "write-not-granted"
    READ_NOT_GRANTED = "read-not-granted"
    CONFIGS_NOT_GRANTED = "configs-not-granted"
    # Batches in flight, and the rate that they allow.
    WINDOW = "window"
    WINDOW_WITHHELD = "window-withheld"
    IN_FLIGHT_BELOW_WINDOW = "in-flight-below-window"
    RATE = "rate"
    RATE_NOT_REACHED = "rate-not-reached"
    BUFFER_TOO_SMALL = "buffer-too-small"
    # Replicas.
    NO_LEADER = "no-leader"
    LISTENER_MISSING = "listener-missing"
    TOO_FEW_IN_SYNC = "too-few-in-sync"
    REPLICA_OFFLINE = "replica-offline"
    NO_SPARE_REPLICA = "no-spare-replica"
    ONE_IN_SYNC_IS_ENOUGH = "one-in-sync-is-enough"
    ONE_REPLICA = "one-replica"
    UNCLEAN_ELECTION = "unclean-election"
    WEAK_ACKS = "weak-acks"
    # The topics' configs.
    BATCH_OVER_LIMIT = "batch-over-limit"
    RECORD_OVER_LIMIT = "record-over-limit"
    BROKER_RECOMPRESSES = "broker-recompresses"
    KEYS_NEEDED = "keys-needed"
    BROKER_TIMESTAMPS = "broker-timestamps"
    WAITING_TOO_OLD = "waiting-too-old"
    # What brokers remember, and clocks.
    SHORT_EXPIRATION = "short-expiration"
    EXPIRATION_OVERSTATED = "expiration-overstated"
    EXPIRATION_UNKNOWN = "expiration-unknown"
    CLOCK = "clock"
    CLOCK_SKEW = "clock-skew"
    CLOCK_UNKNOWN = "clock-unknown"
    RETAINED = "retained"
    FEWER_RETAINED = "fewer-retained"
    PROBE_FAILED = "probe-failed"


class Finding(NamedTuple):
    """One finding.

    Attributes:
        name: what kind of finding it is.
        severity: how much it matters.
        seen: what was seen, with addresses, topics and values.
        cost: what it costs; "" if nothing.
        cure: what to do; "" if nothing.
    """

    name: FindingName
    severity: Severity
    seen: str
    cost: str = ""
    cure: str = ""
