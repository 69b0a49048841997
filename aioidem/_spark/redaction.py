"""What Spark is to hide of options: names of credentials that its own pattern does not know.

Spark replaces an option's value in plans, the event log and the UI if `spark.redaction.regex` or
`spark.sql.redaction.options.regex` matches its name or its value. By default they match names with
`secret`, `password`, `token` or `url` in them: not `kafka.ssl.keystore.key`, and
`kafka.sasl.jaas.config` only for what its value says.

Invariant: what was hidden before stays hidden.

Rejected: to refuse a key that is given as it is (Spark's error about the refusal quotes the plan,
and the key in it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["REDACTION", "hide_credentials"]

REDACTION: Final = "spark.sql.redaction.options.regex"
"""A setting of the session, which can be changed while it runs; the other one cannot."""
_OURS: Final = "(?i:keystore[.]key|jaas[.]config)"


def hide_credentials(spark: SparkSession) -> None:
    """Add the names of our credentials to what this session hides."""
    # Without a default of ours, which would take the place of Spark's own.
    theirs = spark.conf.get(REDACTION) or ""
    if _OURS not in theirs:
        spark.conf.set(REDACTION, f"{theirs}|{_OURS}")
