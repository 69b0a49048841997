"""`aioidem resolve`: read incidents from a file, look for them in the log, and print the verdicts.

Invariants:

- A mistake in the flags or the file is found before a broker is asked, and reported in one line.
- Exit status: 0 if each incident is decided (WRITTEN or ABSENT), 1 if one is not, the cluster
  refused or the JSON cannot be written, 2 on bad usage.
- Nothing is written to the cluster.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from aioidem._admin.log_reading import resolve_incidents
from aioidem._config import ProducerConfig, validate_topic
from aioidem._load.properties import gather_properties, load_files
from aioidem._load.render import write_whole
from aioidem._load.usage import UsageError, apart, one_line, output_file, reason, terminal_line
from aioidem.errors import ConfigError, KafkaError, RecordError
from aioidem.incident import Incident, incidents_from_json
from aioidem.resolution import Resolution, Verdict

__all__ = ["ResolveCommand", "plan_resolve", "resolve"]

_MAX_FILE = 64 << 20
_MAX_TIMEOUT = 86_400.0
_SEQUENCES = 1 << 31  # the sequence number after the last one is 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveCommand:
    """The checked flags of one `aioidem resolve`; `timeout` is in seconds."""

    incidents: Sequence[Incident]
    config: ProducerConfig = field(repr=False)  # it may have a password
    timeout: float
    wait: bool
    json_file: Path | None
    warnings: tuple[str, ...] = ()


def plan_resolve(
    *,
    incident: Path,
    bootstrap_server: str,
    timeout: float = 30.0,
    wait: bool = False,
    consumer_props: Sequence[str] = (),
    config_file: Path | None = None,
    json_file: Path | None = None,
) -> ResolveCommand:
    """Check the flags of `aioidem resolve`, and return what they ask for.

    Raises:
        UsageError: a flag is malformed or out of range, or the file has no incidents.
    """
    if not 0 < timeout <= _MAX_TIMEOUT:
        raise UsageError(f"--timeout: {timeout:.15g} is not above 0 and up to {_MAX_TIMEOUT:g}")
    output_file("--json", json_file)
    apart({"--incident": incident, "--json": json_file})
    properties = gather_properties(consumer_props, config_file, flag="--consumer-props")
    values = {**properties.values, "bootstrap.servers": bootstrap_server}
    try:
        config = ProducerConfig.from_properties(values)
    except ConfigError as error:
        raise UsageError(one_line(error)) from error
    load_files(config)
    return ResolveCommand(
        incidents=_read(incident),
        config=config,
        timeout=timeout,
        wait=wait,
        json_file=json_file,
        warnings=properties.warnings,
    )


def _read(path: Path) -> list[Incident]:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE + 1)
        if len(data) > _MAX_FILE:
            raise UsageError(f"--incident: {path} has more than {_MAX_FILE} bytes")
        found = incidents_from_json(data.decode("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"--incident: {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"--incident: {path}: {one_line(error)}") from error
    if not found:
        raise UsageError(f"--incident: {path} has no incident")
    for number, each in enumerate(found, 1):
        try:
            validate_topic(each.topic)
        except RecordError as error:
            text = f"incident {number}: {one_line(error)}"
            raise UsageError(f"--incident: {path}: {text}") from error
    return found


def resolve(command: ResolveCommand) -> int:
    """Look for the incidents, print a line for each, and write the JSON.

    Returns:
        The exit status.
    """

    async def ask() -> list[Resolution]:
        return await resolve_incidents(
            command.config,
            command.incidents,
            timeout=command.timeout,
            wait_for_fence=command.wait,
        )

    try:
        found = anyio.run(ask)
    except KafkaError as error:
        print(f"aioidem resolve: {terminal_line(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    # The file comes first: whoever reads the output may be gone.
    written = command.json_file is None or _write(command.json_file, found)
    for each in found:
        print(terminal_line(_line(each)))
    if not written:
        return 1
    return 0 if all(each.verdict is not Verdict.UNDECIDED for each in found) else 1


def _write(path: Path, found: Sequence[Resolution]) -> bool:
    """Write the verdicts, and return whether that succeeded; an error is printed."""
    text = json.dumps([_as_object(each) for each in found], indent=2)
    try:
        write_whole(path, text + "\n")
    except OSError as error:
        line = terminal_line(f"aioidem resolve: --json: {path}: {reason(error)}")
        print(line, file=sys.stderr)
        return False
    return True


def _line(found: Resolution) -> str:
    incident = found.incident
    named = "" if incident is None else f"{incident.topic}-{incident.partition} "
    which = (
        ""
        if incident is None
        else f"producer id {incident.producer_id} epoch {incident.producer_epoch} "
        f"sequence {(incident.base_sequence + (incident.index or 0)) % _SEQUENCES}"
    )
    records = "" if incident is None or incident.index is not None else f"+{incident.count}"
    reason = "" if found.reason is None else f" ({found.reason.name})"
    at = "" if found.offset < 0 else f" at offset {found.offset}"
    return f"{named}{which}{records}: {found.verdict.name}{at}{reason}: {found.detail}"


def _as_object(found: Resolution) -> dict[str, Any]:
    return {
        "verdict": found.verdict.name,
        "offset": found.offset,
        "committed": found.committed,
        "reason": None if found.reason is None else found.reason.name,
        "detail": found.detail,
        "incident": None if found.incident is None else json.loads(found.incident.to_json()),
    }
