"""BrokerInquiries: the DescribeConfigs requests to brokers, and the facts learned from the answers.

- Does the broker support Produce v14 as KIP-1269 defines it (`discovery`)?
- How long does the broker remember a producer that does not write (KIP-854), and over which range
  of sequences does it deduplicate (KIP-758)? Brokers may differ; the shortest time and the
  narrowest range apply to all partitions.
- How large may a batch of a topic be (`batch_limits`)?

Each question is one DescribeConfigs request, sent once per connection or when it is due.
"""

from __future__ import annotations

import math

from aioidem._config import ProducerConfig
from aioidem._engine.batch_limits import BatchLimit
from aioidem._engine.links import Link
from aioidem._engine.outcomes import Outcomes
from aioidem._engine.partition import SEQUENCE_CAP, PartitionState
from aioidem._engine.partitions import Partitions
from aioidem._engine.request_ledger import RequestLedger
from aioidem._engine.requests import RequestKind
from aioidem._engine.steps import DescribeBrokerConfig, DescribeTopicConfig, DescribeTopicLimit
from aioidem._engine.suspicion import DEFAULT_EXPIRATION
from aioidem._log import LogLine
from aioidem._protocol.broker_config import BrokerFacts
from aioidem._protocol.topic_config import TopicConfig

__all__ = ["BrokerInquiries"]

_UNTOLD_WARNING = (
    "topic {topic!r}: its batches stay within batch_size ({size} bytes), because broker "
    "{link.node_id} does not say which larger batches it accepts. Either this principal lacks "
    "DESCRIBE_CONFIGS on the topic, which shows max.message.bytes, or the broker compresses the "
    "topic's batches again with another codec. Grant DESCRIBE_CONFIGS, set the topic's "
    "compression.type to 'producer', or raise batch_size. Other topics are not reported"
)


class BrokerInquiries:
    """The questions to brokers about their configuration, and what the answers say.

    Args:
        config: validated options.
        partitions: the partitions. They learn the range of sequences over which brokers deduplicate
        (KIP-758), which limits their unresolved batches.
        requests: registers requests, and passes them to the Sender through `ProducerCore.poll`.
        outcomes: receives events and notes for the operator.
    """

    __slots__ = (
        "_config",
        "_expirations",
        "_outcomes",
        "_partitions",
        "_requests",
        "_sequence_caps",
        "_warned_untold",
        "expiration",
    )

    def __init__(
        self,
        config: ProducerConfig,
        partitions: Partitions,
        requests: RequestLedger,
        outcomes: Outcomes,
    ) -> None:
        self._config = config
        self._partitions = partitions
        self._requests = requests
        self._outcomes = outcomes
        self._expirations: dict[int, float] = {}
        self._sequence_caps: dict[int, int] = {}
        self._warned_untold = False
        # Seconds after which a broker forgets a producer; if brokers differ, the shortest time.
        self.expiration = config.producer_id_expiration or DEFAULT_EXPIRATION
        if config.producer_id_expiration is not None:
            self._warn_of_short_memory()

    def ask(self, link: Link, state: PartitionState, limit: BatchLimit, now: float) -> None:
        """Send the leader of a partition the questions that are due now.

        Args:
            link: the connection to the leader.
            state: the partition.
            limit: the limits of its topic on that connection.
            now: seconds.
        """
        self._discover(link, state, now)
        if not link.asked_broker:
            self._ask_about_itself(link, now)
        self._ask_limit(link, state, limit, now)

    def _discover(self, link: Link, state: PartitionState, now: float) -> None:
        """Ask whether the broker has Produce v14 (KIP-1269), if that is due, and report the answer.

        With Produce v14 a broker says how many batches per producer it deduplicates.
        """
        discovery = link.discovery
        if discovery.due(now) and link.admits(now) and discovery.begin():
            token = self._requests.register(link, RequestKind.DESCRIBE_CONFIGS, now)
            self._requests.add(DescribeTopicConfig(link.link_id, token, state.topic))
        finding = discovery.take_finding(now)
        if finding is not None:
            line = LogLine.WINDOW_WITHHELD if finding.warning else LogLine.WINDOW_SOURCE
            self._outcomes.event(line, finding.text)

    def _ask_about_itself(self, link: Link, now: float) -> None:
        """Request the broker's config, once per connection (KIP-854, KIP-758)."""
        config = self._config
        if not config.enable_idempotence or not link.admits(now) or link.node_id < 0:
            return
        link.note_asked_broker()
        if config.producer_id_expiration is None or config.broker_dedup == "range":
            token = self._requests.register(link, RequestKind.BROKER_CONFIG, now)
            self._requests.add(DescribeBrokerConfig(link.link_id, token, link.node_id))

    def _ask_limit(self, link: Link, state: PartitionState, limit: BatchLimit, now: float) -> None:
        """Ask for a topic's batch size limit, if it is needed.

        It is needed if a batch may become larger than `batch_size`, or was refused for its size.
        """
        config = self._config
        growth = config.late_sealing and state.may_outgrow(config.batch_size)
        if (
            limit.wants(now, config.metadata_max_age, config.request_timeout, growth=growth)
            and link.limits.may_ask
            and link.admits(now)
        ):
            limit.ask()
            token = self._requests.register(link, RequestKind.TOPIC_LIMIT, now, topic_limit=limit)
            self._requests.add(DescribeTopicLimit(link.link_id, token, state.topic))
        elif limit.unused and link.admits(now):
            limit.find_room(now, config.request_timeout)

    def awaits_memory(self, link: Link) -> bool:
        """Return whether the broker has not answered yet how long it remembers producers."""
        return link.node_id not in self._expirations and any(
            request.kind is RequestKind.BROKER_CONFIG for request in link.outstanding.values()
        )

    # -- answers

    def on_topic_config(self, link: Link, topic: str, answer: TopicConfig, now: float) -> None:
        """Note whether a broker has the topic config that belongs to Produce v14 (KIP-1269)."""
        link.discovery.described(answer.error_code, named=answer.names_window, topic=topic, now=now)

    def on_topic_limit(self, link: Link, limit: BatchLimit, told: int | None, now: float) -> None:
        """Record how large a batch of a topic may be.

        Args:
            link: the connection on which the answer came.
            limit: the limits of the topic on that connection.
            told: the limit in bytes; None if the broker names none.
            now: seconds.
        """
        limit.tell(told, now)
        if told is None and self._config.late_sealing and not self._warned_untold:
            self._warned_untold = True
            size = self._config.batch_size
            text = _UNTOLD_WARNING.format(topic=limit.topic, link=link, size=size)
            self._outcomes.event(LogLine.LIMIT_UNKNOWN, text)

    def on_broker_config(self, node_id: int, facts: BrokerFacts) -> None:
        """Record how long a broker remembers producers, and its deduplication range (KIP-758)."""
        if facts.expiration is not None and self._config.producer_id_expiration is None:
            told = self._expirations
            known = self.expiration if told else math.inf
            told[node_id] = facts.expiration
            self.expiration = min(told.values())
            if self.expiration < known:
                self._warn_of_short_memory()
        if self._config.broker_dedup == "range" and facts.sequence_cap is not None:
            self._sequence_caps[node_id] = facts.sequence_cap
            self._partitions.limit_span(min(SEQUENCE_CAP, *self._sequence_caps.values()))

    def _warn_of_short_memory(self) -> None:
        config = self._config
        if config.enable_idempotence and config.delivery_timeout >= self.expiration / 2:
            self._outcomes.event(
                LogLine.SHORT_EXPIRATION,
                f"delivery_timeout ({config.delivery_timeout:g} s) is not below half of the "
                f"brokers' producer.id.expiration.ms ({self.expiration:g} s): a broker may forget "
                "this producer while a batch is retried, and no longer recognise a duplicate "
                "(KIP-854). Lower delivery_timeout, or raise producer.id.expiration.ms",
            )

    def forget_cluster(self) -> None:
        """Forget the answers: the brokers of another cluster are asked again."""
        self._expirations.clear()
        self._sequence_caps.clear()
        self._partitions.assume_sequence_range()
        self.expiration = self._config.producer_id_expiration or DEFAULT_EXPIRATION
