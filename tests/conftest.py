"""What all tests share: the three event loops, and guards against what a test may leave behind.

Invariants: an async test runs on asyncio, uvloop and trio alike, from one source; on CI
(``CI=true``) a missing component fails the test that needs it, elsewhere it is skipped with a
reason that pytest's summary shows; a property that fails prints the blob that reproduces it.

The guards are for every test: no library code blocks the event loop, and no listening port outlives
the test that opened it. Unclosed sockets and forgotten producers need no guard of ours: they raise
ResourceWarning, and warnings are errors here.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import socket
import stat
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blockbuster import BlockBuster
from hypothesis import settings

from tests.fake_maven import FakeMaven
from tests.ground import foreign
from tests.markers import markers_of

# What tests share asserts, too: without this a failure there shows no values.
pytest.register_assert_rewrite(
    *(f"tests.{folder.name}" for folder in Path(__file__).parent.iterdir() if folder.is_dir())
)

# What others have in their environment is no part of a test; a test that wants it sets it.
for _name in [name for name in os.environ if foreign(name)]:
    del os.environ[_name]
# Servers of a test are on loopback, where no proxy finds them.
for _name in ("NO_PROXY", "no_proxy"):
    os.environ[_name] = ",".join(filter(None, [os.environ.get(_name), "127.0.0.1", "localhost"]))

CI = os.environ.get("CI", "").lower() == "true"

_LONG_SECONDS = 300

# No deadline: on a shared machine it measures the neighbours. A seed is printed by pytest-randomly.
settings.register_profile("aioidem", deadline=None, print_blob=True)
settings.load_profile("aioidem")


def _backend(name: str, needs: str, backend: str, **options: Any) -> Any:
    missing = importlib.util.find_spec(needs) is None
    marks = [pytest.mark.skip(reason=f"{needs} is not installed")] if missing and not CI else []
    return pytest.param((backend, options), id=name, marks=marks)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import the tests without the garbage collector, and keep it from what they imported.

    Nothing of that becomes garbage, but each full collection would look at all of it: that took a
    fifth of a second in each test that collects to see what is forgotten.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with what it runs with (see markers.py), and put the longest ones first.

    Where one of these comes last in the random order, all workers but one have nothing to do.
    """
    for item in items:
        for marker in markers_of(item):
            item.add_marker(marker)
    items.sort(key=_takes_long, reverse=True)


def _takes_long(item: pytest.Item) -> bool:
    """Return whether a test has a bound of its own, and one of several minutes."""
    bound = item.get_closest_marker("timeout")
    return bound is not None and bool(bound.args) and bound.args[0] >= _LONG_SECONDS


@pytest.fixture(
    params=[
        _backend("asyncio", "asyncio", "asyncio", use_uvloop=False),
        _backend("uvloop", "uvloop", "asyncio", use_uvloop=True),
        _backend("trio", "trio", "trio"),
    ]
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Run each ``@pytest.mark.anyio`` test on every event loop aioidem promises."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


@pytest.fixture
def maven(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeMaven]:
    """Put an empty Maven repository in the place of Maven Central, and find no older jars."""
    made = FakeMaven(tmp_path / "central")
    made.folder.mkdir()
    with made.serve():
        monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", made.url)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        yield made
    with warnings.catch_warnings(action="ignore", category=ResourceWarning):
        gc.collect()  # what jgo forgets is not to be found by a later test


@pytest.fixture(scope="session")
def _blockbuster() -> BlockBuster:
    # The command line runs its own loop and writes its reports when the load is over.
    return BlockBuster(scanned_modules=["aioidem"], excluded_modules=["aioidem._cli"])


@pytest.fixture(autouse=True)
def _nothing_blocks_the_loop(
    request: pytest.FixtureRequest, _blockbuster: BlockBuster
) -> Iterator[None]:
    """Fail a blocking call (file, lock, sleep, DNS) made by library code on an asyncio loop."""
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
    """Fail a test that leaves a server listening: the next one would talk to it."""
    before = _listening_ports()
    yield
    left = _listening_ports() - before
    assert not left, f"still listening on {sorted(left)}"


def _listening_ports() -> set[int]:
    """Return this process's listening TCP ports; none where /dev/fd does not tell (Windows).

    Asks each socket: reading /proc/net/tcp instead costs milliseconds per test.
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
    except OSError:  # closed since it was listed
        return None
