"""The drill of connections finds nothing wrong, and notices connections that are broken."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from aioidem import errors
from aioidem._engine import steps
from aioidem._engine.backoff import Backoff
from aioidem._engine.connections import Connections
from aioidem._engine.goodput import Goodput
from aioidem._engine.links import Leaving, Link
from aioidem._engine.lost_links import LostLinks
from aioidem._engine.request_ledger import RequestLedger
from aioidem._engine.requests import Outstanding
from aioidem._protocol.metadata import BrokerAddress

from .linked import drill_linked

SEEDS = range(60)


def wrong() -> list[str]:
    """Return what the first seed that finds anything finds."""
    for seed in SEEDS:
        found = list(drill_linked(Random(f"linked {seed}")))
        if found:
            return found
    return []


def test_the_connections_do_what_they_should() -> None:
    assert not wrong()


delay = Backoff.next_delay
timeout_at = Link.timeout_at
lose = LostLinks.lose
next_wake = Connections.next_wake
learn = Connections.learn


def never_doubles(self: Backoff) -> float:
    failures, self.failures = self.failures, 0
    found = delay(self)
    self.failures = failures + 1
    return found


def whichever_is_ready(
    self: Connections, now: float, _out: list[steps.Step], *, identified: bool = True
) -> Link | None:
    ready = (each for each in self.links.values() if each.admits(now))
    return next((each for each in ready if each.identified or not identified), None)


def of_the_newest_request(self: Link, request_timeout: float, longest: float) -> float | None:
    if not self.outstanding:
        return None
    newest = next(reversed(self.outstanding.values()))
    begin = max(newest.sent_at, self.throttled_until)
    return min(max(begin, self.last_progress) + request_timeout, begin + longest)


def without_end(self: Link, request_timeout: float, _longest: float) -> float | None:
    return timeout_at(self, request_timeout, 1e9)


def the_last_word_counts(self: Link, throttle_ms: int, now: float) -> None:
    self.last_throttle = max(0.0, min(throttle_ms / 1000.0, 300.0))
    self.throttled_until = now + self.last_throttle


def throttled_or_not(self: Connections, _now: float) -> list[Leaving]:
    ready = [each for each in self.links.values() if each.admits(1e9) and not each.outstanding]
    proper = any(each.node_id >= 0 and each.identified for each in self.links.values())
    return [Leaving(each, "idle", None) for each in ready if proper and each.node_id < 0]


def at_the_first_refusal(
    _self: Connections, error: Exception | None
) -> errors.AuthenticationFailedError | None:
    return error if isinstance(error, errors.AuthenticationFailedError) else None


def not_for_back_offs(self: Connections, now: float) -> float:
    nodes, self.nodes = self.nodes, {}
    found = next_wake(self, now)
    self.nodes = nodes
    return found


def of_the_last_answer(self: Goodput) -> float | None:
    return self._samples[-1] if self._samples else None


def never_written(self: LostLinks, request: Outstanding, *, written: bool, now: float) -> None:
    lose(self, request, written=written and request.token < 0, now=now)


def never_moves(self: Connections, brokers: Iterable[BrokerAddress]) -> None:
    learn(self, [each for each in brokers if each.node_id not in self.nodes])


def keeps_the_memory(self: RequestLedger, link_id: int, token: int) -> Any:
    link = self._connections.links.get(link_id)
    request = None if link is None else link.withdraw(token)
    return None if request is None else (link, request)


def if_one_of_them_has_failed(self: Connections) -> errors.KafkaError | None:
    failed = [each for each in self.nodes.values() if each.node_id < 0 and each.last_error]
    return errors.KafkaConnectionError("one has failed") if failed else None


@pytest.mark.parametrize(
    ("part", "name", "broken"),
    [
        (Backoff, "next_delay", never_doubles),
        (Connections, "any", whichever_is_ready),
        (Connections, "spare", throttled_or_not),
        (Connections, "shut_out", at_the_first_refusal),
        (Connections, "next_wake", not_for_back_offs),
        (Connections, "learn", never_moves),
        (Connections, "bootstrap_failure", if_one_of_them_has_failed),
        (Goodput, "rate", property(of_the_last_answer)),
        (Link, "timeout_at", of_the_newest_request),
        (Link, "timeout_at", without_end),
        (Link, "throttle", the_last_word_counts),
        (LostLinks, "lose", never_written),
        (RequestLedger, "withdrawn", keeps_the_memory),
    ],
)
def test_broken_connections_are_noticed(
    part: Any, name: str, broken: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(part, name, broken)
    assert wrong()
