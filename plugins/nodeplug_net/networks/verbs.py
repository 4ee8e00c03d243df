"""The verbs of `networks`: each stands for those of all networks of a pod.

Owns: the order of record, attachment and answer, and the way back from any point of it.
Refuses: what an annotation means (`plan`), and how a list is run (`chain`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from nodeplug import (
    ClusterPod,
    CniAdd,
    CniCheck,
    CniDel,
    CniGc,
    CniResult,
    CniStatus,
    DelegateFailed,
    Host,
    LimitedConnectivity,
    NotFound,
    NotReady,
    PluginError,
    TryAgain,
    ValidAttachment,
)
from nodeplug_net.netlink.links import links_in
from nodeplug_net.networks import chain, gateway
from nodeplug_net.networks.config import ANNOTATIONS, NetworksConf, parse_conf
from nodeplug_net.networks.plan import Conflist, Planner
from nodeplug_net.networks.records import ATTACHED, BEGUN, Record, Records
from nodeplug_net.networks.report import elements
from nodeplug_net.undo import Errors

_LIMITED: Final = 51
"""The code of STATUS for containers that lack something (SPEC 1.1.0, section 5)."""


@dataclass(frozen=True, slots=True)
class Verbs:
    """What the plugin does.

    Attributes:
        host: of the plugin.
        planner: makes plans.
        records: of attachments.
    """

    host: Host
    planner: Planner
    records: Records

    def recover(self) -> None:
        """Say again what the daemon or the cluster may not have heard: networks in use, and the status of pods."""
        for phase, record in self.records.recover():
            if phase == ATTACHED and record.pod.name:
                self.host.networks.report(record.pod, elements(record))

    def add(self, request: CniAdd) -> CniResult:
        """Attach every network of a pod, or none; one that is attached is answered as before.

        Raises:
            PluginError: what the network that failed has raised; TryAgain if it is not known what the pod wants.
            OSError: the kernel refuses.
        """
        before = self._before(request)
        if before is not None:
            return before
        conf = parse_conf(request)
        pod = self._pod(request, conf)
        plans = tuple(self.planner.plan(request, conf, pod.annotations, pod.namespace))
        record = Record(request.network, request.container_id, request.ifname, replace(pod, annotations={}), plans)
        self.records.write(record, BEGUN)
        results: list[CniResult] = []
        try:
            for planned in plans:
                if not request.remaining:
                    name = planned.conflist["name"]
                    raise TryAgain(f"network {name} is not attached: those before it took all the time; ask again")
                results.append(chain.add(self.host, request, planned))
            led = gateway.lead(request.netns, plans, results)
            record = replace(record, results=tuple(led))
            self.records.write(record, ATTACHED)
        except (PluginError, OSError):
            begun = replace(record, plans=plans[: len(results) + 1], results=tuple(results))
            self._undo(request, begun)
            raise
        if record.pod.name:
            self.host.networks.report(record.pod, elements(record))
        return led[0]

    def delete(self, request: CniDel) -> None:
        """Detach what was attached, as the record says; without one there is nothing.

        Raises:
            PluginError: a network cannot be detached; all others have been asked, and the record stays.
        """
        found = self.records.find(request)
        if found is not None:
            self._detach(request, found[1])

    def check(self, request: CniCheck) -> None:
        """Compare each network with what it was.

        Raises:
            PluginError: the first difference.
        """
        found = self.records.find(request)
        if found is None or found[0] != ATTACHED:
            raise NotFound(f"there is no record of what interface {request.ifname} of this container is attached to")
        record = found[1]
        for planned, result in zip(record.plans, record.results, strict=True):
            if result is not None:
                chain.check(self.host, request, planned, result)

    def collect(self, request: CniGc) -> None:
        """Detach what belongs to no valid attachment, and have each network do the same.

        Raises:
            PluginError: what failed; all others have been asked.
        """
        if request.valid is None:
            return
        errors = Errors()
        valid = {(one.container_id, one.ifname) for one in request.valid}
        kept: dict[str, tuple[Conflist, list[ValidAttachment]]] = {}
        for record in [record for _, record in self.records.all() if record.network == request.network]:
            if (record.container_id, record.ifname) not in valid:
                with errors.kept():
                    self._detach(_ending(request, record), record)
                continue
            for planned in record.plans:
                _, attachments = kept.setdefault(str(planned.conflist["name"]), (planned.conflist, []))
                attachments.append(ValidAttachment(container_id=record.container_id, ifname=planned.ifname))
        with errors.kept():
            default = self.planner.default(request, parse_conf(request))
            kept.setdefault(str(default["name"]), (default, []))
        for conflist, attachments in kept.values():
            with errors.kept():
                chain.collect(self.host, replace(request, valid=tuple(attachments)), conflist)
        errors.raise_all()

    def status(self, request: CniStatus) -> None:
        """Raise NotReady if the default network would fail, and LimitedConnectivity if pods lack something.

        The further networks that pods have are asked, too, which restores what they need. That one of them has no
        address left, or that its executable is gone, is no reason to take no pod any more: most want none of them.

        Raises:
            PluginError: what the default network says; of further ones, what they say with code 51.
        """
        try:
            default = self.planner.default(request, parse_conf(request))
        except PluginError as error:
            raise NotReady(f"the default network of pods is not known: {error}") from error
        chain.status(self.host, request, default)
        for name, conflist in self.records.further().items():
            if name != default["name"]:
                self._ask_further(request, conflist)

    def _ask_further(self, request: CniStatus, conflist: Conflist) -> None:
        try:
            chain.status(self.host, request, conflist)
        except LimitedConnectivity:
            raise
        except (PluginError, OSError, RecursionError) as error:
            if isinstance(error, DelegateFailed) and error.code == _LIMITED:
                raise
            self.host.log.debug("network %s, which some pods have: %s", conflist["name"], error)

    def _pod(self, request: CniAdd, conf: NetworksConf) -> ClusterPod:
        """Find out whose attachment it is and what is wanted, without the API server where the runtime says so."""
        args = request.args
        namespace, name, uid = (args.get(f"K8S_POD_{key}", "") for key in ("NAMESPACE", "NAME", "UID"))
        told = conf.runtime.get(ANNOTATIONS)
        if isinstance(told, Mapping):
            annotations = {str(key): str(value) for key, value in told.items()}
            return ClusterPod(namespace or "default", name, uid=uid, annotations=annotations)
        if not name or not namespace:
            return ClusterPod(namespace or "default", "")  # a container that no kubelet has asked for
        return replace(self.host.networks.pod(namespace, name, uid), uid=uid)

    def _before(self, request: CniAdd) -> CniResult | None:
        """Return what an earlier ADD got; detach what is left of one that did not end, or is gone."""
        found = self.records.find(request)
        if found is None:
            return None
        phase, record = found
        result = record.result(0)
        if phase == ATTACHED and result is not None and _is_there(request, record):
            return result
        self._detach(_ending(request, record), record)
        return None

    def _undo(self, request: CniAdd, begun: Record) -> None:
        try:
            self._detach(replace(_ending(request, begun), netns=request.netns), begun)
        except (PluginError, OSError) as error:
            self.host.log.warning("cannot undo a failed ADD: %s; DEL will try again", error)

    def _detach(self, request: CniDel, record: Record) -> None:
        errors = Errors()
        for index in reversed(range(len(record.plans))):
            with errors.kept():
                chain.delete(self.host, request, record.plans[index], record.result(index))
        errors.raise_all()
        self.records.remove(record)


def _is_there(request: CniAdd, record: Record) -> bool:
    """Whether the namespace has every interface of an attachment: another one can be at the same path by now."""
    with links_in(request.netns) as links:
        return all(links.get(one.ifname) is not None for one in record.plans)


def _ending(request: CniAdd | CniGc, record: Record) -> CniDel:
    """Make the DEL of an attachment for which no runtime asks."""
    add = request if isinstance(request, CniAdd) else None
    return CniDel(
        id=request.id,
        deadline=request.deadline,
        claim=request.claim,
        network=request.network,
        version=request.version,
        config=request.config,
        path=request.path,
        host_netns=request.host_netns,
        container_id=record.container_id,
        ifname=record.ifname,
        args=add.args if add is not None else {},
        args_text=add.args_text if add is not None else "",
    )
