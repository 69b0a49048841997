"""The audit on Spark runs where the user's Maven repository has a POM without its jar."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aioidem._jars import jar_folder
from aioidem.broker import EmbeddedCluster

POM = """<project><modelVersion>4.0.0</modelVersion><groupId>org.slf4j</groupId>
<artifactId>slf4j-api</artifactId><version>{0}</version></project>"""


@pytest.mark.slow
@pytest.mark.xdist_group("spark")
def test_the_audit_runs_where_maven_has_a_pom_without_its_jar(
    cluster: EmbeddedCluster, topic: str, tmp_path: Path
) -> None:
    home, ledger = tmp_path / "the home", tmp_path / "a ledger"
    ledger.mkdir()
    for version in ("2.0.16", "2.0.17"):  # dependencies of Spark 4's Kafka connector
        pom = home / f".m2/repository/org/slf4j/slf4j-api/{version}/slf4j-api-{version}.pom"
        pom.parent.mkdir(parents=True)
        pom.write_text(POM.format(version), encoding="utf-8")
    servers = ["--bootstrap-server", cluster.bootstrap_servers, "--topic", topic]
    done = subprocess.run(
        [sys.executable, "-m", "aioidem", "audit", "--ledger", str(ledger), *servers],
        env={
            **os.environ,
            "HOME": str(home),
            # Java takes the home directory from the system's list of users, not from HOME.
            "_JAVA_OPTIONS": f'"-Duser.home={home}"',
            "XDG_CACHE_HOME": str(jar_folder().parents[1]),
        },
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"written to {ledger}-audit" in done.stdout
