"""What the log says about outages of real brokers: at most six lines each, and the cause.

A service writes a record every 20 ms and looks at no outcome. Each outage is longer than its
`delivery_timeout`, so that records fail. ``pytest -s`` prints the lines at WARNING and above, from
the start of the producer to its end; docs/outages.md has those of one run.

One broker serves all outages but one. It has two log directories, of which one is a small file
system of its own, which a test fills. To mount it takes root (or sudo without a password); that
test is skipped for others. For the leader that is lost there are three nodes, because a cluster has
to go on that knows that the leader is gone. No client goes through a proxy, which would accept
connections to a broker that is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

import anyio
import pytest
from kio.schema.errors import ErrorCode

from aioidem import Producer, errors
from aioidem._testing.kafka_security import KafkaSecurity
from aioidem.testing import KafkaCluster
from tests.kafka.tools import bounded
from tests.kafka.world import limit_bytes, until
from tests.security.tools import Authority, token

pytestmark = pytest.mark.anyio

MOST_LINES = 6
EVERY = 0.02
CANARY = "canary-0451"
CA = Authority()
SESSION = 2.0
OPTIONS: dict[str, Any] = {
    "client_id": "checkout",
    "delivery_timeout": 2.0,
    "request_timeout": 1.0,
    "max_block": 2.0,
}
SASL: dict[str, Any] = {
    "security_protocol": "SASL_SSL",
    "ssl_truststore_certificates": CA.pem,
}
_ALTER_USERS, _SCRAM_SHA_256 = (51, 0), 1
_PAGE = 4096


class Lines(logging.Handler):
    """The lines of a service's log at WARNING and above."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self.records: list[logging.LogRecord] = []
        self.outages = 1

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.records.append(record)

    @property
    def outline(self) -> list[tuple[str, str]]:
        """The name and the phase of each line."""
        return [(each.__dict__["incident"], each.__dict__["phase"]) for each in self.records]

    async def until(self, incident: str, phase: str) -> None:
        """Wait until there is such a line; `bounded` sets the time limit."""

        async def logged() -> bool:
            return (incident, phase) in self.outline

        await until(logged)

    def of(self, incident: str) -> str:
        """Return the lines with this name."""
        return "\n".join(
            self.format(each) for each in self.records if each.__dict__["incident"] == incident
        )

    def __str__(self) -> str:
        return "\n".join(map(self.format, self.records))


@pytest.fixture
def lines(request: pytest.FixtureRequest) -> Iterator[Lines]:
    """Collect the lines; when the test is over, print them and count those of each outage."""
    collected, logger = Lines(), logging.getLogger("aioidem")
    logger.addHandler(collected)
    try:
        yield collected
    finally:
        logger.removeHandler(collected)
    print(f"\n--- {request.node.name}\n{collected}")  # noqa: T201 - pytest -s shows it
    assert len(collected.records) <= MOST_LINES * collected.outages
    assert CANARY not in str(collected)


@contextlib.asynccontextmanager
async def service(servers: str, topic: str, **options: Any) -> AsyncIterator[Producer]:
    """Run a service that writes a record every 20 ms and looks at no outcome."""

    async def write() -> None:
        with contextlib.suppress(errors.KafkaError):  # the producer ends if it is refused for good
            while not over.is_set():
                producer.send_nowait(topic, CANARY.encode() * 50)
                await anyio.sleep(EVERY)

    over = anyio.Event()
    async with Producer(servers, **{**OPTIONS, **options}) as producer:
        await producer.send(topic, b"connected")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(write)
            try:
                yield producer
            finally:
                over.set()


# --- one broker -----------------------------------------------------------------------------------


def as_root(*command: str) -> bool:
    """Run a command as root, if this user may; return whether it succeeded."""
    sudo = () if os.geteuid() == 0 else ("sudo", "-n")
    try:
        return not subprocess.run([*sudo, *command], capture_output=True, check=False).returncode
    except FileNotFoundError:
        return False


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path | None]:
    """Mount a file system of 8 MB; None if this user may not."""
    folder = tmp_path_factory.mktemp("disk")
    if not as_root("mount", "-t", "tmpfs", "-o", "size=8m,mode=777", "none", str(folder)):
        yield None
        return
    try:
        yield folder
    finally:
        as_root("umount", "--lazy", str(folder))


@pytest.fixture(scope="module")
async def kafka(
    small_disk: Path | None,
    tmp_path_factory: pytest.TempPathFactory,
    anyio_backend: object,  # noqa: ARG001 - a cluster lives in one loop
) -> AsyncIterator[KafkaCluster]:
    folders = str(tmp_path_factory.mktemp("logs"))
    if small_disk is not None:
        folders += f",{small_disk / 'logs'}"
    properties: dict[str, str | int] = {"log.dirs": folders, "quota.window.num": 2}
    users = {"alice": CANARY}
    sessions = {"SCRAM-SHA-256": SESSION, "OAUTHBEARER": 60.0}
    identity = CA.identity("localhost").both
    security = KafkaSecurity(identity, CA.pem, users, max_session=sessions)
    async with KafkaCluster(security=security, properties=properties) as running:
        yield running


@bounded(60)
async def test_the_broker_is_gone(kafka: KafkaCluster, lines: Lines) -> None:
    """A broker that is killed is named with the system's reason, and so is its return."""
    await kafka.create_topic("orders")
    async with service(kafka.inner_servers, "orders"):
        await kafka.kill()
        await lines.until("unseen-failures", "begins")
        await kafka.start()
        await lines.until("no-broker", "ends")
    told = lines.of("no-broker")
    assert "no broker can be reached for " in told
    assert "Connection refused" in told
    assert "a broker can be reached again" in told


@bounded(60)
async def test_a_quota_throttles(kafka: KafkaCluster, lines: Lines) -> None:
    """A quota that is too small is named by the log, and by the errors of records."""
    await kafka.create_topic("payments")
    await limit_bytes(kafka, "checkout", 2000.0)
    async with service(kafka.inner_servers, "payments") as producer:
        await lines.until("unseen-failures", "begins")
        await limit_bytes(kafka, "checkout", None)
        acked = producer.statistics().records_acked

        async def written_again() -> bool:
            return producer.statistics().records_acked > acked + 100

        await until(written_again)
    assert "throttles this client (a quota)" in lines.of("throttled")
    assert "which throttles this client (a quota) by up to " in lines.of("unseen-failures")
    assert "raise this client's quota" in lines.of("unseen-failures")


@bounded(60)
async def test_a_user_is_removed(kafka: KafkaCluster, lines: Lines) -> None:
    """A session that cannot be renewed, because its user is gone, is named with Kafka's reason."""
    await kafka.create_topic("carts")
    credentials = {"sasl_username": "alice", "sasl_password": CANARY}
    options = SASL | credentials | {"sasl_mechanism": "SCRAM-SHA-256"}
    async with service(kafka.secure_servers("SASL"), "carts", **options):
        deletion = {"name": "alice", "mechanism": _SCRAM_SHA_256}
        answer = await kafka.ask(*_ALTER_USERS, deletions=[deletion], upsertions=[])
        assert [each.error_code for each in answer.results] == [ErrorCode.none]
        await lines.until("unseen-failures", "begins")
    told = lines.of("authentication")
    assert "refuses this client: " in told
    assert "due to invalid credentials with SASL mechanism SCRAM-SHA-256" in told


@bounded(60)
async def test_a_token_cannot_be_refreshed(kafka: KafkaCluster, lines: Lines) -> None:
    """A token that expires, while the provider has no new one, is named with its reason."""
    await kafka.create_topic("refunds")
    gone = False

    async def provide() -> str:
        if gone:
            raise ConnectionError(CANARY)
        return token(time.time() + SESSION, "alice")

    options = SASL | {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": provide}
    async with service(kafka.secure_servers("SASL"), "refunds", **options):
        gone = True
        await lines.until("unseen-failures", "begins")
    assert "sasl_oauth_token_provider raised ConnectionError" in lines.of("authentication")
    assert "Check this client's credentials" in lines.of("unseen-failures")


@contextlib.contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Fill a file system up to its last page during the block."""
    filler = disk / "filler"
    try:
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            _write_on(file)
        yield
    finally:
        filler.unlink()


def _write_on(file: IO[bytes]) -> NoReturn:
    while True:
        file.write(bytes(_PAGE))


@bounded(60)
async def test_the_disk_is_full(kafka: KafkaCluster, small_disk: Path | None, lines: Lines) -> None:
    """A partition whose log directory is full has no leader, and the log says why.

    Kafka gives up a log directory at its first failed write; only a restart brings it back.
    """
    if small_disk is None:
        pytest.skip("this user may not mount a file system")
    topic = "clicks"
    await kafka.create_topic(topic)
    while not (small_disk / "logs" / f"{topic}-0").exists():
        topic += "s"  # Kafka puts each partition into the directory that has the fewest
        await kafka.create_topic(topic)
    lines.outages = 2  # the disk's, and the restart's: a batch may be in doubt during both
    async with service(kafka.inner_servers, topic):
        with filled(small_disk):
            await lines.until("unseen-failures", "begins")
            await lines.until("leader-missing", "begins")
        await kafka.restart()
        await lines.until("leader-missing", "ends")
    told = lines.of("leader-missing")
    assert f"{topic}-0 with waiting records: no leader for " in told
    assert "KafkaStorageError" in told
    assert "Check the disks of that broker" in told


# --- three nodes ----------------------------------------------------------------------------------


@bounded(90)
async def test_the_leader_is_lost(lines: Lines) -> None:
    """The only replica's broker is killed: first it cannot be reached, then nobody leads."""
    async with KafkaCluster(brokers=3) as kafka:
        controller = await kafka.controller()
        leader = next(each.node_id for each in kafka.brokers if each.node_id != controller)
        await kafka.create_topic("returns", replicas=[[leader]])
        async with service(kafka.inner_servers, "returns"):
            await kafka.kill(leader)
            await lines.until("unseen-failures", "begins")
            await kafka.start(leader)
            await lines.until("leader-unreachable", "ends")
    told = lines.of("leader-unreachable")
    assert f"broker {leader} (127.0.0.1:" in told
    assert "the last leader of returns-0 with waiting records, cannot be reached for " in told
    assert "Connection refused" in told
