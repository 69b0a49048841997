"""The sink works with the newest pyspark that can be installed, which `dev` does not pin."""

from __future__ import annotations

from pathlib import Path

import pytest

from aioidem._spark.session import SparkUnavailableError, require_java
from tests.spark.versions import NEWEST, install, run_tests, version_in

_SECONDS = 300
_TESTS = (
    "tests/spark/test_sink.py::test_a_batch_write_has_every_column",
    "tests/spark/test_sink.py::test_what_a_write_has_done_is_in_sparks_table_of_logs",
    "tests/spark/test_sink_exactly_once.py::test_failing_tasks_and_repeated_batches_write_once",
)


def test_the_sink_works_with_the_newest_pyspark(tmp_path: Path) -> None:
    """A batch write, a report and an exactly-once stream work with the newest pyspark."""
    try:
        require_java()
    except SparkUnavailableError as error:
        pytest.skip(str(error))
    install(NEWEST, tmp_path)
    assert version_in(tmp_path).startswith("4.")
    status, told = run_tests(tmp_path, ["-q", "-p", "no:cacheprovider", *_TESTS], _SECONDS)
    assert status == 0, told
    assert "3 passed" in told.rpartition("...")[2], told
