"""The measure of scheduler extenders, with few calls: it runs, and names every figure of its table."""

import pytest

from bench import report
from bench.extenders import measure

pytestmark = pytest.mark.unprivileged


def test_every_figure_of_the_table_is_measured() -> None:
    figures = {f"thread_{name}" for name in measure("thread", 3)}
    wanted = {name for name in report.EXTENDERS if name.startswith("thread_")}
    assert wanted <= figures
