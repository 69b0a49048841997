"""Spark shows no credentials where it shows options, and tasks look up secrets by name."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from anyio.from_thread import BlockingPortal

from aioidem._cli import main
from aioidem._spark.marker import IdentityUsedError, TaskIdentity
from aioidem._spark.options import SinkOptions
from aioidem._spark.redaction import REDACTION, hide_credentials
from aioidem._spark.session import job_failure
from aioidem._spark.writing import Written, check_identity, write_rows
from aioidem.broker import BrokerSecurity, EmbeddedCluster
from aioidem.errors import ConfigError
from aioidem.spark import end_open_transactions, register

from .tools import fixed_tasks, record_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CANARY: Final = "canary-hunter2"
ROWS: Final = 10
SCRAM: Final = {
    "kafka.security.protocol": "SASL_PLAINTEXT",
    "kafka.sasl.mechanism": "SCRAM-SHA-256",
    "kafka.sasl.username": "me",
}
JAAS: Final = (
    "org.apache.kafka.common.security.scram.ScramLoginModule required "
    f'username="me" password="{CANARY}";'
)
OAUTH: Final = "kafka.sasl.oauthbearer.client.credentials.client"
EXPLAIN_MODES: Final = ("simple", "extended", "codegen", "cost", "formatted")


@pytest.fixture(scope="module")
def guarded(portal: BlockingPortal) -> Iterator[EmbeddedCluster]:
    """Start an embedded broker that requires a password."""
    security = BrokerSecurity(mechanisms=("SCRAM-SHA-256",), users={"me": CANARY})
    made = EmbeddedCluster(brokers=1, security=security)
    with portal.wrap_async_context_manager(made) as running:
        yield running


@pytest.fixture
def where(guarded: EmbeddedCluster, topic: str) -> dict[str, str]:
    """Return the options for writing to the test's own topic on the broker with a password."""
    guarded.create_topic(topic, partitions=2)
    return {"kafka.bootstrap.servers": guarded.bootstrap_servers, "topic": topic}


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(f"{CANARY}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def talkative(spark: SparkSession) -> Iterator[None]:
    """Make Spark record logical plans, which contain the options, in its event log and UI."""
    setting = "spark.sql.ui.explainMode"
    before = spark.conf.get(setting)
    spark.conf.set(setting, "extended")
    yield
    spark.conf.set(setting, str(before))


class Stream:
    """A stream that writes one batch of rows, and everything that Spark reports about it."""

    def __init__(self, spark: SparkSession, folder: Path, options: Mapping[str, str]) -> None:
        source, self.checkpoint = str(folder / "source"), folder / "checkpoint"
        frame = spark.range(0, ROWS, 1, 1).selectExpr("cast(id AS string) value")
        frame.write.parquet(source)
        stream: DataFrame = spark.readStream.schema("value string").parquet(source)
        writer = stream.writeStream.format("aioidem").options(**options)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        self.spark: Any = spark
        self.raised = ""
        with fixed_tasks(spark):
            self.query: Any = writer.trigger(availableNow=True).start()
            try:
                assert self.query.awaitTermination(120)
            except Exception as error:  # noqa: BLE001 - its text is examined
                self.raised = str(error)

    def said(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each place where Spark reports something, and the text there."""
        yield "raised", self.raised
        yield "exception()", str(self.query.exception())
        yield "lastProgress", str(self.query.lastProgress)
        self.query.explain(extended=True)  # Spark records this in its event log
        execution = self.query._jsq.streamingQuery().lastExecution()  # noqa: SLF001
        modes = self.spark._jvm.org.apache.spark.sql.execution.ExplainMode  # noqa: SLF001
        for mode in EXPLAIN_MODES:
            yield f"explain {mode}", execution.explainString(modes.fromString(mode))
        yield "the plan as JSON", execution.analyzed().toJSON()
        for path in self.checkpoint.rglob("*"):
            if path.is_file():
                yield f"checkpoint {path.name}", path.read_bytes().decode("latin-1")


def recorded(spark: SparkSession, event_log: Path) -> str:
    """Return the event log so far; it has the same plans as the UI and the UI's REST API."""
    context: Any = spark.sparkContext
    context._jsc.sc().listenerBus().waitUntilEmpty()  # noqa: SLF001
    files = [path for path in event_log.rglob("*") if not path.name.startswith(".")]
    return "".join(path.read_text("utf-8") for path in files if path.is_file())


def written(cluster: EmbeddedCluster, topic: str) -> int:
    return len(cluster.records(topic))


# Options with plain credentials. The broker does not use TLS, so the case with SASL_SSL writes no
# records.
GIVEN: Final[Mapping[str, Mapping[str, str]]] = {
    "password": {**SCRAM, "kafka.sasl.password": CANARY},
    "jaas": {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": JAAS,
    },
    "keys-and-client-secret": {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "OAUTHBEARER",
        "kafka.sasl.oauthbearer.token.endpoint.url": "https://127.0.0.1:1/",
        f"{OAUTH}.id": "me",
        f"{OAUTH}.secret": CANARY,
        "kafka.ssl.keystore.certificate.chain": "no chain",
        "kafka.ssl.keystore.key": CANARY,
        "kafka.ssl.key.password": CANARY,
    },
}


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("kind", GIVEN)
def test_spark_shows_no_credential_that_is_given_as_it_is(
    kind: str,
    spark: SparkSession,
    event_log: Path,
    where: dict[str, str],
    guarded: EmbeddedCluster,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Plans, exceptions, checkpoint, event log and the driver's output show no plain credential."""
    register(spark)
    stream = Stream(spark, tmp_path, {**where, **GIVEN[kind]})
    assert bool(stream.raised) is (kind == "keys-and-client-secret")
    for place, text in stream.said():
        assert CANARY not in text, place
    log = recorded(spark, event_log)
    assert "MicroBatchWrite" in log  # the log does contain the plan of the write
    if spark.version < "4.2":  # later versions leave the options of a stream out of its plan
        assert where["topic"] in log
    assert CANARY not in log
    assert CANARY not in "".join(capfd.readouterr())
    if not stream.raised:
        assert written(guarded, where["topic"]) == ROWS


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("named", ["password", "jaas"])
def test_a_task_looks_up_what_an_option_names(
    named: str,
    spark: SparkSession,
    event_log: Path,
    where: dict[str, str],
    guarded: EmbeddedCluster,
    password_file: Path,
) -> None:
    """A task looks up the secret that an option names, in the environment or in a file."""
    register(spark)
    options = {**where, **SCRAM, "kafka.sasl.password": f"file:{password_file}"}
    if named == "jaas":
        password_file.write_text(JAAS)
        options |= {"kafka.sasl.jaas.config": options.pop("kafka.sasl.password")}
        del options["kafka.sasl.username"]
    frame = spark.range(0, ROWS, 1, 2).selectExpr("cast(id AS string) value")
    writer = frame.write.format("aioidem").mode("append")
    writer.options(**options, identity=where["topic"], adaptive="allow").save()
    assert written(guarded, where["topic"]) == ROWS
    log = recorded(spark, event_log)
    assert where["topic"] in log
    assert CANARY not in log


def test_a_stream_and_the_end_of_its_transactions_look_up_named_secrets(
    spark: SparkSession,
    where: dict[str, str],
    guarded: EmbeddedCluster,
    password_file: Path,
    tmp_path: Path,
) -> None:
    """A stream, and the call that ends its transactions, look up the secrets that options name."""
    register(spark)
    options = {**where, **SCRAM, "kafka.sasl.password": f"file:{password_file}"}
    stream = Stream(spark, tmp_path, options)
    assert stream.raised == ""
    assert written(guarded, where["topic"]) == ROWS
    assert end_open_transactions(spark, str(stream.checkpoint), options) == ()
    password_file.unlink()
    with pytest.raises(ConfigError, match=r"kafka\.sasl\.password: "):
        end_open_transactions(spark, str(stream.checkpoint), options)


def test_a_file_that_an_executor_lacks_is_named_by_its_option(
    spark: SparkSession, where: dict[str, str], tmp_path: Path
) -> None:
    register(spark)
    missing = tmp_path / "no-such-file"
    writer = spark.createDataFrame([("x",)], "value string").write.format("aioidem").mode("append")
    options = {**where, **SCRAM, "kafka.sasl.password": f"file:{missing}"}
    with pytest.raises(Exception, match="ConfigError") as caught:
        writer.options(**options).save()
    told = job_failure(caught.value)
    assert f"kafka.sasl.password: {missing}: No such file or directory" in told


def test_ledgers_and_event_log_of_a_load_have_no_password(
    spark: SparkSession,
    event_log: Path,
    where: dict[str, str],
    password_file: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    config, ledger = tmp_path / "client.properties", tmp_path / "ledger"
    lines = [f"{name.removeprefix('kafka.')}={value}" for name, value in SCRAM.items()]
    config.write_text("\n".join([*lines, f"sasl.password=file:{password_file}"]))
    status = main(
        [
            "perf", "--spark", "--tasks", "2", "--topic", where["topic"], "--num-records", "50",
            "--bootstrap-server", where["kafka.bootstrap.servers"],
            "--command-config", str(config), "--ledger", str(ledger),
        ]
    )  # fmt: skip
    assert status == 0
    assert spark.read.parquet(str(ledger)).count() == 50
    for path in ledger.iterdir():
        assert CANARY.encode() not in path.read_bytes(), path.name
    assert CANARY not in recorded(spark, event_log)
    assert CANARY not in "".join(capfd.readouterr())


def test_what_spark_hides_already_stays_hidden(spark: SparkSession) -> None:
    """Hiding our credentials extends Spark's redaction pattern, and does not replace it."""
    before = spark.conf.get(REDACTION)
    try:
        spark.conf.unset(REDACTION)
        default = spark.conf.get(REDACTION)
        hide_credentials(spark)
        assert str(spark.conf.get(REDACTION)).startswith(f"{default}|(")
        spark.conf.set(REDACTION, "(?i)my.own")
        hide_credentials(spark)
        once = spark.conf.get(REDACTION)
        assert once is not None
        assert once.startswith("(?i)my.own|")
        hide_credentials(spark)
        assert spark.conf.get(REDACTION) == once
    finally:
        spark.conf.set(REDACTION, str(before))


# --- without Spark --------------------------------------------------------------------------------

PLACE: Final = {"kafka.bootstrap.servers": "h:1", "topic": "t"}


def test_what_is_named_is_not_looked_up_on_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The driver does not look up the secrets that options name."""
    path = tmp_path / "key"
    named = {
        **PLACE,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "PLAIN",
        "kafka.sasl.username": "me",
        "kafka.sasl.password": "env:AIOIDEM_TEST_PASSWORD",
        "kafka.ssl.keystore.key": f"file:{path}",
        "kafka.ssl.keystore.certificate.chain": f"file:{path}",
    }
    monkeypatch.delenv("AIOIDEM_TEST_PASSWORD", raising=False)
    read = SinkOptions.read(named)
    monkeypatch.setenv("AIOIDEM_TEST_PASSWORD", CANARY)
    path.write_text("the key\n")
    assert CANARY.encode() not in pickle.dumps(read)
    looked_up = read.looked_up()
    config = looked_up.config()
    assert config.sasl_password is not None
    assert config.sasl_password.reveal() == CANARY
    assert config.ssl_keystore_key is not None
    assert config.ssl_keystore_key.reveal() == "the key"
    assert CANARY not in repr(looked_up)


def test_a_value_that_was_looked_up_is_not_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A secret whose text looks like a reference is not looked up a second time."""
    monkeypatch.setenv("AIOIDEM_TEST_PASSWORD", "env:HOME")
    named = {**PLACE, **SCRAM, "kafka.sasl.password": "env:AIOIDEM_TEST_PASSWORD"}
    config = SinkOptions.read(named).looked_up().looked_up().config()
    assert config.sasl_password is not None
    assert config.sasl_password.reveal() == "env:HOME"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"kafka.linger.ms": "env:LINGER"}, r"kafka\.linger\.ms: a value .* only be named for"),
        ({"kafka.client.id": "file:/id"}, r"kafka\.client\.id: a value .* only be named for"),
        ({**SCRAM, "kafka.sasl.pasword": "env:P"}, r"kafka\.sasl\.pasword"),
        ({**SCRAM, "kafka.linger.m": "1", "kafka.sasl.password": "env:P"}, r"linger\.m"),
        ({"kafka.sasl.password": "env:P"}, "expected security_protocol"),
        ({**SCRAM}, "needs sasl_username and sasl_password"),
    ],
)
def test_what_is_wrong_beside_a_named_value_is_found_on_the_driver(
    more: dict[str, str], message: str
) -> None:
    """The driver refuses wrong options without looking up the secrets that other options name."""
    with pytest.raises(ConfigError, match=message):
        SinkOptions.read({**PLACE, **more})


@pytest.mark.parametrize(
    "mechanism", ["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER", "AWS_MSK_IAM", "GSSAPI"]
)
def test_a_login_configuration_may_be_named(
    mechanism: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option may name a login configuration (JAAS) instead of containing it."""
    given = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": "file:/run/jaas",
    }
    if mechanism == "OAUTHBEARER":
        given["kafka.sasl.oauthbearer.token.endpoint.url"] = "https://h/"
    if mechanism == "GSSAPI":  # the driver asks only whether the package is there
        tmp_path.joinpath("gssapi.py").touch()
        monkeypatch.syspath_prepend(tmp_path)
    assert "/run/jaas" not in repr(SinkOptions.read({**PLACE, **given}))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("env:AIOIDEM_NO_SUCH", "the environment has no variable 'AIOIDEM_NO_SUCH'"),
        ("file:{folder}/none", "No such file or directory"),
        ("file:{folder}", "Is a directory"),
        ("file:{folder}/binary", "is not text in UTF-8"),
        ("file:{folder}/empty", "is empty"),
    ],
)
def test_what_cannot_be_looked_up_is_a_config_error(
    value: str, message: str, tmp_path: Path
) -> None:
    """A secret that cannot be looked up raises ConfigError."""
    (tmp_path / "binary").write_bytes(b"\xff" + CANARY.encode())
    (tmp_path / "empty").write_text("\n")
    assert "AIOIDEM_NO_SUCH" not in os.environ
    named = {**PLACE, **SCRAM, "kafka.sasl.password": value.format(folder=tmp_path)}
    with pytest.raises(ConfigError, match=message) as caught:
        SinkOptions.read(named).looked_up()
    assert str(caught.value).startswith("ConfigError: kafka.sasl.password: ")
    assert "every executor" in str(caught.value)
    assert CANARY not in str(caught.value)


def test_an_identity_that_the_driver_cannot_look_at_is_refused_by_every_task(
    guarded: EmbeddedCluster, where: dict[str, str], password_file: Path
) -> None:
    """If the driver cannot read the password, each task refuses a used identity itself."""
    named = {**where, **SCRAM, "kafka.sasl.password": f"file:{password_file}"}
    sink = SinkOptions.read({**named, "identity": where["topic"]})
    rows = record_batch(where["topic"], [b"v"])
    first = TaskIdentity(where["topic"], 0, 0, "one run")
    assert write_rows(sink, [rows], first) == Written(1)
    second = TaskIdentity(where["topic"], 0, 1, "one run")
    assert write_rows(sink, [rows], second) == Written(1)
    password_file.rename(password_file.with_name("elsewhere"))
    check_identity(sink)
    password_file.with_name("elsewhere").rename(password_file)
    for number in (0, 1, 2):
        with pytest.raises(IdentityUsedError):
            write_rows(sink, [rows], TaskIdentity(where["topic"], 0, number, "another run"))
    assert written(guarded, where["topic"]) == 2
