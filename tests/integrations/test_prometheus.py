"""The Prometheus exporter, the Grafana dashboard and the alert rules."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import anyio
import anyio.to_thread
import pytest
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from aioidem import AIOKafkaProducer, Producer, errors
from aioidem._producer.metric_table import GROUPS, MetricKind
from aioidem.broker import EmbeddedCluster
from aioidem.integrations.prometheus import ProducerCollector, metric_name
from tests.ci import CI

pytestmark = pytest.mark.anyio

MONITORING = Path(__file__).parents[2] / "docs" / "monitoring"
Samples = dict[str, list[tuple[dict[str, str], float]]]


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    backend: str = request.param
    return backend


def needs(program: str) -> pytest.MarkDecorator:
    """Skip a test where a program of Prometheus is missing; on CI the test runs, and fails."""
    missing = shutil.which(program) is None and not CI
    return pytest.mark.skipif(missing, reason=f"needs {program}: Debian's package prometheus")


def samples_of(text: str) -> Samples:
    """Return what prometheus_client's own parser reads, by the name of the sample."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


async def exported() -> tuple[str, Samples]:
    """Return what a producer exports after some records, as text and as samples."""
    registry = CollectorRegistry()
    async with (
        EmbeddedCluster() as cluster,
        Producer(cluster.bootstrap_servers, client_id="me") as producer,
    ):
        ProducerCollector(producer, registry=registry)
        await producer.send_many("orders", [b"1", b"2", b"3"])
        with pytest.raises(errors.MessageSizeTooLargeError):
            producer.send_nowait("orders", bytes(2_000_000))
        text = (await anyio.to_thread.run_sync(generate_latest, registry)).decode()
    return text, samples_of(text)


async def test_the_parsers_read_what_is_exported() -> None:
    """Both formats are read by the client's own parsers, with every metric of the table."""
    text, samples = await exported()
    for group in GROUPS:
        for each in group.metrics:
            assert metric_name(group.name, each.name) in samples
    java = "kafka_producer_producer_metrics_record_send_total"
    assert samples[java] == [({"client_id": "me"}, 3.0)]
    [(labels, value)] = samples["aioidem_partition_window_limit"]
    assert labels == {"client_id": "me", "topic": "orders", "partition": "0"}
    assert value == 5
    [(labels, value)] = samples["aioidem_error_record_error_total"]
    assert (labels["error"], value) == ("MessageSizeTooLargeError", 1.0)
    counters = {
        metric_name(group.name, each.name)
        for group in GROUPS
        for each in group.metrics
        if each.kind is MetricKind.COUNTER
    }
    typed = set(re.findall(r"^# TYPE (\w+) counter$", text, re.MULTILINE))
    assert typed == counters


@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_the_drop_in_is_exported_too() -> None:
    """Also the producer that it makes anew when a start has failed."""
    registry = CollectorRegistry()
    async with EmbeddedCluster() as cluster:
        producer = AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap_servers, client_id="me", max_block_ms=1000
        )
        ProducerCollector(producer, registry=registry)
        await cluster.stop_broker(0)
        with pytest.raises(errors.KafkaError):
            await producer.start()
        await cluster.start_broker(0)
        cluster.create_topic("t")
        async with producer:
            await producer.send_and_wait("t", b"v")
            text = (await anyio.to_thread.run_sync(generate_latest, registry)).decode()
    java = "kafka_producer_producer_metrics_record_send_total"
    assert samples_of(text)[java] == [({"client_id": "me"}, 1.0)]


async def test_openmetrics_is_read_too() -> None:
    """The OpenMetrics format, which Prometheus asks for first, is read by its parser."""
    registry = CollectorRegistry()
    async with EmbeddedCluster() as cluster, Producer(cluster.bootstrap_servers) as producer:
        ProducerCollector(producer, registry=registry)
        await producer.send("t", b"")
        # On the producer's own loop.
        text = openmetrics.generate_latest(registry).decode()  # type: ignore[no-untyped-call]
    families = list(parse_openmetrics(text))  # type: ignore[no-untyped-call]
    assert len(families) > 100


async def test_scrapes_in_other_threads_lose_and_count_nothing_twice() -> None:
    """While four threads read the metrics, the counters count each record once."""
    registry = CollectorRegistry()
    stop = threading.Event()

    def scrape() -> None:
        while not stop.is_set():
            generate_latest(registry)

    async with EmbeddedCluster() as cluster, Producer(cluster.bootstrap_servers) as producer:
        ProducerCollector(producer, registry=registry)
        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(anyio.to_thread.run_sync, scrape)
            for _ in range(100):
                await producer.send("t", b"")
            stop.set()
        metrics = producer.metrics()
    assert metrics["producer-metrics"]["record-send-total"] == 100
    assert metrics["aioidem-metrics"]["record-acked-total"] == 100


async def test_a_loop_that_does_not_answer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a producer's event loop is blocked, only `aioidem_answers` is exported, and is 0."""
    monkeypatch.setattr("aioidem.integrations._readings.LOOP_SECONDS", 0.05)
    registry = CollectorRegistry()
    async with EmbeddedCluster() as cluster, Producer(cluster.bootstrap_servers) as producer:
        ProducerCollector(producer, registry=registry)
        texts: list[bytes] = []
        thread = threading.Thread(target=lambda: texts.append(generate_latest(registry)))
        thread.start()
        thread.join(10)  # blocks the loop
    assert [value for _, value in samples_of(texts[0].decode())["aioidem_answers"]] == [0.0]


def test_two_producers_need_two_client_ids() -> None:
    """The client_id tells producers apart; those that never started are exported, too."""
    one, two = (Producer("nowhere:1", client_id=name) for name in ("one", "two"))
    registry = CollectorRegistry()
    ProducerCollector(one, two, registry=registry)
    found = samples_of(generate_latest(registry).decode())["aioidem_answers"]
    assert [labels["client_id"] for labels, _ in found] == ["one", "two"]
    with pytest.raises(errors.ConfigError, match="client_id"):
        ProducerCollector(one, one, registry=None)
    with pytest.raises(ValueError, match="Duplicated"):
        ProducerCollector(one, registry=registry)


# -- the dashboard and the alerts ------------------------------------------------------------------


def panels() -> Iterator[tuple[str, str]]:
    """Yield each query of the dashboard, with its panel's title."""
    dashboard: dict[str, Any] = json.loads((MONITORING / "grafana.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


def alerts() -> Iterator[tuple[str, str]]:
    """Yield the condition of each alert, with its name."""
    text = (MONITORING / "alerts.yaml").read_text()
    yield from re.findall(r"- alert: (\w+)\n +expr: (.+)", text)


def test_every_panel_and_alert_asks_for_metrics_that_exist() -> None:
    """What a panel or an alert rule asks for, the exporter exports."""
    known = {metric_name(group.name, each.name) for group in GROUPS for each in group.metrics}
    known.add("aioidem_answers")
    asked = [*panels(), *alerts()]
    assert len(asked) > 40
    for title, query in asked:
        names = set(re.findall(r"\b(?:aioidem|kafka)_\w+", query))
        assert names, title
        assert names <= known, title


@pytest.mark.slow
@needs("prometheus")
@pytest.mark.parametrize("anyio_backend", ["asyncio"], indirect=True)
async def test_a_real_prometheus_answers_every_panel_and_alert(tmp_path: Path) -> None:
    """Prometheus scrapes a running producer, and each query of a panel or an alert has a result.

    An alert's condition is queried without its comparison, because nothing is wrong.
    """
    async with (
        EmbeddedCluster() as cluster,
        Producer(cluster.bootstrap_servers, client_id="me") as producer,
    ):
        registry = CollectorRegistry()
        ProducerCollector(producer, registry=registry)
        await producer.send_many("orders", [b"1", b"2", b"3"])
        with pytest.raises(errors.MessageSizeTooLargeError):
            producer.send_nowait("orders", bytes(2_000_000))
        server, thread = start_http_server(0, "127.0.0.1", registry)
        try:
            async with prometheus(server.server_port, tmp_path) as query:
                with anyio.fail_after(60):
                    while not await query("count_over_time(aioidem_answers[1m]) >= 4"):
                        await producer.send("orders", b"more")
                        await anyio.sleep(0.5)
                asked = [(title, plain(text)) for title, text in [*panels(), *alerts()]]
                silent = [title for title, text in asked if not await query(text)]
        finally:
            server.shutdown()
            server.server_close()
            thread.join(10)
    assert silent == []


def plain(query: str) -> str:
    """Return a panel's query as Grafana sends it, or an alert's condition without its limits."""
    query = query.replace("$__rate_interval", "1m").replace("$client", ".*")
    return re.sub(r" (>=?|==) (?=[\d.])", " >= bool ", query).replace(" >= aio", " >= bool aio")


@asynccontextmanager
async def prometheus(
    port: int, folder: Path
) -> AsyncIterator[Callable[[str], Awaitable[list[Any]]]]:
    """Run a Prometheus that scrapes a port of this machine; yield a function that queries it."""
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\n"
        f"rule_files: [{MONITORING / 'alerts.yaml'}]\n"
        "scrape_configs:\n"
        f"- {{job_name: it, static_configs: [{{targets: ['127.0.0.1:{port}']}}]}}\n"
    )
    with socket.create_server(("127.0.0.1", 0)) as free:
        own = free.getsockname()[1]
    process = await anyio.open_process(
        [
            "prometheus",
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{own}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def ask(text: str) -> list[Any]:
        url = f"http://127.0.0.1:{own}/api/v1/query?" + urlencode({"query": text})
        try:
            with urlopen(url, timeout=10) as answer:
                result: list[Any] = json.load(answer)["data"]["result"]
                return result
        except HTTPError as error:
            raise AssertionError(f"{text}: {error.read().decode()}") from None
        except URLError:
            return []  # it is not up yet

    async def query(text: str) -> list[Any]:
        return await anyio.to_thread.run_sync(ask, text)

    async with process:
        try:
            yield query
        finally:
            process.terminate()


@needs("promtool")
def test_promtool_accepts_the_rules() -> None:
    """Prometheus' own tool finds no mistake in the alert rules."""
    tool = shutil.which("promtool")
    assert tool is not None
    done = subprocess.run(
        [tool, "check", "rules", MONITORING / "alerts.yaml"], check=False, timeout=30
    )
    assert done.returncode == 0
