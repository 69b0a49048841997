"""A Maven repository that a test fills and serves on a loopback port."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

# Warnings to ignore: jgo (which fetches jars) leaves sockets open, and Python warns of each one.
JGO_FORGETS = (
    "ignore:unclosed <socket:ResourceWarning",
    "ignore:.*<socket:pytest.PytestUnraisableExceptionWarning",
)


class FakeMaven:
    """A Maven repository in a folder; `url` is its address while it is served."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = ""

    def put(self, coordinate: str, *needs: str, jar: bool = True) -> Path:
        """Publish an artifact with these dependencies; return the path of its POM."""
        group, artifact, version = coordinate.split(":")
        pom = self.folder.joinpath(
            *group.split("."), artifact, version, f"{artifact}-{version}.pom"
        )
        pom.parent.mkdir(parents=True)
        needed = "".join(f"<dependency>{_named(each)}</dependency>" for each in needs)
        pom.write_text(
            "<project><modelVersion>4.0.0</modelVersion>"
            f"{_named(coordinate)}<dependencies>{needed}</dependencies></project>",
            encoding="utf-8",
        )
        if jar:
            with zipfile.ZipFile(pom.with_suffix(".jar"), "w") as made:
                made.writestr("name", coordinate)
        return pom

    @contextmanager
    def serve(self) -> Iterator[None]:
        """Serve the repository over HTTP on a free port during the block."""
        handler = partial(_Quiet, directory=str(self.folder))
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            self.url = f"http://127.0.0.1:{server.server_port}"
            thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                yield
            finally:
                server.shutdown()
                thread.join()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Log nothing."""


def _named(coordinate: str) -> str:
    group, artifact, version = coordinate.split(":")
    return (
        f"<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>"
    )
