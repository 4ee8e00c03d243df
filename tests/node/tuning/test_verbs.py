"""tuning in scratch namespaces: what an interface has, what it has again after DEL, and what is said."""

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.node.tuning.lab import KEYS, NEW, SYSCTL, Pod, backups, before, conf, run_ip, settings, sysctl

from nodeplug import CniResult, InvalidEnvironment, InvalidRequest, NotReady, PluginError
from nodeplug_net.tuning.settings import Settings


def test_the_interface_and_its_namespace_have_what_is_asked(call: Pod) -> None:
    keys: dict[str, Any] = {**KEYS, "sysctl": {SYSCTL: "1", "net.ipv4.ip_local_port_range": "1024 65000"}}
    call.add(**keys)
    assert settings(call.netns) == NEW
    assert (sysctl(call.netns), sysctl(call.netns, "ipv4/ip_local_port_range").split()) == ("1", ["1024", "65000"])
    call.check(**keys)


def test_the_host_is_left_alone(call: Pod) -> None:
    port_range = sysctl(call.scratch.host_netns, "ipv4/ip_local_port_range")
    call.add(sysctl={"net.ipv4.ip_local_port_range": "1024 65000"})
    assert sysctl(call.scratch.host_netns, "ipv4/ip_local_port_range") == port_range


def test_keys_count_in_any_letter_case(call: Pod) -> None:
    call.add(MTU=1300, TXQLEN=77, SysCtl={SYSCTL: "1"}, Args={"CNI": {"PROMISC": True}})
    assert settings(call.netns) == replace(NEW, mac="02:00:00:00:00:01", allmulti=False)
    assert sysctl(call.netns) == "1"


@pytest.mark.parametrize(
    ("args", "keys", "mac"),
    [
        ({}, {"mac": "02:00:00:00:00:0A"}, "02:00:00:00:00:0a"),
        ({"MAC": "02:00:00:00:00:0b"}, {"mac": "x"}, "02:00:00:00:00:0b"),
        ({"MAC": "x"}, {"mac": "x", "runtimeConfig": {"mac": "0200.0000.000c"}}, "02:00:00:00:00:0c"),
        (
            {"MAC": "x"},
            {"runtimeConfig": {"mac": "x"}, "args": {"cni": {"mac": "02-00-00-00-00-0d"}}},
            "02:00:00:00:00:0d",
        ),
    ],
    ids=["configuration", "CNI_ARGS", "runtimeConfig", "args"],
)
def test_the_mac_is_that_of_the_place_that_counts_most(
    call: Pod, args: dict[str, str], keys: dict[str, Any], mac: str
) -> None:
    result = call.add(env=args, **keys)
    assert settings(call.netns).mac == mac
    assert [one.mac for one in result.interfaces] == ["02:00:00:00:00:09", mac]


def test_args_come_before_the_configuration(call: Pod) -> None:
    other = {"cni": {"promisc": False, "mtu": 1300, "allmulti": True, "txQLen": 77, "sysctl": {SYSCTL: "1"}}}
    call.add(promisc=True, mtu=1400, allmulti=False, txQLen=5, sysctl={SYSCTL: "0"}, args=other)
    assert settings(call.netns) == Settings("02:00:00:00:00:01", False, 1300, True, 77)
    assert sysctl(call.netns) == "1"


def test_the_result_is_passed_on(call: Pod) -> None:
    assert call.add(promisc=True, mtu=1300, sysctl={SYSCTL: "1"}) == before(call.netns)


def test_a_result_that_says_the_mtu_says_the_new_one(call: Pod) -> None:
    result = call.scratch.add(call.tuning, conf(mtu=1300), "c1", call.netns, prev_result=before(call.netns, mtu=1500))
    assert [one.mtu for one in result.interfaces] == [0, 1300]


def test_a_name_with_dots_is_reached_by_ifname(call: Pod) -> None:
    run_ip(call.netns, lambda ip: ip.link("add", ifname="eth0.5", kind="veth", peer="peer1"))
    config = conf(sysctl={SYSCTL: "1"}, mtu=1300)
    call.scratch.add(call.tuning, config, "c1", call.netns, ifname="eth0.5", prev_result=CniResult())
    assert sysctl(call.netns, "ipv4/conf/eth0.5/arp_filter") == "1"
    assert settings(call.netns, "eth0.5").mtu == 1300


@pytest.mark.parametrize("kept", ["the plugin's folder", "dataDir"])
def test_del_restores_the_interface_and_may_be_repeated(call: Pod, kept: str) -> None:
    was = settings(call.netns)
    folder = {"dataDir": str(call.scratch.folder / "own")} if kept == "dataDir" else {}
    call.add(**KEYS, **folder)
    for _ in range(2):
        call.delete(**KEYS, **folder)
        assert settings(call.netns) == was
    assert backups(call.scratch) == []


def test_del_leaves_alone_what_was_not_asked_for(call: Pod) -> None:
    call.add(mtu=1300)
    run_ip(call.netns, lambda ip: ip.link("set", index=ip.link_lookup(ifname="eth0")[0], txqlen=9))
    call.delete(mtu=1300)
    assert (settings(call.netns).queue, settings(call.netns).mtu) == (9, 1500)


def test_a_repeated_add_changes_nothing_and_del_restores_what_was_before_the_first(call: Pod) -> None:
    was = settings(call.netns)
    first = call.add(**KEYS)
    kept = (call.scratch.folder / "tuning" / "c1_eth0.json").read_text()
    assert call.add(**KEYS) == first
    assert (call.scratch.folder / "tuning" / "c1_eth0.json").read_text() == kept
    call.delete(**KEYS)
    assert settings(call.netns) == was


def test_a_backup_of_an_earlier_interface_does_not_count(call: Pod) -> None:
    call.add(mtu=1300)

    def renew(ip: Any) -> None:
        ip.link("del", index=ip.link_lookup(ifname="eth0")[0])
        ip.link("add", ifname="eth0", kind="veth", peer="peer0", mtu=1450)

    run_ip(call.netns, renew)
    call.add(mtu=1300)
    call.delete(mtu=1300)
    assert settings(call.netns).mtu == 1450


def test_del_leaves_an_interface_alone_that_it_knows_nothing_of(call: Pod) -> None:
    call.add(mtu=1300)

    def renew(ip: Any) -> None:
        ip.link("del", index=ip.link_lookup(ifname="eth0")[0])
        ip.link("add", ifname="eth0", kind="veth", peer="peer0", mtu=1450)

    run_ip(call.netns, renew)
    call.delete(mtu=1300)
    assert (settings(call.netns).mtu, backups(call.scratch)) == (1450, [])


def test_del_without_a_namespace_or_an_interface_forgets_what_was(call: Pod) -> None:
    call.add(mtu=1300)
    call.scratch.delete(call.tuning, conf(), "c1", None)
    assert backups(call.scratch) == []
    call.add(mtu=1300)
    run_ip(call.netns, lambda ip: ip.link("del", index=ip.link_lookup(ifname="eth0")[0]))
    call.delete()
    assert backups(call.scratch) == []


@pytest.mark.parametrize("keys", [{"mtu": "x"}, {"dataDir": "x"}, {"mac": "x"}], ids=str)
def test_del_succeeds_with_a_configuration_that_no_add_would_take(call: Pod, keys: dict[str, Any]) -> None:
    call.delete(**keys)


def test_del_takes_the_file_of_the_reference(call: Pod) -> None:
    folder = call.scratch.folder / "tuning"
    folder.mkdir()
    (folder / "c1_eth0.json").write_text('{\n "mac": "02:00:00:00:00:07",\n "promisc": false,\n "mtu": 1280\n}')
    run_ip(call.netns, lambda ip: ip.link("set", index=ip.link_lookup(ifname="eth0")[0], flags=0x100, mask=0x100))
    call.delete()
    found = settings(call.netns)
    assert (found.mac, found.promisc, found.mtu, backups(call.scratch)) == ("02:00:00:00:00:07", False, 1280, [])


def test_a_damaged_backup_restores_nothing_and_goes(call: Pod) -> None:
    folder = call.scratch.folder / "tuning"
    folder.mkdir()
    (folder / "c1_eth0.json").write_text('{"mtu": ')
    call.delete()
    assert (settings(call.netns).mtu, backups(call.scratch)) == (1500, [])


def test_what_cannot_be_restored_keeps_its_backup_and_no_pod(call: Pod) -> None:
    folder = call.scratch.folder / "tuning"
    folder.mkdir()
    (folder / "c1_eth0.json").write_text('{"mtu": 1, "txQLen": 9}')
    call.delete()
    assert (settings(call.netns).mtu, settings(call.netns).queue) == (1500, 9)
    assert backups(call.scratch) == ["c1_eth0.json"]


def test_a_failed_add_leaves_everything_as_it_was(call: Pod) -> None:
    was = settings(call.netns)
    with pytest.raises(PluginError, match="invalid argument"):
        call.add(**{**KEYS, "mtu": 1, "sysctl": {SYSCTL: "1"}})
    assert (settings(call.netns), sysctl(call.netns), backups(call.scratch)) == (was, "0", [])


def test_a_repeated_add_that_fails_leaves_what_the_first_one_set(call: Pod) -> None:
    was = settings(call.netns)
    call.add(**KEYS)
    with pytest.raises(PluginError, match="invalid argument"):
        call.add(**{**KEYS, "mac": "02:00:00:00:00:06", "mtu": 1})
    assert settings(call.netns) == NEW
    call.delete()
    assert settings(call.netns) == was


def test_no_backup_can_be_written_and_nothing_is_changed(call: Pod) -> None:
    (call.scratch.folder / "file").write_text("")
    was = settings(call.netns)
    with pytest.raises(PluginError, match=r"\Afailed to create backup directory: mkdir .*: not a directory\Z"):
        call.add(**KEYS, sysctl={SYSCTL: "1"}, dataDir=str(call.scratch.folder / "file" / "x"))
    assert (settings(call.netns), sysctl(call.netns)) == (was, "0")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"sysctl": {"kernel.hostname": "x"}}, 'invalid net sysctl key: "kernel/hostname"'),
        ({"sysctl": {"net/../kernel/x": "x"}}, "open /proc/sys/net/kernel/x: no such file or directory"),
        ({"sysctl": {"net": "x"}}, 'invalid net sysctl key: "net"'),
        ({"sysctl": {"net.a\0": "x"}}, "invalid net sysctl key: "),
        ({"sysctl": {"net.ipv4.nope": "x"}}, "open /proc/sys/net/ipv4/nope: no such file or directory"),
        ({"sysctl": {SYSCTL: "x"}}, "write /proc/sys/net/ipv4/conf/eth0/arp_filter: invalid argument"),
        ({"sysctl": {SYSCTL: "1", SYSCTL.replace(".", "/"): "2"}}, "duplicated sysctl keys are not allowed"),
        ({"sysctl": {SYSCTL: 1}}, "failed to load netconf: "),
        ({"mtu": "x"}, "failed to load netconf: "),
        ({"dataDir": "x"}, "failed to load netconf: key 'dataDir'"),
        ({"mac": "x"}, "invalid args x for MAC addr: address x: invalid MAC address"),
        ({"mac": "02:00:00:00:00:00:00:01"}, "invalid argument"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_the_references_words(call: Pod, keys: dict[str, Any], said: str) -> None:
    was = settings(call.netns)
    with pytest.raises(PluginError) as caught:
        call.add(**keys)
    assert caught.value.message.startswith(said)
    assert (settings(call.netns), sysctl(call.netns), backups(call.scratch)) == (was, "0", [])


def test_without_an_interface_add_and_check_say_so(call: Pod) -> None:
    run_ip(call.netns, lambda ip: ip.link("del", index=ip.link_lookup(ifname="eth0")[0]))
    with pytest.raises(PluginError) as caught:
        call.add(mtu=1300)
    assert caught.value.message == 'failed to get "eth0": Link not found'
    with pytest.raises(PluginError) as caught:
        call.check()
    assert caught.value.message == "Cannot find container link eth0"


def test_without_a_previous_result_add_is_refused(call: Pod) -> None:
    with pytest.raises(InvalidRequest) as caught:
        call.scratch.add(call.tuning, conf(), "c1", call.netns)
    assert caught.value.message == "Required prevResult missing"


def test_arguments_that_nobody_knows_are_refused(call: Pod) -> None:
    with pytest.raises(InvalidEnvironment, match="unknown args"):
        call.add(env={"FOO": "1"})
    call.add(env={"FOO": "1", "IgnoreUnknown": "1"})


def test_only_allowed_settings_are_set(call: Pod) -> None:
    allowlist = call.scratch.folder / "allowlist.conf"
    allowlist.write_text("  ^net\\.core\\.\n\n^net\\.ipv4\\.conf\\.IFNAME\\.arp_filter$\n")
    call.add(sysctl={SYSCTL: "1"})
    with pytest.raises(InvalidRequest) as caught:
        call.add(sysctl={"net.ipv4.ip_forward": "1"})
    assert caught.value.message == (
        "Sysctl net.ipv4.ip_forward is not allowed. Only the following sysctls are allowed: "
        r"[^net\.core\. ^net\.ipv4\.conf\.IFNAME\.arp_filter$]"
    )
    with pytest.raises(NotReady, match="is not allowed"):
        call.scratch.status(call.tuning, conf(sysctl={"net.ipv4.ip_forward": "1"}))


@pytest.mark.parametrize("line", ["[", "[[:alpha:]]+"])
def test_a_list_that_is_no_list_of_expressions_allows_nothing(call: Pod, line: str) -> None:
    (call.scratch.folder / "allowlist.conf").write_text(f"{line}\n.*\n")
    with pytest.raises(PluginError, match="error parsing regexp: "):
        call.add(sysctl={SYSCTL: "1"})
    assert sysctl(call.netns) == "0"


def test_a_list_that_cannot_be_read_allows_nothing(call: Pod) -> None:
    (call.scratch.folder / "allowlist.conf").mkdir()
    with pytest.raises(PluginError, match=r"\Aread .*/allowlist.conf: is a directory\Z"):
        call.add(sysctl={SYSCTL: "1"})
    assert sysctl(call.netns) == "0"


def test_check_names_every_difference(call: Pod) -> None:
    call.add(mtu=1300)
    with pytest.raises(PluginError) as caught:
        call.check(**{**KEYS, "mtu": 1299, "sysctl": {SYSCTL: "1", "net.ipv4.nope": "1"}})
    assert caught.value.message.split("; ") == [
        "Error: Tuning configured value of /proc/sys/net/ipv4/conf/eth0/arp_filter is 1, current value is 0",
        "open /proc/sys/net/ipv4/nope: no such file or directory",
        "Error: Tuning configured Ethernet of eth0 is 02:00:00:00:00:05, current value is 02:00:00:00:00:01",
        "Error: Tuning link eth0 configured promisc is true, current value is 0",
        "Error: Tuning configured MTU of eth0 is 1299, current value is 1300",
        "Error: Tuning configured all-multicast mode of eth0 is true, current value is false",
        "Error: Tuning configured Transmit Queue Length of eth0 is 77, current value is 1000",
    ]


def test_check_finds_an_interface_that_became_promiscuous(call: Pod) -> None:
    call.add(promisc=True)
    with pytest.raises(PluginError, match="configured promisc is false, current value is 1"):
        call.check()


def test_a_setting_that_can_only_be_written_is_set_and_not_compared(call: Pod) -> None:
    keys: dict[str, Any] = {"sysctl": {"net.ipv4.route.flush": "1"}}
    call.add(**keys)
    call.check(**keys)


def test_gc_forgets_the_attachments_of_its_network_that_are_gone(call: Pod) -> None:
    call.add(mtu=1300)
    call.add(mtu=1300, container="c2")
    other = {**conf(mtu=1300), "name": "other"}
    call.scratch.add(call.tuning, other, "c3", call.netns, prev_result=before(call.netns))
    (call.scratch.folder / "tuning" / "c4_eth0.json").write_text('{"mtu": 1280}')
    call.scratch.gc(call.tuning, conf(), None)
    assert len(backups(call.scratch)) == 4
    call.scratch.gc(call.tuning, conf(), [("c2", "eth0")])
    assert backups(call.scratch) == ["c2_eth0.json", "c3_eth0.json", "c4_eth0.json"]


def test_gc_without_a_folder_succeeds(call: Pod) -> None:
    call.scratch.gc(call.tuning, conf(), [])


def test_status_says_whether_an_add_would_fail(call: Pod) -> None:
    call.scratch.status(call.tuning, conf(**KEYS, sysctl={SYSCTL: "1"}))
    (call.scratch.folder / "file").write_text("")
    with pytest.raises(NotReady, match="for backups cannot be made or written"):
        call.scratch.status(call.tuning, conf(dataDir=str(call.scratch.folder / "file")))
    with pytest.raises(InvalidRequest, match="invalid net sysctl key"):
        call.scratch.status(call.tuning, conf(sysctl={"kernel.hostname": "x"}))


def test_the_backup_is_for_nobody_else(call: Pod) -> None:
    call.add(**KEYS)
    file = call.scratch.folder / "tuning" / "c1_eth0.json"
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    document = json.loads(file.read_text())
    assert document.pop("nodeplug")["network"] == "net"
    assert document == {
        "mac": "02:00:00:00:00:01",
        "promisc": False,
        "mtu": 1500,
        "allmulti": False,
        "txQLen": 1000,
    }
