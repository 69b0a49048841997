"""Count the Python opcodes that the producer executes for one record.

    python benchmarks/opcodes.py
    python benchmarks/opcodes.py CHECKOUT

With the path of another checkout (`git worktree add --detach /tmp/before COMMIT`) that checkout is
measured, so two states of the tree can be compared. Time on a busy machine varies by more than the
cost of a method call; the number of opcodes does not, and shows what a change adds or saves.

A producer writes records of 100 bytes to the embedded cluster over its transport in memory:

- awaited: `await send()`, one record at a time, so each record is a batch and a request of its own;
- queued: 500 times `send_nowait()`, then `flush()`, so the records share a batch.

The script counts what runs in `aioidem`, except for the embedded cluster and what that calls. Two
runs of different length are subtracted, so what happens once (starting, metadata, the producer id)
is left out. The engine's figure is a part of the client's.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

LENGTHS = {"awaited": (100, 300), "queued": (1000, 3000)}
AT_ONCE = 500
VALUE = b"x" * 100


class OpcodeCounter:
    """A trace function that counts opcodes by function, in the producer of one checkout.

    Args:
        checkout: The folder of the checkout that is measured.
    """

    def __init__(self, checkout: Path) -> None:
        self._library = f"{checkout / 'aioidem'}/"
        self.counts: Counter[str] = Counter()
        self._names: dict[Any, str | None] = {}

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        """Count an opcode of a frame; `sys.settrace` calls this."""
        del arg
        code = frame.f_code
        if code not in self._names:
            self._names[code] = self._name(code.co_filename, code.co_qualname)
        name = self._names[code]
        if name is None or (event == "call" and self._serves_the_cluster(frame)):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            self.counts[name] += 1
        return self

    def _serves_the_cluster(self, frame: FrameType) -> bool:
        """Return whether the embedded cluster has called this function, through others or not."""
        caller = frame.f_back
        while caller is not None:
            if self._is_cluster(caller.f_code.co_filename):
                return True
            caller = caller.f_back
        return False

    def _is_cluster(self, path: str) -> bool:
        folder = path.removeprefix(self._library).partition("/")[0].lstrip("_")
        return path.startswith(self._library) and folder in ("broker", "testing")

    def _name(self, path: str, function: str) -> str | None:
        if not path.startswith(self._library) or self._is_cluster(path):
            return None
        return f"{path.removeprefix(self._library)}: {function}"


async def workload(how: str, records: int) -> None:
    """Send records to the embedded cluster."""
    # The import is here because `main` first puts the checkout's path in front.
    from aioidem import Producer
    from aioidem.broker import EmbeddedCluster

    async with (
        EmbeddedCluster(brokers=1, transport="memory") as cluster,
        Producer(cluster.bootstrap_servers, connector=cluster.connector) as producer,
    ):
        await producer.send("t", VALUE)
        if how == "awaited":
            for _ in range(records):
                await producer.send("t", VALUE)
            return
        for _ in range(records // AT_ONCE):
            for _ in range(AT_ONCE):
                producer.send_nowait("t", VALUE)
            await producer.flush()


def count(checkout: Path, how: str, records: int) -> Counter[str]:
    """Run a workload, and count its opcodes by function."""
    counter = OpcodeCounter(checkout)
    sys.settrace(counter)
    try:
        asyncio.run(workload(how, records))
    finally:
        sys.settrace(None)
    return counter.counts


def per_record(checkout: Path, how: str) -> dict[str, float]:
    """Return the opcodes that one record costs, by function, the costliest first."""
    short, long = LENGTHS[how]
    fewer, more = count(checkout, how, short), count(checkout, how, long)
    more.subtract(fewer)
    return {name: total / (long - short) for name, total in more.most_common() if total > 0}


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("checkout", nargs="?", type=Path, default=here)
    parser.add_argument("--functions", type=int, default=15, help="how many functions to list")
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    sys.path.insert(0, str(checkout))
    for how in LENGTHS:
        costs = per_record(checkout, how)
        engine = sum(cost for name, cost in costs.items() if name.lstrip("_").startswith("engine/"))
        print(f"{how}: {sum(costs.values()):.0f} opcodes per record, {engine:.0f} in the engine")
        for name, cost in list(costs.items())[: options.functions]:
            print(f"{cost:8.1f}  {name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
