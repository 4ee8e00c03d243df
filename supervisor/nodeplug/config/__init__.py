"""The configuration: its models, reading its files, and noticing changes.

Owns: what other packages may import from here.
Refuses: defaults for a plugin's own section (its class validates that), and any look at the node.
"""

from nodeplug.config.cluster_tables import (
    ClusterSection,
    DraSection,
    ExtenderSection,
    NetworksSection,
    ProvisionerSection,
)
from nodeplug.config.keys import parse_address
from nodeplug.config.models import Configuration, Paths, PluginSection, Supervisor, node_name
from nodeplug.config.reading import ConfigError, Fault, Reading, load, load_drop_in, read

__all__ = [
    "ClusterSection",
    "ConfigError",
    "Configuration",
    "DraSection",
    "ExtenderSection",
    "Fault",
    "NetworksSection",
    "Paths",
    "PluginSection",
    "ProvisionerSection",
    "Reading",
    "Supervisor",
    "load",
    "load_drop_in",
    "node_name",
    "parse_address",
    "read",
]
