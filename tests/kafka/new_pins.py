"""Print the SHA-256 of each jar of a version of Kafka: ``python -m tests.kafka.new_pins VERSION``.

To add a version, write the lines to aioidem/_testing/kafka-VERSION.sha256, and compare them with
what Maven Central shows in a browser.
"""

from __future__ import annotations

import sys

from aioidem._testing.kafka_install import install_kafka
from aioidem._testing.kafka_pins import sha256_of

if __name__ == "__main__":
    jars = install_kafka(sys.argv[1], unpinned=True).jars
    for jar in sorted(jars, key=lambda each: each.name):
        sys.stdout.write(f"{sha256_of(jar)}  {jar.name}\n")
