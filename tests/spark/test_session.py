"""Software that Spark needs and that is missing is reported in one line, before Spark is loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aioidem._load.usage import one_line
from aioidem._spark.session import (
    SparkUnavailableError,
    job_failure,
    kafka_jars,
    require_java,
    require_one_spark,
    tell_other_python,
)
from tests.commands import ALONE
from tests.fake_maven import JGO_FORGETS, FakeMaven

WANTED = "Spark needs a JDK of version 17 or newer in JAVA_HOME or on the PATH"


def a_java(folder: Path, script: str) -> Path:
    """Make a shell script `bin/java` in the folder, which the tests find instead of Java."""
    java = folder / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    java.chmod(0o755)
    return java


def test_no_java_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without Java, the error says in one line which Java is needed and that none was found."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SparkUnavailableError) as caught:
        require_java()
    assert one_line(caught.value) == f"{WANTED}: none was found"


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("""echo 'openjdk version "11.0.2" 2019-01-15' >&2""", "{java} is of version 11"),
        ("""echo 'java version "1.8.0_391"' >&2""", "{java} is of version 1"),
        ("echo 'Error: Module not found' >&2; exit 1", "{java} says: Error: Module not found"),
    ],
)
def test_a_java_that_does_not_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, script: str, message: str
) -> None:
    """A Java that is too old or does not run is refused in one line."""
    java = a_java(tmp_path, script)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailableError) as caught:
        require_java()
    line = one_line(caught.value)
    assert line.startswith(WANTED)
    assert line.endswith(message.format(java=java))


def test_java_home_goes_before_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Java is looked for in JAVA_HOME if that is set, and otherwise on the path."""
    java = a_java(tmp_path, """echo 'openjdk version "21" 2023-09-19' >&2""")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert require_java() == java
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(SparkUnavailableError, match="does not run"):
        require_java()


BOTH_NEED_SPARK = """
import aioidem.spark
from aioidem._cli import main
try:
    aioidem.spark.register(None)
except Exception as error:
    print(f"aioidem: {error}", file=sys.stderr)
sys.exit(main("perf --spark --tasks 1 --bootstrap-server h:1 --topic t --num-records 9".split()))
"""


@pytest.mark.parametrize("library", ["pyspark", "pyarrow"])
def test_a_missing_extra_is_one_line(library: str) -> None:
    """Without pyspark or pyarrow, `register` and `aioidem perf --spark` each fail in one line.

    The line says which pip extra to install.
    """
    hide = f"{ALONE}sys.modules[{library!r}] = None"
    done = subprocess.run(
        [sys.executable, "-c", hide + BOTH_NEED_SPARK],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    registering, running = done.stderr.splitlines()
    for line in (registering, running):
        assert line.startswith("aioidem")
        assert line.endswith(f": needs {library}: pip install 'aioidem[spark]'")


@pytest.mark.filterwarnings(*JGO_FORGETS)
@pytest.mark.usefixtures("maven")
def test_the_connector_is_of_pyspark_s_own_version() -> None:
    """The Kafka connector that is looked for has the version of the installed pyspark."""
    import pyspark

    with pytest.raises(SparkUnavailableError) as caught:
        kafka_jars()
    version = pyspark.__version__
    line = one_line(caught.value)
    assert line.startswith(f"Spark's Kafka source for pyspark {version}: ")
    assert f"org.apache.spark:spark-sql-kafka-0-10_2.13:pom:{version} is not at the mirror" in line
    assert line.endswith("(name jars of your own as spark.jars)")


@pytest.mark.filterwarnings(*JGO_FORGETS)
def test_what_spark_has_itself_is_not_handed_over(maven: FakeMaven) -> None:
    """`kafka_jars` leaves out the jars that Spark itself has."""
    import pyspark

    connector = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    maven.put(connector, "org.slf4j:slf4j-api:2.0.16", "g:new:1")
    maven.put("org.slf4j:slf4j-api:2.0.16")
    maven.put("g:new:1")
    assert [each.name for each in kafka_jars()] == [
        f"spark-sql-kafka-0-10_2.13-{pyspark.__version__}.jar",
        "new-1.jar",
    ]


def test_a_spark_home_of_another_version_is_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A SPARK_HOME whose Spark is not of pyspark's version is refused in one line."""
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(SparkUnavailableError, match=r"no Spark of Scala 2\.13"):
        require_one_spark()
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-3.5.1.jar").touch()
    with pytest.raises(SparkUnavailableError) as caught:
        require_one_spark()
    assert one_line(caught.value).startswith(
        f"SPARK_HOME is {tmp_path}, where there is Spark 3.5.1, and pyspark is of version "
    )


def test_a_job_s_failure_is_what_its_task_raised() -> None:
    """The reported cause of a failed job is the exception of its task, in one line."""
    text = (
        "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job\n"
        "\tat x\nCaused by: PythonException: Traceback (most recent call last):\n"
        '  File "a.py", line 1\nValueError: no good\n\n\tat org.apache.spark\n'
    )
    assert job_failure(RuntimeError(text)) == "ValueError: no good"
    assert job_failure(RuntimeError("one\ntwo")) == "one"


@pytest.mark.parametrize(
    ("master", "python", "told"),
    [
        ("local[2]", sys.executable, False),
        ("local[2]", "/elsewhere/python3", True),
        ("spark://host:7077", "/elsewhere/python3", False),
    ],
)
def test_another_python_of_the_workers_is_told(
    caplog: pytest.LogCaptureFixture, master: str, python: str, told: bool
) -> None:
    """One line says which Python the workers of a local session run, if it is not this one."""
    context = SimpleNamespace(master=master, pythonExec=python)
    session: Any = SimpleNamespace(sparkContext=context)
    tell_other_python(session)
    lines = [each.getMessage() for each in caplog.records]
    assert len(lines) == told
    assert not told or ("/elsewhere/python3" in lines[0] and "PYSPARK_PYTHON" in lines[0])
