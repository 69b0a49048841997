"""SaslHandshake (v1): the client names the SASL mechanism that it will use.

v0 is not offered: after v0 a client sends its SASL messages without request headers, and this
broker reads only requests with headers.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from aioidem._broker.cluster import Cluster
from aioidem._broker.entities import Entity, respond
from aioidem._broker.requests import Context, Now, Reply
from aioidem._broker.security import SaslRefusedError
from aioidem._broker.topology import Broker

__all__ = ["handle"]

_API: Final = 17


def handle(cluster: Cluster, _broker: Broker, request: Entity, context: Context) -> Reply:
    """Begin the exchange of the named mechanism.

    The answer is ILLEGAL_SASL_STATE on a listener without SASL, and UNSUPPORTED_SASL_MECHANISM for
    a mechanism that is not enabled.
    """
    code, session = ErrorCode.none, context.pending.connection.sasl
    try:
        if session is None or not session.begin(request.mechanism, context.now):
            code = ErrorCode.illegal_sasl_state
    except SaslRefusedError:
        code = ErrorCode.unsupported_sasl_mechanism
    offered = () if cluster.security is None else cluster.security.mechanisms
    values = {"error_code": code, "mechanisms": offered}
    return Now(respond(_API, context.api_version, values), close=code is not ErrorCode.none)
