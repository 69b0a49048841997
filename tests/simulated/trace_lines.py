"""The lines of a trace: what a step of the engine and an answer to Produce look like."""

from __future__ import annotations

from collections.abc import Iterator

from aioidem._engine import steps
from aioidem._records import read_batches
from aioidem.testing import WireAnswer

__all__ = ["answer_lines", "step_lines"]


def step_lines(step: steps.Step) -> Iterator[str]:
    """Yield the lines of a trace for a step of the engine."""
    if not isinstance(step, steps.SendProduce):
        yield f"> {step}"
        return
    for topic in step.topics:
        for index, data in topic.partitions:
            batch = read_batches(data)[0]
            yield (
                f"> link {step.link_id} token {step.token} v{step.version}: "
                f"{topic.name}-{index} pid {batch.producer_id} epoch {batch.producer_epoch} "
                f"seq {batch.base_sequence}+{batch.count}"
            )


def answer_lines(link_id: int, token: int, answers: list[WireAnswer]) -> Iterator[str]:
    """Yield the lines of a trace for a Produce answer."""
    for a in answers:
        yield (
            f"  link {link_id} token {token}: {a.topic}-{a.partition} code {a.code} "
            f"offset {a.base_offset} retained {a.retained}"
        )
