"""Each API's version is one that client and broker offer, and every negotiation ends."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map

from aioidem._protocol.frames import FrameSplitter
from aioidem._protocol.messages import (
    decode_request,
    encode_response,
    request_type,
    response_type,
)
from aioidem._protocol.versions import SPOKEN, ApiKey, ApiVersionTable, VersionNegotiation
from aioidem.errors import IncompatibleBrokerVersion, InvalidRequestError, ProtocolError

PRODUCE = (0, 0, 13)
UNSUPPORTED = ErrorCode.unsupported_version


def response(
    version: int,
    *ranges: tuple[int, int, int],
    error: Any = ErrorCode.none,
    features: dict[str, int] | None = None,
) -> Any:
    """Return an ApiVersions response; each range is (API key, lowest version, highest version)."""
    kind: Any = response_type(18, version)
    module = __import__(kind.__module__, fromlist=["ApiVersion"])
    keys = tuple(
        module.ApiVersion(api_key=key, min_version=low, max_version=high)
        for key, low, high in ranges
    )
    more: dict[str, Any] = {"throttle_time": timedelta(0)} if version >= 1 else {}
    if features:
        more["finalized_features"] = tuple(
            module.FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=0)
            for name, level in features.items()
        )
    return kind(error_code=error, api_keys=keys, **more)


def raw(entity: Any, correlation_id: int = 0) -> bytes:
    [payload] = FrameSplitter(1 << 20).feed(encode_response(entity, correlation_id))
    return payload


def asked(negotiation: VersionNegotiation, correlation_id: int = 0) -> tuple[Any, Any]:
    [payload] = FrameSplitter(1 << 20).feed(negotiation.request(correlation_id))
    return decode_request(payload)


def negotiation() -> VersionNegotiation:
    return VersionNegotiation("me", ("aioidem", "1.0"))


def table(*ranges: tuple[int, int, int]) -> ApiVersionTable:
    return ApiVersionTable.from_response(response(4, PRODUCE, *ranges))


# --- the table ------------------------------------------------------------------------------------


def test_every_version_we_speak_has_a_schema() -> None:
    for key, (lowest, highest) in SPOKEN.items():
        assert key == ApiKey(key).value
        for version in range(lowest, highest + 1):
            assert request_type(key, version) is not None, (key, version)
            assert response_type(key, version) is not None, (key, version)
        assert ApiKey(key).name.lower() == api_key_map[key]
        assert lowest >= min(schema_name_map[api_key_map[key]])


@given(
    low=st.integers(0, 20),
    size=st.integers(0, 20),
    at_most=st.none() | st.integers(0, 20),
)
def test_the_highest_common_version_is_chosen(low: int, size: int, at_most: int | None) -> None:
    versions = table((ApiKey.METADATA, low, low + size))
    ours = set(range(SPOKEN[ApiKey.METADATA][0], SPOKEN[ApiKey.METADATA][1] + 1))
    common = ours & set(range(low, low + size + 1))
    assert versions.supports(ApiKey.METADATA) == bool(common)
    assert all(versions.supports(ApiKey.METADATA, each) for each in common)
    if at_most is not None:
        common &= set(range(at_most + 1))
    if common:
        assert versions.choose(ApiKey.METADATA, at_most=at_most) == max(common)
    else:
        with pytest.raises(IncompatibleBrokerVersion, match="METADATA"):
            versions.choose(ApiKey.METADATA, at_most=at_most)


def test_no_common_version_names_both_sides() -> None:
    with pytest.raises(IncompatibleBrokerVersion, match="offers 0 to 3, aioidem speaks 4 to 13"):
        table((ApiKey.METADATA, 0, 3)).choose(ApiKey.METADATA)
    with pytest.raises(IncompatibleBrokerVersion, match="offers none"):
        table().choose(ApiKey.METADATA)
    with pytest.raises(IncompatibleBrokerVersion, match="at most 3 was asked for"):
        table((ApiKey.METADATA, 0, 13)).choose(ApiKey.METADATA, at_most=3)


def test_an_api_we_do_not_speak_is_not_supported() -> None:
    versions = table((7777, 0, 3))
    assert not versions.supports(7777)
    with pytest.raises(IncompatibleBrokerVersion, match=r"7777.*aioidem speaks none"):
        versions.choose(7777)


def test_an_answer_that_is_known_is_not_decoded_again() -> None:
    """Connections to one broker share a table; another answer gives another table."""
    frame = raw(response(4, PRODUCE))
    first = negotiation().answer(frame)
    assert first is not None
    assert negotiation().answer(bytes(bytearray(frame))) is first
    other = negotiation().answer(raw(response(4, PRODUCE, (ApiKey.METADATA, 4, 12))))
    assert other is not None
    assert other.offered != first.offered


def test_features_are_in_the_table_by_name() -> None:
    """The table has the cluster's finalised features by name."""
    entity = response(4, PRODUCE, features={"transaction.version": 2, "metadata.version": 25})
    features = ApiVersionTable.from_response(entity).features
    assert dict(features) == {"transaction.version": 2, "metadata.version": 25}
    assert dict(table().features) == {}


def test_a_table_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        table().offered[0] = (0, 1)  # type: ignore[index]


def test_range_with_lowest_above_highest_counts_as_not_offered() -> None:
    assert not table((ApiKey.METADATA, 9, 4)).supports(ApiKey.METADATA)
    assert not table((ApiKey.METADATA, -3, 12)).supports(ApiKey.METADATA)


def test_no_apis_at_all_is_refused() -> None:
    with pytest.raises(IncompatibleBrokerVersion, match="PRODUCE: the broker offers none"):
        negotiation().answer(raw(response(4)))


@pytest.mark.parametrize("ranges", [[(3, 0, 12)], [(0, 0, 2)], [(0, 15, 20)], [(0, 13, 3)]])
def test_no_produce_version_in_common_is_refused(ranges: list[tuple[int, int, int]]) -> None:
    with pytest.raises(IncompatibleBrokerVersion, match="PRODUCE"):
        negotiation().answer(raw(response(4, *ranges)))


# --- the conversation -----------------------------------------------------------------------------


def test_the_first_request_has_the_newest_version_and_names_the_client() -> None:
    """The first ApiVersions request has the newest version and names the client."""
    header, request = asked(negotiation(), 5)
    assert (header.api_key, header.api_version) == (18, 4)
    assert (header.correlation_id, header.client_id) == (5, "me")
    assert (request.client_software_name, request.client_software_version) == ("aioidem", "1.0")


def test_a_modern_broker_answers_once() -> None:
    talk = negotiation()
    versions = talk.answer(raw(response(4, PRODUCE, (3, 0, 13))))
    assert versions is not None
    assert versions.choose(ApiKey.PRODUCE) == 13


def test_a_broker_with_a_hint_is_asked_for_that_version() -> None:
    talk = negotiation()
    assert talk.answer(raw(response(0, (18, 0, 3), error=UNSUPPORTED))) is None
    assert asked(talk)[0].api_version == 3
    assert talk.answer(raw(response(3, PRODUCE))) is not None


def test_an_old_broker_without_a_hint_is_asked_for_the_oldest_version() -> None:
    talk = negotiation()
    assert talk.answer(raw(response(0, error=UNSUPPORTED))) is None
    header, request = asked(talk)
    assert header.api_version == 0
    assert type(request) is request_type(18, 0)
    assert talk.answer(raw(response(0, PRODUCE))) is not None


@given(
    hints=st.lists(st.tuples(st.integers(-5, 300), st.integers(-5, 300)), min_size=8, max_size=8)
)
def test_the_negotiation_asks_for_lower_versions_and_ends_with_any_hints(
    hints: list[tuple[int, int]],
) -> None:
    """Each ApiVersions request has a lower version than the last, so the negotiation ends."""
    talk = negotiation()
    versions = [talk.version]
    answers = iter(raw(response(0, (18, *each), error=UNSUPPORTED)) for each in hints)
    while talk.version > 0:
        assert talk.answer(next(answers)) is None
        versions.append(talk.version)
    with pytest.raises(IncompatibleBrokerVersion, match="ApiVersions"):
        talk.answer(next(answers))
    assert versions == sorted(set(versions), reverse=True)
    assert versions[-1] == 0


def test_a_higher_hint_is_not_followed() -> None:
    talk = negotiation()
    talk.answer(raw(response(0, (18, 0, 99), error=UNSUPPORTED)))
    assert talk.version == 0


def test_another_error_is_that_brokers_error() -> None:
    """An ApiVersions answer with an error other than UNSUPPORTED_VERSION raises that error."""
    with pytest.raises(InvalidRequestError):
        negotiation().answer(raw(response(4, PRODUCE, error=ErrorCode.invalid_request)))


@given(data=st.binary(max_size=80))
def test_any_bytes_as_an_answer_are_taken_or_refused(data: bytes) -> None:
    talk = negotiation()
    try:
        answer = talk.answer(data)
    except (ProtocolError, IncompatibleBrokerVersion):
        return
    except RuntimeError as error:
        handled = (ErrorCode.none, ErrorCode.unsupported_version)
        assert getattr(error, "errno", 0) not in handled  # noqa: PT017 - the broker's error
        return
    assert answer is not None or talk.version < 4
