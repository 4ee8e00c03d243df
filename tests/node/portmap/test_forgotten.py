"""Records that somebody removed: attachments that were handed over to the reference's plugins."""

import subprocess
from pathlib import Path

from tests.node.portmap.lab import Lab, mapping
from tests.programs import need

OURS = [f"nodeplug net {container} eth0" for container in ("c1", "c2")]


def record_of(lab: Lab, container: str) -> Path:
    (found,) = [path for path in (lab.scratch.host.run_dir / "ports").iterdir() if f" {container} " in path.read_text()]
    return found


def flush(lab: Lab) -> None:
    need("nft")
    lab.scratch.on_host(lambda: subprocess.run(["nft", "flush", "ruleset"], check=True))


def reserved(lab: Lab) -> list[str]:
    return sorted(name.rpartition(" ")[2] for name in lab.scratch.host.sockets.names() if "IPv4" in name)


def test_an_attachment_whose_record_was_removed_is_neither_restored_nor_reserved(lab: Lab) -> None:
    lab.add("c1", mapping(8080))
    lab.add("c2", mapping(8081))
    lab.scratch.on_host(lab.portmap.health)
    assert (sorted(lab.ports()), reserved(lab)) == (OURS, ["8080/tcp", "8081/tcp"])
    record_of(lab, "c1").unlink()
    flush(lab)
    lab.scratch.on_host(lab.portmap.health)
    assert (sorted(lab.ports()), reserved(lab)) == (OURS[1:], ["8081/tcp"])


def test_a_record_that_is_written_again_counts_again(lab: Lab) -> None:
    lab.add("c1", mapping(8080))
    record_of(lab, "c1").unlink()
    lab.scratch.on_host(lab.portmap.health)
    lab.add("c1", mapping(8080))
    flush(lab)
    lab.scratch.on_host(lab.portmap.health)
    assert (sorted(lab.ports()), reserved(lab)) == (OURS[:1], ["8080/tcp"])


def test_a_folder_that_is_gone_tells_of_nobody(lab: Lab) -> None:
    """Somebody who empties /run hands nothing over."""
    lab.add("c1", mapping(8080))
    folder = lab.scratch.host.run_dir / "ports"
    folder.rename(folder.with_name("elsewhere"))
    flush(lab)
    lab.scratch.on_host(lab.portmap.health)
    assert sorted(lab.ports()) == OURS[:1]
