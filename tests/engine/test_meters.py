"""What the engine counts of batches in doubt, for metrics, and that it costs no memory."""

from __future__ import annotations

from aioidem._producer.metric_table import readings

from .driver import OUT_OF_ORDER, Rig, wait_until
from .test_describe_producers import asked, told
from .test_doubt import doubted, probing
from .test_kip_854 import doubted as suspected


def counted(rig: Rig) -> dict[str, float]:
    """Return the counters of `aioidem-metrics` about doubts and losses that are not 0."""
    own = (each for each in readings(rig.core, rig.now) if each.group.name == "aioidem-metrics")
    values = {each.metric.name: each.value for each in own if each.value}
    return {name: values[name] for name in values if name.startswith(("doubt", "data", "epoch"))}


def test_batches_that_are_resent_in_order_count_as_resent() -> None:
    """A success of the oldest, and those that follow it one by one, resolve doubt by resending."""
    rig = doubted(3)
    rig.ack_all()
    rig.assert_drained()
    assert counted(rig) == {"doubt-resent-total": 3}


def test_batches_that_a_probe_proves_count_as_probed() -> None:
    """The probe that succeeds, and all batches below it, are resolved by probing."""
    rig, probes = probing(5)
    for probe in probes[:2]:
        rig.fail(probe, OUT_OF_ORDER, poll=False)
    rig.ack(probes[2], 30)
    assert counted(rig) == {"doubt-probed-total": 3}


def test_batches_below_the_one_that_the_leader_named_count_as_asked() -> None:
    """If DescribeProducers named the batch whose probe succeeds, asking has resolved the doubt."""
    rig = asked(told(0, 3))
    rig.ack(rig.outstanding()[0], 30)
    assert counted(rig) == {"doubt-asked-total": 3}


def test_batches_in_the_log_count_as_read_back_and_others_as_unknown() -> None:
    """In a suspect partition a batch in doubt is found in the log, or its records end UNKNOWN."""
    rig, requests = suspected(3)
    rig.page((requests[0], 1))
    found = {"doubt-read-back-total": 1, "doubt-unknown-total": 2, "epoch-bump-total": 1}
    assert counted(rig) == found


def test_batches_that_no_probe_finds_are_a_loss() -> None:
    """Two passes of refused probes end the doubt, and count as data loss and an epoch bump."""
    rig, probes = probing(2)
    for probe in probes:
        rig.fail(probe, OUT_OF_ORDER)
    wait_until(rig, lambda: bool(rig.outstanding()))
    for probe in rig.outstanding():
        rig.fail(probe, OUT_OF_ORDER)
    found = {"doubt-unknown-total": 2, "data-loss-total": 1, "epoch-bump-total": 1}
    assert counted(rig) == found


def test_facts_are_added_up_once_a_second() -> None:
    """However many batches are sent, the lists of facts have those of about a second."""
    rig = Rig().start()
    meters = rig.core.meters
    longest = 0
    for _ in range(200):
        rig.send()
        rig.ack_all()
        rig.tick(0.1)
        longest = max(longest, len(meters.acked))
    assert longest <= 12
    meters.fold(rig.now)
    assert meters.delivery.count == meters.per_request.total == 200
    assert sum(node.latency.count for node in meters.nodes.values()) == 200


def test_the_gate_counts_until_the_leader_has_acknowledged_a_batch() -> None:
    """The first-ack gate's time is that of the batch which opens it; later batches have none."""
    rig = Rig().start()
    rig.send()
    rig.tick(0.25)
    rig.ack_all()
    rig.send()
    rig.tick(0.25)
    rig.ack_all()
    gate = rig.core.meters.gate
    assert gate.count == 1
    assert round(gate.total, 3) == 0.25
