"""Open a Spark session for the command line, and report in one line what is missing for it.

Invariants:

- No package of Spark is imported before `require_extra` has found it.
- pyspark, the Spark that it starts (`SPARK_HOME` may name another) and its Kafka connector have the
  same version: the connector is chosen by the installed version of pyspark.
- `aioidem._jars` finds the connector's jars, except those that Spark has, before a JVM starts. A
  version whose jars are nowhere is no error: `topic_source.py` reads topics without them.
- What users set is never on a command line, which every user of the machine can read: it may be a
  password. PySpark starts the JVM with each property of a session as an argument, so users' own
  reach it in a file that only this user can read (`_kept_from_arguments`).
- Java is the one that Spark starts (`JAVA_HOME`, else the `PATH`). It is started once beforehand,
  to test whether it has the module that Spark needs: a reduced JRE may lack that module.

Rejected: `aioidem.testing`'s search for Java (it may find one that Spark would not use); letting
Spark resolve the connector (`spark.jars.packages`), which reads Maven's local repository first,
where files may be incomplete.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

from aioidem._jars import JarsUnavailableError, resolve_jars
from aioidem.errors import KafkaError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "SparkUnavailableError",
    "job_failure",
    "kafka_jars",
    "open_session",
    "require_extra",
    "require_java",
    "require_one_spark",
    "tell_other_python",
]

MINIMUM_JAVA: Final = 17

_NEEDED: Final = ("pyspark", "pyarrow")
_JAVA_SECONDS: Final = 30.0
# Spark's own start script adds this module; without it Spark does not start.
_MODULE: Final = "jdk.incubator.vector"
_JARS: Final = "spark.jars"
_PACKAGES: Final = "spark.jars.packages"
_CONNECTOR: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13:{}"
_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"
_FILE: Final = "--properties-file"
_TRACEBACK: Final = "Traceback (most recent call last):"

logger = logging.getLogger("aioidem.spark")


class SparkUnavailableError(KafkaError):
    """Spark cannot be used here: its extra is not installed, or no suitable Java is found."""


def require_extra() -> None:
    """Raise an error unless the extra `spark` is installed.

    Raises:
        SparkUnavailableError: the extra is not installed.
    """
    for name in _NEEDED:
        if importlib.util.find_spec(name) is None:
            raise SparkUnavailableError(f"needs {name}: pip install 'aioidem[spark]'")


def require_java() -> Path:
    """Return the Java that Spark would start.

    Raises:
        SparkUnavailableError: there is no Java, it is older than 17, or it lacks a module.
    """
    home = os.environ.get("JAVA_HOME")
    found = Path(home) / "bin" / "java" if home else shutil.which("java")
    wanted = f"Spark needs a JDK of version {MINIMUM_JAVA} or newer in JAVA_HOME or on the PATH"
    if found is None:
        raise SparkUnavailableError(f"{wanted}: none was found")
    java = Path(found)
    try:
        tried = subprocess.run(  # noqa: S603 - the Java that Spark will start
            [java, "--add-modules", _MODULE, "-version"],
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_JAVA_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SparkUnavailableError(f"{wanted}: {java} does not run") from error
    told = tried.stderr + tried.stdout
    if tried.returncode != 0:
        first = " ".join(told.split())[:200]
        raise SparkUnavailableError(f"{wanted}, with the module {_MODULE}: {java} says: {first}")
    if _major(told) < MINIMUM_JAVA:
        raise SparkUnavailableError(f"{wanted}: {java} is of version {_major(told)}")
    return java


def tell_other_python(spark: SparkSession) -> None:
    """Log a line if the workers of a local session run another Python than this process.

    Without `PYSPARK_PYTHON` Spark starts the `python3` on the PATH, which may lack aioidem.
    """
    context = getattr(spark, "sparkContext", None)
    if context is None or not str(context.master).startswith("local"):
        return
    theirs = shutil.which(context.pythonExec) or context.pythonExec
    if os.path.normpath(theirs) != os.path.normpath(sys.executable):
        logger.warning(
            "Spark's workers run %s and not %s: if aioidem is not installed there, set"
            " PYSPARK_PYTHON before the session starts",
            theirs,
            sys.executable,
        )


def job_failure(error: Exception) -> str:
    """Return the reason for a job's failure in one line.

    Spark reports the failure of a task as pages of Java stack traces. If they contain the traceback
    of a Python exception, the reason is that exception, else the first line of the report.
    """
    _, traceback, told = str(error).rpartition(_TRACEBACK)
    # The exception follows the traceback's indented lines.
    lines = (line for line in told.splitlines() if line.strip())
    raised = (line for line in lines if not (traceback and line[0].isspace()))
    return " ".join(next(raised, type(error).__name__).split())


def _major(told: str) -> int:
    """Return the major version in the output of `java -version`; 0 if there is none."""
    _, _, rest = told.partition('version "')
    number = rest.partition(".")[0].partition('"')[0]
    return int(number) if number.isdecimal() else 0


def kafka_jars() -> tuple[Path, ...]:
    """Return the jars of Spark's Kafka source that are not among Spark's own jars.

    They are downloaded on first use.

    Raises:
        SparkUnavailableError: the extra is missing, or the jars for this version cannot be found.
    """
    require_extra()
    import pyspark

    version = pyspark.__version__
    theirs = [each.name for each in require_one_spark().glob("*.jar")]

    def present(artifact: str) -> bool:
        start = f"{artifact}-"
        return any(each.startswith(start) and each[len(start)].isdigit() for each in theirs)

    try:
        return resolve_jars([_CONNECTOR.format(version)], present=present)
    except JarsUnavailableError as error:
        raise SparkUnavailableError(
            f"Spark's Kafka source for pyspark {version}: {error.args[0]}"
            f" (name jars of your own as {_JARS})"
        ) from error


def require_one_spark() -> Path:
    """Return the folder with the jars of the Spark that pyspark starts.

    Raises:
        SparkUnavailableError: `SPARK_HOME` names a Spark of another version than pyspark's.
    """
    import pyspark

    told = os.environ.get("SPARK_HOME")
    if not told:
        return Path(pyspark.__file__).parent / "jars"
    jars = Path(told) / "jars"
    core = next((each.stem for each in jars.glob("spark-core_2.13-*.jar")), None)
    minor = ".".join(pyspark.__version__.split(".")[:2])
    if core is None or not core.startswith(f"spark-core_2.13-{minor}."):
        theirs = "no Spark of Scala 2.13" if core is None else f"Spark {core.split('-', 2)[2]}"
        raise SparkUnavailableError(
            f"SPARK_HOME is {told}, where there is {theirs}, and pyspark is of version"
            f" {pyspark.__version__}: unset SPARK_HOME, or install the pyspark that belongs to it"
        )
    return jars


@contextmanager
def open_session(
    name: str,
    *,
    master: str | None = None,
    kafka: bool = False,
    settings: Mapping[str, str] | None = None,
) -> Iterator[SparkSession]:
    """Open a session that logs little, for a command or a test, unless a session is active.

    An active session is used as it is.

    Args:
        name: the application's name.
        master: Spark's master URL; None: that of the environment, or else this machine.
        kafka: whether to add Spark's Kafka source, from Maven Central on first use, unless
            `settings` name packages or jars. If its jars cannot be found, one line is logged, and
            the session has no such source (`topic_source.py`).
        settings: Spark properties, which override those chosen here.

    Raises:
        SparkUnavailableError: the extra or Java is missing, or there are settings, and the
            environment's `PYSPARK_SUBMIT_ARGS` names a file of properties.
    """
    require_extra()
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        active = SparkSession.active()
    except PySparkRuntimeError:
        active = None
    if active is not None:
        yield active
        return
    require_java()
    require_one_spark()
    given = settings or {}
    chosen = _chosen(name, master, kafka, given)
    if _has_jvm():
        spark = _start(chosen, chosen)
    else:
        with _kept_from_arguments(given):
            spark = _start(chosen, {key: chosen[key] for key in chosen if key not in given})
    try:
        yield spark
    finally:
        spark.stop()


def _has_jvm() -> bool:
    """Return whether a JVM runs already, which an earlier session in this process has started."""
    from pyspark import SparkContext

    return SparkContext._gateway is not None  # noqa: SLF001 - nothing public says so


@contextmanager
def _kept_from_arguments(settings: Mapping[str, str]) -> Iterator[None]:
    """Let a JVM that is started meanwhile read settings from a file of this user's.

    Raises:
        SparkUnavailableError: the environment names another such file, and Spark reads only one.
    """
    if not settings:
        yield
        return
    import javaproperties  # comes with the extra `spark`

    before = os.environ.get(_ARGUMENTS)
    if before is not None and _FILE in before:
        raise SparkUnavailableError(
            f"{_ARGUMENTS} has {_FILE}, so Spark would not read what --spark-conf sets: write it"
            f" into that file, or take {_FILE} out"
        )
    with TemporaryDirectory() as folder:  # which no other user can read
        file = Path(folder) / "spark.properties"
        file.write_text(javaproperties.dumps(settings, timestamp=False), encoding="latin-1")
        ours = f"{_FILE} {shlex.quote(str(file))} --load-spark-defaults"
        os.environ[_ARGUMENTS] = f"{ours} {before or 'pyspark-shell'}"
        try:
            yield
        finally:
            if before is None:
                del os.environ[_ARGUMENTS]
            else:
                os.environ[_ARGUMENTS] = before


def _chosen(
    name: str, master: str | None, kafka: bool, settings: Mapping[str, str]
) -> dict[str, str]:
    chosen = {
        "spark.app.name": name,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        **({"spark.master": master} if master is not None else {}),
        **settings,
    }
    if kafka and _PACKAGES not in chosen and _JARS not in chosen:
        try:
            chosen[_JARS] = ",".join(each.as_uri() for each in kafka_jars())
        except SparkUnavailableError as error:
            logger.warning("%s; topics are read with aioidem's own source", error.args[0])
    return chosen


def _start(chosen: Mapping[str, str], told: Mapping[str, str]) -> SparkSession:
    """Start a session.

    Args:
        chosen: the properties that it will have.
        told: those of them that PySpark is told, and gives to a JVM as arguments.
    """
    from pyspark.sql import SparkSession

    # By default Spark starts workers with the `python3` on the PATH, which may not be the Python of
    # this process.
    if chosen.get("spark.master", "local").startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder
    for key, value in told.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    # The caller reports in one line why a job failed; Spark would log pages about it.
    spark.sparkContext.setLogLevel("FATAL")
    return spark
