"""Make Spark hide our credentials: option names that its own pattern does not cover.

Spark hides an option's value in plans, the event log and the UI if `spark.redaction.regex` or
`spark.sql.redaction.options.regex` matches its name or value. By default they match names with
`secret`, `password`, `token` or `url` in them. That does not cover `kafka.ssl.keystore.key`, and
covers `kafka.sasl.jaas.config` only because of its usual value.

Invariant: what was hidden before stays hidden.

Rejected: refusing a key that is given as plain text (Spark's error about the refusal quotes the
plan, with the key in it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["REDACTION", "hide_credentials"]

REDACTION: Final = "spark.sql.redaction.options.regex"
"""A setting of the session that can be changed while it runs, unlike the other one."""
_OURS: Final = "(?i:keystore[.]key|jaas[.]config)"


def hide_credentials(spark: SparkSession) -> None:
    """Add the names of our credentials to what this session hides."""
    # Pass no default: it would be returned in place of Spark's own default.
    theirs = spark.conf.get(REDACTION) or ""
    if _OURS not in theirs:
        spark.conf.set(REDACTION, f"{theirs}|{_OURS}")
