"""The Helm chart, and what its page documents."""

import re
from pathlib import Path
from typing import Any, Final

import yaml

DEPLOY: Final = Path(__file__).parents[2] / "deploy"
CHART: Final = DEPLOY / "chart"
_PAGE: Final = DEPLOY.parent / "docs" / "cluster.md"


def documented() -> list[dict[str, Any]]:
    """Return the YAML blocks of the page: the values, a claim, a pod, and the values for cards."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", _PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [yaml.safe_load(one) for one in blocks]
