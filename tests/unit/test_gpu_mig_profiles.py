"""Names of MIG profiles, as nvidia-smi prints them on the cards that have them."""

import pytest

from nodeplug_gpu.driver.mig import profile, profile_in

A100, A100_80, H100, H200, A30 = 40536, 81251, 81559, 143771, 24576


@pytest.mark.parametrize(
    ("name", "card", "slices", "compute", "memory", "ofa"),
    [
        ("1g.5gb", A100, 1, 1, 4864, False),
        ("1g.5gb+me", A100, 1, 1, 4864, True),
        ("2g.10gb", A100, 2, 2, 9856, False),
        ("3g.20gb", A100, 3, 3, 19968, False),
        ("7g.40gb", A100, 7, 7, 40192, True),
        ("1g.10gb", A100_80, 1, 1, 9728, False),
        ("1g.10gb", H100, 1, 1, 9984, False),
        ("1g.20gb", H100, 1, 1, 19968, False),
        ("3g.40gb", H100, 3, 3, 40448, False),
        ("7g.80gb", H100, 7, 7, 80896, True),
        ("1c.3g.40gb", H100, 3, 1, 40448, False),
        ("1g.18gb", H200, 1, 1, 16384, False),
        ("3g.71gb", H200, 3, 3, 71424, False),
        ("7g.141gb", H200, 7, 7, 143000, True),
        ("1g.6gb", A30, 1, 1, 5952, False),
        ("2g.12gb+me", A30, 2, 2, 12032, True),
    ],
)
def test_a_profile_is_named_by_slices_and_eighths_of_the_card(
    name: str, card: int, slices: int, compute: int, memory: int, *, ofa: bool
) -> None:
    assert profile(slices, compute, memory << 20, card << 20, ofa=ofa) == name


def test_a_card_of_unknown_size_still_gives_a_name() -> None:
    assert profile(1, 1, 1 << 30, 0, ofa=False) == "1g.0gb"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "1g.5gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1c.2g.20gb", "1c.2g.20gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "1g.10gb+me"),
        ("NVIDIA H100 80GB HBM3", ""),
        ("MIG", ""),
        ("", ""),
    ],
)
def test_the_name_of_an_instance_may_say_its_profile(model: str, name: str) -> None:
    assert profile_in(model) == name
