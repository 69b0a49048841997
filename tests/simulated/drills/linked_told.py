"""What connections and addresses tell, and what other parts are told when connections end."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

from aioidem._config import ProducerConfig
from aioidem._engine.links import Link, Node
from aioidem._engine.requests import RequestKind

from .linked_rows import Asked

__all__ = ["OtherParts", "due_when_lost", "facts_of_link", "facts_of_node"]


def facts_of_link(link: Link, config: ProducerConfig, now: float) -> dict[str, object]:
    """Return what a connection tells of itself, by the names that `Wire.facts` uses."""
    return {
        "address": link.node_id,
        "state": link.state,
        "Produce": (link.produce_version, link.plain_version, link.transaction_version),
        "requests": list(link.outstanding),
        "window": (link.window.outstanding, link.window.limit),
        "bytes": link.bytes_in_flight,
        "moved": link.last_progress,
        "throttled": (link.throttled_until, link.throttle_at(now)),
        "admits": link.admits(now),
        "times out": link.timeout_at(config.request_timeout, config.delivery_timeout),
        "delivered": link.goodput.delivered,
        "rate": link.goodput.rate,
        "round trip": None if link.rtt is None else round(link.rtt, 9),
        "latencies": link.latencies,
        "answered": link.answered_at,
        "cluster": (link.identified, link.cluster_id),
        "asked": (link.asked_broker, link.asked_cluster),
        "may ask": (link.knows_producers, link.may_read, link.limits.may_ask),
    }


def facts_of_node(node: Node) -> dict[str, object]:
    """Return what an address tells of itself, by the names that `Place.facts` uses."""
    return {
        "address": (node.host, node.port, node.address),
        "connection": None if node.link is None else node.link.link_id,
        "failures": node.backoff.failures,
        "tried again": node.retry_at,
        "error": node.last_error,
        "down": node.down_since,
        "elsewhere": node.misrouted_to,
    }


class OtherParts:
    """Stand-ins for the other parts, which note what they are told when connections end."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def note(self, name: str, answer: object, *words: object) -> object:
        """Note what is told, and return the answer."""
        self.told.append((name, *words))
        return answer

    def parts(self) -> tuple[Any, ...]:
        """Return the other parts, as `LostLinks` takes them."""
        home = SimpleNamespace(lost=lambda link: self.note("home", None, link.link_id))
        transactions = SimpleNamespace(
            on_node_lost=lambda node_id: self.note("node", None, node_id),
            on_lost=lambda now, *, written: self.note("coordination", None, written, now),
        )
        produce = SimpleNamespace(
            on_lost=lambda request, *, written, now: self.note(
                "produce", None, request.token, written, now
            )
        )
        metadata = SimpleNamespace(failed=lambda now: self.note("metadata", None, now))
        identity = SimpleNamespace(failed=lambda now: self.note("identity", None, now))
        return home, transactions, produce, metadata, identity

    def partition(self, *, own: bool) -> object:
        """Return a stand-in for a partition; `own`: whether it still reads its log back."""
        return SimpleNamespace(
            own=own,
            ladder=SimpleNamespace(on_producers=partial(self.note, "producers", None)),
            read_back=SimpleNamespace(takes=partial(self.note, "read back", own)),
            lookup=SimpleNamespace(end=partial(self.note, "no lookup", None)),
        )


def due_when_lost(each: Asked, *, written: bool, now: float) -> list[tuple[object, ...]]:
    """Return what the other parts must be told about a request that gets no answer."""
    match each.kind:
        case RequestKind.PRODUCE:
            return [("produce", each.token, written, now)]
        case RequestKind.METADATA:
            return [("metadata", now)]
        case RequestKind.INIT_PRODUCER_ID:
            return [("identity", now)]
        case RequestKind.COORDINATION:
            return [("coordination", written, now)]
        case RequestKind.DESCRIBE_PRODUCERS if each.subject is not None:
            return [("producers", None)]
        case RequestKind.READ_BACK if each.subject is not None:
            asked: tuple[object, ...] = ("read back", each.token)
            return [asked, ("no lookup",)] if each.subject.own else [asked]
        case _:
            return []
