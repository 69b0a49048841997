"""Import jgo, which fetches a real broker's jars; fetch none, because that needs Maven Central.

jgo is imported by name, as in `aioidem.testing`.
"""

from __future__ import annotations

import importlib
from typing import Any

from aioidem.testing import KafkaCluster

maven: Any = importlib.import_module("jgo.maven")
coordinate: Any = importlib.import_module("jgo.parse").Coordinate

wanted = coordinate("org.apache.kafka", "kafka_2.13", "4.3.1")
assert maven.MavenContext().create_dependency(wanted)
assert KafkaCluster.__module__ == "aioidem._testing.kafka_cluster"
