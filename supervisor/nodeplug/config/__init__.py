"""The configuration: its models, reading its files, and noticing changes.

Owns: what other packages may import from here.
Refuses: defaults for a plugin's own section (its class validates that), and any look at the node.
"""

from nodeplug.config.models import (
    ClusterSection,
    Configuration,
    DraSection,
    ExtenderSection,
    NetworksSection,
    Paths,
    PluginSection,
    ProvisionerSection,
    Supervisor,
    node_name,
    parse_address,
)
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
