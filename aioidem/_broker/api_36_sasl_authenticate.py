"""SaslAuthenticate (v0 to v2): pass one message to the SASL mechanism, and return its reply."""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import Entity, from_ms, respond
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.security import SaslRefusedError
from aioidem._broker.topology import Broker

__all__ = ["handle"]

_API: Final = 36


def handle(_cluster: Cluster, _broker: Broker, request: Entity, context: Context) -> Reply:
    """Pass the client's message to the SASL mechanism, and answer with the mechanism's reply.

    If the mechanism refuses, answer SASL_AUTHENTICATION_FAILED and close the connection.
    """
    code, text, answer, lifetime = ErrorCode.none, None, b"", 0.0
    session = context.pending.connection.sasl
    if session is None:
        code, text = ErrorCode.illegal_sasl_state, "this listener wants no SASL"
    else:
        try:
            answer, lifetime = session.step(request.auth_bytes, context.now, context.wall_ms / 1000)
        except SaslRefusedError as refusal:
            code, text = ErrorCode.sasl_authentication_failed, str(refusal)
        except (ValueError, LookupError):  # the client's message is malformed
            code, text = ErrorCode.sasl_authentication_failed, "not a message of the mechanism"
    values = {
        "error_code": code,
        "error_message": text,
        "auth_bytes": answer,
        "session_lifetime": from_ms(int(lifetime * 1000)),
    }
    return Now(respond(_API, context.api_version, values), close=code is not ErrorCode.none)
