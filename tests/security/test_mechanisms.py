"""Each SASL mechanism, without a network, makes the right messages and refuses wrong answers.

SCRAM is tested with the server of the package scramp, and with hostile answers written by hand. A
wrong answer raises `AuthenticationFailedError` at once, and the error does not contain the secret.
"""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scramp import ScramMechanism

from aioidem._broker.security import signature
from aioidem._config.secret import Secret
from aioidem._network.sasl.aws_msk_iam import AwsMskIam, region_of
from aioidem._network.sasl.gssapi import Gssapi
from aioidem._network.sasl.mechanism import Mechanism
from aioidem._network.sasl.oauthbearer import OAuthBearer
from aioidem._network.sasl.plain import Plain
from aioidem._network.sasl.scram import MAX_ITERATIONS, Scram
from aioidem.errors import AuthenticationFailedError

from .tools import AwsSession

SALT = base64.b64encode(b"s" * 16).decode()
OURS = "rOprNGfwEbeRWgbNEkqO"
THEIRS = OURS + "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"


# --- PLAIN ----------------------------------------------------------------------------------------


def test_plain_says_name_and_password() -> None:
    """PLAIN sends name and password in one message (RFC 4616)."""
    plain = Plain("ali,ce", Secret("pé=ss"))
    assert plain.first() == b"\0ali,ce\0" + "pé=ss".encode()
    assert plain.next(b"") is None


def test_plain_takes_no_question() -> None:
    """PLAIN refuses a challenge."""
    with pytest.raises(AuthenticationFailedError, match="another challenge"):
        Plain("alice", Secret("x")).next(b"more?")


@pytest.mark.parametrize(("name", "word"), [("", "x"), ("a", ""), ("a\0b", "x"), ("a", "canary\0")])
def test_what_plain_cannot_carry_is_refused(name: str, word: str) -> None:
    """PLAIN refuses names and passwords that its message cannot contain."""
    with pytest.raises(AuthenticationFailedError) as caught:
        Plain(name, Secret(word))
    assert "canary" not in str(caught.value)


# --- SCRAM ----------------------------------------------------------------------------------------


def _scram(hash_name: str = "SCRAM-SHA-256", word: str = "pencil") -> Scram:
    scram = Scram(hash_name, "user", Secret(word), nonce=OURS)
    scram.first()
    return scram


def test_scram_sha_256_is_that_of_rfc_7677() -> None:
    """SCRAM-SHA-256 produces the messages of RFC 7677's example."""
    scram = Scram("SCRAM-SHA-256", "user", Secret("pencil"), nonce=OURS)
    assert scram.first() == f"n,,n=user,r={OURS}".encode()
    final = scram.next(f"r={THEIRS},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode())
    # The client returns the whole nonce, its own part and the server's (kafka_protocol #112,
    # CVE-2024-56128).
    assert final == (f"c=biws,r={THEIRS},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=".encode())
    assert scram.next(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=") is None


@pytest.mark.parametrize("hash_name", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("iterations", [4096, 10_000])
@pytest.mark.parametrize("name", ["alice", "a,l=ice", "al ice"])
def test_scram_and_a_server_believe_one_another(hash_name: str, iterations: int, name: str) -> None:
    """SCRAM and scramp's server authenticate one another."""
    mechanism = ScramMechanism(hash_name)
    keys = mechanism.make_auth_info("pencil", iteration_count=iterations)
    server = mechanism.make_server({name: keys}.get)
    scram = Scram(hash_name, name, Secret("pencil"))
    assert scram.principal == name
    server.set_client_first(scram.first().decode())
    final = scram.next(server.get_server_first().encode())
    assert final is not None
    server.set_client_final(final.decode())
    assert scram.next(server.get_server_final().encode()) is None


def test_two_exchanges_have_different_nonces() -> None:
    first, second = (Scram("SCRAM-SHA-256", "u", Secret("p")).first() for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    "message",
    [
        # The nonce does not start with ours, equals ours, is not printable, or is missing.
        f"r=other{THEIRS},s={SALT},i=4096",
        f"r={OURS},s={SALT},i=4096",
        f"r={THEIRS}\x7f,s={SALT},i=4096",
        f"r={THEIRS[:-1]}é,s={SALT},i=4096",
        f"s={SALT},i=4096",
        # Attributes are missing, repeated, out of order, reserved, or unreadable.
        f"r={THEIRS},i=4096",
        f"r={THEIRS},s={SALT}",
        f"r={THEIRS},r={THEIRS},s={SALT},i=4096",
        f"s={SALT},r={THEIRS},i=4096",
        f"m=ext,r={THEIRS},s={SALT},i=4096",
        f"r={THEIRS},s=***,i=4096",
        f"r={THEIRS},s=,i=4096",
        f"r={THEIRS},s={base64.b64encode(b'short').decode()},i=4096",
        "e=unknown-user",
        "e=whatever",
        ",,,",
        "",
        "r",
        "\0" * 20,
        # Too few iterations weaken the protection of the password, too many keep the client busy
        # (kafka-python #3026).
        *(f"r={THEIRS},s={SALT},i={count}" for count in ("0", "1", "4095", "-1", "x", "", "04096")),
        *(
            f"r={THEIRS},s={SALT},i={count}"
            for count in (MAX_ITERATIONS + 1, 2**31 - 1, 10**30, "00000001000001", "٤٠٩٦")
        ),
        "r=" + THEIRS + "x" * 5000 + f",s={SALT},i=4096",
    ],
)
def test_a_hostile_first_answer_is_refused_at_once(
    message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SCRAM derives no key from a malformed first answer (kafka-python #3026)."""
    derived: list[Any] = []

    def derive(*given: Any) -> bytes:
        derived.append(given)
        return bytes(32)

    monkeypatch.setattr("hashlib.pbkdf2_hmac", derive)
    scram = _scram(word="canary")
    with pytest.raises(AuthenticationFailedError, match="SCRAM-SHA-256: ") as caught:
        scram.next(message.encode())
    assert derived == []
    assert "canary" not in str(caught.value)
    assert caught.value.__cause__ is caught.value.__context__ is None


@pytest.mark.parametrize(
    "message",
    [
        b"",  # the server reports success without its signature
        b"v=",
        b"v=AAAA",
        b"v=" + base64.b64encode(b"\0" * 32),
        b"e=invalid-proof",
        b"v=!!!",
        b"\xff\xfe",
        b"p=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
        b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=,v=AAAA",
        b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4==",
        b" v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
    ],
)
def test_a_server_that_does_not_prove_itself_is_refused(message: bytes) -> None:
    """SCRAM is not complete before the client has verified the server's signature."""
    scram = _scram()
    scram.next(f"r={THEIRS},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode())
    with pytest.raises(AuthenticationFailedError):
        scram.next(message)


def test_the_servers_signature_is_compared_in_constant_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """SCRAM compares the server's signature by `compare_digest`, which takes constant time."""
    compared: list[object] = []

    def compare(one: Any, other: Any) -> bool:
        compared.extend((one, other))
        return hmac.compare_digest(one, other)

    monkeypatch.setattr("scramp.core.compare_digest", compare)
    signature = "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    scram = _scram()
    scram.next(f"r={THEIRS},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode())
    assert scram.next(f"v={signature}".encode()) is None
    assert compared == [base64.b64decode(signature)] * 2


def test_scram_goes_on_after_nothing() -> None:
    """SCRAM refuses every message after the end of the exchange."""
    scram = _scram()
    scram.next(f"r={THEIRS},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode())
    scram.next(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
    with pytest.raises(AuthenticationFailedError, match="already finished"):
        scram.next(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


@given(st.binary(max_size=200))
def test_any_bytes_from_a_scram_server_are_refused_or_answered(data: bytes) -> None:
    """SCRAM refuses random bytes in place of the server's first message."""
    with pytest.raises(AuthenticationFailedError):
        _scram().next(data)


@given(
    st.lists(st.tuples(st.sampled_from("rsivemxnpc"), st.text(max_size=12)), min_size=1, max_size=5)
)
def test_any_attributes_from_a_scram_server_are_refused_or_answered(
    attributes: list[tuple[str, str]],
) -> None:
    """SCRAM refuses random attributes in place of the server's first message."""
    message = ",".join(f"{name}={value}" for name, value in attributes)
    with pytest.raises(AuthenticationFailedError):
        _scram().next(message.encode())


@pytest.mark.parametrize("word", ["", "pass\u00a0word", "ﬁsh", "a\u0007b", "\u0627a"])
def test_a_password_kafka_would_hash_differently_is_refused_by_name(word: str) -> None:
    """SCRAM refuses a password that SASLprep would change, because Kafka hashes it unchanged."""
    with pytest.raises(AuthenticationFailedError, match="SCRAM-SHA-256: ") as caught:
        Scram("SCRAM-SHA-256", "user", Secret(word))
    assert caught.value.__cause__ is caught.value.__context__ is None


# --- OAUTHBEARER ----------------------------------------------------------------------------------


def test_oauthbearer_says_token_and_extensions() -> None:
    """OAUTHBEARER sends the token and its extensions in one message (RFC 7628)."""
    bearer = OAuthBearer(Secret("a.b-c~+/=="), {"logicalCluster": "lkc 1", "pool": "x=y"})
    assert bearer.first() == (
        b"n,,\x01auth=Bearer a.b-c~+/==\x01logicalCluster=lkc 1\x01pool=x=y\x01\x01"
    )
    assert bearer.next(b"") is None
    assert OAuthBearer(Secret("t")).first() == b"n,,\x01auth=Bearer t\x01\x01"


def test_oauthbearer_answers_a_refusal_so_that_the_broker_says_it_with_a_code() -> None:
    """OAUTHBEARER answers a refusal with one byte, so that the broker sends its error code."""
    bearer = OAuthBearer(Secret("t"))
    assert bearer.next(b'{"status":"invalid_token"}') == b"\x01"
    for challenge in (b"", b"again"):
        with pytest.raises(AuthenticationFailedError, match="invalid_token"):
            bearer.next(challenge)


@pytest.mark.parametrize(
    ("token", "extensions"),
    [
        ("", {}),
        ("canary\x01auth=Bearer other", {}),
        ("canary canary", {}),
        ("canary\n", {}),
        ("t", {"auth": "canary"}),
        ("t", {"a b": "canary"}),
        ("t", {"a": "canary\x01"}),
        ("t", {"a": ""}),
    ],
)
def test_what_could_forge_a_field_is_refused(token: str, extensions: dict[str, str]) -> None:
    """OAUTHBEARER refuses tokens and extensions that could forge another field."""
    with pytest.raises(AuthenticationFailedError, match="OAUTHBEARER: ") as caught:
        OAuthBearer(Secret(token), extensions)
    assert "canary" not in str(caught.value)


# --- AWS_MSK_IAM ----------------------------------------------------------------------------------

_VECTOR = {
    "version": "2020_10_22",
    "host": "localhost",
    "user-agent": "any",
    "action": "kafka-cluster:Connect",
    "x-amz-algorithm": "AWS4-HMAC-SHA256",
    "x-amz-credential": f"{'X' * 20}/20210818/us-east-1/kafka-cluster/aws4_request",
    "x-amz-date": "20210818T212511Z",
    "x-amz-signedheaders": "host",
    "x-amz-expires": "900",
}


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, "0fa42ae3d5693777942a7a4028b564f0b372bafa2f71c1a19ad60680e6cb994b"),
        (
            {"x-amz-security-token": "XXXXX"},
            "b0619c50b7ecb4a7f6f92bd5f733770df5710e97b25146f97015c0b1db783b05",
        ),
    ],
)
def test_the_signature_we_check_with_is_that_of_known_messages(
    more: dict[str, str], expected: str
) -> None:
    """`signature`, with which the tests check AWS signatures, is right for known messages."""
    assert signature({**_VECTOR, **more}, "X" * 40) == expected


@pytest.mark.parametrize("session_token", [None, "to/ken+with=signs"])
def test_what_botocore_signs_is_right_and_whole(session_token: str | None) -> None:
    """AWS_MSK_IAM's message has every field, and botocore's signature is right."""
    session = AwsSession("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", session_token)
    host = "b-1.x.abc.c2.kafka.eu-north-1.amazonaws.com"
    message = AwsMskIam(host, session=session, user_agent="me").first()
    fields = json.loads(message)
    assert fields["x-amz-signature"] == signature(
        fields, "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
    )
    assert (fields["host"], fields["version"], fields["user-agent"]) == (host, "2020_10_22", "me")
    assert fields["action"] == "kafka-cluster:Connect"
    assert fields["x-amz-credential"].split("/")[2] == "eu-north-1"
    assert fields.get("x-amz-security-token") == session_token
    more = set() if session_token is None else {"x-amz-security-token"}
    assert set(fields) == {*_VECTOR, "x-amz-signature", *more}
    assert b"MDENG" not in message


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("b-2.demo.abc123.c4.kafka.us-east-1.amazonaws.com", "us-east-1"),
        ("boot-x.c1.kafka-serverless.eu-west-1.amazonaws.com.", "eu-west-1"),
        ("b-1.x.c2.kafka.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("b-1.kafka.abc123.c2.kafka.eu-west-1.amazonaws.com", "eu-west-1"),
        ("kafka.example.com", None),
        ("localhost", None),
        ("kafka", None),
    ],
)
def test_the_region_is_in_the_brokers_name(host: str, region: str | None) -> None:
    """AWS_MSK_IAM takes the region from the broker's host name."""
    assert region_of(host) == region


def test_aws_without_credentials_fails_by_name() -> None:
    """AWS_MSK_IAM fails with a clear error if botocore finds no credentials."""

    class Empty(AwsSession):
        def get_credentials(self) -> Any:
            return None

    with pytest.raises(AuthenticationFailedError, match="finds no credentials"):
        AwsMskIam("h", session=Empty("a", "b"), user_agent="me").first()


def test_aws_wants_to_be_confirmed() -> None:
    """AWS_MSK_IAM is complete only after the broker's confirmation."""
    iam = AwsMskIam("h", session=AwsSession("a", "b"), user_agent="me")
    with pytest.raises(AuthenticationFailedError, match="did not confirm"):
        iam.next(b"")


# --- GSSAPI ---------------------------------------------------------------------------------------


class Context:
    """A security context that is complete after two tokens, and marks wrapped messages."""

    def __init__(self) -> None:
        self.complete = False
        self.steps: list[bytes | None] = []

    def step(self, token: bytes | None) -> bytes | None:
        self.steps.append(token)
        if token == b"bad":
            raise RuntimeError("no such ticket")
        self.complete = len(self.steps) == 2
        return None if self.complete else b"token"

    def unwrap(self, message: bytes) -> bytes:
        if not message.startswith(b"wrapped:"):
            raise RuntimeError("integrity")
        return message.removeprefix(b"wrapped:")

    def wrap(self, message: bytes) -> bytes:
        return b"wrapped:" + message


def test_gssapi_shakes_hands_and_chooses_no_layer() -> None:
    """GSSAPI completes its exchange and chooses no security layer (RFC 4752)."""
    context = Context()
    gssapi = Gssapi(lambda: context)
    assert gssapi.first() == b"token"
    assert gssapi.next(b"theirs") == b""
    assert context.steps == [None, b"theirs"]
    assert gssapi.next(b"wrapped:\x07\x00\xff\xff") == b"wrapped:\x01\x00\x00\x00"
    assert gssapi.next(b"") is None


@pytest.mark.parametrize(
    "challenges",
    [
        [b"bad"],
        [b"theirs", b"unprotected"],
        [b"theirs", b"wrapped:\x06\x00\xff\xff"],  # the server requires a security layer
        [b"theirs", b"wrapped:\x01"],
        [b"theirs", b""],
        [b"theirs", b"wrapped:\x01\x00\x00\x00", b"more"],
    ],
)
def test_a_hostile_gssapi_server_is_refused(challenges: list[bytes]) -> None:
    gssapi = Gssapi(Context)
    gssapi.first()
    for each in challenges[:-1]:
        gssapi.next(each)
    with pytest.raises(AuthenticationFailedError, match="GSSAPI: "):
        gssapi.next(challenges[-1])


def test_a_ticket_that_cannot_be_had_is_an_authentication_failure() -> None:
    """If the Kerberos library has no ticket, GSSAPI fails the authentication."""

    def make() -> Context:
        raise RuntimeError("no ticket cache")

    with pytest.raises(AuthenticationFailedError, match="no ticket cache"):
        Gssapi(make).first()


# --- all ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: Plain("canary-name", Secret("canary")),
        lambda: Scram("SCRAM-SHA-256", "u", Secret("canary")),
        lambda: OAuthBearer(Secret("canary")),
        lambda: AwsMskIam("h", session=AwsSession("a", "canary"), user_agent="me"),
        lambda: Gssapi(Context),
    ],
)
def test_a_mechanism_can_be_printed(make: Callable[[], Mechanism]) -> None:
    """The repr of a mechanism does not contain its secret."""
    mechanism = make()
    mechanism.first()
    assert "canary" not in repr(mechanism)
    assert mechanism.name
