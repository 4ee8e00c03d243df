"""What a test changes in the Python of a plugin."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.node.workers.conftest import Guests

Play = Callable[[Any], None]


def site(env: Path) -> Path:
    (found,) = env.glob("lib/python*/site-packages")
    return found


def reason(guests: "Guests") -> str:
    return guests.lifecycle.registry.slots["guest"].reason


def spoil(env: Path, module: str, old: str, new: str) -> None:
    path = site(env) / "nodeplug" / module
    text = path.read_text()
    assert old in text
    path.unlink()
    path.write_text(text.replace(old, new))


def program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def put_back(kept: Path, place: "Path | str") -> None:
    if Path(place).is_dir():
        shutil.rmtree(place)
    kept.rename(place)
