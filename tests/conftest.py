"""Fixtures of all tests: the three event loops, and guards against what a test may leave behind.

Invariants: each async test runs on asyncio, uvloop and trio. If a package that a test needs is
missing, the test is skipped with a reason that pytest's summary shows, but fails on CI
(``CI=true``). A hypothesis test that fails prints the blob that reproduces the failure.

The guards fail a test if library code blocks an asyncio loop, or if a listening port outlives the
test that opened it. Unclosed sockets and producers need no guard here, because they raise
ResourceWarning when they are collected, and warnings are errors.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import socket
import stat
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blockbuster import BlockBuster
from hypothesis import settings

from tests.ci import CI
from tests.fake_maven import FakeMaven
from tests.ground import foreign
from tests.markers import SECONDS_ON_KAFKA, markers_of

# Without this call, an assert that fails in a helper module would not show the compared values.
pytest.register_assert_rewrite(
    *(f"tests.{folder.name}" for folder in Path(__file__).parent.iterdir() if folder.is_dir())
)

# Environment variables of other programs must not change a test; a test that needs one sets it.
for _name in [name for name in os.environ if foreign(name)]:
    del os.environ[_name]
# Servers of tests listen on loopback, which an HTTP proxy cannot reach.
for _name in ("NO_PROXY", "no_proxy"):
    os.environ[_name] = ",".join(filter(None, [os.environ.get(_name), "127.0.0.1", "localhost"]))

_LONG_SECONDS = 300

# No deadline: on a busy machine other processes would make examples exceed it. The seed is printed
# by pytest-randomly.
settings.register_profile("aioidem", deadline=None, print_blob=True)
settings.load_profile("aioidem")


def _backend(name: str, needs: str, backend: str, **options: Any) -> Any:
    missing = importlib.util.find_spec(needs) is None
    marks = [pytest.mark.skip(reason=f"{needs} is not installed")] if missing and not CI else []
    return pytest.param((backend, options), id=name, marks=marks)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import the tests without garbage collection, then exempt the imported objects from it.

    Imported objects do not become garbage, but each full collection would visit them all. That took
    a third of a second in every test that calls `gc.collect`.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Set the markers of a test (see markers.py).

    pytest-xdist looks for its marker, the group, before `pytest_collection_modifyitems` is here.
    """
    for marker in markers_of(item):
        item.add_marker(marker)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first, and then those that share a cluster with the most others.

    If such tests came last in the random order, one worker would run them while the others wait.
    """
    together = Counter(map(_group_of, items))
    items.sort(key=lambda item: (_takes_long(item), together[_group_of(item)]), reverse=True)


def _takes_long(item: pytest.Item) -> bool:
    """Return whether a test's own timeout is at least `_LONG_SECONDS`, and more than usual."""
    bound = item.get_closest_marker("timeout")
    if bound is None or not bound.args or bound.args[0] < _LONG_SECONDS:
        return False
    return bound.args[0] > SECONDS_ON_KAFKA or item.get_closest_marker("kafka") is None


def _group_of(item: pytest.Item) -> str | None:
    """Return the group of tests that run in one process; None if a test may run anywhere."""
    group = item.get_closest_marker("xdist_group")
    return None if group is None else group.args[0]


@pytest.fixture(
    params=[
        _backend("asyncio", "asyncio", "asyncio", use_uvloop=False),
        _backend("uvloop", "uvloop", "asyncio", use_uvloop=True),
        _backend("trio", "trio", "trio"),
    ]
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run each ``@pytest.mark.anyio`` test on every event loop that aioidem supports."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


@pytest.fixture
def maven(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeMaven]:
    """Replace Maven Central by an empty repository, and the cache of jars by an empty folder."""
    made = FakeMaven(tmp_path / "central")
    made.folder.mkdir()
    with made.serve():
        monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", made.url)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        yield made
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()  # the sockets that jgo does not close must not warn in a later test


@pytest.fixture(scope="session")
def _blockbuster() -> BlockBuster:
    # The command line may block its own event loop: it writes reports to files after the load.
    guard = BlockBuster(scanned_modules=["aioidem"], excluded_modules=["aioidem._cli"])
    # A producer with flight_record_directory looks at it once, when it is made.
    for call in ("os.stat", "os.access"):
        guard.functions[call].can_block_in("_config/producer_config.py", "_unmet_by_directory")
    return guard


@pytest.fixture(autouse=True)
def _nothing_blocks_the_loop(
    request: pytest.FixtureRequest, _blockbuster: BlockBuster
) -> Iterator[None]:
    """Fail a test in which library code blocks an asyncio loop (file, lock, sleep, DNS)."""
    if "anyio_backend" not in request.fixturenames:
        yield
        return
    _blockbuster.activate()
    try:
        yield
    finally:
        _blockbuster.deactivate()


@pytest.fixture
def listening_ports() -> Callable[[], set[int]]:
    """Return a function that lists the TCP ports this process listens on."""
    return _listening_ports


@pytest.fixture(autouse=True)
def _no_port_outlives_its_test() -> Iterator[None]:
    """Fail a test that leaves a server listening, to which the next test might connect."""
    before = _listening_ports()
    yield
    left = _listening_ports() - before
    assert not left, f"still listening on {sorted(left)}"


def _listening_ports() -> set[int]:
    """Return the TCP ports on which this process listens; none on Windows, which has no /dev/fd.

    Each open file descriptor is examined: reading /proc/net/tcp takes milliseconds per test.
    """
    fds = Path("/dev/fd")
    if not fds.is_dir():
        return set()
    return {port for fd in fds.iterdir() if (port := _listening_port(int(fd.name)))}


def _listening_port(fd: int) -> int | None:
    try:
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            return None
        with socket.socket(fileno=os.dup(fd)) as copy:
            if copy.family not in {socket.AF_INET, socket.AF_INET6}:
                return None
            if not copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                return None
            port: int = copy.getsockname()[1]
            return port
    except OSError:  # closed after it was listed
        return None
