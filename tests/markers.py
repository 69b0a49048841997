"""The markers say what a test runs with; its folder says what it tests.

They are set here and not in the tests, so that no test lacks one:

- ``kafka``: the test is below a folder ``on_kafka``. It starts brokers of Apache Kafka.
- ``spark``: it uses the fixture ``spark``, or tests Spark with real Kafka.
- ``simulated``: it is in ``tests/simulated``. It simulates brokers, network and clock from a seed.
- ``embedded``: its module, or a helper module of the tests, uses `EmbeddedCluster`.
- ``install``: it is in ``tests/install``. It installs the wheel or the sdist.

A test without any of these markers calls functions and classes only, and starts no broker.

``thorough`` says when a test runs: in ``make test``, but not in ``make check``. It marks modules
that take seconds of processor time, and what runs on uvloop, of which little is not seen on asyncio
already. In other modules a test that takes long is marked where it is.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Protocol, runtime_checkable

import pytest

from aioidem.broker import EmbeddedCluster

__all__ = ["SECONDS_ON_KAFKA", "THOROUGH", "markers_of"]

_TESTS = Path(__file__).parent
_ON_KAFKA = "on_kafka"
THOROUGH = (
    "benchmarks",
    "broker/test_group_clients.py",
    "broker/test_real_clients.py",
    "broker/test_transactions_real_clients.py",
    "cli/test_perf.py",
    "cli/test_replay.py",
    "drop_in/test_differences.py",
    "drop_in/test_known_issues.py",
    "drop_in/test_same_behaviour.py",
    "exploration/test_search.py",
    "hostile",
    "hot/test_instructions.py",
    "house/test_ground.py",
    "mutation",
    "records/test_batch_properties.py",
    "security/test_oidc.py",
    "security/test_real_clients.py",
    "simulated/test_corpus.py",
    "simulated/test_transactional.py",
    "spark",
)
SECONDS_ON_KAFKA = 900  # the first test may download Kafka; each test has its own, tighter limit


@runtime_checkable
class _Parametrised(Protocol):
    callspec: Any


def markers_of(item: pytest.Item) -> Iterator[pytest.MarkDecorator]:
    """Yield the markers that one test gets."""
    folders = item.path.relative_to(_TESTS).parts if _TESTS in item.path.parents else ("",)
    fixtures = getattr(item, "fixturenames", ())
    if "spark" in fixtures or folders[:2] == ("spark", _ON_KAFKA):
        yield pytest.mark.spark
    if _ON_KAFKA in folders:
        yield pytest.mark.kafka
        yield pytest.mark.timeout(SECONDS_ON_KAFKA)
        yield pytest.mark.xdist_group(_who_shares_a_cluster(item, folders))
    elif folders[0] in {"simulated", "install"}:
        yield getattr(pytest.mark, folders[0])
    elif "cluster" in fixtures or _reaches_embedded_brokers(_module_of(item)):
        yield pytest.mark.embedded
    if "/".join(folders).startswith(THOROUGH) or _is_on_uvloop(item):
        yield pytest.mark.thorough


def _is_on_uvloop(item: pytest.Item) -> bool:
    if not isinstance(item, _Parametrised):
        return False
    match item.callspec.params.get("anyio_backend"):
        case (_, {"use_uvloop": True}):
            return True
    return False


def _module_of(item: pytest.Item) -> str:
    module = getattr(item, "module", None)
    return module.__name__ if isinstance(module, ModuleType) else __name__


def _who_shares_a_cluster(item: pytest.Item, folders: tuple[str, ...]) -> str:
    """Return the name of the group of tests that share a cluster, and so run in one process.

    A group is one file or folder directly below `on_kafka`, in one world (one kind of broker).
    """
    depth = folders.index(_ON_KAFKA) + 2
    world = item.callspec.params.get("world") if isinstance(item, _Parametrised) else None
    return f"{'/'.join(folders[:depth])} {world}"


@functools.cache
def _reaches_embedded_brokers(name: str) -> bool:
    """Return whether a module, or a test module that it imports from, names `EmbeddedCluster`."""
    seen, ahead = {name}, [name]
    while ahead:
        values = list(vars(sys.modules[ahead.pop()]).values())
        if any(value is EmbeddedCluster for value in values):
            return True
        new = {_origin(value) for value in values} - seen
        ahead += [origin for origin in new if origin.startswith("tests.") and origin in sys.modules]
        seen |= new
    return False


def _origin(value: object) -> str:
    """Return the module that a function, a class or a module comes from."""
    if isinstance(value, ModuleType):
        return value.__name__
    return value.__module__ if isinstance(value, FunctionType | type) else ""
