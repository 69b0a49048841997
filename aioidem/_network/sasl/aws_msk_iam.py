"""AWS_MSK_IAM: a signed AWS request, which the broker checks with AWS to learn who signed it.

This client sends the request to the broker only. botocore signs (SigV4, in the query string) what
AWS prescribes: GET on the broker's host name, action ``kafka-cluster:Connect``, valid for 15
minutes. botocore's session looks up the credentials for each exchange, so the credentials of roles
and instance profiles may change at any time. The look-up may query a metadata service, so this
mechanism runs in a thread.

While botocore signs, its log records are dropped: at DEBUG level they contain the session token and
the signature, with which a reader of the log could authenticate for 15 minutes.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlsplit

from aioidem.errors import AuthenticationFailedError

__all__ = ["AwsMskIam", "region_of"]

_SECONDS: Final = 900
_SERVICE: Final = "kafka-cluster"
_VERSION: Final = "2020_10_22"


def region_of(host: str) -> str | None:
    """Return the AWS region in a host name (``b-1.x.kafka.eu-west-1.amazonaws.com``), or None.

    The last such part counts: a cluster may be called ``kafka`` too.
    """
    parts = host.removesuffix(".").split(".")
    for at in reversed(range(len(parts) - 1)):
        if parts[at] in {"kafka", "kafka-serverless"} and "amazonaws" in parts[at + 2 :]:
            return parts[at + 1]
    return None


class AwsMskIam:
    """One SASL exchange with the mechanism AWS_MSK_IAM.

    Args:
        host: The broker's host, which is a part of the signed request.
        session: A botocore ``Session``; None makes one, which searches for credentials as usual.
        region: The cluster's region; None takes it from the host name, else from the session.
        user_agent: A name of this client for the broker's logs.
    """

    name = "AWS_MSK_IAM"
    principal = None
    blocking = True

    def __init__(
        self, host: str, *, session: Any = None, region: str | None = None, user_agent: str
    ) -> None:
        self._host = host.removesuffix(".")
        self._session = session
        self._region = region
        self._user_agent = user_agent
        self._answered = False

    def first(self) -> bytes:
        """Return the signed request, as the JSON that the broker expects."""
        from botocore.exceptions import BotoCoreError

        try:
            url = self._signed()
        except BotoCoreError as error:
            reason = type(error).__name__
        else:
            fields = {name.lower(): value for name, value in parse_qsl(urlsplit(url).query)}
            head = {"version": _VERSION, "host": self._host, "user-agent": self._user_agent}
            return json.dumps(head | fields, separators=(",", ":")).encode()
        raise AuthenticationFailedError(f"AWS_MSK_IAM: no credentials were found: {reason}")

    def _signed(self) -> str:
        from botocore.auth import SigV4QueryAuth
        from botocore.awsrequest import AWSRequest
        from botocore.session import Session

        session = self._session if self._session is not None else Session()
        credentials = session.get_credentials()
        region = self._region or region_of(self._host) or session.get_config_variable("region")
        if credentials is None or not region:
            missing = "credentials" if credentials is None else "region"
            raise AuthenticationFailedError(f"AWS_MSK_IAM: botocore finds no {missing}")
        action = quote(f"{_SERVICE}:Connect", safe="")
        request = AWSRequest("GET", f"https://{self._host}/?Action={action}")
        signer = SigV4QueryAuth(credentials.get_frozen_credentials(), _SERVICE, region, _SECONDS)
        with _unlogged("botocore.auth"):
            signer.add_auth(request)
        return str(request.url)

    def next(self, challenge: bytes) -> bytes | None:
        """Check that the broker has accepted the request: its one message must not be empty."""
        if self._answered or not challenge:
            raise AuthenticationFailedError("AWS_MSK_IAM: the broker did not confirm the request")
        self._answered = True
        return None


@contextmanager
def _unlogged(name: str) -> Iterator[None]:
    """Drop the named logger's records that this thread writes."""
    this = threading.get_ident()

    def from_another_thread(record: logging.LogRecord) -> bool:
        return record.thread != this

    logger = logging.getLogger(name)
    logger.addFilter(from_another_thread)
    try:
        yield
    finally:
        logger.removeFilter(from_another_thread)
