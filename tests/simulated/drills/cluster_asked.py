"""The drill of questions about the cluster: who is asked, and what a Metadata answer changes.

Answers of this and of other clusters come in any order. They lack brokers, topics or leaders, name
topics that were recreated, and come before and after verdicts on brokers. What the engine must know
after an answer, and whether it asks again, follows from the rows that the answers have shown.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from random import Random
from typing import Final

from aioidem._engine.accusations import Accusation
from aioidem._engine.idempotence import ProducerIdentity
from aioidem._engine.record import PendingRecord
from aioidem._engine.retention import Disproof
from aioidem._engine.route import Route
from aioidem._engine.steps import AskCluster, FetchMetadata, OpenLink, Request
from aioidem._log import LogLine

from .cluster_bench import LIMIT, ClusterBench, Wire
from .cluster_rows import NAMES
from .comparing import differs
from .engine_parts import act, whole_batch

__all__ = ["drill_cluster_asked"]

_STEPS: Final = 80


def drill_cluster_asked(dice: Random) -> Iterator[str]:
    """Yield what is wrong with the questions about the cluster, and with what answers change."""
    yield from _ClusterDrill(dice).run()


class _ClusterDrill(ClusterBench):
    """Questions about the cluster, and answers to them, at random."""

    def run(self) -> Iterator[str]:
        """Ask, answer and change the cluster at random, and yield what is wrong."""
        self._connect()
        self._send()
        self._send()
        checked = [self._ask] * 7 + [self._answer] * 9 + [self._ask_clusters] * 2
        events = [self._send] * 3 + [self._number] * 2 + [self._accuse] * 2 + [self._recreate] * 2
        events += [self._call, self._lead, self._connect, self._lose, self._grow_stale]
        for _ in range(_STEPS):
            self._now += self._dice.choice((0.0, 0.0, 0.25, 2.0, 2.0, 64.0))
            wrong = act(self._dice, checked, events) or self._difference()
            if wrong is not None:
                yield f"cluster: {wrong}"
                return

    # -- asking ------------------------------------------------------------------------------------

    def _ask(self) -> str | None:
        """Let the engine ask for metadata, and return what is wrong with the request.

        If one is due, the least busy broker is asked that is known to be in the cluster. Where
        there is no connection, one is opened.
        """
        due: list[Request] = []
        ready = [wire for wire in self._wires if self._free(wire)]
        wanted = self._refresher.due(self._now)
        if wanted and ready:
            wire = min(ready, key=lambda w: (not w.identified, w.link.node_id < 0, len(w.owed)))
            topics = tuple(sorted(self._rows.wanted))
            create = self._config.allow_auto_create_topics
            due = [FetchMetadata(wire.link.link_id, self._tokens + 1, topics, create)]
            self._refresher.sent()
            self._note_asked(wire, due[0])
        made = self._parts.poll()
        self._questions.ask(self._now)
        if self._wires:
            return self._wrong_requests(made, due)
        links = list(self._parts.connections.links.values())
        for link in links:
            self._parts.connections.opened(link, 13, self._now)
            self._wires.append(Wire(link, 0))
        opened = [type(step) for step in made]
        return differs("steps without a connection", opened, [OpenLink] * wanted)

    def _ask_clusters(self) -> str | None:
        """Let the engine ask brokers which cluster they belong to, each once."""
        due: list[Request] = []
        for wire in self._wires:
            if not wire.asked and self._free(wire):
                due.append(AskCluster(wire.link.link_id, self._tokens + 1))
                self._note_asked(wire, due[-1])
        made = self._parts.poll()
        self._questions.ask_clusters(self._now)
        return self._wrong_requests(made, due)

    # -- answers -----------------------------------------------------------------------------------

    def _answer(self) -> str | None:
        """Answer a request that is outstanding, as a broker of this or of another cluster."""
        owing = [wire for wire in self._wires if wire.owed]
        if not owing:
            return None
        wire = max(owing, key=lambda w: FetchMetadata in map(type, w.owed.values()))
        token = self._dice.choice(list(wire.owed))
        step = wire.owed.pop(token)
        named = self._dice.choice(("home", "home", "home", "home", "home", None, "other", "other"))
        answered = self._parts.requests.answered(wire.link.link_id, token, self._now)
        if answered is None:
            return f"request {token} was forgotten, expected outstanding"
        if type(step) is AskCluster:
            home = self._identify(wire, named)
            told = self._questions.on_cluster(wire.link, named)
            return differs(f"the cluster {named!r} is the producer's", told, home)
        update = self._rows.answer(named)
        # A large answer is merged in pieces; perhaps only the first one was merged before the rest.
        merge = self._questions.merge_of(update) if self._dice.random() < 0.4 else None
        if merge is not None and self._dice.random() < 0.5:
            next(merge.slices(), None)
            if self._dice.random() < 0.3:
                self._forget()
        self._questions.on_metadata(wire.link, answered[1], update, self._now, merge)
        if update.throttle_ms:
            wire.paused_until = max(wire.paused_until, self._now + update.throttle_ms / 1000)
        if not self._identify(wire, named):
            self._refresher.failed(self._now)
            return None
        rows, number = self._rows, self._refresher.requests
        recreated = rows.learn(update, number, counts=not self._refresher.out_of_turn)
        self._lines += [LogLine.FEWER_RETAINED] * rows.judge(answered[1].sent_at)
        for name in recreated:
            self._renew(name)
            now_id = rows.wanted[name].present_id
            if any(state.topic_id != now_id for state in self._parts.partitions.of(name)):
                return f"partitions of {name} have the id of a deleted topic, expected {now_id}"
        self._refused += sum(topic.place() for topic in rows.wanted.values())
        self._failed |= self._refused > 0
        self._refresher.answered(self._now, enough=not rows.lacks(update))
        return None

    def _renew(self, name: str) -> None:
        """Derive what follows when a topic was recreated.

        An idempotent producer needs a new epoch, and a transaction that wrote to the topic can only
        be aborted. A batch in doubt ends UNKNOWN, and what was told of sizes is no longer true.
        """
        self._lines.append(LogLine.TOPIC_RECREATED)
        numbered = self._numbered.pop(name, None)
        if name in self._doubted:
            self._doubted.discard(name)
            self._unknown += 1
            if self._identity.epoch == 1:  # that of the batch, and not given up before
                self._lines.append(LogLine.EPOCH_BUMPED)
        if self._kind == "idempotent":
            self._identity = ProducerIdentity(7, self._identity.epoch + 1)
        elif self._kind == "transactional":
            self._failed |= numbered == self._identity
        self._sized.discard(name)
        for wire in self._wires:
            wire.limits.discard(name)

    # -- what happens besides ----------------------------------------------------------------------

    def _forget(self) -> None:
        """Forget the view while an answer is merged in pieces, as in a move to another cluster."""
        self._parts.cluster.forget(self._home)
        self._parts.partitions.targets.clear()
        self._rows.brokers = set()
        for topic in self._rows.truth.values():
            topic.forget()

    def _want(self, name: str) -> None:
        """Begin to use a topic."""
        if name not in self._rows.wanted:
            self._rows.wanted[name] = self._rows.truth[name]
            self._refresher.want_unnamed()

    def _send(self) -> None:
        """Append a record, perhaps for a partition that there is not."""
        others = (None, 0) if self._kind == "transactional" else (None, 0, 1, 9)
        name, partition = self._dice.choice(NAMES), self._dice.choice(others)
        if self._failed and self._kind == "transactional":
            return
        self._want(name)
        topic = self._rows.wanted[name]
        if not topic.known or (partition is not None and partition not in topic.known):
            topic.waiting.append((partition, self._refresher.requests))
            self._refresher.want()
        record = PendingRecord(None, b"", (), 0, partition, 10)
        self._parts.accumulator.append(name, record, self._now)

    def _call(self) -> None:
        """Let a caller wait until a topic is known, or wait no longer."""
        name = self._dice.choice(NAMES)
        self._want(name)
        calls = self._rows.wanted[name].calls
        if calls and self._dice.random() < 0.6:
            calls.pop().close()
            return
        calls.append(ExitStack())
        calls[-1].enter_context(self._parts.accumulator.topic(name).awaited())

    def _lead(self) -> None:
        topic = self._rows.truth[self._dice.choice(NAMES)]
        self._rows.lead(topic, self._dice.choice((0, 1)))

    def _recreate(self) -> None:
        topic = self._rows.truth[self._dice.choice(NAMES)]
        topic.generation += 1
        for partition in topic.leaders:
            self._rows.lead(topic, partition)

    def _connect(self) -> None:
        link = self._parts.connect(self._dice.choice((-1, 0, 1)), 13, self._now, home=False)
        if link is not None:
            link.transaction_version = self._dice.choice((0, 1, 2))
            wire = Wire(link, link.transaction_version)
            self._wires.append(wire)
            if self._dice.random() < 0.3:
                link.throttle(500, self._now)
                wire.paused_until = self._now + 0.5

    def _lose(self) -> None:
        if self._wires:
            wire = self._wires.pop(self._dice.randrange(len(self._wires)))
            self._parts.lose(wire.link, self._now)
            if any(type(step) is FetchMetadata for step in wire.owed.values()):
                self._refresher.failed(self._now)

    def _accuse(self) -> None:
        """Let a leader prove that it retains fewer batches than it says (`Disproof`)."""
        topic = self._rows.truth[self._dice.choice(NAMES)]
        partition = self._dice.choice(list(topic.leaders))
        leader, epoch = topic.leaders[partition]
        if leader < 0:
            return
        route = Route(1, self._dice.choice((leader, leader, 3)), epoch)
        proved = self._dice.choice((2, 7, 9))
        verdict = Accusation(topic.name, partition, route, Disproof(20, proved, 11), self._now)
        self._rows.verdicts.append(verdict)
        self._parts.accusations.add(verdict)

    def _grow_stale(self) -> None:
        self._parts.metadata.want()
        self._refresher.want()

    def _number(self) -> None:
        """Let a partition number a batch, and learn how large its topic's batches may be."""
        name = self._dice.choice(NAMES)
        topic = self._rows.wanted.get(name)
        if topic is None or not topic.known:
            return
        ledger = self._parts.partitions.state(name, 0).ledger
        if name not in self._doubted:  # a partition with a batch in doubt keeps its identity
            ledger.adopt(self._identity)
            ledger.take(1)
            self._numbered[name] = self._identity
        if self._kind == "idempotent" and self._identity.epoch == 1 and name not in self._doubted:
            self._doubted.add(name)
            state, batch = self._parts.partitions.state(name, 0), whole_batch(self._identity, 0, 0)
            state.follow(Route(1, 0, 1))
            state.enlist(batch)
            state.send(batch, self._now)
            state.failures.on_lost(batch, written=True, now=self._now)
        self._parts.accumulator.topics[name].too_large(2 * LIMIT, self._now)
        self._sized.add(name)
        for wire in self._wires:
            wire.link.limits.of(name).tell(LIMIT, self._now)
            wire.limits.add(name)
