"""Label selectors and node affinity, as the API server and the scheduler understand them."""

from typing import Any

import pytest

from nodeplug.kubeapi.selectors import on_node, selects

NODE = {"metadata": {"name": "one", "labels": {"zone": "a", "cores": "8"}}}


def term(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"required": {"nodeSelectorTerms": list(terms)}}


@pytest.mark.parametrize(
    ("expression", "fits"),
    [
        (term("zone", "In", "a", "b"), True),
        (term("zone", "In", "b"), False),
        (term("rack", "In", "a"), False),
        (term("zone", "NotIn", "b"), True),
        (term("rack", "NotIn", "b"), True),
        (term("zone", "NotIn", "a"), False),
        (term("zone", "Exists"), True),
        (term("rack", "Exists"), False),
        (term("rack", "DoesNotExist"), True),
        (term("cores", "Gt", "4"), True),
        (term("cores", "Gt", "8"), False),
        (term("cores", "Lt", "16"), True),
        (term("zone", "Gt", "4"), False),
        (term("zone", "New", "a"), False),
    ],
)
def test_an_expression_fits_labels(expression: dict[str, Any], fits: bool) -> None:
    assert on_node(affinity({"matchExpressions": [expression]}), NODE) is fits
    assert selects({"matchExpressions": [expression]}, NODE["metadata"]["labels"]) is fits  # type: ignore[arg-type]


def test_all_expressions_of_a_term_and_one_of_the_terms_must_fit() -> None:
    right, wrong = term("zone", "In", "a"), term("zone", "In", "b")
    assert not on_node(affinity({"matchExpressions": [right, wrong]}), NODE)
    assert on_node(affinity({"matchExpressions": [wrong]}, {"matchExpressions": [right]}), NODE)


def test_a_volume_without_affinity_is_everywhere_and_one_with_an_empty_term_nowhere() -> None:
    assert on_node(None, NODE)
    assert on_node({}, NODE)
    assert not on_node(affinity({}), NODE)
    assert not on_node(affinity(), NODE)


def test_a_node_can_be_named() -> None:
    assert on_node(affinity({"matchFields": [term("metadata.name", "In", "one")]}), NODE)
    assert not on_node(affinity({"matchFields": [term("metadata.name", "In", "two")]}), NODE)


def test_labels_must_be_equal_and_an_empty_selector_selects_all() -> None:
    assert selects({"matchLabels": {"zone": "a"}}, {"zone": "a", "more": "x"})
    assert not selects({"matchLabels": {"zone": "b"}}, {"zone": "a"})
    assert selects({}, {})
