"""Examples in the documentation are real: they are run as they stand there."""

import asyncio
import re
from pathlib import Path

import pytest

from nodeplug.testing import Kubelet, ScratchNode

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "docs" / "examples"


def code_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("name", [path.name for path in EXAMPLES.glob("*.py")])
def test_every_example_stands_word_for_word_on_a_page(name: str) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert any((EXAMPLES / name).read_text() in code_blocks(page) for page in pages)


def test_the_plugin_of_the_readme_reaches_a_kubelet(short_path: Path) -> None:
    root = short_path / "n"
    root.mkdir()

    async def scenario() -> list[str]:
        async with Kubelet(root / "var" / "lib" / "kubelet") as kubelet:
            await asyncio.to_thread(node.start)
            await kubelet.until_allocatable("example.com/fuse", 16)
            granted = await kubelet.admit("pod", {"example.com/fuse": 1})
            return [spec.host_path for spec in granted["example.com/fuse"].devices]

    node = ScratchNode(root, '[plugins.fuse]\nuses = "fuse:Fuse"', env={"PYTHONPATH": str(EXAMPLES)})
    try:
        assert asyncio.run(scenario()) == ["/dev/fuse"]
    finally:
        node.stop()
