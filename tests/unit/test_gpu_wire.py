"""The wire between the driver process and the daemon, as a property of every frame and of every garbage."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeplug_gpu.cards import Card, GpuEvent, GpuProcess, MigInstance, Telemetry, Uuid
from nodeplug_gpu.driver import wire

TEXT = st.text(max_size=20)
WHOLE = st.integers(0, (1 << 64) - 1)
TIME = st.floats(allow_nan=False, allow_infinity=False)
UUID = TEXT.map(Uuid)
INSTANCES = st.builds(MigInstance, UUID, TEXT, WHOLE, WHOLE, WHOLE)
CARDS = st.builds(
    Card,
    UUID,
    WHOLE,
    WHOLE,
    TEXT,
    WHOLE,
    TEXT,
    st.none() | WHOLE,
    st.tuples(WHOLE, WHOLE),
    st.booleans(),
    st.lists(INSTANCES, max_size=2).map(tuple),
)
TELEMETRY = st.builds(Telemetry, TEXT, WHOLE, st.none() | WHOLE, st.none() | WHOLE, st.none() | WHOLE)
PROCESSES = st.builds(GpuProcess, WHOLE, UUID, st.none() | WHOLE, st.none() | UUID)
POLL_RESULTS = st.builds(
    wire.PollResult,
    st.sampled_from(["absent", "starting", "running", "failed"]),
    TEXT,
    TEXT,
    st.lists(CARDS, max_size=2).map(tuple),
    st.dictionaries(UUID, TELEMETRY, max_size=2),
    st.lists(PROCESSES, max_size=2).map(tuple),
    TIME,
    st.lists(TEXT, max_size=2).map(tuple),
)
KINDS = st.sampled_from(["xid", "ecc", "recovery", "mig", "unavailable", "retirement"])
EVENTS = st.builds(GpuEvent, KINDS, st.none() | UUID, WHOLE, st.none() | WHOLE, st.none() | WHOLE, TIME)
HEARTBEATS = st.builds(
    wire.Heartbeat, st.lists(st.builds(wire.Pending, TEXT, TIME, WHOLE, st.none() | WHOLE), max_size=2).map(tuple)
)
LINES = st.builds(wire.LogLine, st.sampled_from(["debug", "info", "warning", "error"]), TEXT)
FRAMES: st.SearchStrategy[Any] = st.one_of(
    POLL_RESULTS, EVENTS, HEARTBEATS, LINES, st.builds(wire.ExitNotice, TEXT, st.booleans())
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
)


@given(FRAMES)
def test_what_is_encoded_is_decoded(frame: wire.Frame) -> None:
    line = wire.encode(frame)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert wire.decode(line) == frame


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_garbled(line: bytes) -> None:
    with pytest.raises(wire.GarbledFrame):
        wire.decode(line)


@given(FRAMES, st.data())
def test_a_frame_with_any_one_part_replaced_is_a_frame_or_garbled(frame: wire.Frame, data: st.DataObject) -> None:
    body = json.loads(wire.encode(frame))
    place: Any = body
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if isinstance(place[key], dict | list) and data.draw(st.booleans()):
            place = place[key]
            continue
        place[key] = data.draw(JSON)
        break
    try:
        wire.decode(json.dumps(body).encode())
    except wire.GarbledFrame as error:
        assert len(str(error)) < 1000  # noqa: PT017 - most replacements are refused, some are frames


@given(FRAMES, st.integers(0, 400))
def test_a_frame_that_was_cut_off_is_garbled(frame: wire.Frame, length: int) -> None:
    line = wire.encode(frame)[:-1]
    if length < len(line):
        with pytest.raises(wire.GarbledFrame):
            wire.decode(line[:length])


@pytest.mark.parametrize(
    "line",
    [
        b"[" * 100_000,
        b"NaN",
        b'{"v": 5, "kind": "heartbeat", "frame": {"pending": []}}',
        b'{"v": 4, "kind": "joke", "frame": {}}',
        b'{"v": 4, "kind": "heartbeat", "frame": {"pending": [], "more": 1}}',
        b'{"v": 4, "kind": "heartbeat", "frame": {"pending": [{"call": "x", "seconds": NaN, "slow_factor": 1}]}}',
        b'{"v": 4, "kind": ["heartbeat"], "frame": {"pending": []}}',
        b" " * (wire.LIMIT + 1),
    ],
)
def test_what_is_no_frame_is_refused_with_a_sentence(line: bytes) -> None:
    with pytest.raises(wire.GarbledFrame, match=r"frame|fields|list|type"):
        wire.decode(line)


def test_a_time_that_is_not_finite_is_never_sent() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        wire.encode(wire.PollResult("running", taken=float("nan")))
