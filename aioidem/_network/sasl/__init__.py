"""SASL: authenticate to a broker, with one module per mechanism.

- `mechanism.py`: the interface of a mechanism: a plain object with `first() -> bytes` and
  `next(challenge)`.
- `plain.py` `scram.py` `oauthbearer.py` `aws_msk_iam.py` `gssapi.py`: the mechanisms. They do no
  IO, except inside two libraries: GSSAPI's may ask a ticket server, and botocore (AWS_MSK_IAM) may
  ask a metadata service.
- `oidc.py`: tokens from an OpenID provider, for OAUTHBEARER.
- `client.py`: makes the configured mechanism, with the credentials that are valid now.
- `authentication.py`: authenticates one connection, and authenticates it again before its session
  ends (KIP-368).

Invariant: exactly one mechanism is configured and no other is ever tried. A broker, or an impostor,
that offers a different mechanism receives no credentials.
"""

from __future__ import annotations
