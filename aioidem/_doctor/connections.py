"""Findings about connections: addresses that cannot be reached, TLS, SASL, and who answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from ipaddress import ip_address
from itertools import groupby
from types import MappingProxyType
from typing import Final, NamedTuple

from kio.schema.errors import ErrorCode

from aioidem._admin.asking import Place
from aioidem._doctor.facts import BrokerSeen, Facts, FailureKind, Tried, shown
from aioidem._doctor.finding import Finding, FindingName, Severity

__all__ = ["connection_findings"]

_K, _N = FailureKind, FindingName


class _Meaning(NamedTuple):
    """What a kind of failure is called, what it costs and what to do."""

    name: FindingName
    cure: str


_MEANINGS: Final[Mapping[FailureKind, _Meaning]] = MappingProxyType(
    {
        _K.NAME_NOT_KNOWN: _Meaning(
            _N.NAME_NOT_KNOWN,
            "Correct the host name, or let this machine's DNS resolve it; if it is a broker's "
            "advertised listener, it must be a name that clients can look up.",
        ),
        _K.REFUSED: _Meaning(
            _N.REFUSED,
            "The host is there and nothing listens on the port: start the broker, correct the port,"
            " or correct its advertised.listeners.",
        ),
        _K.UNREACHABLE: _Meaning(
            _N.UNREACHABLE,
            "Check routes, VPN and security groups between this machine and the address.",
        ),
        _K.NO_ANSWER: _Meaning(
            _N.NO_ANSWER,
            "A firewall that drops packets, a broker that hangs, or a link that is slower than "
            "connection_setup_timeout: connect to the address from this machine with another tool.",
        ),
        _K.HUNG_UP: _Meaning(
            _N.HUNG_UP,
            "The listener wants TLS or SASL, a proxy has no broker behind it, or the broker is "
            "stopping: check security_protocol against the listener, and the broker's log.",
        ),
        _K.HUNG_UP_ON_REQUEST: _Meaning(
            _N.LISTENER_WANTS_SASL,
            "The listener answers only clients that authenticate: set security_protocol to "
            "SASL_SSL or SASL_PLAINTEXT, with sasl_mechanism and credentials, or use another port.",
        ),
        _K.NOT_KAFKA: _Meaning(
            _N.NOT_KAFKA, "Something else listens there: correct the address or the port."
        ),
        _K.SPEAKS_TLS: _Meaning(
            _N.LISTENER_SPEAKS_TLS,
            "Set security_protocol to SSL or SASL_SSL, or use the port of a listener without TLS.",
        ),
        _K.SPEAKS_PLAINTEXT: _Meaning(
            _N.LISTENER_SPEAKS_PLAINTEXT,
            "Use the port of a listener with TLS, or set security_protocol to PLAINTEXT or "
            "SASL_PLAINTEXT, which anybody in the network can read.",
        ),
        _K.TOO_OLD: _Meaning(
            _N.TOO_OLD, "Upgrade the broker: aioidem needs Kafka 0.11 or newer (Produce v3)."
        ),
        _K.NOT_ALLOWED: _Meaning(
            _N.NOT_ALLOWED,
            "If the address is right, add it to allowed_brokers; if not, somebody leads clients "
            "astray: check the broker's advertised.listeners.",
        ),
        _K.TLS_UNTRUSTED: _Meaning(
            _N.TLS_UNTRUSTED,
            "Set ssl_truststore_location to the certificate of the authority that signed the "
            "broker's certificate (PEM), with intermediate ones that the broker does not send.",
        ),
        _K.TLS_HOST_NAME: _Meaning(
            _N.TLS_HOST_NAME,
            "Connect by a name that the certificate has, or have one issued with this name as a "
            "subject alternative name (an IP address needs an entry of its own kind).",
        ),
        _K.TLS_OUT_OF_DATE: _Meaning(
            _N.TLS_OUT_OF_DATE,
            "Renew the broker's certificate; if it is not expired, correct this machine's clock.",
        ),
        _K.TLS_CLIENT_CERTIFICATE: _Meaning(
            _N.TLS_CLIENT_CERTIFICATE,
            "Set ssl_keystore_location to a key and a certificate that an authority in the broker's"
            " truststore has signed.",
        ),
        _K.TLS_FAILED: _Meaning(
            _N.TLS_FAILED,
            "Compare TLS versions and ciphers of the listener (ssl.enabled.protocols) with TLS 1.2 "
            "and 1.3; openssl s_client -connect HOST:PORT shows the handshake.",
        ),
        _K.WITHOUT_SASL: _Meaning(
            _N.LISTENER_WITHOUT_SASL,
            "Set security_protocol to PLAINTEXT or SSL, or use the port of a listener with SASL.",
        ),
        _K.SASL_MECHANISM: _Meaning(
            _N.SASL_MECHANISM,
            "Set sasl_mechanism to one that the broker offers, or enable it there "
            "(sasl.enabled.mechanisms).",
        ),
        _K.SASL_REFUSED: _Meaning(
            _N.SASL_REFUSED,
            "Check user name, password or token and their file; that the user exists for this "
            "mechanism (SCRAM-SHA-256 and SCRAM-SHA-512 are set apart); and, for tokens, the "
            "clocks.",
        ),
        _K.IDENTITY_PROVIDER: _Meaning(
            _N.IDENTITY_PROVIDER,
            "No broker was asked yet. Check sasl_oauthbearer_token_endpoint_url, that this machine "
            "reaches it (a proxy?), and client id, secret and scope.",
        ),
        _K.OTHER: _Meaning(_N.CONNECTION_FAILED, "See the error's text, and the broker's log."),
    }
)

_NOBODY: Final = "No record can be written: no bootstrap server answers."
_ONE_LESS: Final = (
    "Nothing while another bootstrap server answers; with that one down, the producer cannot start."
)
_ANOTHER_ADDRESS: Final = (
    "Little: the client connects to another address of the same name, after a delay at times."
)
_LEADS: Final = "Records for the partitions that this broker leads are not written."
_MAY_LEAD: Final = "Records for partitions that this broker leads, now or later, are not written."


def connection_findings(facts: Facts) -> Iterator[Finding]:
    """Yield findings about the addresses, in the order in which a producer meets them."""
    yield from _bootstrap(facts)
    yield from _advertised(facts)
    yield from _loopback(facts)
    yield from _shared(facts)
    yield from _wrong_broker(facts)
    yield from _two_clusters(facts)
    yield from _readable(facts)


def _bootstrap(facts: Facts) -> Iterator[Finding]:
    answered = {each.place for each in facts.tried if each.failure is None}
    if answered:
        clusters = {each.cluster_id for each in facts.tried if each.failure is None}
        named = " and ".join(sorted(each or "without an id" for each in clusters))
        verb = "answers" if len(answered) == 1 else "answer"
        text = f"{', '.join(sorted(map(shown, answered)))} {verb} for the cluster {named}"
        yield Finding(_N.BOOTSTRAP, Severity.OK, text)
    failed = [each for each in facts.tried if each.failure is not None]
    for place, tries in groupby(sorted(failed, key=_place), key=_place):
        yield from _failed_server(facts, place, [*tries], answered)


def _place(tried: Tried) -> Place:
    return tried.place


def _meaning(facts: Facts, kind: FailureKind) -> _Meaning:
    if kind is _K.HUNG_UP_ON_REQUEST and facts.config.security_protocol.startswith("SASL"):
        return _MEANINGS[_K.HUNG_UP]
    return _MEANINGS[kind]


def _failed_server(
    facts: Facts, place: Place, tries: list[Tried], answered: set[Place]
) -> Iterator[Finding]:
    if place in answered:
        severity, cost = Severity.NOTE, _ANOTHER_ADDRESS
    elif answered:
        severity, cost = Severity.WARNING, _ONE_LESS
    else:
        severity, cost = Severity.ERROR, _NOBODY
    by_kind: dict[FailureKind, tuple[str, list[str]]] = {}
    for each in tries:
        if each.failure is not None:
            _, where = by_kind.setdefault(each.failure.kind, (each.failure.text, []))
            if each.address not in (None, place.host, *where):
                where.append(str(each.address))
    for kind, (text, where) in by_kind.items():
        meaning = _meaning(facts, kind)
        at = f" at {', '.join(where)}" if where else ""
        seen = f"bootstrap server {shown(place)}{at}: {kind.value} ({text})"
        yield Finding(meaning.name, severity, seen, cost, meaning.cure)


def _advertised(facts: Facts) -> Iterator[Finding]:
    for broker in facts.brokers:
        if broker.failure is None:
            continue
        meaning = _meaning(facts, broker.failure.kind)
        leads = facts.leads(broker.node_id)
        severity = Severity.ERROR if leads or not facts.topics else Severity.WARNING
        seen = f"{broker}, as it is advertised: {broker.failure.kind.value} ({broker.failure.text})"
        yield Finding(meaning.name, severity, seen, _LEADS if leads else _MAY_LEAD, meaning.cure)


def _loopback(facts: Facts) -> Iterator[Finding]:
    if not facts.reached or any(_is_loopback(each.address) for each in facts.tried):
        return
    local = [each for each in facts.brokers if _is_loopback(each.place.host)]
    if local:
        yield Finding(
            _N.LOOPBACK_LISTENER,
            Severity.ERROR,
            f"{_named(local)}: the cluster advertises an address of the client's own machine, but "
            "its bootstrap servers are elsewhere",
            _LEADS,
            "Set advertised.listeners of these brokers to an address that clients can reach.",
        )


def _is_loopback(host: str | None) -> bool:
    if host is None:
        return False
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _shared(facts: Facts) -> Iterator[Finding]:
    by_place: dict[Place, list[BrokerSeen]] = {}
    for each in facts.brokers:
        by_place.setdefault(each.place, []).append(each)
    for place, brokers in by_place.items():
        if len(brokers) > 1:
            ids = ", ".join(str(each.node_id) for each in brokers)
            yield Finding(
                _N.SHARED_LISTENER,
                Severity.ERROR,
                f"brokers {ids} advertise the same address {shown(place)}",
                "Requests for one broker reach another one, which answers that it is not the "
                "leader: records wait, and end when their delivery_timeout has passed.",
                "Give each broker an advertised listener of its own; a load balancer in front of "
                "all brokers can be a bootstrap server, but not their advertised address.",
            )


def _wrong_broker(facts: Facts) -> Iterator[Finding]:
    wrong = [
        each
        for each in facts.brokers
        if each.configs is not None and each.configs.error_code == ErrorCode.invalid_request
    ]
    if wrong:
        yield Finding(
            _N.WRONG_BROKER,
            Severity.ERROR,
            f"{_named(wrong)}: another broker answers at this address",
            "Requests for the partitions that it leads are answered by a broker that does not "
            "lead them: records wait, and end when their delivery_timeout has passed.",
            "Correct advertised.listeners, DNS or the proxy, so that each address leads to the "
            "broker whose id it is advertised for.",
        )


def _two_clusters(facts: Facts) -> Iterator[Finding]:
    places: dict[str, list[str]] = {}
    for each in facts.tried:
        if each.cluster_id is not None:
            at = each.address if each.address != each.place.host else None
            where = shown(each.place) + (f" at {at}" if at else "")
            places.setdefault(each.cluster_id, []).append(where)
    for broker in facts.brokers:
        if broker.cluster_id is not None:
            places.setdefault(broker.cluster_id, []).append(str(broker))
    if len(places) < 2:
        return
    seen = "; ".join(
        f"{', '.join(dict.fromkeys(where))}: cluster {cluster}" for cluster, where in places.items()
    )
    yield Finding(
        _N.TWO_CLUSTERS,
        Severity.ERROR,
        seen,
        "The producer stays with the cluster that it reaches first, and after a restart may write "
        "to the other one. A batch in doubt when it changes ends UNKNOWN.",
        "Let all bootstrap servers, and all addresses behind each name, lead to one cluster.",
    )


def _readable(facts: Facts) -> Iterator[Finding]:
    config = facts.config
    scram = (config.sasl_mechanism or "").startswith(("SCRAM", "GSSAPI"))
    if config.security_protocol == "SASL_PLAINTEXT" and not scram:
        yield Finding(
            _N.CREDENTIALS_READABLE,
            Severity.WARNING,
            f"{config.sasl_mechanism} over SASL_PLAINTEXT",
            "Anybody who can read the network traffic can use the credentials.",
            "Use a listener with SASL_SSL.",
        )


def _named(brokers: list[BrokerSeen]) -> str:
    return ", ".join(map(str, brokers))
