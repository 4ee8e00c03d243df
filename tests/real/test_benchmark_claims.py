"""The measure of claims, with one of each: that it measures, not how fast."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.programs import need

from bench import claims, measures

pytestmark = [pytest.mark.real, pytest.mark.soak]


def test_one_run_has_every_figure(consumer: Callable[[str], Path]) -> None:
    need("etcd", "mkfs.xfs")
    figures = claims.measure(consumer("kubernetes"), consumer("provisioner"), 1)
    assert figures.keys() == measures.CLAIMS.keys()
    assert min(figures.values()) > 0
