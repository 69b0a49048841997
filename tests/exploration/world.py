"""World: one real engine, the model cluster, and the network between them, as one state.

`World.actions` names everything that may happen next, and `World.do` makes one of them happen. An
action is a text, such as "serve 3" or "wait"; the number is that of a connection:

- *serve*: the broker takes the oldest request of a connection, and its answer is on its way. The
  connection may be closed by then: then the request is a zombie, and its answer is lost.
- *deliver*: the oldest answer of a connection reaches the engine.
- *wait*: nothing happens until the engine's next timer fires.
- *told*: the engine asks for metadata, though no answer made it do so.
- *send*: the caller queues another record.

The other actions are faults. A world has a budget of them:

- *cut*: a connection breaks. Its requests may still be served, its answers are lost. With
  *unwritten*, the newest request had not been written yet.
- *silence*: nothing happens until a timer fires that only a broker's silence lets fire, such as
  the request timeout.
- *refuse*: the broker takes a request, and refuses it for a reason that passes.
- *reject*: as *refuse*, for good.
- *fail*: as *refuse*, with an error code that does not say whether the batch was appended.
- *crash*: as *fail*, and the batch was appended.
- *unsure*: the broker appends the batch, and answers REQUEST_TIMED_OUT: not all replicas have it.
- *depose*: as *unsure*, and the broker loses the leadership before it answers NOT_LEADER.
- *move*: another broker becomes the leader. With *losing*, it lacks what is not committed; with
  *bare*, it remembers no producer; with *unclean*, it lacks the newest batch, committed or not.
- *restart*: the leader restarts, and remembers one batch of the producer.
- *forget*: the leader forgets the producer, though no record is old enough for that.
- *lapse*: the same, at a moment when no request and no answer is on its way.
- *vanish*: the engine asks for metadata, and the broker that answers does not know the topic yet.
- *recreate*: the topic is deleted, and created again with another id.
- *shorten*: the leader remembers five batches per producer, and no more.
- *fill*: somebody else writes a record.
- *usurp*: somebody else writes a record under the engine's producer id and a newer epoch.
- *shrink*: the topic takes batches of one record only, from now on.

Everything that does not concern batches (connecting, metadata, producer ids, configs) is answered
at once. Requests of a closed connection are dropped when more than half of the request timeout has
passed since: the engine relies on that between two passes of probes.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple
from uuid import UUID

from aioidem._engine import steps
from aioidem._protocol.broker_config import BrokerFacts
from aioidem._protocol.metadata import BrokerAddress, MetadataUpdate, PartitionUpdate, TopicUpdate
from aioidem._protocol.produce import PartitionAnswer, ProduceAnswer
from aioidem._protocol.producer_id import ProducerIdAnswer
from aioidem._protocol.producers import ProducersAnswer
from aioidem._protocol.read_back import ReadBackAnswer
from aioidem._protocol.topic_config import TopicConfig

from . import model
from .coordinator import Call, Granted
from .engine import EngineStates, Polled
from .model import Answer, PartitionLog, Sent
from .space import Space

__all__ = ["PRODUCER_ID", "SOON", "TOPIC", "Pipe", "Request", "World"]

SOON = 1.0
"""A timer that is due within this many seconds fires by itself.

A later one fires only if nothing else can happen, or if a broker is silent, which is a fault.
"""

_START = 1000.0
_MIDNIGHT_MS = 1_700_006_400_000
TOPIC = "t"
"""The one topic that there is."""
PRODUCER_ID = 7
"""The first id that is granted."""
_BY_NAME = 0
_FIRST_WITH_TOPIC_IDS = 13
_DEFAULT_RETAINED = 5
_NOT_GRANTED = 29
_ONE_RECORD = 70
"""The size that a batch of one record has at most here, in bytes."""
_PENDING = ("pending", -1)
_ANSWERS = ("refuse", "reject", "fail", "crash", "unsure", "depose")
"""The faults of a broker that takes a request and answers it otherwise."""


class Request(NamedTuple):
    """A Produce request: its token, the id of its topic, and a batch for each partition."""

    token: int
    topic: int
    """0 if it names the topic instead, as below version 13: then any topic of that name takes it.
    """
    batches: tuple[tuple[int, Sent], ...]


class Pipe:
    """A connection as the network sees it: requests on their way, and answers on their way back.

    Args:
        link_id: the engine's number of the connection.
        broker: the broker that it leads to.
    """

    __slots__ = ("answers", "broker", "cluster", "link_id", "open", "requests", "told")

    def __init__(self, link_id: int, broker: int) -> None:
        self.link_id = link_id
        self.broker = broker
        self.cluster = 1
        self.open = True
        self.requests: list[Request | Call] = []
        # What was asked, and the answer: for each partition one, or that of the coordinator.
        self.answers: list[tuple[Request | Call, tuple[PartitionAnswer, ...] | Granted]] = []
        # By partition: how many batches the last success on this connection said are remembered.
        self.told: dict[int, int] = {}


class World:
    """The joint state of engine, network and brokers.

    Args:
        space: what there is in this world, and what may go wrong.
        faults: how many faults may happen.
    """

    def __init__(self, space: Space, faults: int) -> None:
        self.space = space
        self.faults = faults
        self.now = _START
        self.core = EngineStates(space.config, TOPIC, space.partitions).begin()
        self.logs = [self._log() for _ in range(space.partitions)]
        # The id of the topic, and the logs of the topics of that name that were deleted.
        self.topic = 1
        self.deleted: list[PartitionLog] = []
        # Whether the next broker that is asked for metadata does not know the topic.
        self.unlisted = False
        self.pipes: list[Pipe] = []
        # The outcome of each record, by its number: a status and an offset, which is -1 if unknown.
        self.outcomes: list[tuple[str, int]] = []
        self.queued: list[float] = []
        # What the engine ever sent, by partition: producer id, epoch and sequence belong to the
        # same records for ever, unless the topic takes smaller batches by now.
        self.written: dict[tuple[int, int, int, int], Sent] = {}
        self.shrunk = False
        # The bytes of each batch: a retry must have the same, and a read of the log returns them.
        self.bytes: dict[Sent, bytes] = {}
        self.ids_granted = 0
        # A text for each thing that the engine did wrong on the wire; empty as long as all is well.
        self.complaints: list[str] = []
        # Records without an outcome that are in the log from where the engine has begun to read it;
        # empty but while the engine runs.
        self.readable: set[int] = set()
        self._begin()

    def _log(self) -> PartitionLog:
        """Return the log of a new partition."""
        return PartitionLog(self.space.retains)

    def _begin(self) -> None:
        """Connect, have the first records acknowledged, and queue the others."""
        space, core = self.space, self.core
        core.ask_for(TOPIC)
        self._run_engine()
        for _ in range(space.primed):
            for partition in range(space.partitions):
                self._queue(partition)
        self._run_engine()
        while any(status == "pending" for status, _ in self.outcomes):
            for action in self.actions():
                if action.split()[0] in ("serve", "deliver", "wait"):
                    self.do(action)
                    break
        for partition in range(space.partitions):
            if space.next_sequence:
                self._jump(partition)
        for _ in range(space.records):
            for partition in range(space.partitions):
                self._queue(partition)
        self._run_engine()

    def _jump(self, partition: int) -> None:
        """Let the next sequence be `Space.next_sequence`, as if all before it had been written."""
        self.core.jump(TOPIC, partition, self.space.next_sequence)
        log = self.logs[partition]
        ((offset, batch),) = log.entries
        log.entries, log.end, log.remembered = (), offset, {}
        log.append(batch._replace(sequence=self.space.next_sequence - 1))
        self.written.clear()

    def _queue(self, partition: int) -> None:
        value = b"%d" % len(self.outcomes)
        primed = len(self.outcomes) < self.space.primed * self.space.partitions
        stamp = self._wall_ms - (0 if primed else int(self.space.age * 1000))
        self.outcomes.append(_PENDING)
        self.queued.append(self.now)
        self.core.queue(TOPIC, partition, value, stamp, self.now)

    @property
    def _wall_ms(self) -> int:
        """The time of day, which began with the world."""
        return int((self.now - _START) * 1000) + _MIDNIGHT_MS

    # -- what may happen ---------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Whether every record of this world was sent, and has its outcome."""
        return self._unsent == 0 and all(status != "pending" for status, _ in self.outcomes)

    @property
    def _unsent(self) -> int:
        space = self.space
        return (space.primed + space.records) * space.partitions + space.late - len(self.outcomes)

    def actions(self) -> list[str]:
        """Return everything that may happen next."""
        found: list[str] = []
        for pipe in self.pipes:
            if pipe.requests and self._serves(pipe):
                found.append(f"serve {pipe.link_id}")
            if pipe.answers:
                found.append(f"deliver {pipe.link_id}")
        if self._unsent:
            found.append("send")
        kinds = self.space.kinds if self.faults else frozenset[str]()
        if not self.settled:
            self._find_timers(found, kinds)
            if self._stale:
                found.append("told")
        if kinds:
            self._find_faults(found, kinds)
        return found

    def _serves(self, pipe: Pipe) -> bool:
        # Requests of a closed connection are served only by a leader. Elsewhere they would change
        # nothing, and nobody would get the answer.
        request = pipe.requests[0]
        assert isinstance(request, Request)
        return pipe.open or any(
            self.logs[partition].leader == pipe.broker for partition, _ in request.batches
        )

    def _find_timers(self, found: list[str], kinds: frozenset[str]) -> None:
        at = self.core.sight.wake_at
        if at is None:
            return
        if at - self.now <= SOON or not self._busy:
            found.append("wait")
        elif "silence" in kinds:
            found.append("silence")

    @property
    def _busy(self) -> bool:
        """Whether something else than a timer will make the engine go on."""
        return any(pipe.open and (pipe.requests or pipe.answers) for pipe in self.pipes)

    @property
    def _stale(self) -> bool:
        """Whether metadata would tell the engine something new, and is not requested yet."""
        view = self.core.sight
        if view.topic_id is None or view.metadata_wanted:
            return False
        return view.topic_id != UUID(int=self.topic) or any(
            epoch is not None and epoch < log.leader_epoch
            for epoch, log in zip(view.leader_epochs, self.logs, strict=True)
        )

    def _find_faults(self, found: list[str], kinds: frozenset[str]) -> None:
        for pipe in self.pipes:
            if pipe.requests and self._serves(pipe):
                found.extend(
                    f"{kind} {pipe.link_id}"
                    for kind in _ANSWERS
                    if kind in kinds and self._takes(pipe, kind)
                )
            if pipe.open and (pipe.requests or pipe.answers) and "cut" in kinds:
                found.append(f"cut {pipe.link_id}")
                if pipe.requests and "unwritten" in kinds:
                    found.append(f"cut {pipe.link_id} unwritten")
        for partition, log in enumerate(self.logs):
            if "move" in kinds:
                found.append(f"move {partition}")
                if log.committed < log.end:
                    found.append(f"move {partition} losing")
            if "bare" in kinds:
                found.append(f"move {partition} bare")
            if "unclean" in kinds and log.entries:
                found.append(f"move {partition} unclean")
            if log.remembered:
                found.extend(f"{each} {partition}" for each in ("forget", "usurp") if each in kinds)
                if "lapse" in kinds and not any(p.requests or p.answers for p in self.pipes):
                    found.append(f"lapse {partition}")
            if "shorten" in kinds and log.retains > _DEFAULT_RETAINED:
                found.append(f"shorten {partition}")
            if "fill" in kinds:
                found.append(f"fill {partition}")
        found.extend(each for each in ("restart", "recreate", "vanish") if each in kinds)
        if "shrink" in kinds and not self.shrunk:
            found.append("shrink")

    def _takes(self, pipe: Pipe, fault: str) -> bool:
        """Return whether a connection's oldest request could be answered otherwise.

        Args:
            pipe: the connection. Its broker must lead all partitions of the request.
            fault: how it would be answered.
        """
        del fault
        request = pipe.requests[0]
        assert isinstance(request, Request)
        leaders = [self.logs[partition].leader for partition, _ in request.batches]
        return leaders == [pipe.broker] * len(leaders)

    # -- what happens ------------------------------------------------------------------------------

    def do(self, action: str) -> None:
        """Let an action happen, and the engine react to it.

        Raises:
            ValueError: there is no such action.
        """
        engine, now = self.core.state, self.now
        kind, which, how = _parsed(action)
        match kind:
            case "serve":
                self._serve(self._pipe(which))
            case "deliver":
                self._deliver(self._pipe(which))
            case "wait" | "silence":
                self._wait()
            case "told":
                self.core.want_metadata()
            case "send":
                self._queue(len(self.outcomes) % self.space.partitions)
            case "cut":
                self._cut(self._pipe(which), unwritten=how == "unwritten")
            case "move":
                self._move(self.logs[which], how)
            case "forget" | "lapse":
                self.logs[which].forget()
            case "vanish":
                self.unlisted = True
                self.core.want_metadata()
            case "shorten":
                self.logs[which].retains = _DEFAULT_RETAINED
            case "usurp":
                self.logs[which].usurp()
            case "fill":
                self.logs[which].fill(1)
            case "restart":
                self._restart()
            case "shrink":
                self.shrunk = True
            case "recreate":
                self.deleted += self.logs
                self.logs = [self._log() for _ in self.logs]
                self.topic += 1
            case _ if kind in _ANSWERS:
                self._serve(self._pipe(which), kind)
            case _:
                raise ValueError(action)
        idle = self.space.partitions == 1 and self.core.state is engine and self.now == now
        self._after(fault=kind not in ("serve", "deliver", "wait", "told", "send"), idle=idle)

    def _after(self, *, fault: bool, idle: bool) -> None:
        """Let the engine react to an action.

        Args:
            fault: whether it was a fault.
            idle: whether nothing has happened to the engine since its last poll. Another poll would
            only change which partition's turn it is.
        """
        self.faults -= fault
        if not idle:
            self._run_engine()
        self.pipes = [pipe for pipe in self.pipes if pipe.open or pipe.requests]

    def _move(self, log: PartitionLog, how: str = "") -> None:
        leader = log.leader % self.space.brokers + 1
        space = self.space
        if space.successor_retains is not None:
            log.retains = space.retains if leader == 1 else space.successor_retains
        if how == "unclean":
            log.lose()
        log.lead(leader, losing=how in ("losing", "unclean"), bare=how == "bare")

    def _pipe(self, link_id: int) -> Pipe:
        return next(pipe for pipe in self.pipes if pipe.link_id == link_id)

    def _serve(self, pipe: Pipe, fault: str = "") -> None:
        request = pipe.requests.pop(0)
        assert isinstance(request, Request)
        answers = []
        for partition, batch in request.batches:
            log = self.logs[partition]
            if request.topic not in (_BY_NAME, self.topic):
                answer = Answer(model.UNKNOWN_TOPIC_ID)
            elif self.shrunk and len(batch.numbers) > 1 and log.leader == pipe.broker:
                answer = Answer(model.MESSAGE_TOO_LARGE)
            else:
                answer = self._answered(partition, batch, pipe.broker, fault)
            if fault == "depose":
                self._move(log)
            moved = answer.code == model.NOT_LEADER
            answers.append(
                PartitionAnswer(
                    None if request.topic else TOPIC,
                    UUID(int=request.topic) if request.topic else None,
                    partition,
                    answer.code,
                    answer.offset,
                    retained=log.retains if log.retains > _DEFAULT_RETAINED else None,
                    leader_id=log.leader if moved else -1,
                    leader_epoch=log.leader_epoch if moved else -1,
                )
            )
        if pipe.open:
            pipe.answers.append((request, tuple(answers)))

    def _answered(self, partition: int, batch: Sent, broker: int, fault: str) -> Answer:
        """Return what a broker answers to a batch."""
        log = self.logs[partition]
        if broker != log.leader:
            return Answer(model.NOT_LEADER)
        if fault == "refuse":
            return Answer(model.NOT_ENOUGH_REPLICAS)
        if fault == "reject":
            return Answer(model.INVALID_TIMESTAMP)
        if fault == "fail":
            return Answer(model.STORAGE_ERROR)
        answer = log.append(batch, replicated=fault != "unsure")
        if answer.code != model.NONE:
            return answer
        match fault:
            case "unsure":
                return Answer(model.REQUEST_TIMED_OUT)
            case "crash":
                return Answer(model.STORAGE_ERROR)
            case "depose":
                return Answer(model.NOT_LEADER, answer.offset)
        return answer

    def _deliver(self, pipe: Pipe) -> None:
        request, entries = pipe.answers.pop(0)
        assert not isinstance(entries, Granted)
        for entry in entries:
            if entry.error_code == model.NONE:
                pipe.told[entry.partition] = entry.retained or _DEFAULT_RETAINED
        step = steps.SendProduce(pipe.link_id, request.token, self.space.version, -1, 0, None, [])
        error = self.core.on_answer(step, ProduceAnswer(entries, 0, ()), self.now)
        if error is not None:
            self.complaints.append(f"the engine does not understand an answer: {error}")

    def _wait(self) -> None:
        at = self.core.sight.wake_at
        assert at is not None
        if at - self.now > self.space.config.request_timeout / 2:
            self.pipes = [pipe for pipe in self.pipes if pipe.open]
        self.now = at

    def _cut(self, pipe: Pipe, *, unwritten: bool) -> None:
        never = (pipe.requests.pop().token,) if unwritten else ()
        self._close(pipe)
        self.core.on_link_cut(pipe.link_id, never, self.now)

    def _close(self, pipe: Pipe) -> None:
        pipe.open = False
        pipe.answers = []

    def _restart(self) -> None:
        broker = self.logs[0].leader
        for log in self.logs:
            if log.leader == broker:
                log.restart()
        for pipe in [each for each in self.pipes if each.broker == broker]:
            pipe.requests = []
            if pipe.open:
                self._cut(pipe, unwritten=False)

    # -- the engine --------------------------------------------------------------------------------

    def _run_engine(self) -> None:
        """Poll the engine and perform its steps, until it has none at this time."""
        for _ in range(1000):
            # Without the time of day no record is ever too old.
            polled = self.core.poll(self.now, self._wall_ms if self.space.age else None)
            self._take_outcomes(polled)
            at = self.core.sight.wake_at
            if not polled.steps and (at is None or at > self.now):
                break
            for step in polled.steps:
                self._perform(step)
        else:
            self.complaints.append("the engine never comes to rest")
        self.complaints += [
            f"record {number} is in the log that the engine has read, and ends UNKNOWN"
            for number in sorted(self.readable)
            if self.outcomes[number][0] == "unknown"
        ]
        self.readable.clear()

    def _take_outcomes(self, polled: Polled) -> None:
        for status, base_offset, numbers in polled.outcomes:
            for place, number in enumerate(numbers):
                if self.outcomes[number] != _PENDING:
                    self.complaints.append(f"record {number} is settled twice")
                offset = base_offset + place if base_offset >= 0 else -1
                self.outcomes[number] = (status, offset)

    def _perform(self, step: steps.Step) -> None:
        core, now = self.core, self.now
        answer: Any
        match step:
            case steps.SendProduce():
                self._write(step)
                return
            case steps.OpenLink(link_id, host, _):
                self.pipes.append(Pipe(link_id, int(host[1:])))
                level = 2 if self.space.transactions == "v2" else 1
                core.on_link_open(link_id, self.space.version, now, level)
                return
            case steps.CloseLink(link_id, _):
                self._close(self._pipe(link_id))
                return
            case steps.FetchMetadata():
                answer = self._metadata()
            case steps.AskCluster():
                answer = "cluster"
            case steps.InitProducerId():
                answer = ProducerIdAnswer(
                    0, PRODUCER_ID + self.ids_granted, 0 if self.ids_granted else self.space.epoch
                )
                self.ids_granted += 1
            case steps.DescribeTopicConfig():
                answer = TopicConfig(0, names_window=True)
            case steps.DescribeBrokerConfig():
                answer = BrokerFacts()
            case steps.DescribeTopicLimit():
                answer = _ONE_RECORD if self.shrunk else None
            case steps.AskProducers(_, _, _, partition):
                answer = self._producers(partition)
            case steps.ReadBack(_, _, _, _, partition, offset):
                answer = self._read(self.logs[partition], offset)
            case _:
                raise AssertionError(f"no answer for {step}")
        core.on_answer(step, answer, now)

    def _metadata(self) -> MetadataUpdate:
        brokers = tuple(BrokerAddress(n, f"b{n}", 9092) for n in range(1, self.space.brokers + 1))
        if self.unlisted:
            self.unlisted = False
            unknown = TopicUpdate(TOPIC, None, model.UNKNOWN_TOPIC, ())
            return MetadataUpdate("cluster", brokers, (unknown,))
        partitions = tuple(
            PartitionUpdate(index, log.leader, log.leader_epoch)
            for index, log in enumerate(self.logs)
        )
        topic = TopicUpdate(TOPIC, UUID(int=self.topic), 0, partitions)
        return MetadataUpdate("cluster", brokers, (topic,))

    def _producers(self, partition: int) -> ProducersAnswer:
        known = self.logs[partition].remembered
        match self.space.producers:
            case "denied":
                return ProducersAnswer(_NOT_GRANTED, {})
            case "old epoch":
                # An answer of a replica that has not heard of the present epoch.
                return ProducersAnswer(0, {pid: (k.epoch - 1, 1000) for pid, k in known.items()})
            case "lies":
                # An answer of a replica that lags behind: an older sequence.
                return ProducersAnswer(
                    0, {pid: (each.epoch, each.batches[0][1] - 1) for pid, each in known.items()}
                )
        return ProducersAnswer(
            0, {pid: (each.epoch, each.batches[-1][1]) for pid, each in known.items()}
        )

    def _read(self, log: PartitionLog, offset: int) -> ReadBackAnswer:
        """Answer Fetch: the committed batches from an offset on, which are the engine's own."""
        if not self.space.readable:
            return ReadBackAnswer(_NOT_GRANTED, -1, b"")
        there = [(at, batch) for at, batch in log.entries if offset <= at < log.committed]
        waiting = [number for _, batch in there for number in batch.numbers]
        self.readable |= {each for each in waiting if self.outcomes[each] == _PENDING}
        page = there[: self.space.page] if self.space.page else there
        found = [struct.pack(">q", at) + self.bytes[batch][8:] for at, batch in page]
        return ReadBackAnswer(0, log.committed, b"".join(found))

    def _write(self, step: steps.SendProduce) -> None:
        pipe = self._pipe(step.link_id)
        batches = []
        (topic,) = step.topics
        assert topic.topic_id is not None
        for partition, data in topic.partitions:
            batch = model.read_batch(data)
            if self.bytes.setdefault(batch, data) != data:
                self.complaints.append(f"{batch} has other bytes than before")
            self._check(partition, batch, pipe)
            batches.append((partition, batch))
        topic_id = _BY_NAME if step.version < _FIRST_WITH_TOPIC_IDS else topic.topic_id.int
        pipe.requests.append(Request(step.token, topic_id, tuple(batches)))
        if len(pipe.requests) + len(pipe.answers) > self.space.in_flight:
            self.complaints.append("a connection has more requests in flight than it may have")

    def _check(self, partition: int, batch: Sent, pipe: Pipe) -> None:
        """Note a complaint if a sent batch breaks a rule about numbers, the window or epochs."""
        if batch.producer_id < 0:
            return  # without idempotence
        key = (partition, batch.producer_id, batch.epoch, batch.sequence)
        if key not in self.written:
            self._check_span(partition, batch, pipe.told.get(partition, _DEFAULT_RETAINED))
            self._check_turn(partition, batch, pipe)
        known = self.written.setdefault(key, batch)
        if known != batch and not self.shrunk:
            self.complaints.append(f"{batch} has the numbers of {known}")
        older = [k for k in self.written if k[0] == partition and k[1:3] > key[1:3]]
        if older:
            self.complaints.append(f"{batch} is sent after a batch of a newer epoch")

    def _check_span(self, partition: int, new: Sent, window: int) -> None:
        """Note a new batch that the leader could let push an unresolved one out of its memory."""
        sent = [
            batch
            for (where, *_), batch in self.written.items()
            if where == partition and batch[:2] == new[:2]
        ]
        pending = (
            place
            for place, batch in enumerate(sent)
            if any(self.outcomes[number] == _PENDING for number in batch.numbers)
        )
        span = len(sent) + 1 - next(pending, len(sent))
        if span > window and not self.shrunk:
            self.complaints.append(f"{new} makes a span of {span} batches")

    def _check_turn(self, partition: int, new: Sent, pipe: Pipe) -> None:
        """Note a new batch that passes one that waits to be sent again."""
        requests = [*pipe.requests, *(request for request, _ in pipe.answers)]
        produce = [request for request in requests if isinstance(request, Request)]
        under_way = {sent for request in produce for _, sent in request.batches}
        for (where, *_), batch in self.written.items():
            behind = where == partition and batch[:2] == new[:2] and batch not in under_way
            pending = any(self.outcomes[number] == _PENDING for number in batch.numbers)
            if behind and pending and not self.shrunk:
                self.complaints.append(f"{new} passes {batch}, which waits to be sent again")


def _parsed(action: str) -> tuple[str, int, str]:
    """Split an action into its kind, the number of a connection or partition, and a manner."""
    words = action.split()
    place = next((n for n, word in enumerate(words) if word.isdigit()), len(words))
    which = int(words[place]) if place < len(words) else -1
    return " ".join(words[:place]), which, " ".join(words[place + 1 :])
