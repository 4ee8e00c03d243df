"""What pages repeat from the code is what the code says."""

import inspect
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from tests.node.workers.test_hostile_table import ROWS as HOSTILE

from nodeplug import daemon
from nodeplug.config import Configuration, Supervisor
from nodeplug.contract import errors
from nodeplug.contract.errors import WIRES
from nodeplug.contract.hookspecs import ANSWERS, Contract
from nodeplug.device.codec import ID_LIMIT, LIST_LIMIT
from nodeplug.hosting import lives
from nodeplug.hosting.overdue import LIMIT as OVERDUE_LIMIT
from nodeplug.hosting.overdue import TOTAL
from nodeplug.hosting.slot import DEFAULT_DEADLINES, FIRST_RETRY, LAST_RETRY
from nodeplug.loading.discovery import find, installed
from nodeplug.observe import overview, own_calls
from nodeplug.observe.metrics import Metrics
from nodeplug.process.descriptor_reserve import KEPT
from nodeplug.worker import log_allowance
from nodeplug_net.networks.plan import MOST_NETWORKS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
OURS = sorted(name for name, point in installed().items() if point.dist is not None and point.dist.name == "nodeplug")


def test_generated_parts_of_the_pages_are_fresh(tmp_path: Path) -> None:
    copy = tmp_path / "docs"
    shutil.copytree(DOCS, copy)
    subprocess.run([sys.executable, "-B", ROOT / "docs" / "generate.py", copy], check=True)
    pages = [page.relative_to(copy) for page in (*copy.rglob("*.md"), *copy.rglob("*.1"))]
    stale = [str(page) for page in pages if (copy / page).read_text() != (DOCS / page).read_text()]
    assert stale == [], "run `python docs/generate.py` and commit the result"


def signatures() -> list[str]:
    hooks = {name: inspect.signature(getattr(Contract, name)) for name in ANSWERS}
    return [f"{name}({', '.join(list(found.parameters)[1:])})" for name, found in hooks.items()]


def test_every_hook_has_a_heading_with_its_signature_in_the_order_of_the_contract() -> None:
    headings = re.findall(r"^### `(.*)`$", (DOCS / "hooks.md").read_text(), flags=re.MULTILINE)
    assert headings == signatures()


def test_every_hook_that_has_a_deadline_of_its_own_shows_it() -> None:
    sections = re.split(r"^### ", (DOCS / "hooks.md").read_text(), flags=re.MULTILINE)[1:]
    texts = {section.lstrip("`").partition("(")[0]: section for section in sections}
    missing = [name for name, seconds in DEFAULT_DEADLINES.items() if f"Deadline: {seconds:g} s" not in texts[name]]
    assert missing == []


@pytest.mark.parametrize("hook", ANSWERS)
def test_every_hook_is_in_a_test(hook: str) -> None:
    use = re.compile(rf"""(def |\.|["']){hook}\b""")
    files = [path for path in (ROOT / "tests").rglob("*.py") if path.parent.name != "meta"]
    assert any(use.search(path.read_text()) for path in files)


def test_the_table_of_hostile_plugins_is_the_one_that_is_tested() -> None:
    tested = [f"| {row.what} | {row.thread[0]} | {row.process[0]} |" for row in HOSTILE]
    page = (DOCS / "plugin-processes.md").read_text().splitlines()
    assert [line for line in page if line in tested] == tested


def table_of_errors() -> dict[str, tuple[str, ...]]:
    rows = re.findall(
        r"^\| `(\w+)` \| (.*?) \| `(\w+)` \| (.*?) \| (\d+) \|", (DOCS / "errors.md").read_text(), re.MULTILINE
    )
    return {name: tuple(cells) for name, *cells in rows}


def test_the_error_table_is_the_one_of_the_code() -> None:
    wires = {error.__name__: (str(wire.cni), wire.grpc, wire.flex, str(wire.http)) for error, wire in WIRES.items()}
    wires["DelegateFailed"] = ("the delegate's", *wires["DelegateFailed"][1:])
    assert table_of_errors() == wires


def test_every_error_class_has_a_row() -> None:
    classes = inspect.getmembers(errors, inspect.isclass)
    assert {name for name, cls in classes if issubclass(cls, errors.PluginError)} == set(table_of_errors())


def keys_of(model: type[BaseModel]) -> Iterator[str]:
    schema: dict[str, Any] = model.model_json_schema()
    for one in [schema, *schema.get("$defs", {}).values()]:
        yield from one.get("properties", {})


def is_documented(key: str, text: str) -> bool:
    return re.search(rf"`(?:[\w.<>\[\] =]+\.)?{key}`", text) is not None


def test_every_key_of_the_daemon_is_documented() -> None:
    text = (DOCS / "configuration.md").read_text()
    whole = {
        "supervisor",
        "provisioner",
        "extender",
        "networks",
        "cluster",
        "dra",
        "plugins",
    }  # tables with headings of their own
    assert [key for key in keys_of(Configuration) if key not in whole and not is_documented(key, text)] == []


@pytest.mark.parametrize("plugin", OURS)
def test_every_key_of_a_bundled_plugin_is_documented_in_its_section(plugin: str) -> None:
    text = (DOCS / "configuration.md").read_text()
    section = re.search(rf"^### `{plugin}`$(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None
    assert [key for key in keys_of(find(plugin).config_model) if not is_documented(key, section[1])] == []


def descriptions(model: type[BaseModel]) -> Iterator[tuple[str, str]]:
    schema: dict[str, Any] = model.model_json_schema()
    for one in [schema, *schema.get("$defs", {}).values()]:
        for key, field in one.get("properties", {}).items():
            yield key, field.get("description", "") or described_elsewhere(field, schema)


def described_elsewhere(field: dict[str, Any], schema: dict[str, Any]) -> str:
    """A field whose type is a model of its own: pydantic leaves the field's description out beside the reference."""
    name = field.get("$ref", "").rpartition("/")[2]
    return str(schema.get("$defs", {}).get(name, {}).get("description", ""))


@pytest.mark.parametrize("plugin", OURS)
def test_every_key_of_a_bundled_plugin_says_what_it_means(plugin: str) -> None:
    assert [key for key, text in descriptions(find(plugin).config_model) if not text] == []


def test_every_metric_is_documented_and_the_other_way_round() -> None:
    table = (DOCS / "operating.md").read_text().partition("<!-- generated: metrics -->")[2].partition("<!-- end -->")[0]
    families = [family.name for family in Metrics().registry.collect() if family.name.startswith("nodeplug_")]
    rows = re.findall(r"^\| `(nodeplug_[a-z_]+)`", table, flags=re.MULTILINE)
    assert [name for name, row in zip(families, rows, strict=True) if not row.startswith(name)] == []


def test_no_page_names_a_series_that_is_not_scraped() -> None:
    page = (DOCS / "operating.md").read_text()
    table = page.partition("<!-- generated: metrics -->")[2].partition("<!-- end -->")[0]
    scraped = set(re.findall(r"`(nodeplug_[a-z_]+)`", table))
    assert set(re.findall(r"`(nodeplug_[a-z_]+)[ `{]", page)) - scraped == set()


def script_constant(script: str, name: str) -> str:
    """Read a number of an entrypoint script's `A, B = 1, 2` line."""
    names, values = next(
        line.partition("#")[0].split(" = ")
        for line in (ROOT / "bin" / script).read_text().splitlines()
        if re.match(rf"[A-Z, ]*\b{name}\b.* = \d", line)
    )
    return dict(zip(names.split(", "), values.split(", "), strict=True))[name].strip()


NUMBERS = [
    ("hooks.md", f"With {['no', 'one', 'two', 'three', 'four', 'five'][OVERDUE_LIMIT]} such calls for one network"),
    ("hooks.md", f"with {TOTAL} of them the whole plugin"),
    ("hooks.md", f"Called every {daemon.HEALTH_INTERVAL:g} s"),
    ("hooks.md", f"after {FIRST_RETRY:g} s, "),
    ("hooks.md", f"up to {LAST_RETRY:g} s"),
    ("hooks.md", f"for up to {lives.CALL_PATIENCE:g} s"),
    ("architecture.md", f"end, in {lives.CALL_PATIENCE:g} s at most"),
    ("hooks.md", f"at most {ID_LIMIT} characters"),
    ("hooks.md", f"more than {LIST_LIMIT >> 20} MiB"),
    ("operating.md", f"own state for {overview.LIVELINESS:g} s"),
    ("networks.md", f"a pod gets at most {MOST_NETWORKS} networks"),
    ("operating.md", f"the last {KEPT} are for what ends something"),
    ("plugin-processes.md", f"Its last {KEPT} are kept"),
    ("plugin-processes.md", f"{log_allowance.PER_SECOND} lines in a second, and {log_allowance.BURST:,} at once"),
    ("operating.md", f"own calls for {own_calls.SILENCE:g} s"),
    ("plugin-processes.md", f"`/healthz` says so after {own_calls.SILENCE:g} s"),
    ("operating.md", f"after {FIRST_RETRY:g} s to {LAST_RETRY:g} s"),
    ("operating.md", f"waits up to {script_constant('nodeplug-cni', 'PATIENCE')} s"),
    ("plugins/bridge.md", f"{Supervisor().cni_concurrency} calls run at once"),
    ("plugins/hostdev.md", f"At most {LIST_LIMIT >> 20} MiB"),
]


@pytest.mark.parametrize(("page", "sentence"), NUMBERS)
def test_numbers_in_sentences_are_those_of_the_code(page: str, sentence: str) -> None:
    assert sentence in " ".join((DOCS / page).read_text().split())


def test_every_field_of_every_value_says_what_it_means() -> None:
    reference = (DOCS / "hooks.md").read_text().partition("\n## Values\n")[2]
    cells = [row.rsplit("|", 2)[1] for row in re.findall(r"^\| `\w+` \|.*$", reference, flags=re.MULTILINE)]
    assert len(cells) > 100
    assert "  " not in cells
