"""The tables that are about the cluster: who follows it, creates in it, is asked by it, or says something in it.

Owns: the keys of `[provisioner]`, `[extender]`, `[networks]`, `[cluster]` and `[dra]`, and their defaults.
Refuses: to reach an API server, and the daemon's own table (`models`).
"""

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from nodeplug.config.keys import Model, check_absolute, check_address, check_path, parse_address
from nodeplug.contract.inputs import EXTENDER_BODY
from nodeplug.fields import Quantity, Seconds

NODE_PATHS: Final = (
    "/etc/resolv.conf",
    "/run/systemd/resolve/resolv.conf",
    "/run/systemd/resolve/stub-resolv.conf",
    "/run/NetworkManager/resolv.conf",
    "/run/NetworkManager/no-stub-resolv.conf",
    "/var/lib/cni",
    "/run/cni",
    "/var/run/cni",
)
"""Default of `paths`: the host's resolv.conf files and the state folders of IPAM plugins."""
_KUBECONFIG: Final = (
    "How to reach the API server; default: the file under [supervisor], $KUBECONFIG, or the pod's ServiceAccount."
)


class ProvisionerSection(Model):
    """`[provisioner]`: its presence lets this node's CSI drivers create volumes for claims of the cluster."""

    enabled: bool = Field(True, description="False keeps the section without a provisioner.")
    kubeconfig: Path | None = Field(None, description=_KUBECONFIG)
    drivers: tuple[str, ...] = Field(
        (), description="CSI drivers to provision for, such as 'loopfile.nodeplug'; empty: all that create volumes."
    )
    namespace: str = Field(
        "kube-system", min_length=1, description="Of the CSIStorageCapacity objects that say how much room there is."
    )
    capacity_poll: Seconds = Field(60.0, description="How often that is measured, besides after each change.")


class ExtenderSection(Model):
    """`[extender]`: its presence serves the scheduler extenders of plugins to kube-scheduler."""

    enabled: bool = Field(True, description="False keeps the section, and nothing listens.")
    listen: Annotated[str, AfterValidator(check_address)] = Field(
        "127.0.0.1:9810",
        min_length=1,
        description="Address with which a `urlPrefix` of kube-scheduler begins. One that other machines reach needs "
        "TLS and `client_ca`: whoever asks may have pods bound.",
    )
    tls_cert: Annotated[str, AfterValidator(check_path)] = Field(
        "",
        description="File of the certificate with its chain, for `enableHTTPS: true`; read again when it changes. "
        "Empty: no TLS.",
    )
    tls_key: Annotated[str, AfterValidator(check_path)] = Field(
        "", description="File of its private key, without a password."
    )
    client_ca: Annotated[str, AfterValidator(check_path)] = Field(
        "",
        description="File of the authorities of which one must have signed the scheduler's certificate; empty: anybody "
        "may ask.",
    )
    max_body: Quantity = Field(
        EXTENDER_BODY.size,
        description="The largest request. The default is for `nodeCacheCapable: true`: a pod has up to 1.5 MiB, and "
        "10,000 names of nodes 0.5. With `false` a node has 10 to 30 KB; raise it then, and `memory` of [supervisor] "
        "by thirty times as much.",
    )
    concurrency: int = Field(16, ge=1, le=1024, description="Calls that run at once; others wait.")
    follow: bool = Field(
        False,
        description="Follow the cluster's nodes, and pods that are bound and do not run yet, for `nodeCacheCapable: "
        "true` and for plugins that bind.",
    )
    kubeconfig: Path | None = Field(None, description=_KUBECONFIG)

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("tls_cert and tls_key go together; give both, or none for plain HTTP")
        if self.client_ca and not self.tls_cert:
            raise ValueError("client_ca needs TLS; give tls_cert and tls_key, too")
        host = parse_address(self.listen)[0]
        if not (self.client_ca or host == "localhost" or host.startswith("127.") or host == "::1"):
            raise ValueError(
                f"listen = {self.listen!r} is reached by others, and whoever asks may have pods bound; give tls_cert, "
                "tls_key and client_ca, or listen on 127.0.0.1, where a kube-scheduler with hostNetwork reaches it"
            )
        return self


class NetworksSection(Model):
    """`[networks]`: its presence lets the daemon ask the API server which networks there are, and which pods want."""

    enabled: bool = Field(True, description="False keeps the section without anybody asking.")
    kubeconfig: Path | None = Field(None, description=_KUBECONFIG)
    patience: Seconds = Field(
        10.0, description="How long an ADD waits for what the API server has to say, before it fails with code 11."
    )
    objects: bool = Field(
        True,
        description="Follow objects `Network`, too, for which the cluster needs their CustomResourceDefinition.",
    )
    paths: tuple[Annotated[str, AfterValidator(check_absolute)], ...] = Field(
        NODE_PATHS,
        description="The paths of the node, each with all below it, that NetworkAttachmentDefinitions and objects "
        "`Network` may name, as in `ipam.resolvConf` and `dataDir`. It replaces the default. Plugins that are not "
        "bundled may have other keys for paths, which this does not know.",
    )


Part = Literal["labels", "annotations", "conditions", "events", "pods", "config-maps"]
"""What can be published."""


class ClusterSection(Model):
    """`[cluster]`: its presence lets the daemon say in the cluster's objects what this node has and lacks."""

    enabled: bool = Field(True, description="False keeps the section, and nothing is published.")
    kubeconfig: Path | None = Field(None, description=_KUBECONFIG)
    publish: tuple[Part, ...] = Field(
        ("labels", "annotations", "conditions", "events", "pods", "config-maps"),
        description="What: labels, annotations and conditions of the Node, events, annotations of pods, and ConfigMaps "
        "about the node.",
    )
    resync: Seconds = Field(300.0, description="How often it is looked whether the Node still has what was published.")


class DraSection(Model):
    """`[dra]`: how sections with `serve = "dra"` offer their devices to the cluster."""

    kubeconfig: Path | None = Field(None, description=_KUBECONFIG)
    cdi_dir: Path = Field(
        Path("/var/run/cdi"), description="Where the runtime reads CDI specs: there is one for each prepared claim."
    )
    taint: Literal["NoSchedule", "NoExecute", "None"] = Field(
        "NoSchedule",
        description="What an unhealthy device does: 'NoSchedule': it gets no new claims; 'NoExecute': pods that have "
        "it are evicted, too; 'None': it is told, and nothing else.",
    )
    order: Literal["listed", "most-free-first"] = Field(
        "listed",
        description="In which order the scheduler tries devices: 'listed': as the plugin lists them, which fills one "
        "after another; 'most-free-first': spreads claims over devices with parts.",
    )
