"""Write docs/options.md from the table of options, so that the page does not become outdated.

`python docs/write_options.py` rewrites the page. With `--check` it changes nothing, and its exit
status is 1 if the page differs from the table; a test runs this check.
"""

from __future__ import annotations

import sys
from pathlib import Path

from aioidem._config.described import option_tables

PAGE = Path(__file__).resolve().parent / "options.md"

INTRODUCTION = """\
# Options

For those who configure a producer: every option, with its legal values and default. Options are
keyword arguments of `aioidem.Producer` and of `ProducerConfig.build`, with times in seconds and
sizes in bytes: `Producer("h:9092", linger=0.005)`. `ProducerConfig.from_properties` takes the names
in the column "property", which are Java's, with values as text and times in milliseconds:
`Producer(config=ProducerConfig.from_properties({"bootstrap.servers": "h", "linger.ms": "5"}))`.
Java's producer lacks the properties marked with \\*.
`help(aioidem.Producer)` shows the same in Python. The arguments of the drop-in
`AIOKafkaProducer` are in [aiokafka.md](aiokafka.md).

An unknown name, an illegal value and two options that contradict each other raise `ConfigError`
when the producer is created; nothing is corrected silently.

`python docs/write_options.py` writes this page from the table in `aioidem/_config/options.py`.

"""


def main() -> int:
    """Write the page, or check it; return the exit status."""
    text = INTRODUCTION + option_tables()
    if "--check" in sys.argv[1:]:
        return int(not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
