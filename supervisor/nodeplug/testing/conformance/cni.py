"""Rules for CNI plugins: the CNI specification 1.1.0, and what container runtimes actually do.

Owns: ADD, CHECK, DEL, GC and STATUS of one network, called through the node's executables.
Refuses: opinions on networks: whether packets flow is the plugin's own test.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from ipaddress import ip_interface
from typing import Any, Final

from pyroute2 import IPRoute

from nodeplug.testing.cni_runtime import CniError
from nodeplug.testing.conformance.examination import Examination
from nodeplug.testing.conformance.network import NEWEST, Container, Network, addresses_of, links_of, lose
from nodeplug.testing.conformance.report import few
from nodeplug.testing.conformance.rules import rule
from nodeplug.testing.conformance.verdict import Broken, NotApplicable
from nodeplug.testing.inventory import Inventory

_VERSIONS: Final = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
_MANY: Final = 8
_ADD: Final = "CNI SPEC section 2: ADD"
_DEL: Final = "CNI SPEC section 2: DEL"
_CHECK: Final = "CNI SPEC section 2: CHECK"
_GC: Final = "CNI SPEC section 2: GC"
_KUBERNETES: Final = (
    "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod;K8S_POD_INFRA_CONTAINER_ID=c;K8S_POD_UID=1"
)
_FIND: Final = "Compute names from network, container id and interface, so that DEL finds them without anything else."


@contextmanager
def _attached(exam: Examination) -> Iterator[tuple[Network, Container, dict[str, Any]]]:
    """Attach a container; the rule must leave it detached."""
    network = Network.of(exam)
    with network.container() as container:
        yield network, container, network.attach(container)


def _nothing_left(exam: Examination, before: Inventory) -> None:
    if left := exam.left_since(before):
        raise Broken(f"left on the node: {few(left)}")


# --- ADD


@rule("cni", _ADD, "See the message; give `conformance(cni=...)` the network that the plugin needs.")
def add_succeeds(exam: Examination) -> str:
    """ADD attaches a container."""
    with _attached(exam) as (network, container, result):
        network.detach(container)
        return ", ".join(ip["address"] for ip in result.get("ips", ())) or "without addresses"


@rule("cni", "CNI SPEC section 5: Success", "Return one `CniResult`; the daemon converts it to each version.")
def every_version_is_answered(exam: Examination) -> str:
    """ADD and DEL succeed in every version that the plugin reports, with a result of that version."""
    network = Network.of(exam)
    served = network.ask("VERSION", network.runtime().versions)
    common = [version for version in _VERSIONS if all(version in known for known in served.values())]
    for version in common:
        runtime = network.runtime(version)
        with network.container() as container:
            result = network.attach(container, runtime)
            network.detach(container, runtime)
        if result.get("cniVersion") != version:
            raise Broken(f"asked in version {version}, answered in {result.get('cniVersion')}")
    return ", ".join(common)


@rule("cni", "CNI SPEC section 5: Success", "Put the interfaces that ADD created into the result, by name and sandbox.")
def result_interfaces_exist(exam: Examination) -> str:
    """Every interface of the result exists where the result says, and has the hardware address that it says."""
    with _attached(exam) as (network, container, result):
        interfaces = result.get("interfaces", ())
        for interface in interfaces:
            links = links_of(exam, container if interface.get("sandbox") else None)
            if interface["name"] not in links:
                raise Broken(f"{interface['name']} of the result is not among {few(sorted(links))}")
            said, found = interface.get("mac", "").lower(), links[interface["name"]]
            if said and said != found:
                raise Broken(f"{interface['name']} has the address {found}, the result says {said}")
        network.detach(container)
    if not interfaces:
        raise NotApplicable("the result has no interface, as that of an IPAM plugin")
    return ", ".join(interface["name"] for interface in interfaces)


@rule("cni", "CNI SPEC section 5: Success", "Set the addresses before you return, with their prefix lengths.")
def result_addresses_exist(exam: Examination) -> str:
    """Every address of the result is on the interface that the result says."""
    with _attached(exam) as (network, container, result):
        wanted = [ip for ip in result.get("ips", ()) if ip.get("interface") is not None]
        for ip in wanted:
            interface = result["interfaces"][ip["interface"]]
            found = addresses_of(exam, container if interface.get("sandbox") else None, interface["name"])
            if str(ip_interface(ip["address"])) not in found:
                raise Broken(f"{interface['name']} has {', '.join(found) or 'no address'}; the result: {ip['address']}")
        network.detach(container)
    if not wanted:
        raise NotApplicable("the result has no address of an interface")
    return ", ".join(ip["address"] for ip in wanted)


@rule("cni", "the contract of `cni_add`; runtimes repeat an ADD whose result was lost", _FIND)
def repeated_add_answers_alike(exam: Examination) -> str:
    """A repeated ADD returns what the first did, or fails; one DEL undoes both."""
    network = Network.of(exam)
    before = exam.inventory()
    with network.container() as container:
        first = network.attach(container)
        once = exam.inventory()
        told = "the same answer"
        try:
            second = exam.on_host(lambda: network.runtime().add(container.id, container.path))
            if second != first:
                raise Broken(f"first {first}, then {second}")
        except CniError as error:
            told = f"refused: {error.msg}"
        if more := exam.left_since(once):
            raise Broken(f"the second ADD changed the node: {few(more)}")
        network.detach(container)
    _nothing_left(exam, before)
    return told


@rule("cni", "the contract of `cni_add`; runtimes send DEL after a failed ADD", "Undo in ADD, or let DEL find it.")
def failed_add_leaves_nothing(exam: Examination) -> str:
    """After an ADD that failed, because the interface exists, and its DEL, nothing is left on the node."""
    network = Network.of(exam)
    before = exam.inventory()
    with network.container() as container:
        with container.sandbox.netns.entered(), IPRoute() as route:
            route.link("add", ifname="eth0", kind="veth", peer={"ifname": "conformance0"})
        runtime = network.runtime()
        try:
            exam.on_host(lambda: runtime.add(container.id, container.path))
        except CniError as error:
            told = error.msg
        else:
            network.detach(container, runtime)
            raise NotApplicable("ADD does not mind that eth0 exists")
        network.detach(container, runtime)
    _nothing_left(exam, before)
    return told


@rule("cni", "runtimes attach many containers at once", "Share nothing between calls, or use a lock.")
def parallel_adds_succeed(exam: Examination) -> str:
    """Eight ADDs at once succeed, and no two get the same address."""
    network = Network.of(exam)
    before = exam.inventory()
    with _containers(network) as containers:
        runtimes = [network.runtime() for _ in containers]
        with ThreadPoolExecutor(_MANY) as pool:
            results = list(pool.map(network.attach, containers, runtimes))
        for container, runtime in zip(containers, runtimes, strict=True):
            network.detach(container, runtime)
    _nothing_left(exam, before)
    return _distinct(results, json.dumps(network.document))


@contextmanager
def _containers(network: Network) -> Iterator[list[Container]]:
    with ExitStack() as stack:
        yield [stack.enter_context(network.container()) for _ in range(_MANY)]


def _distinct(results: list[dict[str, Any]], configuration: str) -> str:
    """Say how many addresses were given; one that the configuration names is its author's choice."""
    given = [ip["address"] for result in results for ip in result.get("ips", ())]
    twice = sorted({address for address in given if given.count(address) > 1})
    if [one for one in twice if not ip_interface(one).is_loopback and json.dumps(one) not in configuration]:
        raise Broken(f"{few(twice)} was given twice")
    return f"{len(set(given))} addresses"


@rule("cni", "CNI SPEC section 2: parameters; containerd, CRI-O and podman send these", "Ignore what you do not know.")
def what_runtimes_add_is_tolerated(exam: Examination) -> str:
    """CNI_ARGS of Kubernetes, and unknown `args` and `cni.dev/` keys, do no harm."""
    network = Network.of(exam)
    runtime = network.runtime(keys={"args": {"cni": {"labels": []}}, "cni.dev/conformance": True})
    with network.container() as container:
        network.attach(container, runtime, args=_KUBERNETES)
        network.detach(container, runtime)
    return ""


# --- CHECK


@rule("cni", _CHECK, "Compare only what the result says; extra routes are allowed.", "cni_check")
def check_after_add_succeeds(exam: Examination) -> str:
    """CHECK succeeds right after ADD."""
    network = Network.of(exam)
    runtime = network.runtime(NEWEST)
    with network.container() as container:
        network.attach(container, runtime)
        network.ask("CHECK", lambda: runtime.check(container.id))
        network.detach(container, runtime)
    return ""


@rule("cni", _CHECK, "Check that the interfaces of the result exist and are up.", "cni_check")
def check_notices_a_lost_interface(exam: Examination) -> str:
    """CHECK fails when the container's interface was removed, or set down, behind the plugin's back."""
    network = Network.of(exam)
    runtime = network.runtime(NEWEST)
    with network.container() as container:
        result = network.attach(container, runtime)
        own = [one["name"] for one in result.get("interfaces", ()) if one.get("sandbox")]
        if own:
            lose(container, own[0])
        try:
            exam.on_host(lambda: runtime.check(container.id))
            told = ""
        except CniError as error:
            told = error.msg
        network.detach(container, runtime)
    if not own:
        raise NotApplicable("the result has no interface in the container")
    if not told:
        raise Broken(f"CHECK succeeded without {own[0]}")
    return told


# --- DEL


@rule("cni", _DEL, _FIND)
def nothing_is_left_after_del(exam: Examination) -> str:
    """After ADD and DEL the node is as before."""
    Network.of(exam)
    before = exam.inventory()
    with _attached(exam) as (network, container, _):
        network.detach(container)
        _nothing_left(exam, before)
    return ""


@rule("cni", _DEL, "Succeed if nothing is there.")
def second_del_succeeds(exam: Examination) -> str:
    """DEL succeeds when repeated."""
    with _attached(exam) as (network, container, _):
        network.detach(container)
        network.detach(container)
        network.detach(container, network.runtime())
    return ""


@rule("cni", f"{_DEL}: CNI_NETNS is optional", "Expect `request.netns` to be None; clean up from the host's side.")
def del_without_netns_succeeds(exam: Examination) -> str:
    """DEL without CNI_NETNS succeeds and leaves nothing on the node."""
    Network.of(exam)
    before = exam.inventory()
    with _attached(exam) as (network, container, _):
        network.detach(container, netns=False)
    _nothing_left(exam, before)
    return ""


@rule("cni", f"{_DEL}: the namespace may no longer exist", "Succeed; what was inside went with it.")
def del_after_the_netns_is_gone_succeeds(exam: Examination) -> str:
    """DEL with a CNI_NETNS that no longer exists succeeds and leaves nothing on the node."""
    Network.of(exam)
    before = exam.inventory()
    with _attached(exam) as (network, container, _):
        network.drop(container.sandbox)
        network.detach(container)
    _nothing_left(exam, before)
    return ""


@rule("cni", f"{_DEL}: prevResult may be missing", _FIND)
def del_without_result_succeeds(exam: Examination) -> str:
    """DEL without prevResult, and without the daemon's record of it, succeeds and leaves nothing on the node."""
    Network.of(exam)
    before = exam.inventory()
    with _attached(exam) as (network, container, _):
        exam.node.stop()
        for record in exam.node.paths.attachments.glob("*"):
            record.unlink()
        exam.start()
        network.detach(container, network.runtime())
        _nothing_left(exam, before)
        network.detach(container)
    return ""


@rule("cni", _DEL, "Succeed if nothing is there.")
def del_of_what_was_never_added_succeeds(exam: Examination) -> str:
    """DEL of a container that was never attached succeeds and leaves the node as it was."""
    network = Network.of(exam)
    before = exam.inventory()
    with network.container() as container:
        network.detach(container, network.runtime())
    _nothing_left(exam, before)
    return ""


@rule(
    "cni",
    "the daemon may be killed at any instruction",
    "Keep nothing only in memory; use computed names or the journal.",
)
def del_after_a_crash_succeeds(exam: Examination) -> str:
    """DEL succeeds and leaves nothing when the daemon was killed after ADD."""
    Network.of(exam)
    before = exam.inventory()
    with _attached(exam) as (network, container, _):
        exam.restart_after_kill()
        network.detach(container)
        _nothing_left(exam, before)
    return ""


# --- GC and STATUS


@rule("cni", _GC, "Do nothing when `request.valid` is None.", "cni_gc")
def gc_without_a_list_does_nothing(exam: Examination) -> str:
    """GC without a list of valid attachments removes nothing."""
    with _attached(exam) as (network, container, _):
        before = exam.inventory()
        runtime = network.runtime(NEWEST)
        network.ask("GC without a list", lambda: runtime.gc((), silent=True))
        _unchanged(exam, before, "GC without a list")
        network.detach(container)
    return ""


@rule("cni", _GC, "Keep what is in `request.valid`, by container id and interface.", "cni_gc")
def gc_keeps_what_is_valid(exam: Examination) -> str:
    """GC keeps an attachment that is listed as valid."""
    with _attached(exam) as (network, container, _):
        before = exam.inventory()
        runtime = network.runtime(NEWEST)
        network.ask("GC", lambda: runtime.gc([(container.id, "eth0")]))
        _unchanged(exam, before, "GC")
        network.detach(container)
    return ""


def _unchanged(exam: Examination, before: Inventory, what: str) -> None:
    if lost := exam.inventory().since(before):
        raise Broken(f"{what} changed the node: {few(lost)}")


@rule("cni", _GC, "Remove what belongs to no attachment in `request.valid`.", "cni_gc")
def gc_removes_the_rest(exam: Examination) -> str:
    """GC releases what belongs to a container that is gone and is not listed as valid."""
    with _attached(exam) as (network, container, _):
        before = exam.inventory()
        with network.container() as other:
            network.attach(other)
        runtime = network.runtime(NEWEST)
        network.ask("GC", lambda: runtime.gc([(container.id, "eth0")]))
        _nothing_left(exam, before)
        network.detach(container)
    return ""


@rule("cni", "CNI SPEC section 2: STATUS", "Raise NotReady only when an ADD would fail.")
def status_succeeds(exam: Examination) -> str:
    """STATUS succeeds while ADD does."""
    network = Network.of(exam)
    network.ask("STATUS", network.runtime(NEWEST).status)
    return ""
