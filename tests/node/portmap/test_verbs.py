"""What the verbs leave behind, and what they say."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.node.outside import HOST
from tests.node.portmap.lab import Lab, listening, mapping, nft, restarted
from tests.programs import need

from nodeplug import InvalidRequest, PluginError, TryAgain
from nodeplug.testing.scratch_cni import run_in
from nodeplug_net.portmap.plugin import Portmap, PortmapConfig


def test_the_result_is_passed_on_unchanged(lab: Lab) -> None:
    assert lab.add("c1", mapping(8080)) == lab.attach("c1")


def test_without_mappings_nothing_is_made(lab: Lab) -> None:
    assert lab.add("c1") == lab.attach("c1")
    lab.check("c1")
    lab.delete("c1")
    assert "nodeplug_portmap" not in nft(lab, "list", "tables")


def test_without_a_previous_result_add_is_refused_in_the_references_words(lab: Lab) -> None:
    netns = lab.scratch.container()
    with pytest.raises(InvalidRequest, match=r"\Amust be called as chained plugin\Z"):
        lab.scratch.add(lab.portmap, lab.config(mapping(8080)), "c1", netns)


def test_a_wrong_configuration_is_refused_in_the_references_words(lab: Lab) -> None:
    with pytest.raises(InvalidRequest, match=r"\Afailed to parse config: Invalid host port number: 0\Z"):
        lab.add("c1", mapping(0))


def test_keys_in_capitals_count(lab: Lab) -> None:
    lab.attach("c1")
    config = {
        **lab.config(),
        "runtimeConfig": {"portMappings": [{"HostPort": 8080, "ContainerPort": 80, "Protocol": "TCP"}]},
    }
    lab.scratch.add(lab.portmap, config, "c1", lab.pods["c1"], prev_result=lab.results["c1"])
    lab.serve("c1")
    assert lab.ask(lab.outside, 8080) == "c1 192.0.2.2"


def test_a_repeated_add_changes_nothing(lab: Lab) -> None:
    lab.add("c1", mapping(8080), conditionsV6=["-i", "up0"])
    before = nft(lab, "list", "ruleset")
    lab.add("c1", mapping(8080), conditionsV6=["-i", "up0"])
    assert nft(lab, "list", "ruleset") == before


def test_a_repeated_add_with_other_ports_replaces_the_former_ones(lab: Lab) -> None:
    lab.add("c1", mapping(8080), mapping(8082))
    lab.add("c1", mapping(8081), mapping(8082))
    lab.serve("c1")
    assert [lab.ask(lab.outside, port) for port in (8080, 8081, 8082)] == ["", "c1 192.0.2.2", "c1 192.0.2.2"]
    with listening(lab, 8080):
        lab.check("c1", mapping(8081), mapping(8082))


@pytest.mark.parametrize("keys", [{}, {"conditionsV4": ["-i", "up0"]}])
def test_a_repeated_add_with_wholly_other_ports_ends_the_former_ones(lab: Lab, keys: dict[str, list[str]]) -> None:
    lab.add("c1", mapping(8080), **keys)
    lab.add("c1", mapping(8081), **keys)
    lab.serve("c1")
    assert [lab.ask(lab.outside, port) for port in (8080, 8081)] == ["", "c1 192.0.2.2"]


def test_a_repeated_add_does_not_double_rules_with_conditions(lab: Lab) -> None:
    keys = {"conditionsV4": ["-i", "up0"], "conditionsV6": ["-i", "up0"], "snat": False}
    lab.add("c1", mapping(8080), **keys)
    before = nft(lab, "list", "ruleset")
    lab.add("c1", mapping(8080), **keys)
    assert nft(lab, "list", "ruleset") == before


def test_a_repeated_add_that_fails_keeps_the_former_ports(lab: Lab) -> None:
    lab.add("c1", mapping(8080))
    with listening(lab, 8081), pytest.raises(TryAgain, match="host port 8081/tcp is used by"):
        lab.add("c1", mapping(8081))
    nft(lab, "flush", "ruleset")
    lab.scratch.status(lab.portmap, lab.config())
    lab.serve("c1")
    assert lab.ask(lab.outside, 8080) == "c1 192.0.2.2"
    lab.delete("c1")
    assert lab.ports() == set()


@contextmanager
def owned_by_another_program(lab: Lab, element: str) -> Iterator[None]:
    """Replace the table by one that only its owner changes, as nftables(8) has it, until the owner ends."""
    nft(lab, "flush", "ruleset")
    kind = "type inet_proto . inet_service : ipv4_addr . inet_service;"
    script = f"add table inet nodeplug_portmap {{ flags owner; map any4 {{ {kind} elements = {{ {element} }}; }}; }}\n"
    need("nft", "nsenter")
    command = ["nsenter", f"--net={lab.scratch.host_netns.path}", "nft", "-i"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as owner:
        assert owner.stdin is not None
        owner.stdin.write(script)
        owner.stdin.flush()
        while "nodeplug_portmap" not in nft(lab, "list", "tables"):
            assert owner.poll() is None
        yield
        owner.stdin.close()


def test_a_recovery_that_fails_is_done_by_the_next_request(lab: Lab) -> None:
    lab.add("c1", mapping(8080))
    lab.portmap.stop()
    folder = lab.scratch.host.run_dir / "ports"
    for record in folder.glob("*.json"):
        record.write_text(record.read_text().replace('"attached"', '"adding"'))
    again = Portmap(PortmapConfig(), lab.scratch.host)
    element = 'tcp . 8080 comment "nodeplug net c1 eth0" : 10.88.0.2 . 80'
    with owned_by_another_program(lab, element), pytest.raises(PluginError, match="not permitted"):
        lab.scratch.on_host(again.start)
    lab.scratch.gc(again, lab.config(), None)
    assert list(folder.glob("*.json")) == []
    again.stop()


def test_a_restarted_daemon_restores_flushed_ports(lab: Lab) -> None:
    lab.add("c1", mapping(8080), conditionsV6=["-i", "up0"])
    lab.serve("c1")
    lab.portmap.stop()
    nft(lab, "flush", "ruleset")
    with restarted(lab):
        assert lab.ask(lab.outside, 8080) == "c1 192.0.2.2"
        assert lab.ask(lab.outside, 8080, HOST[6]) == "c1 2001:db8::2"


def test_del_after_a_restart_needs_no_mappings(lab: Lab) -> None:
    lab.add("c1", mapping(8080))
    lab.portmap.stop()
    with restarted(lab) as again:
        lab.scratch.delete(again, lab.config(), "c1")
        assert lab.ports() == set()
        with listening(lab, 8080):
            pass


def test_del_needs_no_record(lab: Lab) -> None:
    lab.add("c1", mapping(8080))
    lab.portmap.stop()
    for record in (lab.scratch.host.run_dir / "ports").iterdir():
        record.unlink()
    with restarted(lab) as again:
        lab.scratch.delete(again, lab.config(mapping(8080)), "c1")
        assert lab.ports() == set()


def test_del_twice_and_of_an_unknown_container_succeeds(lab: Lab) -> None:
    lab.add("c1", mapping(8080))
    lab.delete("c1", mapping(8080))
    lab.delete("c1", mapping(8080))
    lab.delete("c9", mapping(8080))
    assert lab.ports() == set()


def test_del_with_a_wrong_configuration_succeeds(lab: Lab) -> None:
    lab.add("c1", mapping(8080))
    lab.scratch.delete(lab.portmap, lab.config(mapping(-1), backend="pf", snat="perhaps"), "c1")
    assert lab.ports() == set()


def test_check_accepts_what_add_made(lab: Lab) -> None:
    ports = [mapping(8080), mapping(8081, protocol="udp", hostIP="192.0.2.1"), mapping(8082, hostIP="::")]
    lab.add("c1", *ports, conditionsV6=["-i", "up0"])
    lab.check("c1", *ports, conditionsV6=["-i", "up0"])


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (
            "delete element inet nodeplug_portmap any4 { tcp . 8080 }",
            "host port 8080/tcp does not lead to the container",
        ),
        (
            "flush set inet nodeplug_portmap near4_24",
            "connections from nearby to host port 8080/tcp are not masqueraded",
        ),
        ("flush chain inet nodeplug_portmap hostports", "lost its rules conditional, host4, any4, host6, any6"),
        ("flush chain inet nodeplug_portmap postrouting", "lost its rules near4_24, near4_8"),
        ("flush chain inet nodeplug_portmap conditional", "1 rules of host ports with conditions are missing"),
        ("flush ruleset", "host port 8080/tcp does not lead to the container"),
    ],
)
def test_check_names_what_is_missing_and_status_restores_it(lab: Lab, damage: str, found: str) -> None:
    keys = {"conditionsV6": ["-i", "up0"]}
    lab.add("c1", mapping(8080), **keys)
    lab.attach("c2")
    nft(lab, *damage.split())
    with pytest.raises(PluginError, match=found):
        lab.check("c1", mapping(8080), **keys)
    lab.scratch.status(lab.portmap, lab.config())
    lab.check("c1", mapping(8080), **keys)
    lab.serve("c1")
    assert lab.ask(lab.outside, 8080) == "c1 192.0.2.2"


def test_the_next_add_restores_what_others_lost(lab: Lab) -> None:
    lab.add("c1", mapping(8080))
    lab.serve("c1")
    nft(lab, "flush", "ruleset")
    lab.add("c2", mapping(8081))
    assert lab.ask(lab.outside, 8080) == "c1 192.0.2.2"


def test_gc_ends_what_is_not_valid_and_keeps_the_rest(lab: Lab) -> None:
    for number in (1, 2, 3):
        lab.add(f"c{number}", mapping(8080 + number))
    lab.scratch.gc(lab.portmap, {**lab.config(), "name": "other"}, [])
    lab.scratch.gc(lab.portmap, lab.config(), None)
    assert len(lab.ports()) == 3
    lab.scratch.gc(lab.portmap, lab.config(), [("c2", "eth0")])
    assert lab.ports() == {"nodeplug net c2 eth0"}
    with listening(lab, 8081):
        pass
    lab.scratch.gc(lab.portmap, lab.config(), [])
    assert "nodeplug_portmap" not in nft(lab, "list", "tables")


def test_a_failed_add_leaves_nothing(lab: Lab) -> None:
    lab.add("c1", mapping(8080, hostIP="192.0.2.1"))
    lab.portmap.stop()
    (lab.scratch.host.run_dir / "ports").rename(lab.scratch.folder / "away")
    with restarted(lab) as again:
        lab.portmap = again
        with pytest.raises(TryAgain, match=r"host port 192\.0\.2\.1:8080/tcp belongs to 'nodeplug net c1 eth0'"):
            lab.add("c2", mapping(8080, hostIP="192.0.2.1"))
        assert lab.ports() == {"nodeplug net c1 eth0"}
        assert list((lab.scratch.host.run_dir / "ports").glob("*.json")) == []
        with listening(lab, 8080):
            pass


def test_health_restores_what_containers_lost(lab: Lab) -> None:
    lab.add("c1", mapping(8080))
    before = nft(lab, "list", "ruleset")
    nft(lab, "flush", "ruleset")
    lab.scratch.on_host(lab.portmap.health)
    assert nft(lab, "list", "ruleset") == before


def test_without_repair_health_names_what_containers_lost(lab: Lab) -> None:
    lab.add("c1", mapping(8080))
    lab.portmap.stop()
    plugin = Portmap(PortmapConfig(repair=False), lab.scratch.host)
    lab.scratch.on_host(plugin.start)
    lab.scratch.on_host(plugin.health)
    nft(lab, "flush", "ruleset")
    with pytest.raises(PluginError, match="table nodeplug_portmap lost its rules"):
        run_in(lab.scratch.host_netns, plugin.health)
    plugin.stop()
