"""AWS_MSK_IAM: a request to AWS, signed and not sent; the broker sends it to check who signed.

The signature is botocore's (SigV4, query string). What is signed is AWS's own convention: GET on
the broker's host name, action ``kafka-cluster:Connect``, 15 minutes. The credentials are what
botocore's session finds, anew for each exchange, so roles and instance profiles rotate by
themselves; finding them may ask a metadata service, which is why this mechanism runs in a thread.

Signing is the one thing botocore does that is not logged: at DEBUG it tells the session's token and
the signature, which together let whoever reads them in for those 15 minutes.
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
    """The region in an MSK broker's name (``b-1.x.kafka.eu-west-1.amazonaws.com``), or None."""
    parts = host.removesuffix(".").split(".")
    for at, part in enumerate(parts[:-1]):
        if part in {"kafka", "kafka-serverless"} and "amazonaws" in parts[at + 2 :]:
            return parts[at + 1]
    return None


class AwsMskIam:
    """One exchange.

    :param session: a botocore ``Session``; None: a new one, with botocore's default search.
    :param region: of the cluster; None: what the host name says, else the session's.
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
        """The signed request, as the JSON the broker expects."""
        from botocore.exceptions import BotoCoreError

        try:
            url = self._signed()
        except BotoCoreError as error:
            reason = type(error).__name__
        else:
            fields = {name.lower(): value for name, value in parse_qsl(urlsplit(url).query)}
            head = {"version": _VERSION, "host": self._host, "user-agent": self._user_agent}
            return json.dumps(head | fields, separators=(",", ":")).encode()
        raise AuthenticationFailedError(f"AWS_MSK_IAM: no credentials can be had: {reason}")

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
        with _unheard("botocore.auth"):
            signer.add_auth(request)
        return str(request.url)

    def next(self, challenge: bytes) -> bytes | None:
        """The broker names its version and the request, and that is all."""
        if self._answered or not challenge:
            raise AuthenticationFailedError("AWS_MSK_IAM: the broker did not confirm")
        self._answered = True
        return None


@contextmanager
def _unheard(name: str) -> Iterator[None]:
    """Drop what a logger is told by this thread."""
    this = threading.get_ident()

    def from_another_thread(record: logging.LogRecord) -> bool:
        return record.thread != this

    logger = logging.getLogger(name)
    logger.addFilter(from_another_thread)
    try:
        yield
    finally:
        logger.removeFilter(from_another_thread)
