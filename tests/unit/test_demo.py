"""What the demo takes for left behind, and what stays by design."""

from pathlib import Path

import pytest

from nodeplug.cli.demo import leftovers

FOLDER = Path("/tmp/nodeplug-demo-1")
BY_DESIGN = [
    "+ link nodeplug0",
    "+ address 10.88.0.1/16 on nodeplug0",
    "+ nft table nodeplug_masquerade",
    "+ nft chain nodeplug_masquerade postrouting",
    "+ nft rule nodeplug_masquerade 7",
    "+ nft set nodeplug_masquerade net_10.88.0.0/16",
    f"+ file {FOLDER}/addresses/nodeplug/lock",
    f"+ file {FOLDER}/addresses/nodeplug/last_reserved_ip.0",
    "+ loop device loop3 of /somewhere/else.img",
]
LEFT = [
    "+ link veth1234abcd",
    "+ address 10.88.0.1/16 on eth7",
    "+ nft element nodeplug_masquerade net_10.88.0.0/16 10.88.0.2",
    "+ nft table other",
    f"+ file {FOLDER}/addresses/nodeplug/10.88.0.2",
    f"+ mount tmpfs on {FOLDER}/n/pods/0001",
    f"+ loop device loop3 of {FOLDER}/data.img",
    "- link lo",
]


@pytest.mark.parametrize("entry", BY_DESIGN)
def test_what_the_next_pod_uses_stays(entry: str) -> None:
    assert leftovers([entry], FOLDER) == []


@pytest.mark.parametrize("entry", LEFT)
def test_what_belonged_to_a_pod_is_left_behind(entry: str) -> None:
    assert leftovers([entry], FOLDER) == [entry]
