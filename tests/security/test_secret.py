"""Only `reveal` shows the content of a Secret."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle
from typing import Any

import pytest

from aioidem._config.secret import Secret


@pytest.mark.parametrize("value", ["canary", b"canary"])
def test_no_form_of_it_shows_the_value(value: str | bytes) -> None:
    """No repr, str or format of a Secret shows its value."""
    secret: Secret[Any] = Secret(value)
    shown = [repr(secret), str(secret), f"{secret}", f"{secret!r:>30}", f"{secret:>30}"]
    shown += ["%s %r" % (secret, secret), repr([secret]), str({"p": secret})]  # noqa: UP031
    assert "canary" not in "".join(shown)
    assert secret.reveal() == value


def test_it_is_neither_pickled_nor_made_into_json() -> None:
    """A Secret cannot be pickled, made into JSON or joined to a text."""
    with pytest.raises(TypeError, match="not pickled"):
        pickle.dumps({"password": Secret("canary")})
    with pytest.raises(TypeError):
        json.dumps(Secret("canary"))
    with pytest.raises(TypeError):
        "".join([Secret("canary")])  # type: ignore[list-item]


def test_it_is_a_value() -> None:
    """Secrets compare, hash and copy by their values."""
    assert Secret("a") == Secret("a") != Secret("b")
    assert Secret("ü") != Secret("a")
    assert Secret("a") != "a"
    assert len({Secret("a"), Secret("a"), Secret("b")}) == 2
    assert Secret(Secret("a")) == Secret("a")
    assert not Secret("")
    assert copy.deepcopy(Secret("a")) == copy.copy(Secret("a")) == Secret("a")


def test_a_dataclass_that_holds_one_can_be_copied_and_printed() -> None:
    """A dataclass with a Secret can be copied and printed without showing it."""

    @dataclasses.dataclass
    class Holder:
        secret: Secret[str]

    holder = Holder(Secret("canary"))
    assert dataclasses.asdict(holder)["secret"] == Secret("canary")
    assert "canary" not in repr(holder)
