"""Verdict: what a replay has shown, in a sentence, and as a test that shows it again."""

from __future__ import annotations

import base64
import textwrap
from typing import NamedTuple

from aioidem._build import __version__
from aioidem._flight.replay import Replay

__all__ = ["Verdict", "regression_test"]

_TEST = '''"""A flight record, replayed: {reason}.

Written by `aioidem replay --to-test` from a record of {events} events, which aioidem {writer} on
Python {python} wrote.
"""

from __future__ import annotations

import base64

from aioidem._flight.record import FlightRecord
from aioidem._flight.replay import Replay


def test_the_recorded_events_break_no_rule() -> None:
    """The engine breaks no rule of the wire when it is told what was recorded{same}."""
    replay = Replay(FlightRecord.decode(base64.b64decode(RECORD)))
    for _ in replay.run():
        pass
    assert [str(each) for each in replay.violations] == []
{more}

RECORD = """
{content}
"""
'''
_SAME = """    assert [str(each) for each in replay.differences] == []
    counters = replay.core.counters
    assert counters.records_unknown == {unknown}
    assert counters.data_loss_events == {losses}
"""


class Verdict(NamedTuple):
    """What a replay has shown."""

    same: bool
    """Whether the engine decided what was decided when it was recorded."""
    kept: bool
    """Whether no rule was broken."""
    text: str
    """Both in words."""

    @classmethod
    def of(cls, replay: Replay) -> Verdict:
        """Judge a replay that has been run."""
        polls = sum(event[0] == "poll" for event in replay.record.events)
        said = [f"{len(replay.record.events)} events, {polls} polls"]
        if replay.diverged:
            writer = str(replay.record.head.get("aioidem"))[:40]
            why = "a bug of the recorder or of the engine"
            if writer != __version__:
                why = f"aioidem {writer} wrote it, and this is {__version__}"
            said.append(f"the engine decided otherwise {replay.diverged} times ({why})")
        else:
            said.append("the engine decided what was recorded")
        broken = len(replay.violations)
        said.append(f"{broken} rules broken" if broken else "no rule broken")
        return cls(not replay.diverged, not broken, "; ".join(said))


def regression_test(content: bytes, replay: Replay) -> str:
    """Return a test module that replays a flight record.

    The test asserts that no rule of the wire is broken. If none was broken, and the engine decided
    what was recorded, it also asserts that, and the counts of UNKNOWN records and of losses.

    Args:
        content: the file's content.
        replay: a replay of it that has been run.
    """
    head, verdict = replay.record.head, Verdict.of(replay)
    exact = verdict.same and verdict.kept
    counters = replay.core.counters
    more = ""
    if exact:
        unknown, losses = counters.records_unknown, counters.data_loss_events
        more = _SAME.format(unknown=unknown, losses=losses)
    encoded = base64.b64encode(content).decode("ascii")
    return _TEST.format(
        reason=_plain(head.get("reason")),
        events=len(replay.record.events),
        writer=_plain(head.get("aioidem")),
        python=_plain(head.get("python")),
        same=", and decides the same" if exact else "",
        more=more,
        content="\n".join(textwrap.wrap(encoded, 96)),
    )


def _plain(value: object) -> str:
    """Return a text of a file such that it can be in a docstring."""
    text = "".join(each if each.isalnum() or each in " -_.:,()" else "_" for each in str(value))
    return text[:60]
