"""A session is renewed every second or so for a minute, with 20 batches in flight (KIP-368).

A patched broker remembers 20 batches per producer. A proxy in front of the broker announces this
window and adds 40 ms per round trip. The listener is SASL_PLAINTEXT, so that the proxy can read the
requests. It sees that the window becomes full, and that no Produce request is sent while a session
is being renewed.
"""

from __future__ import annotations

import anyio
import pytest

from aioidem import Producer
from aioidem.testing import Action, FrameSeen, KafkaCluster
from tests.kafka.tools import ONE_EACH, History, SpanCount, bounded, check, outcomes
from tests.markers import SECONDS_ON_KAFKA

from .test_security import TRUST, password, security

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SECONDS = 60
SESSION = 1.3  # seconds; sessions are renewed after 85 to 95 % of this, and never within a second
HANDSHAKE, AUTHENTICATE = 17, 36


class Renewals:
    """The SASL exchanges that the proxy sees, and the number of other requests during one."""

    def __init__(self, cluster: KafkaCluster, spans: SpanCount) -> None:
        self.begun: list[float] = []
        self.between = 0
        self._open: set[int] = set()
        self._seen = cluster.proxy.on_request
        self._spans = spans
        cluster.proxy.on_request = self._watch

    def _watch(self, seen: FrameSeen) -> Action | None:
        if seen.api_key == HANDSHAKE:
            self.begun.append(seen.at)
            self._open.add(seen.connection)
        elif seen.api_key == AUTHENTICATE:
            self._open.discard(seen.connection)
        else:
            self.between += seen.connection in self._open
        return None if self._seen is None else self._seen(seen)


@pytest.mark.timeout(SECONDS_ON_KAFKA + 100)  # so that it is the first
@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256"])
@bounded(SECONDS + 60)
async def test_sessions_renewed_every_second_lose_nothing(mechanism: str) -> None:
    options = {
        **password(mechanism),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_allow_plaintext": True,
        "max_in_flight_requests_per_connection": 20,
        **ONE_EACH,
    }
    for name in TRUST:
        del options[name]
    async with KafkaCluster(retain=20, rtt=0.04, security=security(max_session=SESSION)) as cluster:
        await cluster.create_topic("t")
        spans = SpanCount(cluster.proxy)
        renewals = Renewals(cluster, spans)
        async with Producer(cluster.bootstrap_servers, **options) as producer:
            history = History(producer, "t")
            until = anyio.current_time() + SECONDS
            while anyio.current_time() < until:
                await outcomes(history.send(400))
            statistics = producer.statistics()
        gaps = [b - a for a, b in zip(renewals.begun[2:], renewals.begun[3:], strict=False)]
        print(  # noqa: T201 - pytest -s shows it
            f"{mechanism}: {len(gaps)} renewals in {SECONDS} s, "
            f"{min(gaps):.2f} to {max(gaps):.2f} s apart; {len(history.rows)} records, "
            f"{statistics.records_acked} acknowledged, {statistics.batches_retried} sent again; "
            f"at most {spans.max_span()} in flight"
        )
        assert statistics.records_unknown == 0
        assert statistics.epoch_bumps == 0
        assert spans.max_span() == 20
        assert renewals.between == 0
        assert len(gaps) > SECONDS / 2
        assert await check(cluster, [history], "t") == list(range(len(history.rows)))
