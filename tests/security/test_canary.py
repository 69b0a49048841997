"""No output contains a secret or a record's payload, whether authentication succeeds or fails.

The tests give a canary (a text to search for) as password, token, client secret or AWS key. They
search the logs of all loggers at DEBUG level; the text, repr and traceback of each exception, with
the local variables of all frames; the reprs of producer and configuration; the statistics; and
pickles.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import dataclasses
import io
import json
import logging
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn, cast

import anyio
import pytest
from kio.schema.errors import ErrorCode

from aioidem import AIOKafkaProducer, Producer
from aioidem._broker.entities import ZERO_MS, respond
from aioidem._broker.intercept import Action, CloseConnection, RequestSeen, Respond, RespondRaw
from aioidem._broker.security import MECHANISMS, BrokerSecurity
from aioidem._config import ProducerConfig
from aioidem._config.names import BY_KEYWORD, BY_PROPERTY
from aioidem._config.secret import Secret
from aioidem._network.sasl.client import sasl_client
from aioidem._network.sasl.gssapi import Gssapi
from aioidem._spark.options import SinkOptions
from aioidem.broker import EmbeddedCluster
from aioidem.errors import AuthenticationFailedError, KafkaError

from .test_oidc import gives, provider
from .tools import Authority, AwsSession, bounded, log_in, sasl

pytestmark = pytest.mark.anyio

CA = Authority()
CANARY = "canary-5ecr3t"
PAYLOAD = b"payload-5ecr3t"
HANDSHAKE, AUTHENTICATE = 17, 36


@pytest.fixture
def anyio_backend() -> str:
    """Use asyncio only, because the output does not depend on the event loop."""
    return "asyncio"


def unsigned(expires: float) -> str:
    """Make an unsigned JSON Web Token whose base64url-encoded payload contains the canary."""
    parts: tuple[Mapping[str, Any], ...] = (
        {"alg": "none"},
        {"sub": "alice", "exp": expires, "jti": CANARY},
    )
    head, payload = (
        base64.urlsafe_b64encode(json.dumps(each).encode()).decode().rstrip("=") for each in parts
    )
    return f"{head}.{payload}."


def forms_of(secret: str) -> set[str]:
    """Return the forms of a secret to search for: text, hex, and base64 at any offset."""
    raw = secret.encode()
    encoded = {base64.b64encode(b"x" * shift + raw).decode()[4:-4] for shift in range(3)}
    return {secret, raw.hex(), secret[:-1], *encoded}


class Ear:
    """A collector of output, which can be searched for secrets."""

    def __init__(self) -> None:
        self._log = io.StringIO()
        self._heard: list[str] = []

    @contextmanager
    def listening(self) -> Iterator[None]:
        handler = logging.StreamHandler(self._log)
        handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s %(args)r"))
        root = logging.getLogger()
        level = root.level
        root.addHandler(handler)
        root.setLevel(logging.DEBUG)
        try:
            yield
        finally:
            root.removeHandler(handler)
            root.setLevel(level)

    def hear(self, *things: object) -> None:
        for thing in things:
            self._heard += [repr(thing), str(thing), f"{thing}"]

    def hear_error(self, error: BaseException) -> None:
        self.hear(error, error.args)
        told = traceback.TracebackException.from_exception(error, capture_locals=True, limit=50)
        own = [each for each in told.format() if "tests/security" not in each.split("\n")[0]]
        self._heard += own
        # Error reporters send __context__, too, although "raise ... from None" hides it otherwise.
        for link in (error.__cause__, error.__context__):
            if link is not None:
                self.hear_error(link)
        with contextlib.suppress(TypeError, AttributeError):
            self._heard.append(pickle.dumps(error).decode("latin-1"))

    def check(self, *secrets: str) -> None:
        text = "\n".join([self._log.getvalue(), *self._heard])
        assert "aioidem" in text
        for secret in secrets:
            for form in forms_of(secret):
                at = text.find(form)
                assert at < 0, f"{form!r} in ...{text[max(0, at - 300) : at + 50]}"


def options_for(mechanism: str, right: bool) -> dict[str, Any]:
    """Return a producer's options in which the password, key or token contains the canary.

    If `right` is False, the token of OAUTHBEARER has expired. `right` changes nothing for other
    mechanisms: to make their credentials wrong, the caller gives the brokers another password.
    """
    if mechanism == "OAUTHBEARER":
        expires = time.time() + (60 if right else -60)
        return dict(sasl(mechanism, sasl_oauth_token_provider=lambda: unsigned(expires)))
    if mechanism == "AWS_MSK_IAM":
        return dict(sasl(mechanism, sasl_aws_session=AwsSession("alice", CANARY, CANARY)))
    return dict(sasl(mechanism, sasl_username="alice", sasl_password=CANARY))


def secrets_of(mechanism: str) -> list[str]:
    if mechanism != "OAUTHBEARER":
        return [CANARY]
    return [CANARY, base64.urlsafe_b64encode(f'"jti": "{CANARY}"'.encode()).decode()[4:-4]]


def goes_well(_: RequestSeen) -> Action | None:
    return None


def hangs_up(seen: RequestSeen) -> Action | None:
    return CloseConnection() if seen.api_key == AUTHENTICATE else None


def hangs_up_before(seen: RequestSeen) -> Action | None:
    return CloseConnection() if seen.api_key == HANDSHAKE else None


def answers_garbage(seen: RequestSeen) -> Action | None:
    if seen.api_key != AUTHENTICATE:
        return None
    return RespondRaw(seen.correlation_id.to_bytes(4, "big") + b"\xff" * 9)


def answers_nonsense(seen: RequestSeen) -> Action | None:
    if seen.api_key != AUTHENTICATE:
        return None
    values = {"error_code": 0, "error_message": None, "auth_bytes": b"nonsense"}
    return Respond(respond(AUTHENTICATE, seen.api_version, values))


def echoes(seen: RequestSeen) -> Action | None:
    """Answer SaslAuthenticate with the bytes that the client sent, which may contain a secret."""
    if seen.api_key != AUTHENTICATE:
        return None
    values = {"error_code": 58, "error_message": "no", "auth_bytes": seen.request.auth_bytes}
    return Respond(respond(AUTHENTICATE, seen.api_version, values))


async def drive(cluster: EmbeddedCluster, ear: Ear, options: Mapping[str, Any]) -> None:
    """Make a producer, start it, send a record, and close it; collect the output in `ear`."""
    producer: Producer | None = None
    try:
        producer = Producer(cluster.bootstrap_servers, **options, max_block=5)
        ear.hear(producer, producer.config)
        async with producer:
            delivery = producer.send_nowait("t", PAYLOAD, key=PAYLOAD, headers=[("h", PAYLOAD)])
            ear.hear(delivery)
            await delivery
            ear.hear(delivery, producer.statistics(), dataclasses.asdict(producer.statistics()))
    except KafkaError as error:
        ear.hear_error(error)
    ear.hear(producer, vars(producer) if producer is not None else None)
    with contextlib.suppress(TypeError, AttributeError, pickle.PicklingError):
        ear.hear(pickle.dumps(None if producer is None else producer.config))


@pytest.mark.parametrize(
    "broker", [goes_well, hangs_up, hangs_up_before, answers_garbage, answers_nonsense, echoes]
)
@pytest.mark.parametrize("right", [True, False], ids=["right", "wrong"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
@bounded(30)
async def test_nothing_that_is_said_has_the_secret(
    mechanism: str, right: bool, broker: Callable[[RequestSeen], Action | None]
) -> None:
    """No log, repr, exception, traceback with locals, statistics or pickle has the secret."""
    ear = Ear()
    security = BrokerSecurity(
        mechanisms=MECHANISMS, users={"alice": CANARY if right else "other"}, max_session=0.2
    )
    with ear.listening():
        async with EmbeddedCluster(security=security) as cluster:
            cluster.intercept(broker)
            await drive(cluster, ear, options_for(mechanism, right))
    ear.check(*secrets_of(mechanism), PAYLOAD.decode())


@bounded(30)
async def test_a_connection_that_breaks_while_the_secret_is_written_does_not_keep_it() -> None:
    """If sending a password fails, no chained exception has a frame with the password in it."""

    class Breaking:
        """A connector whose connection breaks at the third write, which has the password in it."""

        def __init__(self, inner: Any) -> None:
            self._inner = inner
            self._writes = 0

        async def connect(self, host: str, port: int) -> Any:
            stream = await self._inner.connect(host, port)
            send = stream.send

            async def breaking(item: bytes) -> None:
                self._writes += 1
                if self._writes >= 3:
                    await anyio.aclose_forcefully(stream)
                await send(item)

            stream.send = breaking
            return stream

    ear = Ear()
    with ear.listening():
        async with EmbeddedCluster(
            security=BrokerSecurity(mechanisms=("PLAIN",), users={"alice": CANARY})
        ) as cluster:
            config = ProducerConfig.build("h", **options_for("PLAIN", right=True))
            with pytest.raises(KafkaError, match="the connection was lost") as caught:
                await log_in(Breaking(cluster.connector), cluster.bootstrap_servers, config)
            ear.hear("aioidem")
            ear.hear_error(caught.value)
    ear.check(CANARY)


@pytest.mark.parametrize("right", [True, False])
@bounded(30)
async def test_the_client_secret_of_an_openid_client_is_not_said(right: bool) -> None:
    """No output contains the client secret of an OpenID client."""
    ear = Ear()
    given = {"access_token": unsigned(time.time() + 60), "expires_in": 60}
    answer = gives(given) if right else gives({"error": "invalid_client"}, 401)
    with ear.listening(), provider(answer) as (url, _):
        options = sasl(
            "OAUTHBEARER",
            sasl_oauthbearer_token_endpoint_url=url,
            sasl_oauthbearer_client_id="me",
            sasl_oauthbearer_client_secret=CANARY,
        )
        async with EmbeddedCluster(security=BrokerSecurity(mechanisms=MECHANISMS)) as cluster:
            await drive(cluster, ear, options)
    ear.check(*secrets_of("OAUTHBEARER"))


def kerberos() -> ModuleType:
    """Make a substitute for the package ``gssapi``, with a ticket that contains the canary."""

    class SecurityContext:
        def __init__(self, **_given: object) -> None:
            self.complete = False

        def step(self, token: bytes | None) -> bytes:
            if token == b"bad":
                raise RuntimeError("no such key")
            self.complete = token == b"theirs"
            return CANARY.encode() if token is None else b""

        def unwrap(self, message: bytes) -> SimpleNamespace:
            return SimpleNamespace(message=message)

        def wrap(self, message: bytes, _encrypted: bool) -> SimpleNamespace:
            return SimpleNamespace(message=message)

    class Name:
        def __init__(self, *_given: object) -> None:
            self.canonicalize = lambda _mechanism: self

    module: Any = ModuleType("gssapi")
    module.__spec__ = ModuleSpec("gssapi", None)
    module.Name, module.SecurityContext = Name, SecurityContext
    module.NameType = SimpleNamespace(hostbased_service=1)
    module.MechType = SimpleNamespace(kerberos=1)
    flags = ("mutual_authentication", "integrity", "out_of_sequence_detection")
    module.RequirementFlag = SimpleNamespace(**dict.fromkeys(flags, 1))
    return cast("ModuleType", module)


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ([b"theirs", b"\x01\0\0\0", b""], 0),
        ([b"bad"], 0),
        ([b""], 58),
        ([b"theirs", b"x"], 0),
        ([b"more"], 0),
    ],
    ids=["in", "ticket refused", "out", "nonsense", "no end"],
)
@bounded(30)
async def test_a_kerberos_ticket_is_not_said(
    answers: list[bytes], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No log and no exception contains a Kerberos ticket.

    Embedded brokers do not have GSSAPI, so an interceptor answers SaslHandshake and
    SaslAuthenticate as a broker with GSSAPI would. The client gives up after ten rounds at most.
    """
    monkeypatch.setitem(sys.modules, "gssapi", kerberos())
    heard: list[bytes] = []

    def pretend(seen: RequestSeen) -> Action | None:
        values: dict[str, Any] = {"error_code": ErrorCode.none, "mechanisms": ("GSSAPI",)}
        if seen.api_key == AUTHENTICATE:
            said = answers[(len(heard)) % len(answers)]
            heard.append(seen.request.auth_bytes)
            values = {"error_code": code, "error_message": "no" if code else None}
            values |= {"auth_bytes": said, "session_lifetime": ZERO_MS}
        elif seen.api_key != HANDSHAKE:
            return None
        return Respond(respond(seen.api_key, seen.api_version, values))

    ear = Ear()
    with ear.listening():
        async with EmbeddedCluster() as cluster:
            cluster.intercept(pretend)
            await drive(cluster, ear, sasl("GSSAPI"))
            written = cluster.log_end_offset("t") if cluster.state.topics else 0
    assert heard[0] == CANARY.encode()
    assert len(heard) <= 10
    assert written == (len(answers) == 3)
    ear.check(CANARY, PAYLOAD.decode())


@pytest.mark.parametrize(
    "options",
    [
        sasl("PLAIN", sasl_username="a\0", sasl_password=CANARY),
        sasl("PLAIN", sasl_username="a", sasl_password=CANARY + "\0"),
        sasl("SCRAM-SHA-256", sasl_username="a", sasl_password=CANARY + "\u0007"),
        sasl("OAUTHBEARER", sasl_oauth_token_provider=lambda: CANARY + "\x01"),
        sasl("PLAIN", sasl_credentials=lambda: ["a", CANARY, CANARY]),
        {
            "security_protocol": "SSL",
            "ssl_keystore_key": CANARY,
            "ssl_keystore_certificate_chain": CA.pem,
        },
        {
            "security_protocol": "SSL",
            "ssl_keystore_key": CA.identity("me@example.org").key + CANARY,
            "ssl_keystore_certificate_chain": CA.pem,
            "ssl_key_password": CANARY,
        },
    ],
)
@bounded(30)
async def test_credentials_that_cannot_be_used_are_not_said(options: Mapping[str, Any]) -> None:
    """No output contains credentials that a mechanism cannot use."""
    ear = Ear()
    with ear.listening():
        async with EmbeddedCluster(security=BrokerSecurity(mechanisms=MECHANISMS)) as cluster:
            await drive(cluster, ear, options)
    ear.check(CANARY)


class NoValue:
    """The type of a value that no option accepts."""


def _wrong(given: dict[str, Any], name: str, value: object) -> dict[str, Any]:
    """Return the options `given` with a wrong value for the option `name`."""
    return {**given, name: value}


NATIVE = {"sasl_password": CANARY, "ssl_key_password": CANARY, "sasl_username": "me"}
JAVA = {
    "bootstrap.servers": "h",
    "sasl.password": CANARY,
    "sasl.jaas.config": f'a.PlainLoginModule required username="me" password="{CANARY}";',
}
DROP_IN = {"security_protocol": "SASL_SSL", "sasl_plain_password": CANARY}
SINK = {"topic": "t"} | {f"kafka.{name}": value for name, value in JAVA.items()}


def entrances() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield (name, call) pairs: each call is given a password among options that must be refused.

    The calls are all the ways in which options can be given.
    """
    for each in dataclasses.fields(ProducerConfig):
        wrong = _wrong({"bootstrap_servers": "h", **NATIVE}, each.name, NoValue())
        yield f"build {each.name}", partial(ProducerConfig.build, **wrong)
        yield f"constructor {each.name}", partial(ProducerConfig, **wrong)
        yield f"Producer {each.name}", partial(Producer, **wrong)
    for name in [*BY_PROPERTY, "sasl.jaas.config", "no.such.property"]:
        properties = _wrong(JAVA, name, NoValue())
        yield f"from_properties {name}", partial(ProducerConfig.from_properties, properties)
        wrong = _wrong(SINK, f"kafka.{name}", NoValue())
        yield f"SinkOptions {name}", partial(SinkOptions.read, wrong)
    for name in [*BY_KEYWORD, "no_such_argument"]:
        wrong = _wrong(DROP_IN, name, NoValue())
        yield f"drop-in {name}", partial(AIOKafkaProducer, **wrong)
        yield f"from_keywords {name}", partial(ProducerConfig.from_keywords, wrong)
    for name, properties in {
        "twice": {**JAVA, "sasl.password": CANARY},
        "jaas": {"bootstrap.servers": "h", "sasl.jaas.config": CANARY},
        "no mechanism": {"bootstrap.servers": "h", "sasl.password": CANARY},
    }.items():
        yield name, partial(ProducerConfig.from_properties, properties)
    yield "sink without a topic", lambda: SinkOptions.read({**SINK, "nothing": "x"})
    yield "bytes", lambda: Producer("h", sasl_password=CANARY.encode())  # type: ignore[arg-type]
    yield "new password", lambda: Producer("h").set_sasl_credentials("me", CANARY)
    yield (
        "other mechanism",
        lambda: Producer(
            "h", **sasl("OAUTHBEARER", sasl_oauth_token_provider=lambda: "t")
        ).set_sasl_credentials("me", CANARY),
    )
    yield (
        "user in the URL",
        lambda: ProducerConfig.build(
            "h",
            **sasl(
                "OAUTHBEARER",
                sasl_oauthbearer_token_endpoint_url=f"https://me:{CANARY}@idp.example.org/token",
                sasl_oauthbearer_client_id="me",
                sasl_oauthbearer_client_secret=CANARY,
            ),
        ),
    )


def frames_of(error: BaseException) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the function and local variables of each frame of an error, except tests' frames."""
    for link in (error, error.__cause__, error.__context__):
        if link is None:
            continue
        if link is not error:
            yield from frames_of(link)
        for frame, _ in traceback.walk_tb(link.__traceback__):
            if "tests" not in Path(frame.f_code.co_filename).parts:
                yield frame.f_code.co_qualname, frame.f_locals


@pytest.mark.parametrize("family", sorted({name.split()[0] for name, _ in entrances()}))
@pytest.mark.filterwarnings("ignore:AIOKafkaProducer. the argument:DeprecationWarning")
def test_no_frame_of_a_refused_option_holds_a_password(family: str) -> None:
    """The traceback of a refused option has no frame with a password among its variables."""
    for name, enter in entrances():
        if name.split()[0] == family:
            no_frame_holds_a_password(name, enter)


def no_frame_holds_a_password(entrance: str, enter: Callable[[], object]) -> None:
    ear = Ear()
    try:
        enter()
    except (KafkaError, TypeError, ValueError) as error:
        ear.hear("aioidem")
        ear.hear_error(error)
        for name, variables in frames_of(error):
            ear.hear(name, *variables.values())
        ear.check(CANARY)
        return
    assert entrance.rsplit(maxsplit=1)[-1] in TAKES_ANYTHING, f"{entrance}: nothing was refused"


TAKES_ANYTHING = {"api_version"}
"""The arguments of the drop-in that accept any value, as in aiokafka."""


def test_what_kerberos_says_is_not_chained() -> None:
    """Exceptions of the Kerberos library are not chained, because their frames hold tickets."""

    def refuse() -> NoReturn:
        raise RuntimeError("no such key")

    with pytest.raises(AuthenticationFailedError, match="GSSAPI: no such key") as caught:
        Gssapi(refuse).first()
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_a_secret_cannot_be_copied_out() -> None:
    """A Secret cannot be pickled or made into JSON, and a copy's repr does not show its text."""
    secret = Secret(CANARY)
    for take in (secret.__getstate__, lambda: pickle.dumps(secret), lambda: json.dumps(secret)):
        with pytest.raises(TypeError):
            take()
    config = ProducerConfig.build("h", **options_for("PLAIN", right=True))
    ear = Ear()
    ear.hear("aioidem", dataclasses.asdict(config), copy.deepcopy(config), copy.copy(secret))
    ear.check(CANARY)


def test_what_makes_mechanisms_can_be_printed() -> None:
    """The repr of what `sasl_client` returns does not contain the secret."""
    ear = Ear()
    for mechanism in MECHANISMS:
        made = sasl_client(ProducerConfig.build("h", **options_for(mechanism, right=True)))
        ear.hear("aioidem", made)
    ear.check(CANARY)


def test_the_ear_hears() -> None:
    """The search finds a canary in logs, in base64, in errors and in local variables."""
    tries: list[Callable[[Ear], None]] = [
        lambda _: logging.getLogger("x").debug("%s", CANARY),
        lambda _: logging.getLogger("x").debug("%s", CANARY.encode()),
        lambda ear: ear.hear(base64.b64encode(b"\0alice\0" + CANARY.encode())),
        lambda ear: ear.hear(KafkaError(CANARY)),
        _hear_a_local_variable,
    ]
    for say in tries:
        ear = Ear()
        with ear.listening():
            ear.hear("aioidem")
            say(ear)
        with pytest.raises(AssertionError):
            ear.check(CANARY)


def _hear_a_local_variable(ear: Ear) -> None:
    code = "def f(password):\n    raise ValueError('x')\nf(canary)"
    try:
        # Frames of tests are not searched, so this one has the file name of a library.
        exec(compile(code, "library.py", "exec"), {"canary": CANARY})  # noqa: S102 - ours
    except ValueError as error:
        ear.hear_error(error)
