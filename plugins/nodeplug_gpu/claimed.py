"""What a configuration means where the devices are allocated by claims, not by kubelet's device plugins.

Owns: which keys mean something else there, and what.
Refuses: to refuse any: a section moves between the two by one word, and back.
"""

from nodeplug_gpu.config import GpuConfig, Memory, Resource


def for_claims(config: GpuConfig) -> GpuConfig:
    """Return a configuration as it is served by claims.

    No unit is withheld: the scheduler knows the cards, and promises none twice. CDI names go into the answer, which has
    no annotations. Nothing is written for gpushare's programs: they would share out what they do not allocate.
    """
    resources = tuple(_for_claims(entry) for entry in config.resources)
    return config.model_copy(update={"resources": resources, "gpushare": False})


def _for_claims(entry: Resource) -> Resource:
    if entry.access.cdi == "annotation":
        entry = entry.model_copy(update={"access": entry.access.model_copy(update={"cdi": "field"})})
    return entry.model_copy(update={"withhold": "never"}) if isinstance(entry, Memory) else entry
