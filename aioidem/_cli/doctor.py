"""`aioidem doctor`: check its flags, examine the cluster, and show the findings.

Invariants:

- A mistake in the flags is found before a socket is opened, and reported in one line.
- With `--json`, standard output is one JSON object and nothing else.
- Exit status: 0 nothing worse than a note, 1 a warning or an error, 2 bad usage.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import anyio

from aioidem._config import ProducerConfig, validate_topic
from aioidem._doctor.diagnosis import diagnose, exit_status
from aioidem._doctor.examination import Wanted, examine
from aioidem._doctor.facts import WantedRate
from aioidem._doctor.report import as_json, lines
from aioidem._load.properties import gather_properties, load_files
from aioidem._load.usage import UsageError, one_line, shown
from aioidem.errors import ConfigError, RecordError

__all__ = ["DEFAULT_TIMEOUT", "DoctorPlan", "doctor", "parse_rate", "plan_doctor"]

DEFAULT_TIMEOUT: Final = 30.0
_SERVERS: Final = "bootstrap.servers"
_LONGEST: Final = 3600.0
_RATE: Final = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)([kMG]?)(B?)(?:/s)?", re.ASCII)
_UNITS: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


class DoctorPlan(NamedTuple):
    """The checked flags of one `aioidem doctor`; `json` asks for JSON on standard output."""

    wanted: Wanted
    json: bool
    warnings: tuple[str, ...] = ()


def plan_doctor(
    *,
    bootstrap_server: str,
    topics: Sequence[str] = (),
    producer_props: Sequence[str] = (),
    config_file: Path | None = None,
    rate: str | None = None,
    record_size: int | None = None,
    write_to: str | None = None,
    timeout: float = DEFAULT_TIMEOUT,
    json: bool = False,
) -> DoctorPlan:
    """Check the flags of `aioidem doctor`, and return what they ask for.

    Raises:
        UsageError: a flag is malformed or out of range, or the producer's options are wrong.
    """
    for flag, topic in (*(("--topic", each) for each in topics), ("--write-to", write_to)):
        if topic is not None:
            _check_topic(flag, topic)
    if not 1.0 <= timeout <= _LONGEST:  # NaN is not in the range either
        raise UsageError(f"--timeout: {timeout:.15g} is not from 1 to {_LONGEST:g}")
    wanted_rate = parse_rate(rate, record_size)
    properties = gather_properties(producer_props, config_file)
    config = _config({**properties.values, _SERVERS: bootstrap_server})
    named = (*topics, *(() if write_to is None else (write_to,)))
    wanted = Wanted(
        config=config,
        topics=tuple(dict.fromkeys(named)),
        rate=wanted_rate,
        write_to=write_to,
        timeout=timeout,
    )
    return DoctorPlan(wanted, json, properties.warnings)


def _check_topic(flag: str, topic: str) -> None:
    try:
        validate_topic(topic)
    except RecordError as error:
        raise UsageError(f"{flag}: {one_line(error)}") from error


def _config(properties: dict[str, str]) -> ProducerConfig:
    """Make the producer's configuration, and load the files that its TLS options name."""
    try:
        config = ProducerConfig.from_properties(properties)
    except ConfigError as error:
        raise UsageError(one_line(error)) from error
    load_files(config)
    return config


def parse_rate(text: str | None, record_size: int | None) -> WantedRate | None:
    """Parse the value of `--rate`: bytes per second, such as 500kB, or records per second.

    A number without `B` counts records, and needs `--record-size`. `/s` may follow. `k`, `M` and
    `G` stand for a thousand, a million and a thousand millions.

    Raises:
        UsageError: the text is not a rate, or the size of a record is missing or out of range.
    """
    if record_size is not None and not 1 <= record_size <= 1 << 30:
        raise UsageError(f"--record-size: {record_size} is not from 1 to {1 << 30}")
    if text is None:
        return None
    found = _RATE.fullmatch(text.strip())
    number = float(found[1]) * _UNITS[found[2]] if found else math.nan
    if found is None or not number > 0:
        raise UsageError(f"--rate: {shown(text)} is not a rate such as 5MB/s, 500kB or 20000")
    if found[3]:
        return WantedRate(number, record_size)
    if record_size is None:
        raise UsageError("--rate: records per second need --record-size; for bytes write 5MB")
    return WantedRate(number * record_size, record_size)


def doctor(plan: DoctorPlan) -> int:
    """Examine the cluster and print the findings.

    Returns:
        The exit status.
    """
    return anyio.run(_doctor, plan)


async def _doctor(plan: DoctorPlan) -> int:
    """Examine and print; the end of the event loop may have to wait for a DNS look-up."""
    facts = await examine(plan.wanted)
    findings = diagnose(facts)
    shown_lines = [as_json(facts, findings)] if plan.json else lines(findings)
    for line in shown_lines:
        print(line, flush=True)
    return exit_status(findings)
