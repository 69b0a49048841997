"""Authenticate with AWS_MSK_IAM."""

from __future__ import annotations

import asyncio
import os

import aioidem
from aioidem.broker import BrokerSecurity, EmbeddedCluster

os.environ |= {
    "AWS_ACCESS_KEY_ID": "alice",
    "AWS_SECRET_ACCESS_KEY": "alice-secret",
    "AWS_DEFAULT_REGION": "eu-west-1",
}


async def main() -> None:
    security = BrokerSecurity(mechanisms=("AWS_MSK_IAM",), users={"alice": "alice-secret"})
    async with EmbeddedCluster(security=security) as cluster:
        async with aioidem.Producer(
            cluster.bootstrap_servers,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="AWS_MSK_IAM",
            sasl_allow_plaintext=True,
        ) as producer:
            await producer.send("t", b"value")
        assert cluster.log_end_offset("t") == 1


asyncio.run(main())
