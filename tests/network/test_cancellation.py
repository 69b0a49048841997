"""`may_be_cancelled` answers True whenever anyio's own check would raise."""

from __future__ import annotations

import asyncio
import sys
from typing import NamedTuple

import anyio
import anyio.lowlevel
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from aioidem._network import cancellation
from aioidem._network.cancellation import may_be_cancelled

ON_ASYNCIO = [
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
    pytest.param(
        ("asyncio", {"use_uvloop": True}),
        id="uvloop",
        marks=pytest.mark.skipif(sys.platform == "win32", reason="uvloop has no Windows build"),
    ),
]


class Scope(NamedTuple):
    """One of several cancel scopes that a test enters, each inside the one before."""

    cancelled: bool = False
    shield: bool = False
    late: bool = False
    """Whether its deadline passed before the scope was entered."""
    task: bool = False
    """Whether the scopes inside are entered by a child task, in a task group within this scope."""
    cancelled_after: bool = False
    """Whether it is cancelled only after all scopes have been entered."""


class Seen(NamedTuple):
    """What `may_be_cancelled` (`ours`) and anyio's own check said at one instant."""

    ours: bool
    anyio: bool


async def compare() -> Seen:
    """Ask `may_be_cancelled`, and then anyio's own check."""
    ours = may_be_cancelled()
    try:
        await anyio.lowlevel.checkpoint_if_cancelled()
    except anyio.get_cancelled_exc_class():
        return Seen(ours, anyio=True)
    return Seen(ours, anyio=False)


async def inside(scopes: list[Scope], native: bool, later: list[anyio.CancelScope]) -> Seen:
    """Enter scopes one in the other, and compare the checks in the innermost."""
    if not scopes:
        for scope in later:
            scope.cancel()
        if native:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        return await compare()
    first, *rest = scopes
    seen: list[Seen] = []

    async def go_on() -> None:
        seen.append(await inside(rest, native, later))

    deadline = -1.0 if first.late else float("inf")
    with anyio.CancelScope(shield=first.shield, deadline=deadline) as scope:
        if first.cancelled:
            scope.cancel()
        if first.cancelled_after:
            later.append(scope)
        if first.task:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(go_on)
        else:
            await go_on()
    # A child of a cancelled group may end before it begins; then there is nothing to compare.
    return seen[0] if seen else Seen(ours=True, anyio=True)


async def nested(scopes: list[Scope], native: bool) -> Seen:
    """Run `inside` in a task of its own, because a native cancellation may end that task."""
    seen: list[Seen] = []

    async def run() -> None:
        seen.append(await inside(scopes, native, []))

    await asyncio.wait([asyncio.ensure_future(run())])
    return seen[0] if seen else Seen(ours=True, anyio=True)


@pytest.mark.parametrize("loop", ON_ASYNCIO)
@settings(deadline=None)
@given(
    scopes=st.lists(st.builds(Scope, *[st.booleans()] * 5), max_size=5),
    native=st.booleans(),
)
def test_whenever_anyio_raises_the_answer_is_true(
    loop: tuple[str, dict[str, bool]], scopes: list[Scope], native: bool
) -> None:
    """`may_be_cancelled` is True whenever anyio raises, however scopes and tasks are nested."""
    if loop[1]["use_uvloop"]:
        pytest.importorskip("uvloop")
    backend, options = loop

    async def main() -> Seen:
        await compare()  # the first call on asyncio returns True in any case
        return await nested(scopes, native)

    seen = anyio.run(main, backend=backend, backend_options=options)
    event(f"anyio raised: {seen.anyio}, the answer: {seen.ours}")
    assert seen.ours or not seen.anyio


@pytest.mark.parametrize(
    ("scopes", "expected"),
    [
        ([], False),
        ([Scope()], False),
        ([Scope(cancelled=True)], True),
        ([Scope(late=True)], True),
        ([Scope(cancelled=True), Scope()], True),
        ([Scope(cancelled=True), Scope(shield=True)], False),
        ([Scope(cancelled=True), Scope(shield=True), Scope()], False),
        ([Scope(shield=True), Scope(cancelled_after=True), Scope()], True),
        ([Scope(cancelled_after=True), Scope(task=True)], True),
    ],
)
def test_on_asyncio_the_answer_is_anyio_s(scopes: list[Scope], expected: bool) -> None:
    """On asyncio `may_be_cancelled` and anyio agree about nested scopes and shields."""

    async def main() -> Seen:
        await compare()  # the first call on asyncio returns True in any case
        return await inside(scopes, False, [])

    seen = anyio.run(main)
    assert seen == (expected, expected)


def test_where_there_is_no_task_of_asyncio_the_answer_is_true() -> None:
    """On trio, in a callback and without a loop the check cannot tell, and returns True."""

    async def on_trio() -> bool:
        return may_be_cancelled()

    async def in_a_callback() -> bool:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: answer.set_result(may_be_cancelled()))
        return await answer

    assert anyio.run(on_trio, backend="trio")
    assert asyncio.run(in_a_callback())
    assert may_be_cancelled()


@pytest.mark.parametrize("name", ["_task_states", "CancelScope", "TaskState"])
def test_without_anyio_s_private_names_the_answer_is_true(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If anyio lacks a private name, `may_be_cancelled` is always True, which only costs time."""

    async def asked_twice() -> list[bool]:
        backend = sys.modules["anyio._backends._asyncio"]
        with monkeypatch.context() as hidden:
            hidden.setattr(cancellation, "_state_of", None)
            hidden.delattr(backend, name)
            return [may_be_cancelled(), may_be_cancelled()]

    assert anyio.run(asked_twice) == [True, True]
