"""Jars are found despite what other programs left in Maven's caches; errors take one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from aioidem._jars import JarsUnavailableError, jar_folder, resolve_jars
from tests.fake_maven import JGO_FORGETS, FakeMaven

pytestmark = pytest.mark.filterwarnings(*JGO_FORGETS)

A, B = "org.example:a:1", "org.example:b:2"
NOWHERE = "http://127.0.0.1:9"  # no server listens on this port


@pytest.fixture(autouse=True)
def mine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeMaven:
    """Return the user's own Maven repository, which is empty."""
    own = tmp_path / "mine"
    monkeypatch.setenv("M2_REPO", str(own))
    return FakeMaven(own)


def names(*wanted: str) -> list[str]:
    return [each.relative_to(jar_folder()).name for each in resolve_jars(wanted)]


def published(maven: FakeMaven) -> None:
    maven.put(A, B)
    maven.put(B)


def test_an_artifact_comes_with_what_it_needs_and_is_kept(
    maven: FakeMaven, mine: FakeMaven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An artifact is fetched with its dependencies, and is found again without the network."""
    published(maven)
    assert names(A) == ["a-1.jar", "b-2.jar"]
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", NOWHERE)
    assert names(A) == ["a-1.jar", "b-2.jar"]
    assert not mine.folder.exists()


@pytest.mark.parametrize("poison", ["no jar", "half a jar", "a jar of others", "half a pom"])
def test_what_is_in_maven_s_repository_does_not_matter(
    maven: FakeMaven, mine: FakeMaven, poison: str
) -> None:
    """A damaged copy in the user's Maven repository is not used."""
    published(maven)
    pom = mine.put(B, jar=poison != "no jar")
    if poison == "half a jar":
        pom.with_suffix(".jar").write_bytes(b"PK\3\4")
    if poison == "half a pom":
        pom.write_text("<project>", encoding="utf-8")
    assert names(A) == ["a-1.jar", "b-2.jar"]


def test_a_pom_that_did_not_come_is_not_passed_over(maven: FakeMaven) -> None:
    """A dependency whose POM cannot be fetched is an error, and is not left out."""
    published(maven)
    maven.put("org.example:c:3", A)
    pom = maven.folder / "org/example/a/1/a-1.pom"
    text = pom.read_text(encoding="utf-8")
    pom.unlink()
    with pytest.raises(JarsUnavailableError, match=r"org.example:a:pom:1 is not at"):
        resolve_jars(["org.example:c:3"])
    pom.write_text(text, encoding="utf-8")
    assert names("org.example:c:3") == ["c-3.jar", "a-1.jar", "b-2.jar"]


@pytest.mark.parametrize("suffix", [".jar", ".pom"])
def test_what_a_download_that_broke_off_left_is_fetched_again(
    maven: FakeMaven, suffix: str
) -> None:
    """A file that an interrupted download left incomplete is fetched again."""
    published(maven)
    jars = resolve_jars([A])
    whole = jars[1].with_suffix(suffix).read_bytes()
    jars[1].with_suffix(suffix).write_bytes(whole[:10])
    assert resolve_jars([A]) == jars
    assert jars[1].with_suffix(suffix).read_bytes() == whole


@pytest.mark.usefixtures("maven")
def test_maven_s_repository_lends_what_central_does_not_give(
    mine: FakeMaven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If Maven Central cannot be reached, jars of the user's Maven repository are used."""
    published(mine)
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", NOWHERE)
    assert [each.parent for each in resolve_jars([A])] == [
        mine.folder / "org/example/a/1",
        mine.folder / "org/example/b/2",
    ]


@pytest.mark.usefixtures("maven")
def test_what_is_missing_is_one_line(mine: FakeMaven, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error for a jar that cannot be fetched is one line with the places that were tried."""
    mine.put(A, jar=False)
    monkeypatch.setenv("DEFAULT_ARTIFACT_REPOSITORY", "http://me:secret@127.0.0.1:9")
    with pytest.raises(JarsUnavailableError) as caught:
        resolve_jars([A])
    [line] = caught.value.args[0].splitlines()
    assert line.startswith(
        "a-1.pom did not come from the mirror that DEFAULT_ARTIFACT_REPOSITORY names"
        " (ConnectionError: [Errno 111] Connection refused)"
    )
    assert f"neither {jar_folder()} nor {mine.folder} has it" in line
    assert "the first use of a version needs the network" in line
    assert caught.value.__cause__ is None  # the cause would show the password


def test_the_error_for_an_unpublished_dependency_is_one_line(maven: FakeMaven) -> None:
    """The error for a dependency that the repository does not have is one line."""
    maven.put(A, B)
    with pytest.raises(JarsUnavailableError) as caught:
        resolve_jars([A])
    [line] = caught.value.args[0].splitlines()
    assert line == (
        "Artifact org.example:b:pom:2 is not at the mirror that DEFAULT_ARTIFACT_REPOSITORY names"
    )


def test_a_folder_that_cannot_be_written_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    with pytest.raises(JarsUnavailableError, match=r"Not a directory.*set XDG_CACHE_HOME"):
        resolve_jars([A])


def test_the_folder_is_the_user_s_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Jars are kept in the user's cache folder (XDG_CACHE_HOME)."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert jar_folder() == tmp_path / ".cache" / "aioidem" / "maven"
