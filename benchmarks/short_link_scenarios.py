"""The clients and scenarios of `short_link.py`, and how a scenario's name is read.

A name is a way of sending and any of the variations, joined by ``+``: ``queue``,
``await+10000tasks``, ``bulk+1000B+32p+zstd``, ``queue+keys``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from short_link_job import CODECS, WAYS

CLIENTS = (
    "aioidem",
    "aioidem-pure",
    "aioidem-drop-in",
    "aiokafka",
    "aiokafka-pure",
    "confluent-kafka",
    "confluent-aio",
    "kafka-python",
    "Java",
)
SIZES = (100, 1000)
PARTITIONS = (1, 4, 32, 1000)
TASKS = (1, 100, 1000, 10_000)
LINKS = (1, 50, 150, 300)
LONG = "long-link"

MEANINGS = {
    "await": "tasks that send a record, await its acknowledgement, and send the next one",
    "one": "the same with one task: each record is a request of its own, and its latency counts",
    "queue": "one task queues records; at most `--queued` are unacknowledged",
    "bulk": "many records per call: 10,000 for aioidem and confluent-kafka, a batch for aiokafka",
    "table": "the same, with an Arrow table of 10,000 rows per call for aioidem",
    "paced": "an open loop at half of the client's own peak rate, or at `--rate`; latencies count "
    "from the time at which a record was due",
    "start": "from the start of the process to the first acknowledgement",
    "idle": "CPU time of a connected client that has nothing to do",
    LONG: "`long_link.py` over a link of so many ms, with windows of 1, 5 and 20, sealed and late",
}

DEFAULT = ("await", "queue", "bulk", "one", "paced", "start")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """What all clients do in turn.

    Args:
        name: The name on the command line.
        way: How records are sent, one of `short_link_job.WAYS`, or `LONG`.
        size: The size of a value in bytes.
        keyed: Whether records have keys.
        partitions: How many partitions the topic has.
        codec: The compression.
        tasks: How many tasks await records.
        rtt: The round trip of a long link in milliseconds.
        mbit: Its bandwidth in Mbit/s; 0 is unlimited.
    """

    name: str
    way: str
    size: int = 100
    keyed: bool = False
    partitions: int = 4
    codec: str = "none"
    tasks: int = 1000
    rtt: int = 0
    mbit: int = 0

    @property
    def title(self) -> str:
        """Describe the scenario in a line."""
        if self.way == LONG:
            link = f"{self.rtt} ms" + (f", {self.mbit} Mbit/s" if self.mbit else "")
            return f"{self.name}: windows of 1, 5 and 20 over {link}"
        parts = [f"{self.tasks:,} tasks"] if self.way == "await" else []
        parts += [f"{self.size:,} B", "keys" if self.keyed else "no keys"]
        parts += [f"{self.partitions:,} partition{'s'[: self.partitions > 1]}"]
        parts += [] if self.codec == "none" else [self.codec]
        return f"{self.name}: {', '.join(parts)}"


class ScenarioError(ValueError):
    """A name is not that of a scenario."""


def scenario(name: str) -> Scenario:
    """Return the scenario with this name.

    Raises:
        ScenarioError: There is no such way or variation.
    """
    way, *variations = name.split("+")
    if way == LONG:
        return _long_link(name, variations)
    if way not in WAYS:
        raise ScenarioError(f"{name!r}: {way!r} is none of {', '.join((*WAYS, LONG))}")
    found: dict[str, Any] = {}
    for each in variations:
        field, value = _variation(name, each)
        if field in found:
            raise ScenarioError(f"{name!r}: two variations set {field}")
        found[field] = value
    if "tasks" in found and way != "await":
        raise ScenarioError(f"{name!r}: only 'await' has tasks")
    return Scenario(name=name, way=way, **found)


def _variation(name: str, text: str) -> tuple[str, Any]:
    number = re.fullmatch(r"([1-9][0-9]{0,6})(B|p|tasks)", text)
    if number is not None:
        field = {"B": "size", "p": "partitions", "tasks": "tasks"}[number[2]]
        return field, int(number[1])
    if text == "keys":
        return "keyed", True
    if text in CODECS:
        return "codec", text
    raise ScenarioError(
        f"{name!r}: {text!r} is no variation: expected a size (1000B), 'keys', a number of "
        f"partitions (32p) or tasks (100tasks), or one of {', '.join(CODECS)}"
    )


def _long_link(name: str, variations: list[str]) -> Scenario:
    found: dict[str, Any] = {}
    for each in variations:
        match = re.fullmatch(r"([1-9][0-9]{0,4})(ms|Mbit)", each)
        if match is None:
            raise ScenarioError(f"{name!r}: {each!r}: expected a round trip (150ms) or 100Mbit")
        found["rtt" if match[2] == "ms" else "mbit"] = int(match[1])
    return Scenario(name=name, way=LONG, rtt=found.pop("rtt", 150), **found)


def _varied(way: str) -> list[str]:
    sizes = [f"{way}+{size}B" for size in SIZES[1:]]
    partitions = [f"{way}+{count}p" for count in PARTITIONS if count != 4]
    codecs = [f"{way}+{codec}" for codec in CODECS[1:]]
    return [way, *sizes, f"{way}+keys", *partitions, *codecs]


GROUPS: dict[str, tuple[str, ...]] = {
    "default": DEFAULT,
    "tasks": tuple(f"await+{tasks}tasks" for tasks in TASKS),
    "all": (
        *(f"await+{tasks}tasks" for tasks in TASKS if tasks != 1000),
        *_varied("await"),
        *_varied("queue"),
        *_varied("bulk"),
        "table",
        "table+keys",
        *("one", "one+1000B", "paced", "paced+1000B", "start", "idle"),
        *(f"{LONG}+{rtt}ms" for rtt in LINKS),
        f"{LONG}+150ms+100Mbit",
    ),
}


def scenarios(names: list[str]) -> list[Scenario]:
    """Return the scenarios of these names and groups, each once.

    Raises:
        ScenarioError: A name is wrong.
    """
    single = [name for each in names for name in GROUPS.get(each, (each,))]
    return [scenario(name) for name in dict.fromkeys(single)]
