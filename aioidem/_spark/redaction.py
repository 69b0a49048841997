"""Make Spark hide the credentials in options whose values it would show by default.

Spark hides an option's value in plans, the event log and the UI if `spark.redaction.regex` or
`spark.sql.redaction.options.regex` matches its name or value. By default these match text that
contains `secret`, `password`, `token` or `url`. So the value of `kafka.ssl.keystore.key` is shown,
and that of `kafka.sasl.jaas.config` is hidden only if it contains such a word.

Invariant: options that were hidden before stay hidden.

Rejected: refusing a key that is given as plain text (Spark's error about the refusal quotes the
plan, with the key in it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["REDACTION", "hide_credentials"]

REDACTION: Final = "spark.sql.redaction.options.regex"
"""The setting that can be changed while the session runs, unlike `spark.redaction.regex`."""
_OURS: Final = "(?i:keystore[.]key|jaas[.]config)"


def hide_credentials(spark: SparkSession) -> None:
    """Make a session's redaction pattern also match the names of options with credentials."""
    # Pass no default: it would be returned in place of Spark's own default.
    theirs = spark.conf.get(REDACTION) or ""
    if _OURS not in theirs:
        spark.conf.set(REDACTION, f"{theirs}|{_OURS}")
