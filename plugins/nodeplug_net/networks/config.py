"""The configuration of `networks`: the section, and the keys of a network, which are those of multus where it has them.

Owns: defaults and types.
Refuses: files and objects.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from nodeplug import CniRequest, InvalidRequest
from nodeplug.fields import CniExecutable

ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
"""The capability by which containerd and CRI-O pass a pod's annotations on."""


class NetworksConfig(BaseModel):
    """`[plugins.networks.config]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: tuple[CniExecutable, ...] = Field(
        ("nodeplug-networks",), description="executables on CNI_PATH; add 'multus' to serve its configurations"
    )
    conf_dir: Path = Field(
        Path("/etc/cni/net.d"),
        description="where configurations are looked for by the name of their network, unless one has `confDir`",
    )


class _Conf(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, strict=True, frozen=True)


class NetworksConf(_Conf):
    """The keys of a network's configuration."""

    cluster_network: str = ""
    delegates: list[dict[str, Any]] = []
    default_networks: list[str] = []
    system_namespaces: list[str] = ["kube-system"]
    multus_namespace: str = "kube-system"
    namespace_isolation: bool = False
    global_namespaces: str = "default"
    conf_dir: str = ""
    runtime_config: Any = None

    @property
    def runtime(self) -> Mapping[str, Any]:
        """Capability arguments of the runtime."""
        return self.runtime_config if isinstance(self.runtime_config, dict) else {}


def parse_conf(request: CniRequest) -> NetworksConf:
    """Read the configuration of a request.

    Raises:
        InvalidRequest: it is wrong, or does not say which network every pod has.
    """
    conf = request.parse(NetworksConf)
    if bool(conf.cluster_network) == bool(conf.delegates) or len(conf.delegates) > 1:
        raise InvalidRequest(
            "which network every pod has must be said once: by clusterNetwork, the name of a configuration on the node "
            "or of a NetworkAttachmentDefinition, or by delegates, with one configuration"
        )
    return conf
