"""What users set for Spark reaches it, and is on no command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aioidem._spark.session import SparkUnavailableError, require_java
from tests.ci import CI

from .session_settings import SECRET, SETTINGS

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_settings_reach_spark_and_no_command_line(tmp_path: Path) -> None:
    """A first session starts a JVM, and a second one uses it; spark-defaults.conf counts, too."""
    try:
        require_java()
    except SparkUnavailableError as error:
        if CI:
            raise
        pytest.skip(str(error))
    defaults = "spark.ui.enabled true\nspark.app.name theirs\nspark.hadoop.fs.canary.secret none\n"
    (tmp_path / "spark-defaults.conf").write_text(defaults, encoding="utf-8")
    told = subprocess.run(
        [sys.executable, "-m", "tests.spark.session_settings"],
        cwd=ROOT,
        env={**os.environ, "SPARK_CONF_DIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=200,
    )
    for line in told.stdout.splitlines():
        assert json.loads(line) == {
            "name": SETTINGS["spark.app.name"],
            "secret": SECRET,
            "ui": "false",
            "java option": "there",
            "spark on the command line": True,
            "secret on the command line": False,
        }
    assert len(told.stdout.splitlines()) == 2


def test_a_file_of_the_users_is_not_replaced(tmp_path: Path) -> None:
    """Spark reads one file of properties only, so an error says where the settings belong."""
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"17.0.2\"' >&2\n", encoding="utf-8")
    java.chmod(0o755)
    tried = subprocess.run(
        [sys.executable, "-m", "tests.spark.session_settings"],
        cwd=ROOT,
        env={
            **os.environ,
            "JAVA_HOME": str(tmp_path),
            "PYSPARK_SUBMIT_ARGS": "--properties-file mine.conf pyspark-shell",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert tried.returncode == 1
    assert "SparkUnavailableError: PYSPARK_SUBMIT_ARGS has --properties-file" in tried.stderr
    assert "hunter2" not in tried.stderr
