"""The CNI family: interfaces of containers, what is done to them, and their addresses.

bridge, ptp, macvlan, host-device, tap, ipvlan, vlan, dummy, loopback, portmap, tuning, firewall, and the IPAM of
host-local and static.
"""

from pathlib import Path
from typing import Final

DATA_DIR: Final = Path("/var/lib/cni/networks")
"""Where host-local of the reference reserves addresses, and ours."""
