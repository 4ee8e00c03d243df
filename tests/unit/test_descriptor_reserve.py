"""Which soft limit of descriptors the daemon takes; the limit itself is a stand-in, since a test cannot raise it."""

import resource

import pytest

from nodeplug.process.descriptor_reserve import KEPT, MOST, DescriptorReserve

INFINITY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "taken"),
    [
        (1024, 1 << 20, MOST - KEPT),
        (1024, INFINITY, MOST - KEPT),
        (1024, 8192, 8192 - KEPT),
        (1 << 20, 1 << 20, (1 << 20) - KEPT),
        (256, 1024, 1024),
        (INFINITY, INFINITY, INFINITY),
    ],
)
def test_a_part_of_the_highest_limit_is_reserved(
    soft: int, hard: int, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, made: limits.append(made))
    DescriptorReserve().keep()
    assert limits[-1] == (taken, hard)
