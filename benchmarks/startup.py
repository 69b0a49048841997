"""Measure what it costs to import a client, and to have its first record acknowledged.

    python benchmarks/startup.py
    python benchmarks/startup.py --rounds 11 --json startup.json

Each measurement is a fresh interpreter that prints its own CPU time (user and system): after the
import, and after the first record was acknowledged by the embedded cluster, which runs in the
parent process. Clients take turns, and the minimum over the rounds is shown, because other work on
the machine can only add to it. The last column is elapsed time from the process's start to the
acknowledgement; it contains the cluster's work too. Every column contains the interpreter's own
start, which the first line shows. Clients are idempotent, wait for all replicas, and otherwise use
their defaults.

Bytecode is cached in a folder of this run, as in an installation, whatever the environment says.
kio, whose schemas aioidem uses, imports hypothesis where it is installed, which takes a third of a
second; most installations do not have it, so it is hidden from every client (`--with-hypothesis`
leaves it visible).

Rejected: `python -X importtime` (it adds to what it measures); subtracting the interpreter's start
(the sum of two minima is easier to check than a difference).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from aioidem.broker import EmbeddedCluster

ROOT: Final = Path(__file__).parents[1]
HIDE: Final = "import sys; sys.modules['hypothesis'] = None"
CPU: Final = "import time; print(time.process_time() * 1000, time.time())"
"""Prints the CPU time of the process so far, in milliseconds, and the time of day in seconds."""
DEADLINE: Final = 60.0
"""How many seconds one process may take."""

IMPORTS: Final = {
    "the interpreter alone": "",
    "aioidem": "import aioidem",
    "aioidem (drop-in)": "from aioidem import AIOKafkaProducer",
    "aiokafka": "import aiokafka",
    "kafka-python": "import kafka",
    "confluent-kafka": "import confluent_kafka",
}

ON_ASYNCIO: Final = """
import asyncio

async def main():
    producer = AIOKafkaProducer(bootstrap_servers={bootstrap!r}, enable_idempotence=True)
    await producer.start()
    await producer.send_and_wait("t", b"value")
    {cpu}
    await producer.stop()

asyncio.run(main())
"""

FIRST_RECORD: Final = {
    "aioidem": """
import asyncio
import aioidem

async def main():
    async with aioidem.Producer({bootstrap!r}) as producer:
        await producer.send("t", b"value")
        {cpu}

asyncio.run(main())
""",
    "aioidem (drop-in)": f"from aioidem import AIOKafkaProducer\n{ON_ASYNCIO}",
    "aiokafka": f"from aiokafka import AIOKafkaProducer\n{ON_ASYNCIO}",
    "kafka-python": """
import kafka

producer = kafka.KafkaProducer(bootstrap_servers={bootstrap!r}, enable_idempotence=True)
producer.send("t", b"value").get(30)
{cpu}
producer.close()
""",
    "confluent-kafka": """
import confluent_kafka

producer = confluent_kafka.Producer(
    {{"bootstrap.servers": {bootstrap!r}, "enable.idempotence": True}}
)
acknowledged = []
producer.produce("t", b"value", on_delivery=lambda error, message: acknowledged.append(error))
while not acknowledged:
    producer.poll(1.0)
assert acknowledged == [None]
{cpu}
""",
}


@dataclass(slots=True)
class Cost:
    """The least that was measured for one client, in milliseconds; 0 is not measured."""

    import_cpu_ms: float = 0.0
    first_ack_cpu_ms: float = 0.0
    first_ack_ms: float = 0.0


def run(program: str, environment: Mapping[str, str]) -> tuple[float, float]:
    """Run a program in a fresh interpreter.

    Returns:
        The CPU time that it printed, and the time until it printed it, in milliseconds.
    """
    began = time.time()
    done = subprocess.run(  # noqa: S603 - programs of this file
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=dict(environment),
        check=True,
        timeout=DEADLINE,
    )
    cpu_ms, printed_at = map(float, done.stdout.split())
    return cpu_ms, (printed_at - began) * 1000.0


def measure(rounds: int, hide: str) -> dict[str, Cost]:
    """Measure every client in turns; one more round, which is not counted, caches the bytecode."""
    costs = {client: Cost() for client in IMPORTS}
    with tempfile.TemporaryDirectory() as cache, EmbeddedCluster.in_thread() as cluster:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache, "PYTHONDONTWRITEBYTECODE": ""}
        where = cluster.bootstrap_servers
        for number in range(rounds + 1):
            for client, cost in costs.items():
                found = Cost(run(f"{hide}\n{IMPORTS[client]}\n{CPU}", environment)[0])
                if client in FIRST_RECORD:
                    program = FIRST_RECORD[client].format(bootstrap=where, cpu=CPU)
                    found.first_ack_cpu_ms, found.first_ack_ms = run(
                        f"{hide}\n{program}", environment
                    )
                costs[client] = found if number <= 1 else _least(cost, found)
    return costs


def _least(one: Cost, other: Cost) -> Cost:
    return Cost(
        min(one.import_cpu_ms, other.import_cpu_ms),
        min(one.first_ack_cpu_ms, other.first_ack_cpu_ms),
        min(one.first_ack_ms, other.first_ack_ms),
    )


def main() -> int:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each client")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument(
        "--with-hypothesis", action="store_true", help="let kio find hypothesis if it is installed"
    )
    flags = parser.parse_args()
    costs = measure(max(flags.rounds, 1), "" if flags.with_hypothesis else HIDE)
    print("| client | import, CPU ms | first acknowledgement, CPU ms | first acknowledgement, ms |")
    print("|---|---:|---:|---:|")
    for client, cost in costs.items():
        cells = (cost.import_cpu_ms, cost.first_ack_cpu_ms, cost.first_ack_ms)
        print(f"| {client} | " + " | ".join(f"{each:.0f}" if each else "" for each in cells) + " |")
    if flags.json is not None:
        figures = {client: asdict(cost) for client, cost in costs.items()}
        flags.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
