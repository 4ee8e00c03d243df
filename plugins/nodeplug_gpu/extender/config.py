"""The configuration of the scheduler extender.

Owns: the schema of `[plugins.gpu-extender.config]`.
Refuses: what kube-scheduler's own configuration says; docs/scheduler.md has both.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from nodeplug.fields import ExtendedResource, Seconds


class ExtenderConfig(BaseModel):
    """`[plugins.gpu-extender.config]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    extender: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=63)] = Field(
        "gpu-mem", description="The path in kube-scheduler's `urlPrefix`: http://127.0.0.1:9810/gpu-mem."
    )
    resource: ExtendedResource = Field("aliyun.com/gpu-mem", description="Whose units are placed, as pods ask for it.")
    score: Literal["binpack", "spread"] = Field(
        "binpack", description="Which nodes are liked: those where the card of the pod is full with it, or is empty."
    )
    look: Seconds = Field(
        5.0, description="How often pods are looked for at the API server that were bound and that no node has named."
    )
