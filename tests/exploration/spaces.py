"""The spaces that are explored, by name.

Each asks one question, with as little around it as possible: another record or another kind of
fault multiplies the number of states. `python -m tests.exploration --space NAME --faults N` takes a
space further than its own bound.
"""

from __future__ import annotations

from .space import Space

__all__ = ["EVERYDAY", "SPACES"]

_USUAL = frozenset({"cut", "silence", "refuse", "unsure", "move"})

_OLD = frozenset({"cut", "silence", "refuse", "unsure", "forget"})
_TRUE = frozenset({"once", "in order", "acked", "not written", "no alarm"})
"""What must hold where records may end UNKNOWN, or NOT_WRITTEN for good."""

_ALL = [
    Space(
        "one remembered",
        "does the ladder find out what is stored where the leader knows the newest batch only?",
        _USUAL,
        retains=1,
    ),
    Space(
        "five remembered",
        "are lost answers, refusals and new leaders told apart, with all batches remembered?",
        _USUAL,
        faults=2,
    ),
    Space(
        "one more record",
        "does a record that the caller queues at any time keep its place?",
        _USUAL,
        records=2,
        late=1,
        retains=1,
    ),
    Space(
        "unwritten",
        "is a request that was not written told apart from one that was?",
        frozenset({"cut", "unwritten", "refuse"}),
        retains=1,
        faults=3,
        in_flight=2,
    ),
    Space(
        "no word",
        "is a code that does not say whether the batch was appended taken for doubt?",
        frozenset({"cut", "fail", "crash", "depose"}),
        retains=1,
    ),
    Space(
        "restarts",
        "is a leader believed that restarted, and knows one batch where it knew five?",
        frozenset({"cut", "restart", "refuse"}),
    ),
    Space(
        "asking the leader",
        "is the answer to DescribeProducers a hint, and no more?",
        _USUAL,
        retains=1,
        producers="granted",
    ),
    Space(
        "a leader that lies",
        "does a wrong answer to DescribeProducers do harm?",
        _USUAL,
        retains=1,
        producers="lies",
    ),
    Space(
        "window of 20",
        "are six batches in flight where the leader remembers twenty, and one after it restarts?",
        frozenset({"cut", "restart", "silence"}),
        records=6,
        retains=20,
        version=14,
        in_flight=20,
    ),
    Space(
        "window that changes",
        "is the window what the present leader said last, and 5 before it said anything?",
        frozenset({"move", "shorten", "cut"}),
        records=9,
        retains=7,
        successor_retains=5,
        version=14,
        in_flight=20,
        faults=1,
    ),
    Space(
        "two partitions",
        "do two partitions on one connection disturb each other?",
        _USUAL,
        records=2,
        partitions=2,
        retains=1,
        faults=1,
    ),
    Space(
        "split",
        "is a batch divided only if no copy of it can be in the log?",
        frozenset({"cut", "unsure", "shrink"}),
        records=4,
        per_batch=2,
        retains=1,
        # A batch in doubt that is refused for its size ends UNKNOWN where nothing shows that the
        # leader holds the producer's state.
        holds=_TRUE,
    ),
    Space(
        "wrap of sequences",
        "is 0 what follows 2147483647, in doubt too?",
        _USUAL,
        retains=1,
        next_sequence=2**31 - 2,
    ),
    Space(
        "refused for good",
        "do sequences begin again after a refused batch, and keep those in doubt their numbers?",
        frozenset({"cut", "reject", "refuse", "unsure"}),
        late=1,
        producers="granted",
        holds=_TRUE,
    ),
    Space(
        "last epoch",
        "does a new producer id follow the last epoch?",
        frozenset({"cut", "reject"}),
        late=1,
        epoch=32767,
        # The new producer id does not fence the old one.
        holds=_TRUE - {"in order"},
    ),
    Space(
        "usurped",
        "is a producer id given up that another client uses?",
        frozenset({"cut", "usurp", "refuse"}),
        late=1,
        holds=_TRUE,
    ),
    Space(
        "a leader without state",
        "does one batch go to a new leader until it acknowledges one?",
        frozenset({"cut", "bare", "fill", "refuse", "unsure"}),
        holds=frozenset({"acked", "not written"}),
    ),
    Space(
        "deadlines",
        "does each record end in time, and none in doubt as NOT_WRITTEN?",
        frozenset({"cut", "silence", "refuse", "unsure"}),
        records=2,
        timed=True,
        holds=_TRUE | {"in time"},
        # Half a second after a request has timed out.
        options=(("delivery_timeout", 128.5),),
    ),
    Space(
        "recreated",
        "does a record that may be in a deleted topic never get into the topic that follows?",
        frozenset({"cut", "recreate", "unsure", "refuse"}),
        late=1,
        holds=_TRUE,
    ),
    Space(
        "recreated, by its name",
        "is what is said of a record true where requests for the old topic reach the new one?",
        frozenset({"cut", "recreate"}),
        version=12,
        late=1,
        # A late copy is once in each of the two logs, or twice in the new one, and the offsets of
        # the new one are below those of the old one.
        holds=frozenset({"in order", "acked", "not written"}),
    ),
    Space(
        "old records",
        "is nothing written twice, nor acknowledged and lost, where the leader may forget us?",
        _OLD,
        timed=True,
        # More than half of the day for which a leader remembers a producer by default.
        age=50_000.0,
        page=1,
        holds=frozenset({"once", "acked", "not written"}),
    ),
    Space(
        "old records of two epochs",
        "is a batch in the log told from one of another epoch that has the same sequence?",
        frozenset({"cut"}),
        records=2,
        in_flight=1,
        # On the wire the sequence is 0, with which the next epoch begins again.
        next_sequence=2**31,
        timed=True,
        age=50_000.0,
        page=1,
        holds=frozenset({"once", "acked", "not written"}),
    ),
    Space(
        "old records that cannot be read",
        "the same where the engine must not read the log?",
        _OLD,
        timed=True,
        age=50_000.0,
        readable=False,
        holds=frozenset({"once", "acked", "not written"}),
    ),
    Space(
        "forgotten",
        "is nothing acknowledged that is not stored, where the leader forgets the producer unseen?",
        frozenset({"cut", "silence", "refuse", "fail", "unsure", "forget"}),
        # A leader that has forgotten the producer appends a copy again: no client can prevent that.
        holds=frozenset({"acked", "not written"}),
    ),
    Space(
        "new leaders without state",
        "does one batch go to a new leader until it acknowledges one, where nothing was refused?",
        frozenset({"bare", "refuse"}),
        records=1,
        late=2,
        # So many that no leader gets its turn again, with requests on their way to it: it would
        # accept the second of two requests, having refused the first one while another broker led.
        brokers=5,
    ),
    Space(
        "a leader that forgets after an error",
        "does one batch go to a leader until it acknowledges one, once it has answered an error?",
        frozenset({"lapse", "refuse"}),
        faults=3,
    ),
    Space(
        "without idempotence",
        "does the order hold with one request in flight, where leaders change?",
        frozenset({"move", "refuse"}),
        records=2,
        late=1,
        in_flight=1,
        options=(("enable_idempotence", False),),
    ),
    Space(
        "asking one that lags",
        "is an answer to DescribeProducers that is about an older epoch taken for what it is?",
        frozenset({"cut", "refuse"}),
        retains=1,
        epoch=1,
        producers="old epoch",
    ),
    Space(
        "late copies",
        "does a pass of probes prove nothing while copies of the batches are still appended?",
        frozenset({"cut"}),
        records=4,
        retains=1,
    ),
    Space(
        "old records and no word",
        "does a leader's success prove nothing about others where it may have forgotten us?",
        frozenset({"fail", "forget"}),
        timed=True,
        age=50_000.0,
        holds=frozenset({"once", "acked", "not written"}),
    ),
    Space(
        "recreated once",
        "is every record written to the topic that there is, or said to be UNKNOWN?",
        frozenset({"recreate"}),
        records=1,
        late=1,
        holds=_TRUE,
    ),
    Space(
        "recreated after an election",
        "is a leader that a late answer names taken for that of the old topic only?",
        frozenset({"recreate", "move"}),
        records=1,
        late=1,
        holds=_TRUE,
    ),
    Space(
        "topic unlisted",
        "does the state of a partition outlive metadata that does not know its topic?",
        frozenset({"vanish", "cut", "unsure"}),
        late=1,
    ),
    Space(
        "another cluster",
        "is nothing that may be in one cluster written to the next, and is no id taken along?",
        frozenset({"migrate", "cut", "unsure"}),
        records=2,
        late=1,
        holds=_TRUE,
    ),
    Space(
        "a stranger's broker",
        "is nothing written over a connection that leads to somebody else's cluster?",
        frozenset({"stray", "move", "cut"}),
        records=2,
        late=1,
    ),
    Space(
        "unclean elections",
        "is a loss that the offsets show reported, and nothing said to be stored that never was?",
        frozenset({"unclean", "cut", "unsure"}),
        records=2,
        primed=2,
        holds=frozenset({"once", "in order", "acked", "not written", "no alarm", "loss told"}),
    ),
    *(
        space
        for v in ("v1", "v2")
        for space in (
            Space(
                f"transactions {v}",
                "does each transaction end as the caller is told, whatever comes late?",
                frozenset({"cut", "unsure", "relocate"}),
                transactions=v,
                script=(1, -2, 1),
                faults=1,
                everyday=0,
                # A request of an aborted transaction that comes late begins another one, which
                # costs the producer its epoch. So it may end, and say so.
                holds=frozenset(),
            ),
            Space(
                f"healed transactions {v}",
                "is each transaction ended as the caller wants, if no connection is lost?",
                frozenset({"refuse", "unsure", "fail", "relocate"}),
                transactions=v,
                script=(1, -1, 1),
                everyday=int(v == "v2"),
                holds=frozenset({"all ended as wanted"}),
            ),
            Space(
                f"twin {v}",
                "is nothing committed that a producer wrote before a twin took over?",
                frozenset({"twin", "cut", "unsure"}),
                transactions=v,
                script=(2, 1),
                everyday=0,
                holds=frozenset(),
            ),
            Space(
                f"expired transactions {v}",
                "is a transaction that the coordinator aborts never said to be committed?",
                frozenset({"expire", "cut"}),
                transactions=v,
                script=(-1, 2),
                everyday=int(v == "v2"),
                holds=frozenset(),
            ),
            Space(
                f"transactions of two partitions {v}",
                "is a transaction committed in all of its partitions, or in none?",
                frozenset({"cut", "move"}),
                partitions=2,
                transactions=v,
                script=(2, 2),
                faults=1,
                everyday=0,
                holds=frozenset(),
            ),
            Space(
                f"no word of an end {v}",
                "is the end of a transaction never guessed?",
                frozenset({"cut", "fail", "crash", "garble"}),
                transactions=v,
                script=(1, -1),
                everyday=0,
                holds=frozenset(),
            ),
        )
    ),
    Space(
        "recreated topic in transactions",
        "is no record taken for one that a request had brought to the new topic by its name?",
        frozenset({"recreate", "cut"}),
        transactions="v1",
        script=(1, 1, 1),
        rests=True,
        holds=frozenset(),
    ),
    Space(
        "transactions before verification",
        "does no late batch open a transaction that nobody ends, where leaders do not ask?",
        frozenset({"refuse", "relocate", "move"}),
        transactions="v1",
        verifies=False,
        script=(-2, 1),
        everyday=0,
        holds=frozenset(),
    ),
]

SPACES = {space.name: space for space in _ALL}
EVERYDAY = "one remembered"
"""The space that every run of the tests explores; it takes about ten seconds."""
