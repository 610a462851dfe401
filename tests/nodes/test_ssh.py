"""Hosts are read, or refused, before anything is connected to."""

import asyncio
from pathlib import Path

import pytest

from logdoctor.errors import InputError, LaunchError
from logdoctor.nodes.launch.ssh import SshLauncher
from logdoctor.types.nodes import Node


def test_hosts_are_read(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.touch()

    async def found(launcher: SshLauncher, *names: str) -> list[Node]:
        return await launcher.inventory(names)

    hosts = ["gpu-1", "root@gpu-2", "gpu-3:2222", "n4=someone@10.0.0.4:22", "n5=[fd00::5]:22"]
    launcher = SshLauncher(hosts, config=config)
    assert [(node.name, node.address) for node in asyncio.run(found(launcher))] == [
        ("gpu-1", "gpu-1"),
        ("gpu-2", "gpu-2"),
        ("gpu-3", "gpu-3"),
        ("n4", "10.0.0.4"),
        ("n5", "fd00::5"),
    ]
    assert [node.name for node in asyncio.run(found(launcher, "n4", "gpu-1"))] == ["n4", "gpu-1"]
    with pytest.raises(LaunchError, match="gpu-9"):
        asyncio.run(found(launcher, "gpu-1", "gpu-9"))
    with pytest.raises(LaunchError, match="Name the nodes"):
        asyncio.run(found(SshLauncher(config=config)))
    with pytest.raises(InputError, match="not a valid node name"):
        asyncio.run(found(SshLauncher(config=config), "-oProxyCommand=reboot"))


@pytest.mark.parametrize(
    "host",
    ["", "a b", "gpu-1:0", "gpu-1:99999", "n1=", "n1=-x", "n1=-x@h", "@gpu", "-oProxyCommand=x@h", "a=b=c", "[::1]"],
)
def test_hosts_that_cannot_be_read(host: str) -> None:
    with pytest.raises((LaunchError, InputError)):
        SshLauncher([host])


def test_a_host_named_twice() -> None:
    with pytest.raises(LaunchError, match="named twice"):
        SshLauncher(["gpu-1", "root@gpu-1"])
