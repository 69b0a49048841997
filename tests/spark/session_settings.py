"""Open a session with settings, and print what Spark has of them and whether `ps` shows them.

Run by `test_session_settings.py`, in a process that has no JVM yet: only then one is started.
"""

from __future__ import annotations

import json
import subprocess
import sys

from aioidem._spark.session import open_session

SECRET = "canary hunter2 =:\\é"
SETTINGS = {
    "spark.hadoop.fs.canary.secret": SECRET,
    "spark.app.name": "settings of a user",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-Daioidem.canary=there",
}


def main() -> None:
    """Open two sessions, one after the other, and write a line of JSON about each."""
    for _ in range(2):
        with open_session("ours", master="local[1]", settings=SETTINGS) as spark:
            context = spark.sparkContext
            jvm = context._jvm  # noqa: SLF001 - as PySpark's users do
            assert jvm is not None
            seen = subprocess.run(
                ["ps", "-ww", "-eo", "args"],
                check=True,
                capture_output=True,
                text=True,
                errors="replace",
            ).stdout
            told = {
                "name": context.appName,
                "secret": context.getConf().get("spark.hadoop.fs.canary.secret"),
                "ui": context.getConf().get("spark.ui.enabled"),
                "java option": jvm.java.lang.System.getProperty("aioidem.canary"),
                "spark on the command line": "org.apache.spark" in seen,
                "secret on the command line": "hunter2" in seen,
            }
        sys.stdout.write(json.dumps(told) + "\n")


if __name__ == "__main__":
    main()
