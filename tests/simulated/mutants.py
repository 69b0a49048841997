"""Show that the simulation notices if any rule of the engine is broken.

Each mutant breaks one rule, by replacing methods of the engine; the engine itself has no switches
for that. A mutant is caught when a seed (tried from 0 upwards, as in the soak) shows a violation
with the mutant and none without. `make mutants` runs all mutants. The output ends with
`K mutants, C caught`, and the exit status is 1 when C < K.

Each mutant names the rule that it breaks, and the issue of Kafka or of a client that taught that
rule where there is one. So a mutant that is not caught says what the simulation fails to show.

`--record` writes the seeds to `caught.json`. The tests try those seeds first: some mutants need a
thousand others. Where the recorded seed notices nothing any more, they try all.

`python -m tests.simulated.mutants "leader change"` runs only the mutants whose name contains these
words. A mutant's name is the name of its function, with spaces instead of underscores.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import multiprocessing
import sys
import time
from array import array
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from kio.schema.errors import ErrorCode

from aioidem._engine import classify as classify_module
from aioidem._engine import connections as connections_module
from aioidem._engine import deadlines as deadlines_module
from aioidem._engine import discovery as discovery_module
from aioidem._engine import produce as produce_module
from aioidem._engine import record_accumulator as accumulator_module
from aioidem._engine import spreading as spreading_module
from aioidem._engine import window_reason as window_reason_module
from aioidem._engine.acknowledgements import Acknowledgements
from aioidem._engine.batch import (
    PERSISTENCE_TRANSITIONS,
    Batch,
    BatchState,
    Evidence,
    Persistence,
)
from aioidem._engine.batch_limits import BatchLimit
from aioidem._engine.classify import Disposition
from aioidem._engine.cluster_change import carried_records
from aioidem._engine.connections import Connections
from aioidem._engine.deadlines import Deadlines
from aioidem._engine.discovery import Discovery, DiscoveryState
from aioidem._engine.doubt import DoubtResolution
from aioidem._engine.effects import Effects
from aioidem._engine.endings import Endings
from aioidem._engine.failed_attempts import FailedAttempts, Refusal
from aioidem._engine.home_cluster import HomeCluster
from aioidem._engine.idempotence import IdentityLedger, ProducerIdentity, SequenceLedger
from aioidem._engine.incidents import Incident
from aioidem._engine.ladder import Ladder
from aioidem._engine.leadership import Leadership
from aioidem._engine.links import Link
from aioidem._engine.memory import ByteBudget, MemoryWaiter
from aioidem._engine.metadata import MetadataRefresher
from aioidem._engine.metadata_merge import MetadataMerge
from aioidem._engine.partition import PartitionState
from aioidem._engine.partition_queue import PartitionQueue
from aioidem._engine.partitions import Partitions
from aioidem._engine.produce import ProduceRequests
from aioidem._engine.record import Outcome, PendingRecord
from aioidem._engine.record_accumulator import RecordAccumulator
from aioidem._engine.record_block import RecordBlock
from aioidem._engine.recovery import Recovery, RecoveryEvent, Rung
from aioidem._engine.retention import BrokerMemory, RetentionEvidence, Witness
from aioidem._engine.route import Route
from aioidem._engine.sealing import Sealer
from aioidem._engine.setbacks import Setbacks
from aioidem._engine.settlement import Settlement
from aioidem._engine.sticky import StickyPartitioner
from aioidem._engine.suspicion import Suspicion
from aioidem._engine.topic_view import TopicView
from aioidem._engine.topics import TopicState
from aioidem._engine.unassigned import UnassignedRecords
from aioidem._engine.windows import PartitionWindow
from aioidem._log import LogLine
from aioidem._producer import sender as sender_module
from aioidem._producer.sender import Sender
from aioidem._protocol.metadata import BrokerAddress
from aioidem._protocol.produce import ProduceAnswer, decode_produce_response
from aioidem.errors import DeliveryTimeoutError, KafkaError
from aioidem.structs import DeliveryStatus

from . import transactional_mutants
from .mutation import (
    LIMIT,
    MUTANTS,
    Caught,
    Mutant,
    Patch,
    applied,
    catch,
    mutant,
    record,
    recorded,
)
from .soak import PROCESSES, run_odd, run_swarm, run_varied

__all__ = [
    "MUTANTS",
    "Caught",
    "Mutant",
    "applied",
    "catch",
    "main",
    "mutant",
    "recorded",
    "transactional_mutants",
]

# -- whose producer id it is ----------------------------------------------------------------------


@mutant("another cluster id means another producer id before anything is sent there")
def identity_kept_in_another_cluster(patch: Patch) -> None:
    forget = HomeCluster._forget

    def kept(self: HomeCluster, to: str) -> None:
        identity = self._identity
        state, current = identity.state, identity.current
        forget(self, to)
        identity.state, identity.current = state, current

    patch(HomeCluster, "_forget", kept)


@mutant("a connection names its cluster before a record goes over it")
def cluster_taken_for_granted(patch: Patch) -> None:
    opened = Connections.opened

    def trusting(self: Connections, link: Link, produce_version: int, now: float) -> None:
        opened(self, link, produce_version, now)
        self.identified(link, None, at_home=True)

    patch(Connections, "opened", trusting)


@mutant("what is in doubt ends with its cluster, and is written to no other one")
def doubt_carried_to_another_cluster(patch: Patch) -> None:
    carried = carried_records

    def everything(states: Iterable[PartitionState]) -> list[PendingRecord]:
        states = list(states)
        for state in states:
            for batch in [b for b in state.batches.unresolved if b.due]:
                batch.persistence = Persistence.NEVER_SENT
        return carried(states)

    patch(accumulator_module, "carried_records", everything)


@mutant("INVALID_PRODUCER_EPOCH means a stranger: a new producer id, never epoch + 1")
def epoch_raised_when_fenced(patch: Patch) -> None:
    def raised(
        self: Partitions, partition: PartitionState, _error: KafkaError, _identity: IdentityLedger
    ) -> None:
        if not partition.ledger.bump_wanted:
            partition.ledger.bump_wanted = True
            self._effects.bump(partition.where, partition.ledger.identity, "mutant")

    patch(Partitions, "disown", raised)


# -- the window ---------------------------------------------------------------------------------


@mutant("the window bounds a span, not a count (KAFKA-9199, KAFKA-18905)")
def count_instead_of_span(patch: Patch) -> None:
    def naive(self: PartitionState, *_args: Any) -> bool:
        # The mutant counts only the batches in flight, and not those that wait to be resent.
        if not self.batches.unresolved:
            return not self.ledger.bump_wanted
        return (
            self.leadership.gate_open
            and not self.ledger.bump_wanted
            and self.window.admits(self.batches.outstanding + 1)
        )

    def late(self: PartitionState, now: float) -> Batch | None:
        return (
            None
            if now < self.setbacks.retry_at + 1.0 and self.setbacks.retry_at
            else following(self, now)
        )

    following = PartitionState.next_resend
    patch(PartitionState, "next_resend", late)
    patch(PartitionState, "may_send_new", naive)


@mutant("one batch in flight until the first NONE (KAFKA-15591)")
def no_first_ack_gate(patch: Patch) -> None:
    patch(Leadership, "gate_open", property(lambda _self: True))


@mutant("the gate closes when the leader changes")
def gate_not_reset_on_leader_change(patch: Patch) -> None:
    follow = PartitionState.follow

    def kept(self: PartitionState, route: Route) -> bool:
        gate = self.gate.opened_for
        followed = follow(self, route)
        if followed and gate is not None:
            self.gate.opened_for = (gate[0], route)
        return followed

    patch(PartitionState, "follow", kept)


@mutant("the gate closes after an error")
def gate_not_reset_after_an_error(patch: Patch) -> None:
    on_error, on_lost = FailedAttempts.on_error, FailedAttempts.on_lost

    def error_kept(self: FailedAttempts, *args: Any) -> bool:
        gate = self._gate.opened_for
        disowned = on_error(self, *args)
        self._gate.opened_for = gate
        return disowned

    def lost_kept(self: FailedAttempts, *args: Any, **options: Any) -> None:
        gate = self._gate.opened_for
        on_lost(self, *args, **options)
        self._gate.opened_for = gate

    patch(FailedAttempts, "on_error", error_kept)
    patch(FailedAttempts, "on_lost", lost_kept)


@mutant("the window is 5 again after a leader change; no largest value is remembered")
def twenty_kept_after_a_leader_change(patch: Patch) -> None:
    learn = PartitionWindow.learn

    def largest(self: PartitionWindow, retained: int | None) -> None:
        before = self.limit
        learn(self, retained)
        self.limit = max(self.limit, before)

    patch(PartitionWindow, "reset", lambda _self, *_, **__: None)
    patch(PartitionWindow, "learn", largest)


@mutant("an absent field means 5, also after 20 was seen")
def absent_field_keeps_twenty(patch: Patch) -> None:
    learn = PartitionWindow.learn

    def kept(self: PartitionWindow, retained: int | None) -> None:
        if retained is not None:
            learn(self, retained)

    patch(PartitionWindow, "learn", kept)


@mutant("a resend is not bound by the span")
def span_rule_applied_to_resends(patch: Patch) -> None:
    def within(self: PartitionState, _batch: Batch) -> bool:
        return self.window.admits(self.batches.span)

    patch(PartitionState, "_within_window", within)


@mutant("no more requests in flight than the connection may have")
def connection_window_ignored(patch: Patch) -> None:
    def admits(self: Link, now: float) -> bool:
        return self.state.name == "READY" and now >= self.throttled_until

    patch(Link, "admits", admits)


# -- discovery of the window --------------------------------------------------------------------


@mutant("what ends v14 ends it for a while: two unlucky connections are no verdict")
def held_back_for_good(patch: Patch) -> None:
    def due(self: Discovery, _now: float) -> bool:
        return self.state is DiscoveryState.UNASKED

    patch(Discovery, "due", due)


@mutant("a refused DescribeConfigs is asked again")
def a_config_that_was_refused_is_never_asked_about_again(patch: Patch) -> None:
    due = Discovery.due

    def naive(self: Discovery, now: float) -> bool:
        return self.state is not DiscoveryState.NOT_GRANTED and due(self, now)

    patch(Discovery, "due", naive)


@mutant("a node that has answered v14 collects no strikes")
def strikes_against_a_known_broker(patch: Patch) -> None:
    lost = Discovery.lost

    def naive(self: Discovery, **how: Any) -> None:
        proven, self._proven = self._proven, False
        lost(self, **how)
        self._proven = proven

    patch(Discovery, "lost", naive)


@mutant("a broker that keeps fewer batches than it says is noticed")
def every_word_about_memory_believed(patch: Patch) -> None:
    patch(RetentionEvidence, "verdict", lambda _self, _said: None)


@mutant("a broker that was found out is not believed")
def found_out_and_believed(patch: Patch) -> None:
    patch(BrokerMemory, "believed", lambda _self, said, _now: said)


@mutant("a broker that was restarted remembers one batch: two must be recognised below the newest")
def a_refusal_alone_convicts(patch: Patch) -> None:
    def naive(self: RetentionEvidence, batch: Batch) -> None:
        retry = self._awaited.pop(batch, None)
        if retry is not None:
            self._recognised.setdefault(retry.link, []).append(Witness(batch.ordinal, 1))
            self._refused.setdefault(retry.link, []).append(retry.distance)

    patch(RetentionEvidence, "refused", naive)


@mutant("a pass of probes goes on below what DescribeProducers names, or it shows nothing")
def no_search_below_the_hint(patch: Patch) -> None:
    patch(Recovery, "searches", property(lambda _self: False, lambda _self, _value: None))


# -- doubt --------------------------------------------------------------------------------------


@mutant("no refusal clears doubt")
def doubt_cleared_by_a_refusal(patch: Patch) -> None:
    row: Any = (Persistence.IN_DOUBT, Evidence.REFUSED)
    patch(PERSISTENCE_TRANSITIONS, row, Persistence.REJECTED)


@mutant("NOT_LEADER with a base offset comes after the append")
def not_leader_always_a_rejection(patch: Patch) -> None:
    classify = classify_module.classify

    def naive(code: int, _base_offset: int, **options: Any) -> Disposition:
        return classify(code, -1, **options)

    patch(produce_module, "classify", naive)


@mutant("REQUEST_TIMED_OUT and its like come after the append")
def timed_out_taken_for_a_rejection(patch: Patch) -> None:
    classify = classify_module.classify

    def naive(code: int, base_offset: int, **options: Any) -> Disposition:
        told = classify(code, base_offset, **options)
        return (
            told._replace(precedes_append=True)
            if code in (ErrorCode.request_timed_out, ErrorCode.not_enough_replicas_after_append)
            else told
        )

    patch(produce_module, "classify", naive)


@mutant("an unknown code leaves the batch in doubt")
def unknown_code_taken_for_a_rejection(patch: Patch) -> None:
    classify = classify_module.classify

    def naive(code: int, base_offset: int, **options: Any) -> Disposition:
        told = classify(code, base_offset, **options)
        return (
            told._replace(precedes_append=True)
            if code in (ErrorCode.unknown_server_error, ErrorCode.kafka_storage_error, 999, 1234)
            else told
        )

    patch(produce_module, "classify", naive)


@mutant("what a lost connection owed is in doubt")
def lost_request_taken_for_unwritten(patch: Patch) -> None:
    on_lost = FailedAttempts.on_lost

    def naive(self: FailedAttempts, batch: Batch, *, written: bool, now: float) -> None:
        del written
        on_lost(self, batch, written=False, now=now)

    patch(FailedAttempts, "on_lost", naive)


@mutant("a partition the answer omits is in doubt")
def missing_partition_taken_for_acknowledged(patch: Patch) -> None:
    lose = FailedAttempts.on_lost

    def naive(self: FailedAttempts, batch: Batch, *, written: bool, now: float) -> None:
        attempt = batch.attempt
        if (
            written
            and attempt is not None
            and self._leadership.route is not None
            and not batch.settled
        ):
            link = self._leadership.route.link_id == attempt.link_id
            if link and batch.persistence is Persistence.NEVER_SENT and self._leadership.gate_open:
                # The mutant treats the batch as refused, although its attempt was not answered.
                self._batches.outstanding -= 1
                self._gate.close()
                batch.learn(Evidence.REFUSED, now)
                self._retry_later(batch, now)
                return
        lose(self, batch, written=written, now=now)

    patch(FailedAttempts, "on_lost", naive)


@mutant("a batch in doubt is never split")
def in_doubt_batch_is_split(patch: Patch) -> None:
    too_large = FailedAttempts._on_too_large

    def naive(self: FailedAttempts, batch: Batch, *args: Any) -> None:
        batch.persistence = Persistence.REJECTED
        too_large(self, batch, *args)

    patch(FailedAttempts, "_on_too_large", naive)


@mutant("a batch in doubt is never renumbered (librdkafka #4953, KAFKA-14034)")
def in_doubt_batch_is_renumbered(patch: Patch) -> None:
    adopt = PartitionState.adopt

    def naive(self: PartitionState, identity: ProducerIdentity, *args: Any) -> None:
        if self.ledger.identity != identity and not self.batches.outstanding:
            for batch in self.batches.unresolved:
                if batch.in_doubt and batch.state is BatchState.WAITING:
                    batch.persistence = Persistence.REJECTED
        adopt(self, identity, *args)

    patch(PartitionState, "adopt", naive)


@mutant("a NONE over a rejected batch proves nothing below it")
def implicit_ack_over_a_rejected_predecessor(patch: Patch) -> None:
    def naive(self: Acknowledgements, _acked: Batch, below: Any, _attempt: Any, out: Any) -> None:
        for batch in [b for b in below if b.state is not BatchState.IN_FLIGHT]:
            batch.persistence = Persistence.IN_DOUBT
            self._endings.settle_ack(batch, -1, out, None)

    patch(Acknowledgements, "_imply", naive)


@mutant("implicit acknowledgement at all (librdkafka 0090): without it the ladder runs dry")
def no_implicit_ack(patch: Patch) -> None:
    patch(Acknowledgements, "_imply", lambda _self, *_args: None)


@mutant("OUT_OF_ORDER on a batch in doubt is probed, not taken for a loss")
def out_of_order_ends_doubt(patch: Patch) -> None:
    def naive(self: Ladder, now: float, out: Any, **_options: Any) -> None:
        if not self._batches.outstanding and self._recovery.rung is Rung.REFUSED:
            self._lose("taken at its word", now, out)

    patch(Ladder, "advance", naive)


@mutant("OUT_OF_ORDER on a batch in doubt is no rejection: Java bumps and resends it")
def out_of_order_bumps_and_resends(patch: Patch) -> None:
    def naive(self: Ladder, now: float, out: Any, **_options: Any) -> None:
        if not self._batches.outstanding and self._recovery.rung is Rung.REFUSED:
            for batch in self._batches.unresolved:
                batch.persistence = Persistence.REJECTED
            self._lose("taken at its word", now, out)

    patch(Ladder, "advance", naive)


@mutant("the oldest is not asked again and again (KAFKA-9199): what is newer may answer for it")
def oldest_asked_for_ever(patch: Patch) -> None:
    def naive(self: Ladder, _now: float, _out: Any, **_options: Any) -> None:
        if not self._batches.outstanding and self._recovery.rung is Rung.REFUSED:
            self._recovery.move(RecoveryEvent.RESOLVED)

    patch(Ladder, "advance", naive)


@mutant("two refused passes, the second not before the pause")
def one_refused_pass_is_enough(patch: Patch) -> None:
    end = Recovery.end_pass

    def naive(self: Recovery, now: float, pause: float) -> bool:
        end(self, now, pause)
        return True

    patch(Recovery, "end_pass", naive)


@mutant("NOT_WRITTEN is never said of what was in doubt")
def expired_doubt_said_to_be_not_written(patch: Patch) -> None:
    def naive(self: Endings, batch: Batch, error: Any, out: Any) -> None:
        batch.persistence = Persistence.REJECTED
        if batch.state is BatchState.WAITING:
            self.fail(batch, error, out)
            self.give_up_numbers(out, "mutant")
        else:
            give_up(self, batch, error, out)

    give_up = Endings.give_up
    patch(Endings, "give_up", naive)


# -- sizes and single records -------------------------------------------------------------------


@mutant("a batch outgrows batch.size only to what its topic is known to take")
def growth_not_bounded_by_the_topic(patch: Patch) -> None:
    patch(BatchLimit, "known", lambda _self, _batch_size: 1 << 30)


@mutant("a topic that does not tell its limit is taken at batch.size, not tried")
def larger_batches_are_tried(patch: Patch) -> None:
    known = BatchLimit.known

    def hopeful(self: BatchLimit, batch_size: int) -> int:
        return 4 * known(self, batch_size) if self.told is None else self.told

    patch(BatchLimit, "known", hopeful)


@mutant("what is beside a bad record is delivered (KIP-467)")
def innocent_records_fail_with_the_culprits(patch: Patch) -> None:
    def naive(
        self: FailedAttempts,
        batch: Batch,
        _culprits: Any,
        _innocent: Any,
        error: KafkaError,
        out: Any,
    ) -> None:
        self._on_permanent(batch, error, out)

    patch(FailedAttempts, "_on_culprits", naive)


@mutant("what is beside a bad record has an outcome (KIP-467)")
def innocent_records_are_dropped(patch: Patch) -> None:
    on_culprits = FailedAttempts._on_culprits

    def naive(
        self: FailedAttempts,
        batch: Batch,
        culprits: Any,
        innocent: Any,
        error: KafkaError,
        out: Any,
    ) -> None:
        on_culprits(self, batch, culprits, innocent, error, out)
        self._batches.unresolved = [
            b for b in self._batches.unresolved if not set(b.records) < set(batch.records)
        ]

    patch(FailedAttempts, "_on_culprits", naive)


@mutant("what is beside a bad record stays in front of what follows (KIP-467)")
def innocent_records_go_last(patch: Patch) -> None:
    on_culprits = FailedAttempts._on_culprits

    def naive(
        self: FailedAttempts,
        batch: Batch,
        culprits: Any,
        innocent: Any,
        error: KafkaError,
        out: Any,
    ) -> None:
        on_culprits(self, batch, culprits, innocent, error, out)
        self._batches.unresolved.sort(key=lambda b: set(b.records) < set(batch.records))

    patch(FailedAttempts, "_on_culprits", naive)


@mutant("a batch in doubt is not torn apart, whatever its copy is refused for (KIP-467)")
def culprits_of_a_batch_in_doubt_are_failed(patch: Patch) -> None:
    on_error = FailedAttempts.on_error

    def naive(self: FailedAttempts, batch: Batch, refusal: Refusal, now: float, out: Any) -> bool:
        if refusal.culprits and not batch.settled:
            batch.persistence = Persistence.REJECTED
        return on_error(self, batch, refusal, now, out)

    patch(FailedAttempts, "on_error", naive)


# -- DescribeProducers --------------------------------------------------------------------------


@mutant("DescribeProducers acknowledges nothing")
def acked_from_describe_producers_alone(patch: Patch) -> None:
    told = DoubtResolution.on_producers

    def naive(
        self: DoubtResolution, link: Link, state: PartitionState, answer: Any, now: float
    ) -> None:
        if state.ledger.identity is not None:
            known = answer.last_sequences.get(state.ledger.identity.producer_id)
            stored = known is not None and any(
                b.wire_last == known[1] for b in state.batches.unresolved
            )
            for batch in list(state.batches.unresolved) if stored and known is not None else []:
                if batch.in_doubt and batch.due:
                    state.endings.settle_ack(batch, -1, self._effects, None)
                if batch.wire_last == known[1]:
                    break
        told(self, link, state, answer, now)

    patch(DoubtResolution, "on_producers", naive)


@mutant("what DescribeProducers does not show may still come")
def not_written_because_describe_producers_did_not_show_it(patch: Patch) -> None:
    told = DoubtResolution.on_producers

    def naive(
        self: DoubtResolution, link: Link, state: PartitionState, answer: Any, now: float
    ) -> None:
        if state.ledger.identity is not None and not answer.error_code:
            last = answer.last_sequences.get(state.ledger.identity.producer_id, (0, -1))[1]
            for batch in [b for b in state.batches.unresolved if b.in_doubt and b.due]:
                if batch.wire_base > last:
                    batch.persistence = Persistence.REJECTED
                    state.endings.fail(batch, _timeout(), self._effects)
                    state.endings.give_up_numbers(self._effects, "mutant")
        told(self, link, state, answer, now)

    patch(DoubtResolution, "on_producers", naive)


@mutant("its LastSequence counts only with our epoch")
def epoch_of_describe_producers_ignored(patch: Patch) -> None:
    told = DoubtResolution.on_producers

    def naive(
        self: DoubtResolution, link: Link, state: PartitionState, answer: Any, now: float
    ) -> None:
        if state.ledger.identity is not None:
            known = answer.last_sequences.get(state.ledger.identity.producer_id)
            if known is not None and known[0] != state.ledger.identity.epoch:
                # The mutant concludes: "the broker's last sequence is higher, so it has the batch".
                for batch in [b for b in state.batches.unresolved if b.in_doubt and b.due]:
                    if batch.wire_last <= known[1]:
                        state.endings.settle_ack(batch, -1, self._effects, None)
        told(self, link, state, answer, now)

    patch(DoubtResolution, "on_producers", naive)


def _timeout() -> KafkaError:
    return DeliveryTimeoutError("a mutant said so")


# -- epochs and sequences -----------------------------------------------------------------------


@mutant("numbers once written belong to those bytes for ever (franz-go #1217)")
def written_numbers_used_again_after_giving_up(patch: Patch) -> None:
    give_up = Endings.give_up
    give_up_numbers = Endings.give_up_numbers

    def naive(self: Endings, batch: Batch, error: Any, out: Any) -> None:
        ledger = self._ledger
        if batch is self._batches.unresolved[-1] and not ledger.bump_wanted:
            patch_out: Any = _Keep(out)
            give_up(self, batch, error, patch_out)
            ledger.bump_wanted = False
            ledger.next = batch.base
        else:
            give_up(self, batch, error, out)

    patch(Endings, "give_up", naive)
    patch(Endings, "give_up_numbers", give_up_numbers)


class _Keep:
    """A stand-in for the engine's effects that ignores requests to bump the epoch."""

    def __init__(self, out: Any) -> None:
        self._out = out

    def bump(self, _where: str, _identity: Any, _reason: str) -> None:
        """Ignore a request to bump the epoch."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


@mutant("giving up numbers bumps the epoch")
def no_bump_after_giving_up(patch: Patch) -> None:
    patch(Endings, "give_up_numbers", lambda *_: None)


@mutant("a new epoch is adopted only when nothing is outstanding (KAFKA-12152)")
def epoch_adopted_while_outstanding(patch: Patch) -> None:
    def naive(self: PartitionState, identity: ProducerIdentity, *_args: Any) -> None:
        if self.ledger.identity != identity and not self.batches.in_doubt:
            # Whether or not batches are in flight under the old epoch, the next sealed batch has
            # the new one.
            self.ledger.adopt(identity)
            self.gate.close()

    patch(PartitionState, "adopt", naive)


@mutant("idle partitions start again at 0 under a new epoch")
def old_sequence_kept_under_a_new_epoch(patch: Patch) -> None:
    adopt = SequenceLedger.adopt

    def naive(self: SequenceLedger, identity: ProducerIdentity) -> None:
        following = self.next
        adopt(self, identity)
        self.next = following

    patch(SequenceLedger, "adopt", naive)


@mutant("one incident, one bump; epochs end at 32767 (librdkafka #3720)")
def epoch_past_its_end(patch: Patch) -> None:
    def naive(self: IdentityLedger) -> None:
        if self.current is not None:
            self.bumps += 1
            epoch = (self.current.epoch + 1) % 32768
            self.current = ProducerIdentity(self.current.producer_id, epoch)

    patch(IdentityLedger, "bump", naive)


@mutant("the wire sequence wraps from 2147483647 to 0 (KAFKA-7692)")
def wrap_skips_zero(patch: Patch) -> None:
    from aioidem._engine import sealing

    def naive(counter: int) -> int:
        return counter if counter < 2**31 else (counter + 1) % 2**31

    patch(sealing, "wire_sequence", naive)


@mutant("no new batch passes one that waits to be sent again (kafka-python #2937)")
def new_batches_pass_what_waits(patch: Patch) -> None:
    following = PartitionState.next_resend

    def late(self: PartitionState, now: float) -> Batch | None:
        # New batches go first; a batch that waits is resent only when the window is full.
        new = (
            self.queue.records
            and self.leadership.gate_open
            and not self.ledger.bump_wanted
            and self.idempotent
        )
        return None if new and self.window.admits(self.batches.span + 1) else following(self, now)

    def may(self: PartitionState) -> bool:
        if not self.batches.unresolved:
            return not self.ledger.bump_wanted
        return (
            self.leadership.gate_open
            and not self.ledger.bump_wanted
            and self.window.admits(self.batches.span + 1)
        )

    patch(PartitionState, "next_resend", late)
    patch(PartitionState, "may_send_new", may)


# -- leaders and topics -------------------------------------------------------------------------


@mutant("nothing goes to a new leader while the old one owes answers (aiokafka #228)")
def new_leader_not_kept_waiting(patch: Patch) -> None:
    follow = PartitionState.follow

    def naive(self: PartitionState, route: Route) -> bool:
        if self.batches.outstanding and route != self.leadership.route:
            outstanding, self.batches.outstanding = self.batches.outstanding, 0
            followed = follow(self, route)
            self.batches.outstanding = outstanding
            return followed
        return follow(self, route)

    patch(PartitionState, "follow", naive)


@mutant("a topic that is missing from metadata keeps its state (librdkafka #3672)")
def state_forgotten_when_the_topic_vanishes(patch: Patch) -> None:
    finish = MetadataMerge.finish

    def naive(self: MetadataMerge) -> Any:
        result = finish(self)
        result.recreated += [name for name in result.failed if name in self._known]
        return result

    def recreate(self: RecordAccumulator, name: str) -> None:
        for old in self._partitions.of(name):
            queued = old.queue.empty()
            self._partitions.retire(old, _timeout())
            fresh = self._partitions.succeed(old)
            for item in queued:
                fresh.queue.append(item, item.queued_at)

    patch(MetadataMerge, "finish", naive)
    patch(RecordAccumulator, "recreate", recreate)


@mutant("in-doubt batches of a recreated topic are never asked about")
def recreated_topic_taken_for_the_same(patch: Patch) -> None:
    from aioidem._engine import metadata_merge

    patch(metadata_merge, "_recreated", lambda _old, _new: False)


# -- expiry of producer state -------------------------------------------------------------------


@mutant("a suspect partition's doubt is not resent (KIP-854)")
def blind_resend_where_suspect(patch: Patch) -> None:
    patch(Suspicion, "forbids_resend", property(lambda _self: False))


@mutant("expiry goes by record timestamps, not by idleness")
def expiry_by_idleness(patch: Patch) -> None:
    def naive(self: Suspicion, wall_ms: float, _expiration: float, _unresolved: Any) -> bool:
        # The mutant judges by the time since the last acknowledgement. That time is short for a
        # busy producer, so no partition is ever suspect.
        del wall_ms
        self.suspect = False
        return False

    patch(Suspicion, "assess", naive)


@mutant("the last batch's stamp counts, not the newest one's")
def newest_stamp_instead_of_the_last(patch: Patch) -> None:
    def naive(self: Suspicion, wall_ms: float, expiration: float, unresolved: Any) -> bool:
        stamps = [batch.max_timestamp_ms for batch in unresolved]
        if self._acked_stamp_ms is not None:
            stamps.append(self._acked_stamp_ms)
        newest = max(stamps, default=None)
        self.suspect = newest is not None and wall_ms - newest > expiration * 500.0
        return self.suspect

    patch(Suspicion, "assess", naive)


@mutant("where suspect, the only batch is resent only while its own records are young")
def only_batch_resent_at_any_age(patch: Patch) -> None:
    def naive(self: Suspicion, alone: Batch | None, *_: float) -> None:
        self.exempt = alone is not None and not self._carried and not self._refused

    patch(Suspicion, "exempt_alone", naive)


@mutant("where suspect, the only batch is resent while its own records are young", run_varied)
def only_batch_resent_at_no_age(patch: Patch) -> None:
    patch(Suspicion, "exempt_alone", lambda *_: None)


@mutant("the gate also closes when nothing is outstanding, where suspect")
def implicit_ack_where_suspect(patch: Patch) -> None:
    imply = Acknowledgements._imply

    def naive(self: Acknowledgements, acked: Batch, below: Any, attempt: Any, out: Any) -> None:
        suspect, self._suspicion.suspect = self._suspicion.suspect, False
        if attempt is not None:
            attempt.knows_us = True
        imply(self, acked, below, attempt, out)
        self._suspicion.suspect = suspect

    patch(Acknowledgements, "_imply", naive)


# -- what others are told -------------------------------------------------------------------------


@mutant("an observer is told of each batch that is sent")
def one_batch_of_a_turn_told(patch: Patch) -> None:
    take = ProduceRequests.take_dispatched
    patch(ProduceRequests, "take_dispatched", lambda self: take(self)[:1])


@mutant("an observer is told of each outcome")
def outcomes_of_failed_records_told(patch: Patch) -> None:
    announce = Sender._announce

    def partial_news(self: Sender, settlement: Settlement) -> None:
        if settlement.outcome.error is not None:
            announce(self, settlement)

    patch(Sender, "_announce", partial_news)


@mutant("an incident is warned of once, and then it goes on at INFO")
def warned_at_each_look(patch: Patch) -> None:
    outlasts = Incident._outlasts

    def naive(self: Incident, now: float, opened: frozenset[LogLine]) -> bool:
        return outlasts(self, now, opened) or self._level == self.line.level

    patch(Incident, "_outlasts", naive)


@mutant("an error tells the last failure of its partition", run_varied)
def failures_not_told(patch: Patch) -> None:
    def forgotten(self: Setbacks, _reason: KafkaError | str, now: float) -> None:
        self._trouble_since(now)

    patch(Setbacks, "failed", forgotten)


@mutant("a window is explained by what an answer has said")
def window_explained_without_an_answer(patch: Patch) -> None:
    def invented(state: PartitionState, link: Link) -> str:
        return f"broker {link.node_id} retains {state.window.limit} batches"

    patch(window_reason_module, "_reason_of_the_broker", invented)


# -- what few clusters have ---------------------------------------------------------------------


@mutant("v14 is not used for a while after two connections without an answer", run_odd)
def third_connection_without_an_answer(patch: Patch) -> None:
    patch(discovery_module, "_STRIKES", 3)


@mutant("the fifth refusal of a password in a row is the last", run_odd)
def sixth_refusal_of_a_password(patch: Patch) -> None:
    patch(connections_module, "_REFUSALS", 6)


@mutant("what was refused before a password was changed does not count", run_odd)
def refusals_of_another_password(patch: Patch) -> None:
    patch(Connections, "forgive", lambda _self: None)


@mutant("records that wait for the partitions of a topic end when it is denied", run_odd)
def denied_topic_waited_for(patch: Patch) -> None:
    patch(RecordAccumulator, "refuse_topic", lambda *_: None)


@mutant("a producer that is to end does not go to another cluster", run_odd)
def another_cluster_all_the_same(patch: Patch) -> None:
    begin = HomeCluster.__init__

    def disloyal(self: HomeCluster, *parts: Any, **named: Any) -> None:
        begin(self, *parts, **named)
        self._config = dataclasses.replace(self._config, on_cluster_change="continue")

    patch(HomeCluster, "__init__", disloyal)


@mutant("the batches of a request fit into it together", run_odd)
def room_in_a_request_not_counted(patch: Patch) -> None:
    next_batch = RecordAccumulator._next_batch

    def careless(
        self: RecordAccumulator,
        state: PartitionState,
        link: Link,
        now: float,
        _room: int,
        *,
        alone: bool,
    ) -> Batch | None:
        room = self._config.max_request_size
        return next_batch(self, state, link, now, room, alone=alone)

    patch(RecordAccumulator, "_next_batch", careless)


@mutant("records are refused for what the last answer says of their topic", run_odd)
def denial_of_a_topic_kept(patch: Patch) -> None:
    describe = TopicState.describe

    def keep(self: TopicState, error_code: int, *, told_by: int | None) -> None:
        describe(self, error_code or self.error_code, told_by=told_by)

    patch(TopicState, "describe", keep)


@mutant("a broker that has moved is looked for at its new address", run_odd)
def old_address_of_a_broker(patch: Patch) -> None:
    learn = Connections.learn

    def deaf(self: Connections, brokers: Iterable[BrokerAddress]) -> None:
        learn(self, [broker for broker in brokers if broker.node_id not in self.nodes])

    patch(Connections, "learn", deaf)


@mutant("the time of a first-ack gate is that of its batch", run_odd)
def first_ack_gate_of_another_time(patch: Patch) -> None:
    def added(self: Effects, since: float, now: float) -> None:
        self.meters.gate.record(now + since, now)

    patch(Effects, "waited_at_gate", added)


@mutant("a record goes where the partitioner says, or nowhere", run_odd)
def partition_of_a_number_that_is_none(patch: Patch) -> None:
    number = accumulator_module._number
    patch(accumulator_module, "_number", lambda chosen: max(number(chosen), 0))


# -- data-loss events ---------------------------------------------------------------------------


@mutant("what the answers prove lost is reported")
def no_data_loss_event(patch: Patch) -> None:
    patch(Effects, "data_loss", lambda _self, _where, _reason: None)


@mutant("a batch next to acknowledged ones that is OUT_OF_ORDER shows a gap, and a gap is reported")
def gap_not_reported(patch: Patch) -> None:
    lose = Ladder._lose

    def naive(self: Ladder, reason: str, now: float, out: Any) -> None:
        silent: Any = _Silent(out)
        lose(self, reason, now, silent)

    patch(Ladder, "_lose", naive)


@mutant("what is refused for good when it is asked about may never have been there: no event")
def event_for_what_was_refused_for_good(patch: Patch) -> None:
    patch(Recovery, "refusal", property(lambda _self: None, lambda _self, _error: None))


class _Silent:
    """A stand-in for the engine's effects that reports no data loss."""

    def __init__(self, out: Any) -> None:
        self._out = out

    def data_loss(self, _where: str, _reason: str) -> None:
        """Ignore a report of data loss."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


# -- partitions that are not there --------------------------------------------------------------


@mutant("a partition that fresh metadata lacks is refused then, not when max_block is over")
def missing_partition_waited_for(patch: Patch) -> None:
    def sent(self: MetadataRefresher) -> None:
        self.in_flight = True
        self.wanted = False

    patch(MetadataRefresher, "sent", sent)


@mutant("metadata asked for before the record came refuses no partition: it may have been added")
def missing_partition_refused_by_old_metadata(patch: Patch) -> None:
    wait = UnassignedRecords.wait

    def hasty(self: UnassignedRecords, until: float, _asked: int, record: Any) -> None:
        wait(self, until, -1, record)

    patch(UnassignedRecords, "wait", hasty)


# -- drafts -------------------------------------------------------------------------------------


@mutant("records that expire while a thread compresses them are in no batch")
def drafts_outlive_their_records(patch: Patch) -> None:
    expire = PartitionQueue.expire

    def naive(self: PartitionQueue, now: float) -> list[PendingRecord]:
        draft, expired = self.draft, expire(self, now)
        self.draft = draft if self.records else None
        return expired

    patch(PartitionQueue, "expire", naive)


@mutant("while a thread compresses records, none behind them is sent")
def records_overtake_a_draft(patch: Patch) -> None:
    seal = Sealer.seal

    def naive(self: Sealer, state: PartitionState, *args: Any, **more: Any) -> Batch | None:
        queue = state.queue
        draft = queue.draft
        if draft is None or draft.body is not None or queue.bytes == draft.size:
            return seal(self, state, *args, **more)
        held = queue.cut_draft(draft)
        quick, self.drafts.quick = self.drafts.quick, math.inf
        batch = seal(self, state, *args, **more)
        self.drafts.quick = quick
        queue.put_back(held, flushing=True)
        queue.draft = draft
        return batch

    patch(Sealer, "seal", naive)


# -- time ---------------------------------------------------------------------------------------


@mutant("every record has a deadline (aiokafka #1101)")
def sent_batches_never_expire(patch: Patch) -> None:
    def naive(self: Deadlines, now: float, *rest: Any) -> None:
        expired, out = self._queue.expire(now), rest[-1]
        if expired:
            self._endings.settle_records(expired, DeliveryStatus.NOT_WRITTEN, _timeout(), out)

    patch(Deadlines, "expire", naive)


@mutant("a deadline that is missed is missed: grace only while answers come in")
def grace_without_end(patch: Patch) -> None:
    expire = Deadlines.expire

    def naive(
        self: Deadlines, now: float, grace: float, timeout: float, answered: Any, *rest: Any
    ) -> None:
        answered = now + 1.0 if answered is None else answered
        expire(self, now, 3 * grace + 1.0, timeout, answered, *rest)

    patch(Deadlines, "expire", naive)


@mutant("a batch in doubt has a grace only if its leader has answered since the doubt arose")
def grace_without_an_answer(patch: Patch) -> None:
    def naive(batch: Batch, _answered_at: float | None) -> bool:
        return batch.in_doubt

    patch(deadlines_module, "_resolving", naive)


@mutant("a batch that nothing is known about has no grace after its deadline")
def grace_for_a_first_attempt(patch: Patch) -> None:
    def naive(_batch: Batch, answered_at: float | None) -> bool:
        return answered_at is not None

    patch(deadlines_module, "_resolving", naive)


@mutant("a batch in doubt is asked about until its deadline")
def doubt_given_up_at_half_the_deadline(patch: Patch) -> None:
    expire = Deadlines.expire
    past = Deadlines.past

    def half(state: Deadlines, now: float) -> list[Batch]:
        def due(batch: Batch) -> bool:
            queued = batch.records[0].queued_at
            return batch.in_doubt and batch.due and now > (queued + batch.deadline) / 2

        return [batch for batch in state._batches.unresolved if due(batch)]

    def naive(self: Deadlines, now: float, *rest: Any) -> None:
        for batch in half(self, now):
            self._endings.give_up(batch, _timeout(), rest[-1])
        expire(self, now, *rest)

    patch(Deadlines, "expire", naive)
    patch(Deadlines, "past", lambda self, now: past(self, now) or bool(half(self, now)))


@mutant("a batch whose attempts were all refused before the append is NOT_WRITTEN")
def refused_batches_said_to_be_unknown(patch: Patch) -> None:
    fail = Endings.fail

    def naive(self: Endings, batch: Batch, error: KafkaError, out: Any) -> None:
        if batch.persistence is Persistence.REJECTED:
            self.give_up(batch, error, out)
        else:
            fail(self, batch, error, out)

    patch(Endings, "fail", naive)


@mutant("a connection that says nothing is given up after one request timeout")
def silence_borne_six_times_as_long(patch: Patch) -> None:
    timeout_at = Link.timeout_at

    def naive(self: Link, request_timeout: float, longest: float) -> float | None:
        return timeout_at(self, 6 * request_timeout, longest)

    patch(Link, "timeout_at", naive)


# -- what brokers say ---------------------------------------------------------------------------


@mutant("the window is the one in the answer's bytes: an absent field means 5")
def window_misread_by_the_decoder(patch: Patch) -> None:
    read = decode_produce_response

    def misread(version: int, frame: bytes) -> tuple[int, ProduceAnswer]:
        correlation_id, answer = read(version, frame)
        parts = (part._replace(retained=part.retained or 20) for part in answer.partitions)
        return correlation_id, answer._replace(partitions=tuple(parts))

    patch(sender_module, "decode_produce_response", misread)


@mutant("a new leader epoch of the same broker is a new leader")
def epochs_of_the_same_leader_ignored(patch: Patch) -> None:
    merge = TopicView.merge

    def naive(self: TopicView, update: Any) -> None:
        if update.leader_id < 0 or self.leaders.get(update.index) != update.leader_id:
            merge(self, update)

    patch(TopicView, "merge", naive)


# -- many records of one call -------------------------------------------------------------------


@mutant("a batch takes its records out of their block")
def record_of_a_block_sent_twice(patch: Patch) -> None:
    take = RecordBlock.take

    def naive(self: RecordBlock, count: int) -> RecordBlock:
        taken = take(self, count)
        if self.count and count > 1:
            self._bound(self.begin - 1, self.end)
        return taken

    patch(RecordBlock, "take", naive)


@mutant("a caller that waits for room need not wait once the producer closes", run_swarm)
def callers_wait_in_a_closed_producer(patch: Patch) -> None:
    def forgetful(self: ByteBudget) -> Iterator[MemoryWaiter]:
        for waiter in self._waiters:
            if not waiter.abandoned:
                waiter.abandoned = True
                self.waiting -= 1
                yield waiter
        self._waiters.clear()

    patch(ByteBudget, "wake_all", forgetful)


@mutant("each record of a block has its own place in the batch, whatever is before the block")
def place_of_a_block_ignored(patch: Patch) -> None:
    def naive(self: RecordBlock, outcome: Outcome, _place: int) -> None:
        self.receiver.take(self.chosen, outcome, 0)

    patch(RecordBlock, "settle", naive)


@mutant("a slice of a block tells its own rows, not those at the beginning of the block")
def rows_of_a_slice_counted_from_the_block(patch: Patch) -> None:
    patch(RecordBlock, "chosen", property(lambda self: range(self.count)))


@mutant("records of one call keep their order in a partition, with keys and without")
def records_without_keys_behind_those_with_keys(patch: Patch) -> None:
    def naive(
        block: RecordBlock, sticky: StickyPartitioner, topic: TopicView
    ) -> Iterator[tuple[int, RecordBlock]]:
        hashed = block.columns.hashed(len(topic.everything))
        for place in sorted({hashed[row] for row in block.chosen}, reverse=True):
            index = sticky.choose(0, topic) if place < 0 else topic.everything[place]
            rows = [row for row in block.chosen if hashed[row] == place]
            yield index, block.among(array("q", rows))

    patch(spreading_module.__dict__, "_by_keys", naive)


# -- running them -------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    """Run the mutants that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only those whose name contains one of these")
    parser.add_argument("--limit", type=int, default=LIMIT)
    parser.add_argument("--record", action="store_true", help="note the seeds in caught.json")
    asked = parser.parse_args(arguments)
    unknown = [part for part in asked.names if not any(part in name for name in MUTANTS)]
    if unknown:
        parser.error(f"no mutant's name contains {', '.join(map(repr, unknown))}")
    names = [n for n in MUTANTS if not asked.names or any(part in n for part in asked.names)]
    began = time.monotonic()
    caught: dict[str, int] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, mp_context=context) as pool:
        jobs = [pool.submit(catch, name, asked.limit) for name in names]
        for job in jobs:
            found = job.result()
            if found.seed is not None:
                caught[found.name] = found.seed
            verdict = "SURVIVED" if found.seed is None else f"seed {found.seed}: {found.how}"
            sys.stdout.write(f"{found.name}: {verdict}\n")
            sys.stdout.flush()
    sys.stdout.write(f"took {time.monotonic() - began:.0f} s\n")
    sys.stdout.write(f"{len(names)} mutants, {len(caught)} caught\n")
    if asked.record:
        record({name: seed for name, seed in recorded().items() if name in MUTANTS} | caught)
    return 0 if len(caught) == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
