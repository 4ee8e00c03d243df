"""Manifests with comments, as an administrator reads them."""

import yaml

from nodeplug.kubeapi.printed import Manifest, as_list, as_yaml, named

LONG = " ".join(f"word{number}" for number in range(60))
MADE = [
    Manifest(named("v1", "Secret", "one", "ns") | {"spec": {"key": {"deep": "x"}}}, LONG, {"spec.key": LONG}),
    Manifest(named("v1", "Node", "two"), "short"),
]


def test_what_is_written_has_the_objects() -> None:
    assert list(yaml.safe_load_all(as_yaml(MADE))) == [one.object for one in MADE]
    assert as_list(MADE) == {"apiVersion": "v1", "kind": "List", "items": [one.object for one in MADE]}
    assert MADE[1].object == {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "two"}}


def test_comments_are_whole_broken_between_words_and_as_wide_as_a_page() -> None:
    first, _, _ = as_yaml(MADE).partition("---\n")
    comments = [line for line in first.splitlines() if line.lstrip().startswith("#")]
    for indent in ("", "  "):
        lines = [line for line in comments if line.startswith(f"{indent}#")]
        assert " ".join(line.removeprefix(f"{indent}# ") for line in lines) == LONG
        assert all(100 < len(line) <= 113 for line in lines[:-1])
    assert len(comments) < 14


def test_a_comment_is_above_what_it_is_about() -> None:
    lines = as_yaml(MADE).splitlines()
    assert lines[0].startswith("# word0 ")
    assert lines[lines.index("  key:") - 1].endswith(" word59")
    assert lines[lines.index("---") + 1] == "# short"
