"""Settings become launchers and cordoners, or an error that names the setting."""

from pathlib import Path

import pytest

from logdoctor.errors import InputError, LaunchError, SettingsError
from logdoctor.settings import Settings
from logdoctor.types.nodes import Node
from logdoctor.wiring.nodes import _hosts, _pod_options, actor, launcher


def test_hosts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# ours\ngpu-1 root@m1:22 10.0.0.1 leaf1\ngpu-2\n\ngpu-3 m3  # slow\n")
    hosts, nodes = _hosts(path)
    assert hosts == ["gpu-1=root@m1:22", "gpu-2=gpu-2", "gpu-3=m3"]
    assert nodes == [Node("gpu-1", "10.0.0.1", "leaf1"), Node("gpu-2"), Node("gpu-3")]
    assert launcher(Settings(ssh_hosts=path), "ssh").name == "ssh"
    with pytest.raises(InputError, match="not a hosts file"):
        _hosts(tmp_path / "none")
    path.write_text("-oProxyCommand=x\n")
    with pytest.raises(InputError, match="not a valid node name"):
        _hosts(path)


def test_options_of_pods() -> None:
    found = _pod_options("shared_memory=16Gi, capability=IPC_LOCK,capability=SYS_NICE,privileged=true,pull_secret=a")
    assert found == {
        "shared_memory": "16Gi",
        "capabilities": ("IPC_LOCK", "SYS_NICE"),
        "privileged": True,
        "pull_secrets": ("a",),
    }
    for text in ("colour=red", "privileged=perhaps", "shared_memory"):
        with pytest.raises(SettingsError, match="KUBE_POD"):
            _pod_options(text)
    settings = Settings(kube_image="torch", kube_pod="runtime_class=nvidia", kube_selector="gpu=true")
    assert launcher(settings, "kubernetes").name == "kubernetes"


def test_what_is_not_set_is_named() -> None:
    with pytest.raises(LaunchError, match="KUBE_IMAGE"):
        launcher(Settings(), "kubernetes")
    with pytest.raises(LaunchError, match="pigeon"):
        launcher(Settings(), "pigeon")


@pytest.mark.parametrize(
    "settings",
    [
        Settings(test_floors="H100=fast"),
        Settings(test_floors="H100"),
        Settings(test_sizes="a"),
        Settings(test_env="NCCL"),
        Settings(slurm_options='"unclosed'),
        Settings(cordon_with="file"),
    ],
)
def test_bad_settings_are_named(settings: Settings, tmp_path: Path) -> None:
    from msgspec.structs import replace

    with pytest.raises(SettingsError, match="LOGDOCTOR_"):
        actor(replace(settings, data_dir=tmp_path))
