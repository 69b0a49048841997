"""Properties come from flags, files and the environment; an exposed secret causes a warning."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from aioidem._cli import main
from aioidem._cli.audit import plan_audit
from aioidem._load.plan import plan_perf
from aioidem._load.properties import gather_properties, refuse_misplaced_secrets
from aioidem._load.usage import UsageError
from aioidem.broker import BrokerSecurity, EmbeddedCluster
from tests.commands import AIOIDEM

CANARY = "canary-hunter2"
OAUTH = "sasl.oauthbearer.client.credentials.client"


def private(path: Path, text: str) -> Path:
    path.write_text(text, encoding="latin-1")
    path.chmod(0o600)
    return path


def refusal(*items: str, file: Path | None = None) -> str:
    with pytest.raises(UsageError) as caught:
        gather_properties(items, file)
    message = str(caught.value)
    assert CANARY not in message
    assert "\n" not in message
    return message


def test_a_file_is_read_as_java_reads_it(tmp_path: Path) -> None:
    file = private(
        tmp_path / "client.properties",
        "# a comment\nlinger.ms = 5\nclient.id: caf\\u00e9\n"
        f'sasl.jaas.config=x required \\\n    password="{CANARY}";\n',
    )
    values, warnings = gather_properties(file=file)
    assert values == {
        "linger.ms": "5",
        "client.id": "café",
        "sasl.jaas.config": f'x required password="{CANARY}";',
    }
    assert warnings == ()


def test_what_a_flag_gives_overrides_the_file(tmp_path: Path) -> None:
    file = private(tmp_path / "f", "linger.ms=5\nacks=1\n")
    assert gather_properties(["acks=all"], file).values == {"linger.ms": "5", "acks": "all"}


def test_values_may_stand_in_the_environment_and_in_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A property's value may be in an environment variable or in a file."""
    monkeypatch.setenv("THE_PASSWORD", CANARY)
    key = private(tmp_path / "key", "first line\nsecond: line\r\n")
    items = ["sasl.password=env:THE_PASSWORD", f"ssl.keystore.key=file:{key}"]
    values, warnings = gather_properties(items)
    assert values == {"sasl.password": CANARY, "ssl.keystore.key": "first line\nsecond: line"}
    assert warnings == ()


def test_what_is_named_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment variable or file that a property refers to must exist and be usable."""
    monkeypatch.delenv("NO_SUCH_VARIABLE", raising=False)
    assert (
        refusal("sasl.password=env:NO_SUCH_VARIABLE")
        == "sasl.password: the environment has no variable 'NO_SUCH_VARIABLE'"
    )
    assert "No such file" in refusal(f"sasl.password=file:{tmp_path / 'none'}")
    assert "directory" in refusal(f"sasl.password=file:{tmp_path}")
    assert "null" in refusal("sasl.password=file:a\0b")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff" + CANARY.encode())
    assert "not text in UTF-8" in refusal(f"sasl.password=file:{binary}")
    long = private(tmp_path / "long", "x" * ((1 << 16) + 1))
    assert "larger than 64 KiB" in refusal(f"sasl.password=file:{long}")


@pytest.mark.parametrize("named", ["env:\ud800", "env:a=b", "file:\0", "file:\ud800"])
def test_a_name_that_the_system_does_not_take_is_refused(named: str) -> None:
    """A reference to a variable or file whose name no system accepts is refused."""
    assert refusal(f"sasl.password={named}").startswith("sasl.password: ")


def test_a_secret_that_cannot_be_sent_is_refused_without_being_shown(tmp_path: Path) -> None:
    """A password that UTF-8 cannot encode is refused, and the error does not show the password."""
    text = "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=me\n"
    file = private(tmp_path / "f", f"{text}sasl.password={CANARY}\\ud800\n")
    with pytest.raises(
        UsageError, match=r"sasl\.password=\*\*\*: expected a text in UTF-8"
    ) as caught:
        plan_perf(config_file=file)
    assert CANARY not in str(caught.value)


def test_what_a_file_says_reaches_the_terminal_as_one_printable_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors quote text from a properties file in short, printable lines."""
    for text in (
        "password.\\u001b[2J\\u202e=1",
        "sasl.password=file:\\u001b[2J\\u000a",
        "transactional.id=\\u001b[2J",
        "bootstrap.servers=\\u001b[2J",
        "x" * 9000 + "=1",
        "linger.ms=" + "\\u001b" * 9000,
    ):
        file = tmp_path / "f"
        file.write_text(text)
        words = ["--bootstrap-server", "h:1", "--transactional-id", "t", "--topic", "t"]
        assert main(["perf", *words, "--command-config", str(file)]) == 2
        for line in capsys.readouterr().err.splitlines():
            assert line.isprintable(), repr(line[:300])
            assert len(line) < 3000


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    assert "--command-config" in refusal(file=tmp_path / "none")
    assert "--command-config" in refusal(file=tmp_path)
    assert "broken" in refusal(file=private(tmp_path / "f", f"sasl.password={CANARY}\\u00"))
    assert "larger than 1 MiB" in refusal(file=private(tmp_path / "l", "#" * ((1 << 20) + 1)))


@pytest.mark.parametrize("item", [CANARY, f"sasl.password:{CANARY}", f"sasl.password {CANARY}"])
def test_what_is_not_name_and_value_is_counted_and_not_shown(item: str) -> None:
    """The error for an argument that is not `name=value` shows the argument's position only."""
    assert refusal("linger.ms=5", item) == "--producer-props: value 2 is not name=value"


@pytest.mark.parametrize(
    "text", [CANARY, f"{CANARY}\n", f"acks=1\n{CANARY}", f"\x01{CANARY}=1", f"{CANARY}\x80 x"]
)
def test_a_file_that_is_no_properties_file_is_not_quoted(text: str, tmp_path: Path) -> None:
    """The error for a malformed properties file does not quote it, as it may be just a password."""
    file = private(tmp_path / "f", text)
    message = f"--command-config: {file} has a line that is not name=value"
    assert refusal(file=file) == message


def test_the_mark_that_windows_editors_begin_a_file_with_is_passed_over(tmp_path: Path) -> None:
    """A byte order mark at the start of a properties file, or of a password's, is ignored."""
    file = private(tmp_path / "f", "\xef\xbb\xbfsasl.mechanism=PLAIN\n")
    assert gather_properties(file=file).values == {"sasl.mechanism": "PLAIN"}
    secret = private(tmp_path / "secret", "\xef\xbb\xbfword\r\n")
    named = gather_properties([f"sasl.password=file:{secret}"]).values
    assert named == {"sasl.password": "word"}


@pytest.mark.parametrize("flag", ["--in-flight", "--topic", "--bootstrap-server", "--json"])
@pytest.mark.parametrize("name", ["sasl.password", f"{OAUTH}.secret"])
@pytest.mark.parametrize("value", ["hunter2", "hunter2" * 20])
@pytest.mark.parametrize("joint", ["=", " "])
def test_a_secret_after_a_flag_that_takes_none_is_refused_and_shown_in_no_part(
    flag: str, name: str, value: str, joint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A message that shortens what was given shows its beginning or its end."""
    given = f"{flag}{joint}{name}={value}".split()
    assert main(["perf", *given, "--num-records", "1"]) == 2
    printed = capsys.readouterr()
    assert "hunter" not in printed.out + printed.err
    assert printed.err.startswith(f"aioidem perf: {flag}: {name}=... is a property")


def test_a_secret_after_its_flag_and_other_values_pass() -> None:
    refuse_misplaced_secrets(
        [
            *("perf", "--producer-props", "sasl.password=x", "--producer-props=sasl.password=x"),
            *("--json", "./my.secret=x.json", "--payload-delimiter", "=", "--topic", "passwords"),
            *("--spark-conf", "spark.executor.extraJavaOptions=-Djavax.net.ssl.keyStorePassword=x"),
        ]
    )


@pytest.mark.parametrize(
    "words",
    [
        ["perf", "--producer-props=linger.ms=1", f"sasl.password={CANARY}"],
        ["perf", "--producer-props", "linger.ms=1", "--", f"sasl.password={CANARY}"],
        ["perf", f"--sasl-pass={CANARY}"],
        ["perf", "--producer-prop", f"sasl.password={CANARY}"],
        ["perf", "--command-config", f"sasl.password={CANARY}"],
        ["perf", f"--command-config=sasl.password={CANARY}"],
        ["perf", "--payload-file", f"ssl.key.password={CANARY}"],
        ["perf", "--in-flight", f"sasl.password=\\{CANARY}"],
    ],
)
def test_a_secret_where_no_secret_belongs_is_not_printed(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The error for a misspelt flag or a surplus argument does not print a secret in it."""
    assert main(words) == 2
    printed = capsys.readouterr()
    assert CANARY not in printed.out + printed.err
    assert printed.err.startswith("aioidem perf: ")


@pytest.mark.parametrize(
    "item",
    [
        f"sasl.password={CANARY}",
        f'sasl.jaas.config=x required password="{CANARY}";',
        f"ssl.key.password={CANARY}",
        f"ssl.keystore.key={CANARY}",
        f"sasl.oauthbearer.client.credentials.client.secret={CANARY}",
    ],
)
def test_a_secret_on_the_command_line_is_warned_of(item: str) -> None:
    name = item.partition("=")[0]
    _, [warning] = gather_properties([item])
    assert warning == (
        f"--producer-props {name}: every user of this machine can read the command line; use"
        f" --command-config FILE, {name}=env:NAME or {name}=file:PATH"
    )


def test_no_warning_where_nothing_is_shown() -> None:
    """Properties that are no secrets, and an empty password, cause no warning."""
    items = ["linger.ms=5", "sasl.username=me", "sasl.password=", "sasl.mechanism=PLAIN"]
    assert gather_properties(items).warnings == ()


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX's")
def test_a_file_with_a_secret_that_others_may_read_is_warned_of(tmp_path: Path) -> None:
    file = private(tmp_path / "f", f"sasl.password={CANARY}\n")
    file.chmod(0o640)
    assert gather_properties(file=file).warnings == (
        f"--command-config {file}: it holds a secret and others may read it; chmod 0600",
    )
    file.write_text("sasl.password=env:PATH\nlinger.ms=5\n")
    assert gather_properties(file=file).warnings == ()


@pytest.mark.skipif(os.name != "posix", reason="file modes are POSIX's")
def test_a_secret_in_a_file_of_its_own_that_others_may_read_is_warned_of(tmp_path: Path) -> None:
    secret = private(tmp_path / "secret", CANARY)
    name = private(tmp_path / "name", "me")
    secret.chmod(0o604)
    name.chmod(0o604)
    items = [f"sasl.password=file:{secret}", f"sasl.username=file:{name}"]
    assert gather_properties(items).warnings == (
        f"sasl.password {secret}: it holds a secret and others may read it; chmod 0600",
    )


def test_plans_show_no_values(tmp_path: Path) -> None:
    file = private(tmp_path / "f", f"sasl.username=me\nsasl.password={CANARY}\n")
    more = ["security.protocol=SASL_SSL", "sasl.mechanism=PLAIN"]
    perf = plan_perf(producer_props=more, config_file=file)
    assert perf.properties["sasl.password"] == CANARY
    audit = plan_audit(
        ledger=str(tmp_path),
        bootstrap_server="h:1",
        topic="t",
        config_file=file,
        spark_conf=[f"spark.my.password={CANARY}"],
    )
    assert audit.options == {"kafka.sasl.username": "me", "kafka.sasl.password": CANARY}
    assert len(audit.warnings) == 1
    for shown in (repr(perf), repr(audit), repr(gather_properties(file=file)), *audit.warnings):
        assert CANARY not in shown


@pytest.fixture
def anyio_backend() -> str:
    """Use one event loop only, because the command runs in a process of its own."""
    return "asyncio"


@pytest.mark.parametrize("flag", ["--command-config", "--producer.config"])
@pytest.mark.anyio
async def test_perf_authenticates_with_a_password_that_no_process_list_shows(
    flag: str, tmp_path: Path
) -> None:
    file = private(
        tmp_path / "client.properties",
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.username=me\nsasl.password=env:THE_PASSWORD\n",
    )
    security = BrokerSecurity(mechanisms=("SCRAM-SHA-256",), users={"me": CANARY})
    async with EmbeddedCluster(security=security) as cluster:
        with anyio.fail_after(50):
            done = await anyio.run_process(
                [
                    *(*AIOIDEM, "perf", "--topic", "t"),
                    *("--num-records", "3", "--bootstrap-server", cluster.bootstrap_servers),
                    *(flag, str(file)),
                ],
                check=False,
                env={**os.environ, "THE_PASSWORD": CANARY},
            )
    assert done.returncode == 0, done.stderr
    assert CANARY.encode() not in done.stdout + done.stderr
