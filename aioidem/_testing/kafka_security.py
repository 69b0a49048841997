"""Certificates, passwords and permissions of a `KafkaCluster`.

Besides its usual listeners each broker gets two more, on ``localhost`` and without a proxy: ``TLS``
(protocol SSL, clients need a certificate) and ``SASL`` (SASL_SSL, with every mechanism of Kafka
except GSSAPI). The listener behind the proxy cannot be encrypted, because the proxy reads frames,
but it can be made SASL_PLAINTEXT.

The brokers validate OAUTHBEARER as Kafka does by default: they accept unsigned tokens with ``sub``
and ``exp``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Final

__all__ = ["KafkaSecurity"]

_JAAS: Final = "org.apache.kafka.common.security"
_HASHES: Final = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_MECHANISMS: Final = ("PLAIN", *_HASHES, "OAUTHBEARER")


@dataclass(frozen=True, slots=True)
class KafkaSecurity:
    """Certificates and users of a cluster.

    Args:
        identity: The brokers' private key and certificate chain, in PEM.
        authorities: Certificates of the authorities whose client certificates are accepted, in PEM.
        users: Passwords by user name, for PLAIN and SCRAM.
        max_session: Seconds until clients have to authenticate again; 0: never. One value, or one
            per mechanism.
        authorize: Whether an authenticated client may do only what an ACL allows
            (`KafkaCluster.ask` can create ACLs). A client without authentication may do everything.
        proxied: Protocol of the listener behind the proxy.
    """

    identity: str = field(repr=False)
    authorities: str
    users: Mapping[str, str] = field(repr=False)
    max_session: float | Mapping[str, float] = 0.0
    authorize: bool = False
    proxied: str = "PLAINTEXT"

    listeners: ClassVar[tuple[str, ...]] = ("TLS", "SASL")
    """Names of the additional listeners, in the order of their ports."""

    def settings(self, folder: Path) -> dict[str, str]:
        """Return server properties, and write the PEM files that they name into ``folder``."""
        identity, authorities = folder / "identity.pem", folder / "authorities.pem"
        identity.write_text(self.identity)
        authorities.write_text(self.authorities)
        settings = {
            "listener.security.protocol.map": (
                f"CLIENT:{self.proxied},INNER:PLAINTEXT,CONTROLLER:PLAINTEXT,TLS:SSL,SASL:SASL_SSL"
            ),
            "listener.name.tls.ssl.client.auth": "required",
            **self._sasl("sasl"),
        }
        for name in ("tls", "sasl"):
            settings |= {
                f"listener.name.{name}.ssl.keystore.type": "PEM",
                f"listener.name.{name}.ssl.keystore.location": str(identity),
                f"listener.name.{name}.ssl.truststore.type": "PEM",
                f"listener.name.{name}.ssl.truststore.location": str(authorities),
            }
        if self.proxied.startswith("SASL_"):
            settings |= self._sasl("client")
        if self.authorize:
            settings |= {
                "authorizer.class.name": (
                    "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
                ),
                "super.users": "User:ANONYMOUS",
            }
        return settings

    def added(self, ports: Sequence[int]) -> str:
        """Return the additional listeners in the form of the property ``listeners``."""
        pairs = zip(self.listeners, ports, strict=True)
        return "".join(f",{name}://localhost:{port}" for name, port in pairs)

    def format_arguments(self) -> list[str]:
        """Return the arguments of StorageTool's ``format`` that add users for SCRAM."""
        return [
            argument
            for name, password in self.users.items()
            for each in _HASHES
            for argument in ("--add-scram", f"{each}=[name={name},password={password}]")
        ]

    def _sasl(self, listener: str) -> dict[str, str]:
        prefix = f"listener.name.{listener}"
        passwords = " ".join(f'user_{name}="{word}"' for name, word in self.users.items())
        modules = {
            "plain": f"{_JAAS}.plain.PlainLoginModule required {passwords};",
            "scram-sha-256": f"{_JAAS}.scram.ScramLoginModule required;",
            "scram-sha-512": f"{_JAAS}.scram.ScramLoginModule required;",
            "oauthbearer": (
                f"{_JAAS}.oauthbearer.OAuthBearerLoginModule required "
                'unsecuredLoginStringClaim_sub="broker";'
            ),
        }
        settings = {f"{prefix}.sasl.enabled.mechanisms": ",".join(_MECHANISMS)}
        for name, module in modules.items():
            settings[f"{prefix}.{name}.sasl.jaas.config"] = module
            session = self._session(name.upper())
            settings[f"{prefix}.{name}.connections.max.reauth.ms"] = str(round(session * 1000))
        return settings

    def _session(self, mechanism: str) -> float:
        if isinstance(self.max_session, Mapping):
            return self.max_session.get(mechanism, 0.0)
        return self.max_session
