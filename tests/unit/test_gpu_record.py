"""The record of a card: the form on disk, as 0.1.0 wrote it and as this version does."""

import json
from dataclasses import replace
from typing import Final

import pytest

from nodeplug_gpu.cards import Card, Uuid
from nodeplug_gpu.record import AllocationRecord, decoded

FIRST_FORM: Final = (
    '{"card": {"uuid": "GPU-0", "index": 0, "minor": 1, "model": "H100", "memory": 8, "pci": "", "numa_node": null, '
    '"compute_capability": [9, 0], "mig": false, "instances": []}, '
    '"resource": "example.com/gpu", "sharing": "mig", "past": [], "terms": "none"}'
)
RECORD: Final = AllocationRecord(
    Card(Uuid("GPU-0"), 0, 1, "H100", 8, compute_capability=(9, 0)),
    "example.com/gpu",
    "mig",
    limits="none",
    names=("example.com/gpu",),
)


def test_a_card_of_one_name_is_written_as_0_1_0_wrote_it() -> None:
    assert json.dumps(dict(RECORD.encoded())) == FIRST_FORM
    assert decoded(json.loads(FIRST_FORM)) == RECORD


@pytest.mark.parametrize(
    "names", [("example.com/gpu", "example.com/count"), ("example.com/1g", "example.com/2g"), ("example.com/1g",), ()]
)
def test_names_that_say_more_than_the_resource_are_written_and_read(names: tuple[str, ...]) -> None:
    record = replace(RECORD, names=names)
    written = json.loads(json.dumps(dict(record.encoded())))
    assert written == {**json.loads(FIRST_FORM), "names": list(names)}
    assert decoded(written) == record
