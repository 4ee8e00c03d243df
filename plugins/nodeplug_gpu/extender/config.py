"""The configuration of the scheduler extender.

Owns: the schema of `[plugins.gpu-extender.config]`.
Refuses: what kube-scheduler's own configuration says; docs/scheduler.md has both.
"""

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from nodeplug.fields import ExtendedResource, Seconds

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ApiServer(_Model):
    """How the API server is reached, for `bind` and `preempt`. In a pod, its ServiceAccount is the default."""

    server: Annotated[str, StringConstraints(pattern=r"^(https://[^/?#\s]+)?$")] = Field(
        "", description="Such as https://10.0.0.1:6443; empty in a pod: from its environment."
    )
    token: Path | None = Field(
        None, description="A file with a bearer token, read for each request; in a pod, its account's by default."
    )
    ca: Path = Field(_ACCOUNT / "ca.crt", description="A file with the authority of the server's certificate.")
    certificate: Path | None = Field(
        None, description="A file with a client certificate, beside or instead of a token."
    )
    key: Path | None = Field(None, description="The file with its key.")
    look: Seconds = Field(10.0, description="How often pods are read that are bound and not running yet.")

    @property
    def token_file(self) -> Path | None:
        """Where the token is: without a token and a certificate, that of the pod's ServiceAccount."""
        return _ACCOUNT / "token" if self.token is None and self.certificate is None else self.token

    @model_validator(mode="after")
    def _pair(self) -> "ApiServer":
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key belong together; give both, or neither")
        return self


class ExtenderConfig(_Model):
    """`[plugins.gpu-extender.config]`."""

    extender: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$", max_length=63)] = Field(
        "gpu-mem", description="The path in kube-scheduler's `urlPrefix`: http://127.0.0.1:9810/gpu-mem."
    )
    resource: ExtendedResource = Field("aliyun.com/gpu-mem", description="Whose units are placed, as pods ask for it.")
    score: Literal["binpack", "spread"] = Field(
        "binpack", description="Which nodes are liked: those where the card of the pod is full with it, or is empty."
    )
    api: ApiServer | None = Field(None, description="The API server; without it there is no `bind` and no `preempt`.")
