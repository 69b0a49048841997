"""Find the jars of Maven artifacts and of their dependencies, and keep them in a folder of our own.

Spark's Kafka connector and the Kafka brokers of tests consist of such jars. The package jgo
resolves the artifacts in Python, without Maven, from Maven Central or from the mirror that Spark's
variable ``DEFAULT_ARTIFACT_REPOSITORY`` names. The jars are kept in ``aioidem/maven`` below
``XDG_CACHE_HOME`` (default ``~/.cache``), so only the first use of a jar needs the network.

Invariants
    While our folder and Maven Central have every file, files that other programs left on the
    machine have no influence. Maven's own repository (``M2_REPO``, default ``~/.m2/repository``) is
    read too only if a file is missing or Maven Central does not answer, and a broken jar there
    counts as missing. Ivy's cache and Maven's settings are never read.
    A file that a broken download left in our folder is removed and fetched again.
    Only our folder is written to. A lock lets one process at a time do so (not on Windows).
    An error says in one line which file is missing, why, and what to do.

The functions block (files, network): a program with an event loop calls them in another thread.

Rejected
    Maven's repository as our folder: it may contain a POM without its jar, or half of a file.
    Ivy, which is part of Spark: it reads Maven's repository first, remembers what it did not find,
    ignores ``HTTPS_PROXY``, and its errors are pages of Java stack traces.
"""

from __future__ import annotations

import importlib
import os
import sys
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

from aioidem.errors import KafkaError

if sys.platform != "win32":
    import fcntl

__all__ = ["JarsUnavailableError", "jar_folder", "resolve_jars"]

_CONNECT_SECONDS: Final = 15
_READ_SECONDS: Final = 60


class JarsUnavailableError(KafkaError):
    """The jars could not be fetched: there is no jgo, no network, or no such published version."""


def jar_folder() -> Path:
    """Return the folder where the jars are kept, laid out as a Maven repository.

    Raises:
        JarsUnavailableError: There is no home directory to put the folder into.
    """
    told = os.environ.get("XDG_CACHE_HOME", "")
    try:
        cache = Path(told) if Path(told).is_absolute() else Path.home() / ".cache"
    except RuntimeError as error:
        raise JarsUnavailableError(
            "there is no home directory to keep jars in: set XDG_CACHE_HOME to an absolute path"
        ) from error
    return cache / "aioidem" / "maven"


def resolve_jars(
    wanted: Sequence[str], *, present: Callable[[str], bool] = lambda _: False
) -> tuple[Path, ...]:
    """Return the jars of artifacts and of their run-time dependencies, downloaded if necessary.

    Args:
        wanted: Maven coordinates, ``group:artifact:version``.
        present: Called with the name of an artifact; returns whether its jar is installed
            elsewhere, so that it can be left out.

    Raises:
        JarsUnavailableError: One of the jars could not be found.
    """
    try:
        maven: Any = importlib.import_module("jgo.maven")
    except ImportError as error:
        raise JarsUnavailableError(
            "jgo, which finds jars, is not installed: `pip install 'aioidem[kafka]'`"
        ) from error
    folder = jar_folder()
    try:
        with _alone(folder):
            return _resolve_somehow(maven, folder, wanted, present)
    except JarsUnavailableError:
        raise
    except Exception as error:  # noqa: BLE001 - jgo passes on whatever its libraries raise
        told = _in_one_line(error, folder)
        # With a mirror the cause is left out: it shows the address, which may contain a password.
        raise JarsUnavailableError(told) from (None if _mirror() else error)


def _resolve_somehow(
    maven: Any, folder: Path, wanted: Sequence[str], present: Callable[[str], bool]
) -> tuple[Path, ...]:
    """Return the jars, in up to three attempts.

    The first attempt uses our folder and Maven Central. If it fails, broken files are removed from
    our folder, and if there were any, the attempt is repeated. The last attempt uses Maven's own
    repository too.
    """
    try:
        return _resolve(maven, folder, [], wanted, present)
    except Exception as error:  # noqa: BLE001 - jgo passes on whatever its libraries raise
        first = error
    if _remove_broken(folder):
        try:
            return _resolve(maven, folder, [], wanted, present)
        except Exception as error:  # noqa: BLE001 - as above
            first = error
    try:
        return _resolve(maven, folder, [_maven_repository()], wanted, present)
    except Exception:  # noqa: BLE001 - the reason to report is why Maven Central failed
        raise first from None


def _resolve(
    maven: Any,
    folder: Path,
    lenders: list[Path],
    wanted: Sequence[str],
    present: Callable[[str], bool],
) -> tuple[Path, ...]:
    mirror = _mirror()
    resolver = maven.PythonResolver()
    failures = _failures_of(resolver)
    context = maven.MavenContext(
        resolver=resolver,
        repo_cache=folder,
        local_repos=lenders,
        remote_repos={"mirror": mirror} if mirror else None,
        timeout=(_CONNECT_SECONDS, _READ_SECONDS),
    )
    found, needed = resolver.resolve([context.create_dependency(each) for each in wanted])
    if failures:
        raise failures[0]
    artifacts = [each.artifact for each in (*found, *needed) if not present(each.artifactId)]
    jars = tuple(dict.fromkeys(Path(each.resolve()) for each in artifacts))
    for jar in jars:
        if not zipfile.is_zipfile(jar):
            raise JarsUnavailableError(f"{jar} is not a whole jar: delete it")
    return jars


def _failures_of(resolver: Any) -> list[Exception]:
    """Return a list to which each failed download of the resolver adds its error.

    jgo itself raises nothing if the POM of a dependency is missing.
    """
    failures: list[Exception] = []
    download = resolver.download

    def noting(artifact: Any) -> Any:
        try:
            return download(artifact)
        except Exception as error:
            failures.append(error)
            raise

    resolver.download = noting
    return failures


def _mirror() -> str:
    return os.environ.get("DEFAULT_ARTIFACT_REPOSITORY", "").rstrip("/")


def _maven_repository() -> Path:
    told = os.environ.get("M2_REPO")
    return Path(told) if told else Path.home() / ".m2" / "repository"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock the folder against other processes, except on Windows.

    Otherwise two processes could download the same file: the file exists from the first byte of the
    first download on, and jgo fails if a file exists that it is about to download.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".aioidem.lock").open("w") as lock:
        if sys.platform != "win32":
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_broken(folder: Path) -> int:
    """Remove the jars and POMs that are not whole, and return their number."""
    broken = [each for each in folder.rglob("*.jar") if not zipfile.is_zipfile(each)]
    broken += [each for each in folder.rglob("*.pom") if not _is_xml(each)]
    for each in broken:
        each.unlink()
    return len(broken)


def _is_xml(file: Path) -> bool:
    try:
        ET.parse(file)  # noqa: S314 - it came from Maven Central, and jgo parses it likewise
    except ET.ParseError:
        return False
    return True


def _in_one_line(error: Exception, folder: Path) -> str:
    """Return one line for the user about an error of jgo: what is missing, why, and what to do."""
    source = "the mirror that DEFAULT_ARTIFACT_REPOSITORY names" if _mirror() else "Maven Central"
    url = getattr(getattr(error, "request", None), "url", None)
    if url is not None:
        # The innermost exception of the chain names the cause; the others only wrap it.
        return (
            f"{url.rpartition('/')[2]} did not come from {source}"
            f" ({type(error).__name__}: {_root(error)}), and neither {folder} nor"
            f" {_maven_repository()} has it: the first use of a version needs the network"
            " (HTTPS_PROXY names a proxy)"
        )
    if isinstance(error, OSError):
        return f"{folder} cannot be used ({error}): set XDG_CACHE_HOME to where you may write"
    told = " ".join(str(error).split()) or type(error).__name__
    what, missing, _ = told.partition(" not found in remote repositories ")
    return f"{what} is not at {source}" if missing else f"from {source}: {told}"


def _root(error: BaseException) -> BaseException:
    while (before := error.__cause__ or error.__context__) is not None:
        error = before
    return error
