"""The operations that a client is authorized for, as answers contain them (KIP-430).

They are a bit per AclOperation. Here every client may do everything, as on a real broker without an
authorizer: all operations that Kafka knows for a resource of that kind.
"""

from __future__ import annotations

from typing import Final

__all__ = ["CLUSTER_OPERATIONS", "GROUP_OPERATIONS", "NOT_ASKED", "TOPIC_OPERATIONS"]

_READ, _WRITE, _CREATE, _DELETE, _ALTER, _DESCRIBE = (1 << code for code in range(3, 9))
_CLUSTER_ACTION, _DESCRIBE_CONFIGS, _ALTER_CONFIGS, _IDEMPOTENT_WRITE = (
    1 << code for code in range(9, 13)
)
_CONFIGS: Final = _DESCRIBE_CONFIGS | _ALTER_CONFIGS

NOT_ASKED: Final = -(2**31)
TOPIC_OPERATIONS: Final = _READ | _WRITE | _CREATE | _DELETE | _ALTER | _DESCRIBE | _CONFIGS
GROUP_OPERATIONS: Final = _READ | _DELETE | _DESCRIBE | _CONFIGS
CLUSTER_OPERATIONS: Final = (
    _CREATE | _ALTER | _DESCRIBE | _CLUSTER_ACTION | _CONFIGS | _IDEMPOTENT_WRITE
)
