"""Requests on their way to a worker: what has no descriptor crosses as a text."""

from nodeplug import CniAdd, Netns
from nodeplug.worker import encoding
from nodeplug.worker.wire import Message


def test_a_namespace_that_nobody_opened_crosses_as_its_path() -> None:
    here = Netns.current()
    try:
        request = CniAdd(
            claim="ipam",
            network="net",
            version="1.0.0",
            config={"name": "net"},
            host_netns=here,
            container_id="c1",
            ifname="eth0",
            args={"IP": "10.0.0.2"},
            args_text="IP=10.0.0.2;none",
            netns=Netns.unopened("/dev/null"),
        )
        descriptors: list[int] = []
        body = encoding.write_request("cni_add", request, descriptors)
        read = encoding.read_request("cni_add", Message({"op": "call"}, body, descriptors))
    finally:
        here.close()
    assert descriptors == [here.fd]
    assert read == request
    assert (read.netns.path, read.netns.is_open) == ("/dev/null", False)
