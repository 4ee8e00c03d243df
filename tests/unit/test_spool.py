"""Deferred DELs whose folder is looked at by several at once."""

import asyncio
from pathlib import Path

from nodeplug.cni.spool import Spool
from nodeplug.exec.frame import Frame, Reply

DEL = Frame(
    "cni",
    "/opt/cni/bin/test",
    env={"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", "CNI_PATH": "/opt/cni/bin"},
    stdin=b'{"cniVersion": "1.0.0", "name": "net", "type": "test"}',
)


def test_a_look_that_began_before_a_del_was_known_does_not_replay_it_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    (tmp_path / "1.frame").write_bytes(DEL.encode())
    served = []

    async def serve(frame: Frame) -> Reply:
        served.append(frame)
        return Reply()

    async def story() -> None:
        await asyncio.gather(*(spool.replay(serve) for _ in range(3)))

    asyncio.run(story())
    assert served == [DEL]
    assert list(tmp_path.iterdir()) == []
