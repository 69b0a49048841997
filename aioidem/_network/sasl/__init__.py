"""SASL: who we are, proved to a broker, in one module per mechanism.

- `mechanism.py`: what a mechanism is: a plain object, `first() -> bytes`, `next(challenge)`.
- `plain.py` `scram.py` `oauthbearer.py` `aws_msk_iam.py` `gssapi.py`: the mechanisms. No IO, but
  for GSSAPI, whose library asks a ticket server by itself.
- `oidc.py`: tokens from an OpenID provider, for OAUTHBEARER.
- `client.py`: makes the mechanism the options ask for, with the credentials of the moment.
- `authentication.py`: what one connection does with it, now and again (KIP-368).

Invariant: one mechanism is configured, and no other is ever tried: a broker (or whoever poses as
one) that wants another one gets nothing.
"""

from __future__ import annotations
