"""Host names and addresses are found where logs have them, and nothing else is taken for one."""

import pytest

from logdoctor.llm.masking import Masker

HOSTS = {
    "0: gpu-cn-0713: RuntimeError: boo": "0: <host-1>: RuntimeError: boo",
    "[pod/train-worker-7] started": "[pod/<host-1>] started",
    "gpu-cn-0713: RuntimeError on gpu-cn-0713, not gpu-cn-07130": (
        "<host-1>: RuntimeError on <host-1>, not gpu-cn-07130"
    ),
    "node: gpu-cn-0713": "node: <host-1>",
    "  host      : q9.cluster": "  host      : <host-1>",
    "host=ip-10-1-44-77 port=1": "host=<host-1> port=1",
    "HOSTNAME=frontier": "HOSTNAME=<host-1>",
    "'node_name': 'frontier'": "'node_name': '<host-1>'",
    "MASTER_ADDR=trn-head-0": "MASTER_ADDR=<host-1>",
    "srun: error: learnfair5121: task 3: Exited with exit code 1": (
        "srun: error: <host-1>: task 3: Exited with exit code 1"
    ),
    "srun: error: gpu[1-4],gpu9: tasks 0-3: Killed": "srun: error: gpu[1-4],gpu9: tasks 0-3: Killed",
    "*** STEP 123.0 ON nid001234 CANCELLED AT 2024": "*** STEP 123.0 ON <host-1> CANCELLED AT 2024",
    "frontier:1234:5678 [0] NCCL INFO": "<host-1>:1234:5678 [0] NCCL INFO",
    "remote peer SH-IDC1-10-140-1-108<50636>": "remote peer <host-1><50636>",
    "Mar  2 11:08:47 dgx-07 kernel: NVRM": "Mar  2 11:08:47 <host-1> kernel: NVRM",
    "2024-03-02 11:40:01 gpu-17 kernel: NVRM: Xid": "2024-03-02 11:40:01 <host-1> kernel: NVRM: Xid",
    "[2024-03-02 11:40:01,123] gpu-17 nv-hostengine: x": "[2024-03-02 11:40:01,123] <host-1> nv-hostengine: x",
    "Mar  2 11:40:01 gpu-17 train.sh[12]: x": "Mar  2 11:40:01 <host-1> train.sh[12]: x",
    "dgx-07 kern: NVRM": "<host-1> kern: NVRM",
    "tcp://trn-head-0:29400": "tcp://<host-1>:29400",
    "connect to trn-head-0:29400 failed": "connect to <host-1>:29400 failed",
    "lost gpu-cn-[0713-0720,0722].": "lost <host-1>.",
    "https://gitlab.uni.example.de/x": "https://<host-1>/x",
    "see login1.hpc.uni.edu.": "see <host-1>.",
    "node gpu-11, gpu-11.cluster.local and gpu-12.cluster.local": ("node <host-1>, <host-1>.<host-2> and <host-3>"),
    "node12: x on node12": "<host-1>: x on <host-1>",
    "taurus and taurus_3 and Taurus": "<host-1> and <host-1>_3 and Taurus",
}
OTHERS = [
    "[rank3]: worker3 mlx5_0 A100 sm_90 bf16 H100 step12: x loss1: 3 epoch12: 4 cuda:0 layers[0-3]",
    "host memory 3 nodes, node 3, host 12, node_rank: 3, nodes: 4, localhost:29500, server started",
    "torch.cuda.OutOfMemoryError in torch/nn/modules/module.py:1234 of model.layers.0.weight (train.py)",
    "https://github.com/x https://pytorch.org/docs https://huggingface.co/m",
    "2024-03-02 11:08:47 tensor[0, 1] x[12] a[0-3] v2.1.0 libc.so.6 checkpoint-500:10",
    "11:08:47 INFO trainer[12]: x 11:08:47 rank3 trainer[12]: x 11:08:47 step12 trainer[12]: x",
]


@pytest.mark.parametrize("line", HOSTS)
def test_a_host_is_hidden(line: str) -> None:
    masker = Masker(hosts=True, names=["taurus"])
    assert masker.mask(line) == HOSTS[line]
    assert masker.unmask(HOSTS[line]) == line
    assert Masker().mask(line) == line, "only when it is wanted"


@pytest.mark.parametrize("line", OTHERS)
def test_what_is_no_host_stays(line: str) -> None:
    assert Masker(hosts=True, names=["localhost", "rank3", "", "-"]).mask(line) == line


def test_a_host_is_known_from_then_on() -> None:
    masker = Masker(hosts=True)
    assert masker.mask("lost contact with nid007") == "lost contact with nid007"
    masker.mask("node: nid007")
    assert masker.mask("lost contact with nid007") == "lost contact with <host-1>"


ADDRESSES = {
    "10.1.2.3:29500": "<ip-1>:29500",
    "[::ffff:10.1.2.3]:29500": "[::ffff:<ip-1>]:29500",
    "(pid=1, ip=10.0.0.7) hello": "(pid=1, ip=<ip-1>) hello",
    "fe80::1:2 and fe80:0000:0000:0000:506b:4b03:005c:1234": "<ip-1> and <ip-2>",
    "from 10.1.2.3.": "from <ip-1>.",
}
NO_ADDRESSES = [
    "127.0.0.1 0.0.0.0 ::1 1.2.3 1.2.3.4.5 999.1.1.1 11:08:47 0000:3b:00.0 aa:bb:cc:dd:ee:ff std::vector a::b ::"
]


@pytest.mark.parametrize("line", ADDRESSES)
def test_an_address_is_hidden(line: str) -> None:
    masker = Masker(ips=True)
    assert masker.mask(line) == ADDRESSES[line] and masker.unmask(ADDRESSES[line]) == line
    assert Masker(hosts=True).mask(line) == line == Masker().mask(line)


@pytest.mark.parametrize("line", NO_ADDRESSES)
def test_what_is_no_address_stays(line: str) -> None:
    assert Masker(ips=True).mask(line) == line


@pytest.mark.parametrize("name", ["gpu-17", "gpu3", "gpu_1", "worker3", "7node", "10-1-2", "my_host_1", "a.b", "eth0x"])
def test_any_name_that_is_given_is_hidden(name: str) -> None:
    masker = Masker(hosts=True, names=[name])
    line = f"a {name}: ({name}) {name}:29500 /var/{name}/x {name}.log {name}_3 {name}-ib1, not x{name} nor {name}9"
    masked = masker.mask(line)
    assert masked.count("<host-1>") == 7 and masked.endswith(f", not x{name} nor {name}9")
    assert masker.unmask(masked) == line
    assert Masker(hosts=True).mask(f"x {name} y") == f"x {name} y", "only when it is given"
