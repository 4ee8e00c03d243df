"""The objects that tell the scheduler how much room this node has."""

import asyncio

from tests.unit.kubeapi.scripted import Answer, Scripted, listed, respond

from nodeplug.kubeapi.followed import Followed
from nodeplug.kubeapi.resources import STORAGE_CLASSES
from nodeplug.provisioner.capacity import Capacity


def test_objects_of_before_stay_until_it_is_known_which_classes_there_are() -> None:
    async def story() -> tuple[list[str], list[str]]:
        soon = asyncio.Event()
        answers: list[Answer] = [listed("old"), respond(200, {})]
        async with Scripted(answers) as server, server.client() as client:
            classes = Followed(client, STORAGE_CLASSES, lambda _: True)
            capacity = Capacity(client, dict, "node-1", "kube-system", classes, soon)
            keeping = asyncio.create_task(capacity.keep(0.001))
            for _ in range(20):  # as many looks
                soon.set()
                await asyncio.sleep(0.005)
            early = [one.line for one in server.asked]
            classes.known = True
            soon.set()
            while len(server.asked) < 2:
                await asyncio.sleep(0.001)
            keeping.cancel()
            return early, [one.line.partition("?")[0] for one in server.asked]

    early, asked = asyncio.run(asyncio.wait_for(story(), 30))
    assert early == []
    folder = "/apis/storage.k8s.io/v1/namespaces/kube-system/csistoragecapacities"
    assert [one.removesuffix(" HTTP/1.1") for one in asked] == [f"GET {folder}", f"DELETE {folder}/old"]
