"""What an administrator applies to a cluster once, for devices that are served by Dynamic Resource Allocation.

Owns: a DeviceClass for each resource, the rights of the daemons, and the policy that keeps each to its own slices.
Refuses: to apply anything, and claims, which are those of whoever writes the pods.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from nodeplug.contract.errors import InvalidRequest
from nodeplug.contract.values import ResourceName
from nodeplug.dra import names
from nodeplug.kubeapi.printed import Manifest, named
from nodeplug.kubeapi.resources import DEVICE_CLASSES, NODES, RESOURCE_CLAIMS, RESOURCE_SLICES, Resource
from nodeplug.kubeapi.rights import ACCOUNT, Daemons, account_of_daemons, in_pods, policy, role, rule

_NAME: Final = "nodeplug-dra"
_GROUP: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9:._-]*")


@dataclass(frozen=True, slots=True)
class Class:
    """A resource, and who serves it.

    Attributes:
        resource: as plugins claim it.
        sections: that claim it, each on nodes of its own.
        extended: a pod may also ask for its devices by `limits`, as for an extended resource.
    """

    resource: ResourceName
    sections: tuple[str, ...]
    extended: bool = False

    @property
    def drivers(self) -> tuple[str, ...]:
        """Whose devices it has."""
        return tuple(map(names.driver_name, self.sections))

    @property
    def selector(self) -> str:
        """CEL that is true for its devices; an attribute that a device lacks would be an error, and not false."""
        chosen = [_selector(one, names.resource_value(self.resource)) for one in self.drivers]
        return chosen[0] if len(chosen) == 1 else " || ".join(f"({one})" for one in chosen)


def manifests(classes: Iterable[Class], namespace: str, *, account: str = ACCOUNT, group: str = "") -> list[Manifest]:
    """Return all that a cluster needs for these resources, in the order in which it is applied.

    Args:
        classes: what sections serve.
        namespace: of the pods that run the daemon.
        account: the ServiceAccount of these pods; another one than ours is there already.
        group: the daemons are in no pods, but users of this group, `GROUP:NODE` on each node; empty: in pods.

    Raises:
        InvalidRequest: the group cannot have such users, or is Kubernetes' own.
    """
    name, daemons = (f"{_NAME}-users", _users(group)) if group else (_NAME, in_pods(namespace, account))
    made = [] if group or account != ACCOUNT else [account_of_daemons(namespace)]
    made += _policy(name, daemons)  # before the rights that it limits
    about = (
        "Slices of all nodes; the policy leaves each its own. A claim is read by its name, when it is to be prepared."
    )
    made += role(name, daemons.subject, rules(), about)
    return made + [_device_class(one) for one in classes]


def rules() -> list[dict[str, list[str]]]:
    """Return the rights in the whole cluster."""
    slices = ("list", "watch", "create", "update", "delete")
    return [_rule(NODES, "get"), _rule(RESOURCE_CLAIMS, "get"), _rule(RESOURCE_SLICES, *slices)]


def _rule(resource: Resource, *verbs: str) -> dict[str, list[str]]:
    return rule(resource.group, resource.plural, *verbs)


def _users(group: str) -> Daemons:
    if not _GROUP.fullmatch(group) or group.startswith("system:"):
        raise InvalidRequest(
            f"{group!r} cannot be the group of the daemons' users; use letters, digits and ':._-', and not 'system:', "
            "which is Kubernetes' own; such as nodeplug:node"
        )
    return Daemons(
        {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": group},
        f"has(request.userInfo.groups) && '{group}' in request.userInfo.groups",
        f"request.userInfo.username.startsWith('{group}:') ? "
        f"request.userInfo.username.substring({len(group) + 1}) : ''",
        f"a user of the group {group} is called {group}:NODE, by the node that it is for",
    )


def _policy(name: str, daemons: Daemons) -> Iterator[Manifest]:
    writes = {
        "apiGroups": [RESOURCE_SLICES.group],
        "apiVersions": [RESOURCE_SLICES.version],
        "operations": ["CREATE", "UPDATE", "DELETE"],
        "resources": [RESOURCE_SLICES.plural],
    }
    about = (
        "Leaves each node its own ResourceSlices, and of these those of nodeplug's drivers: whoever writes a slice "
        "decides which pods are placed there. A daemon that does not say on which node it is may write nothing."
    )
    spec = "request.operation == 'DELETE' ? oldObject.spec : object.spec"
    return policy(name, daemons, [writes], {"spec": spec}, _VALIDATIONS, about)


_VALIDATIONS: Final = (
    (
        "has(variables.spec.nodeName) && variables.spec.nodeName == variables.node",
        "a node writes ResourceSlices of its own alone",
    ),
    (
        f"variables.spec.driver.endsWith('.{names.DOMAIN}')",
        f"nodeplug writes ResourceSlices of its own drivers alone, whose names end with .{names.DOMAIN}",
    ),
    (
        "variables.spec.pool.name.startsWith(variables.node + '/')",
        "a node writes ResourceSlices alone whose pool is called by the node, NODE/RESOURCE",
    ),
)
"""What has to hold, and what is said where it does not. Slices of one pool count together, by the newest generation."""


def _selector(driver: str, resource: str) -> str:
    attributes = f'device.attributes["{driver}"]'
    there = f'"{names.RESOURCE}" in {attributes}'
    return f'device.driver == "{driver}" && {there} && {attributes}.{names.RESOURCE} == "{resource}"'


def _device_class(one: Class) -> Manifest:
    made = named(DEVICE_CLASSES.api_version, DEVICE_CLASSES.kind, names.class_name(one.resource))
    made["spec"] = {"selectors": [{"cel": {"expression": one.selector}}]}
    about = f"Claims of this class get devices of {one.resource}. Kubernetes 1.34 or newer knows it."
    if one.extended:
        made["spec"]["extendedResourceName"] = one.resource
    else:
        about += (
            f" It has no extendedResourceName: `limits: {{{one.resource}: 2}}` would be two devices, and where devices "
            "are shared two different ones, each as a whole, and never an amount of one. Where each of them is whole: "
            f"--extended-resource {one.resource}."
        )
    notes = {
        "spec.selectors": "Each device says of which resource it is.",
        "spec.extendedResourceName": f"A pod may say `limits: {{{one.resource}: 2}}` and gets two devices, as with a "
        "device plugin. Only for devices that are whole: of shared ones it would get two different ones, each as a "
        "whole. Kubernetes before 1.36 drops this field without a word, unless DRAExtendedResource is switched on.",
    }
    return Manifest(made, about, notes)
