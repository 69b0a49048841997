"""Make Spark hide the options with credentials whose names its own pattern does not match.

Spark hides an option's value in plans, the event log and the UI if `spark.redaction.regex` or
`spark.sql.redaction.options.regex` matches its name or value. By default these match names that
contain `secret`, `password`, `token` or `url`. So they do not match `kafka.ssl.keystore.key`, and
match `kafka.sasl.jaas.config` only by its usual value.

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
"""The pattern that can be changed while the session runs; `spark.redaction.regex` cannot."""
_OURS: Final = "(?i:keystore[.]key|jaas[.]config)"


def hide_credentials(spark: SparkSession) -> None:
    """Make a session's redaction pattern also match the names of options with credentials."""
    # Pass no default: it would be returned in place of Spark's own default.
    theirs = spark.conf.get(REDACTION) or ""
    if _OURS not in theirs:
        spark.conf.set(REDACTION, f"{theirs}|{_OURS}")
