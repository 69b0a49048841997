"""Refused credentials: when brokers refuse a fixed password for good."""

from __future__ import annotations

from typing import Any, Final

from aioidem import errors
from aioidem._config import ProducerConfig
from aioidem._engine import steps
from aioidem._engine.connections import Connections

REFUSED = errors.AuthenticationFailedError("the password is wrong")
CERTIFICATE = errors.SslAuthenticationError("the certificate has expired")
SASL: Final[dict[str, Any]] = {
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "SCRAM-SHA-256",
    "sasl_username": "user",
    "sasl_password": "password",
}


class _Refusing:
    """Connections to two brokers, which refuse one attempt after another."""

    def __init__(self, **options: Any) -> None:
        config = ProducerConfig.build("b1:9092,b2:9092", **options)
        self.connections = Connections(config, lambda: 0.0)
        self.now = 0.0

    def open(self, node_id: int, *, up: bool = True) -> int:
        """Begin to connect to a broker, and return the id of the connection."""
        self.now += 1000.0  # later than any back-off
        out: list[steps.Step] = []
        self.connections.to(node_id, self.now, out)
        (step,) = out
        assert isinstance(step, steps.OpenLink)
        if up:
            self.connections.opened(self.connections.links[step.link_id], 11, self.now)
        return step.link_id

    def refuse(self, error: Exception, node_id: int = -1) -> errors.KafkaError | None:
        """Let one attempt fail, and return the error that it fails the producer with."""
        link = self.connections.links[self.open(node_id, up=False)]
        self.connections.drop(link, error, self.now)
        return self.connections.shut_out(error)


def test_the_fifth_refusal_in_a_row_is_final() -> None:
    """The refusals of all brokers are counted together, because all get the same password."""
    world = _Refusing(**SASL)
    assert [world.refuse(REFUSED, -1 - number % 2) for number in range(4)] == [None] * 4
    assert world.refuse(REFUSED) is REFUSED


def test_a_connection_that_opens_starts_the_count_anew() -> None:
    world = _Refusing(**SASL)
    for _ in range(4):
        world.refuse(REFUSED)
    link = world.connections.links[world.open(-2)]
    world.connections.drop(link, None, world.now)
    assert [world.refuse(REFUSED) for _ in range(4)] == [None] * 4
    assert world.refuse(REFUSED) is REFUSED


def test_no_refusal_is_final_while_a_connection_is_up() -> None:
    """The password was right a moment ago, and records can still be sent."""
    world = _Refusing(**SASL)
    world.open(-2)
    assert [world.refuse(REFUSED) for _ in range(6)] == [None] * 6


def test_refusals_that_earlier_credentials_still_meet_are_not_counted() -> None:
    """A connection that is being opened may have shown them to its broker already."""
    world = _Refusing(**SASL)
    for _ in range(4):
        world.refuse(REFUSED)
    late = [world.connections.links[world.open(each, up=False)] for each in (-1, -2)]
    world.connections.forgive()
    for link in late:
        world.connections.drop(link, REFUSED, world.now)
    assert [world.refuse(REFUSED) for _ in range(4)] == [None] * 4
    assert world.refuse(REFUSED) is REFUSED


def test_refused_certificates_are_not_counted() -> None:
    """They are read again for each connection, so the next one may be another."""
    world = _Refusing(**SASL)
    assert [world.refuse(CERTIFICATE) for _ in range(6)] == [None] * 6
    assert [world.refuse(REFUSED) for _ in range(4)] == [None] * 4
    assert world.refuse(CERTIFICATE) is None
    assert world.refuse(REFUSED) is REFUSED


def test_refusals_without_a_fixed_password_are_never_final() -> None:
    world = _Refusing()
    assert [world.refuse(REFUSED) for _ in range(6)] == [None] * 6
