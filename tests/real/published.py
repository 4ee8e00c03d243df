"""Networks as distributions and guides publish them, literally: the text, and what it assumes of a node.

flannel's own plugin is none of ours. What it makes of its list and of flanneld's subnet.env is `delegated`: the
configuration with which it executes bridge (flannel-io/cni-plugin, flannel_linux.go).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Published:
    """One network.

    Attributes:
        text: as it stands there; a single plugin is one of a file `*.conf`.
        where: in which repository and file.
        links: of the host that it takes for granted.
    """

    text: str
    where: str
    links: tuple[str, ...] = ()

    @property
    def conflist(self) -> dict[str, Any]:
        """As a list, which libcni makes of a single plugin (ConfListFromConf)."""
        document: dict[str, Any] = json.loads(self.text)
        if "plugins" in document:
            return document
        head = {key: document[key] for key in ("cniVersion", "name")}
        return {**head, "plugins": [document]}


def delegated(conflist: Mapping[str, Any], network: str, subnet: str, mtu: int, *, masquerade: bool) -> dict[str, Any]:
    """Return the list in which flannel's plugin is replaced by what it executes."""
    first, *rest = conflist["plugins"]
    ipam = {"type": "host-local", "ranges": [[{"subnet": subnet}]], "routes": [{"dst": network}]}
    keys = {"ipMasq": not masquerade, "mtu": mtu, "isGateway": True, "ipam": ipam}
    return {**conflist, "plugins": [{"type": "bridge", **keys, **first["delegate"]}, *rest]}


FLANNEL = Published(
    """
    {
      "name": "cbr0",
      "cniVersion": "0.3.1",
      "plugins": [
        {
          "type": "flannel",
          "delegate": {
            "hairpinMode": true,
            "isDefaultGateway": true
          }
        },
        {
          "type": "portmap",
          "capabilities": {
            "portMappings": true
          }
        }
      ]
    }
    """,
    "flannel-io/flannel Documentation/kube-flannel.yml, which kubeadm's guide installs",
)
CRIO = Published(
    """
    {
      "cniVersion": "1.0.0",
      "name": "crio",
      "plugins": [
        {
          "type": "bridge",
          "bridge": "cni0",
          "isGateway": true,
          "ipMasq": true,
          "hairpinMode": true,
          "ipam": {
            "type": "host-local",
            "routes": [
                { "dst": "0.0.0.0/0" }
            ],
            "ranges": [
                [{ "subnet": "10.85.0.0/16" }]
            ]
          }
        }
      ]
    }
    """,
    "cri-o/cri-o contrib/cni/11-crio-ipv4-bridge.conflist",
)
CRIO_DUAL = Published(
    """
    {
      "cniVersion": "1.0.0",
      "name": "crio",
      "plugins": [
        {
          "type": "bridge",
          "bridge": "cni0",
          "isGateway": true,
          "ipMasq": true,
          "hairpinMode": true,
          "ipam": {
            "type": "host-local",
            "routes": [
                { "dst": "0.0.0.0/0" },
                { "dst": "::/0" }
            ],
            "ranges": [
                [{ "subnet": "10.85.0.0/16" }],
                [{ "subnet": "1100:200::/24" }]
            ]
          }
        }
      ]
    }
    """,
    "cri-o/cri-o contrib/cni/10-crio-bridge.conflist",
)
PODMAN = Published(
    """
    {
        "cniVersion": "0.4.0",
        "name": "podman",
        "plugins": [
          {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": true,
            "ipMasq": true,
            "ipam": {
                "type": "host-local",
                "subnet": "10.88.0.0/16",
                "routes": [
                    { "dst": "0.0.0.0/0" }
                ]
            }
          },
          {
            "type": "portmap",
            "capabilities": {
              "portMappings": true
            }
          },
          {
            "type": "firewall",
            "backend": "iptables"
          }
        ]
    }
    """,
    "containers/podman cni/87-podman-bridge.conflist",
)
NERDCTL = Published(
    """
    {
      "cniVersion": "1.0.0",
      "name": "bridge",
      "nerdctlID": "17f29b073143d8cd97b5bbe492bdeffec1c5fee55cc1fe2112c8b9335f8b6121",
      "nerdctlLabels": {
        "nerdctl/default-network": "true"
      },
      "plugins": [
        {
          "type": "bridge",
          "bridge": "nerdctl0",
          "isGateway": true,
          "ipMasq": true,
          "hairpinMode": true,
          "ipam": {
            "ranges": [
              [
                {
                  "gateway": "10.4.0.1",
                  "subnet": "10.4.0.0/24"
                }
              ]
            ],
            "routes": [
              {
                "dst": "0.0.0.0/0"
              }
            ],
            "type": "host-local"
          }
        },
        {
          "type": "portmap",
          "capabilities": {
            "portMappings": true
          }
        },
        {
          "type": "firewall",
          "ingressPolicy": "same-bridge"
        },
        {
          "type": "tuning"
        }
      ]
    }
    """,
    "containerd/nerdctl, as pkg/netutil writes the default network",
)
MINIKUBE = Published(
    """
    {
      "cniVersion": "0.4.0",
      "name": "bridge",
      "plugins": [
        {
          "type": "bridge",
          "bridge": "bridge",
          "addIf": "true",
          "isDefaultGateway": true,
          "forceAddress": false,
          "ipMasq": true,
          "hairpinMode": true,
          "ipam": {
              "type": "host-local",
              "subnet": "10.244.0.0/16"
          }
        },
        {
          "type": "portmap",
          "capabilities": {
              "portMappings": true
          }
        },
        {
           "type": "firewall"
        }
      ]
    }
    """,
    "kubernetes/minikube pkg/minikube/cni/bridge.go, with its default of PodCIDR",
)
KUBEVIRT = Published(
    """
    {
      "cniVersion": "0.3.1",
      "name": "a-bridge-network",
      "plugins": [
        {
          "type": "cnv-bridge",
          "bridge": "br0"
        },
        {
          "type": "cnv-tuning"
        }
      ]
    }
    """,
    "KubeVirt's guide of OpenShift: a bridge of the node for virtual machines",
    ("br0",),
)
MULTUS = Published(
    """
    {
      "cniVersion": "0.3.0",
      "name": "macvlan-conf",
      "type": "macvlan",
      "master": "eth0",
      "mode": "bridge",
      "ipam": {
        "type": "host-local",
        "subnet": "192.168.1.0/24",
        "rangeStart": "192.168.1.200",
        "rangeEnd": "192.168.1.216",
        "routes": [
          { "dst": "0.0.0.0/0" }
        ],
        "gateway": "192.168.1.1"
      }
    }
    """,
    "k8snetworkplumbingwg/multus-cni docs/quickstart.md; multus adds the name of the definition",
    ("eth0",),
)
NETWORKS: Mapping[str, Published] = {
    "flannel": FLANNEL,
    "crio": CRIO,
    "crio-dual-stack": CRIO_DUAL,
    "podman": PODMAN,
    "nerdctl": NERDCTL,
    "minikube": MINIKUBE,
    "kubevirt": KUBEVIRT,
    "multus": MULTUS,
}
