"""`pip install aioidem` works in an empty environment, alone and with each extra alone.

The package can be imported, a record is sent, and the extra does its work.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path

import pytest

from tests.ci import CI

from .tools import ROOT, Built, Environment

_CLI = {"hdrh", "javaproperties", "rich", "typer"}
EXTRAS: dict[str, set[str]] = {
    "arrow": {"pyarrow"},
    "aws": {"botocore"},
    "cli": _CLI,
    "compat": {"aiokafka"},
    "gssapi": {"gssapi"},
    "kafka": {"jgo"},
    "oauth": {"httpx2"},
    "opentelemetry": {"opentelemetry"},
    "prometheus": {"prometheus_client"},
    "report": {"plotly", *_CLI},
    "snappy": {"cramjam"},
    "spark": {"py4j", "pyarrow", "pyspark", *_CLI},
    "trio": {"trio"},
    "uvloop": {"uvloop"},
}
"""The packages that each extra installs, by the names under which they are imported."""

_NO_KERBEROS = pytest.mark.skipif(
    shutil.which("krb5-config") is None and not CI,
    reason="gssapi is compiled: no Kerberos headers here (Debian's package libkrb5-dev)",
)
_EACH = [
    pytest.param(extra, marks=[_NO_KERBEROS] if extra == "gssapi" else [])
    for extra in ("", *EXTRAS)
]


def test_every_extra_is_here() -> None:
    """These tests cover every extra of pyproject.toml."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        declared = tomllib.load(file)["project"]["optional-dependencies"]
    assert set(declared) - {"dev"} == set(EXTRAS)


@pytest.mark.parametrize("form", ["wheel", "sdist"])
@pytest.mark.parametrize("extra", _EACH)
def test_it_is_installed_and_sends(form: str, extra: str, built: Built, tmp_path: Path) -> None:
    """aioidem with this extra can be imported, sends a record, and runs the extra's program."""
    environment = Environment(tmp_path / "environment")
    file = built.wheel if form == "wheel" else built.sdist
    environment.install(f"aioidem{extra and f'[{extra}]'} @ {file.as_uri()}")

    environment.run("alone")
    missing = set(json.loads(environment.run("import_all")))
    assert missing <= set[str]().union(*EXTRAS.values()) - EXTRAS.get(extra, set())
    if extra:
        environment.run(f"with_{extra}")
