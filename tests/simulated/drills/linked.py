"""The drill of connections: opened, refused, lost, idle, throttled and silent, in any order.

A run loses few connections, and hardly ever many to one address; its brokers move seldom, and its
passwords are right. Here `Connections`, its links and its nodes, the requests on them and what is
done when they end are driven by themselves. After each step they are compared with the rows of what
has happened (`linked_rows`, `linked_book`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random
from typing import Final

from aioidem import errors
from aioidem._engine.links import Leaving, Link, LinkEvent, LinkState
from aioidem._engine.steps import CloseLink
from aioidem._protocol.metadata import BrokerAddress

from .linked_asking import Asking
from .linked_rows import Wire

__all__ = ["drill_linked"]

_STEPS: Final = 50
_GRID: Final = 1024.0
"""Times are multiples of 1/1024 second, so that sums of them are exact."""


def drill_linked(dice: Random) -> Iterator[str]:
    """Yield what is wrong with the connections of a producer."""
    yield from _Drill(dice).run()


class _Drill(Asking):
    """Connections, what is done with them, and the book of what was done."""

    def run(self) -> Iterator[str]:
        """Do what a producer does with its connections, and yield what is wrong."""
        dice = self._dice
        actions = self._actions()
        rare = self._crowd if dice.random() < 0.1 else self._leave_cluster
        self._learn()
        for number in range(_STEPS):
            self._pass_time()
            self._draw = dice.choice((0.0, 0.25, 0.5, 0.5, 0.875))
            self._steps, self._due_steps = self._ledger.begin_poll(), []
            half = number == _STEPS // 2
            done = [rare] if half else dice.choices(actions, k=dice.randrange(1, 5))
            for action in done:
                if not self._wrong:
                    action()
                    self._compare_links()
            self._compare(whole=number % 10 == 9)
            if self._wrong:
                yield f"connections: {self._wrong[0]} after {[each.__name__ for each in done]}"
                return

    def _actions(self) -> list[Callable[[], None]]:
        """Return what is done in a calm time, in a bad one, or while a password is refused."""
        actions = [self._any, self._one, self._one, self._up, self._name, self._note, self._fail]
        actions += [self._answer, self._withdraw, self._move_bytes, self._throttle, self._learn]
        actions += [self._leave, self._strange, self._renew, self._refuse, *[self._stranger] * 2]
        calm = [self._any, self._any, self._one, self._one, self._up, self._up, self._name]
        calm += [self._answer] * 4
        bad = [self._any, *[self._one] * 3, *[self._up] * 3, self._fail]
        refused = [self._any, self._one, self._refuse] * 4 + [self._up]
        # What is in the lists more often is done more often.
        return actions + self._dice.choice((calm * 6, calm * 6, bad * 4, refused * 3))

    def _pass_time(self) -> None:
        """Let time pass, often until just when something is due, or just before that."""
        at = self._now if self._wake == math.inf else math.ceil(self._wake * _GRID) / _GRID
        before = at - 1 / _GRID
        later = [self._now + seconds for seconds in (0.0, 0.0, 0.125, 0.5, 1.0, 3.0)]
        self._now = max(self._now, self._dice.choice([*later, at, at, before]))

    def _up(self) -> None:
        """Let a connection come up; its broker offers some version of Produce."""
        wire = self._wire(lambda wire: not wire.up)
        if wire is None:
            return
        link, offered = (
            self._connections.links[wire.number],
            self._dice.choice((9, 13, 14, 14, 14, 15)),
        )
        self._connections.opened(link, offered, self._now)
        self._book.up(wire, offered, self._now)
        may = self._book.may_speak(wire, self._now)
        self._expect("v14 may be tried", link.discovery.due(self._now), may)
        if may and self._dice.random() < 0.8:
            self._expect("asked before v14 is used", link.discovery.begin(), False)
            wire.speaks, wire.place.held = True, None

    def _name(self) -> None:
        """Let a broker name its cluster, or none."""
        wire = self._wire(lambda wire: wire.up)
        if wire is not None:
            cluster = self._dice.choice((self._home, self._home, None, "other"))
            at_home = cluster in (self._home, None)
            self._connections.identified(
                self._connections.links[wire.number], cluster, at_home=at_home
            )
            self._book.name(wire, cluster, at_home=at_home)

    def _fail(self) -> None:
        """Lose a connection, of whose requests perhaps some were not written."""
        owes = self._wire(Wire.silent) or self._wire(lambda wire: bool(wire.requests))
        wire = owes or self._wire(lambda _: True)
        if wire is None:
            return
        error = _error(self._dice)
        tokens = [each.token for each in wire.requests]
        unwritten = self._dice.sample(tokens, self._dice.randrange(len(tokens) + 1))
        link = self._connections.links[wire.number]
        self._lost_links.drop(link, error, self._now, unwritten)
        self._end(wire, link, error, unwritten)

    def _refuse(self) -> None:
        """Let all brokers refuse the password to which no connection is up."""
        if self._dice.random() < 0.5:
            for node_id in self._book.places:
                self._connect(node_id)
        for wire in self._book.wires(lambda wire: not wire.up):
            error = errors.AuthenticationFailedError("the password is wrong")
            link = self._connections.links[wire.number]
            self._lost_links.drop(link, error, self._now)
            self._end(wire, link, error)

    def _leave(self) -> None:
        """Leave one connection that is not to be used any more."""
        leaving = [*self._connections.overdue(self._now), *self._connections.spare(self._now)]
        for each in leaving[:1]:
            self._leave_one(each)

    def _move_bytes(self) -> None:
        """Let a part of a request or of an answer go over a connection."""
        wire = self._wire(lambda _: True)
        if wire is not None:
            self._connections.links[wire.number].progress(self._now)
            wire.moved.append(self._now)

    def _throttle(self) -> None:
        again = self._wire(lambda wire: wire.up and bool(wire.throttles))
        wire = again or self._wire(lambda wire: wire.up)
        if wire is not None:
            long = self._dice.random() < 0.1
            times = (10_000, 400_000) if long else (-125, 0, 0, 1, 250, 2000)
            milliseconds = self._dice.choice(times)
            self._connections.links[wire.number].throttle(milliseconds, self._now)
            wire.throttle(milliseconds, self._now)

    def _note(self) -> None:
        """Note what was asked, and refused, on a connection; or ask for the last back-off again."""
        wire = self._wire(lambda wire: wire.up)
        if wire is None:
            place = self._dice.choice(list(self._book.places.values()))
            told = self._connections.nodes[place.node_id].backoff.last_delay()
            failures = max(len(place.failed), 1)
            self._expect("last back-off", told, place.delay(failures - 1, self._draw, self._config))
            return
        link = self._connections.links[wire.number]
        match self._dice.randrange(4):
            case 0:
                link.note_asked_broker()
                wire.asked_broker = True
            case 1:
                link.note_asked_cluster()
                wire.asked_cluster = True
            case 2:
                wire.knows = self._dice.random() < 0.5
                link.note_producers(worth_asking=wire.knows)
            case _:
                link.refuse_reading()
                wire.reads = False

    def _learn(self) -> None:
        """Let metadata name some brokers, of which some have moved perhaps."""
        dice = self._dice
        known = dice.sample(range(4), dice.randrange(1, 4))
        hosts = [dice.choice((f"h{each}", f"h{each}", "::2")) for each in known]
        ports = [dice.choice((9092, 9092, 9092, 9093)) for _ in known]
        self._learn_of(list(zip(known, hosts, ports, strict=True)))

    def _learn_of(self, brokers: list[tuple[int, str, int]]) -> None:
        self._connections.learn(BrokerAddress(*each) for each in brokers)
        self._book.learn(brokers)

    def _crowd(self) -> None:
        """Learn so many brokers that some are forgotten, or just not yet."""
        for most in (1000, 1001):
            room = most - len(self._book.places)
            self._learn_of([(9000 * most + each, "h", 9092) for each in range(room)])
            known = range(3) if self._dice.random() < 0.5 else range(1, 3)
            kept = {each: node for each, node in self._connections.nodes.items() if each in known}
            named = [*kept, 3] if self._dice.random() < 0.3 else [*kept]
            self._learn_of([(each, f"h{each}", 9092) for each in named])
            for each, node in kept.items():
                self._expect(
                    f"node {each} is the same object", self._connections.nodes[each] is node, True
                )

    def _stranger(self) -> None:
        """Find the connections that lead to another cluster, and perhaps leave one of them."""
        up = self._book.wires(lambda wire: wire.up)
        due = [wire for wire in up if wire.named and wire.cluster not in (None, self._home)]
        found = self._connections.strangers(self._home)
        self._expect("strangers", [link.link_id for link in found], [wire.number for wire in due])
        self._book.astray = bool(due)
        for wire in due:
            other = self._dice.choice(("other", "third"))
            news = self._connections.nodes[wire.place.node_id].misrouted(other)
            self._expect(
                "another cluster than before is named", news, wire.place.elsewhere != other
            )
            wire.place.elsewhere = other
        if found and self._dice.random() < 0.5:
            error = errors.KafkaConnectionError("another cluster")
            self._leave_one(Leaving(found[0], "another cluster", error))

    def _strange(self) -> None:
        """Give answers to no request, and events that are impossible in a connection's state."""
        for link in self._some([*self._ended, *self._connections.links.values()]):
            token = 1 if link.closed else self._tokens + 1
            found = self._ledger.answered(link.link_id, token, self._now)
            self._expect("request of a strange answer", found, None)
            withdrawn = self._ledger.withdrawn(link.link_id, token)
            self._expect("request that is withdrawn without being outstanding", withdrawn, None)
            state, event = link.state, LinkEvent.LOST if link.closed else LinkEvent.OPENED
            if state is not LinkState.CONNECTING:
                self._expect(f"{event} is refused in {state}", _is_refused(link, event), True)
                self._expect("state after that", link.state, state)
        self._due_steps.append(CloseLink(0, "a step"))
        self._ledger.add(self._due_steps[-1])

    def _renew(self) -> None:
        """Let the credentials be replaced, so that refusals of the last ones do not count."""
        self._connections.forgive()
        self._book.renew()

    def _leave_cluster(self) -> None:
        """Go to another cluster: all connections to brokers end, and the brokers are forgotten."""
        for wire in self._book.wires(lambda wire: wire.place.node_id >= 0):
            self._leave_one(Leaving(self._connections.links[wire.number], "another cluster", None))
        self._connections.forget_cluster()
        for node_id in [each for each in self._book.places if each >= 0]:
            del self._book.places[node_id]
        self._home += "!"


def _is_refused(link: Link, event: LinkEvent) -> bool:
    """Return whether an event is refused in the present state."""
    told = f"link {link.link_id}: {event.value} while {link.state.value}"
    try:
        link.move(event)
    except errors.InternalError as error:
        return told in str(error)
    return False


def _error(dice: Random) -> Exception | None:
    """Return the error with which a connection ends; None if it was closed without one."""
    number = dice.randrange(4)
    error = dice.choice(
        (
            None,
            OSError(f"no route {number}"),
            errors.KafkaConnectionError(f"reset {number}"),
            errors.NotKafkaError(f"speaks HTTP {number}"),
            errors.KafkaTimeoutError("slow"),
            *[errors.AuthenticationFailedError("refused")] * (number == 0),
            *[errors.SslAuthenticationError("certificate")] * (number == 1),
            *[errors.ConfigError("no file")] * (number == 2),
        )
    )
    if error is not None and dice.random() < 0.4:
        error.__cause__ = OSError("below")
    return error
