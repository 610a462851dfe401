import random

from eval.replay.vary import Variation, traits

LOG = """\
2025-03-04 10:00:00,123 gpu-17 starts, master 10.1.2.3:29500, pid 123456
gpu-17:4242:4242 [0] NCCL INFO Using network IB
2025-03-05 09:30:00,456 loss 2.34567 Timeout(ms)=1800000 at 0xdeadbeef01
[rank17]: ValueError: world gpu-18 has 10.1.2.3
Mar  5 09:30:01 gpu-18 kernel: NVRM: Xid (PCI:0000:0f:00): 79, pid=123456, GPU has fallen off the bus.
E0305 09:30:02.000123 4242 api.py:869] failed (exitcode: 1)
[rank8]: bye
"""


def _varied(seed: int) -> list[str]:
    return Variation(random.Random(seed), traits(LOG)).text(LOG).split("\n")


def test_lines_stay_lines_and_their_words_stay() -> None:
    for seed in range(20):
        lines = _varied(seed)
        assert len(lines) == LOG.count("\n") + 1
        assert "Xid (PCI:0000:0f:00): 79," in lines[4]
        assert "Timeout(ms)=1800000" in lines[2]
        assert lines[5].endswith("failed (exitcode: 1)")
        assert "ValueError: world" in lines[3]


def test_what_is_the_same_stays_the_same() -> None:
    for seed in range(20):
        lines = _varied(seed)
        host = lines[1].split(":")[0]
        assert host in lines[0] and host != "gpu-17"
        assert lines[3].split()[3] == lines[4].split()[3] != host
        assert lines[0].split("master ")[1].split(":")[0] == lines[3].split()[-1] != "10.1.2.3"
        assert lines[0].split()[-1] == lines[4].split("pid=")[1].split(",")[0] != "123456"


def test_days_and_times_move_together() -> None:
    for seed in range(20):
        lines = _varied(seed)
        day = int(lines[0][8:10])
        assert int(lines[2][8:10]) == int(lines[4][4:6]) == int(lines[5][3:5]) == day + 1
        assert _seconds(lines[2][11:19]) + 1 == _seconds(lines[4][7:15]) == _seconds(lines[5][6:14]) - 1


def test_ranks_move_with_their_node_and_keep_their_gpu() -> None:
    ranks = {tuple(int(_varied(seed)[n].split("]")[0][5:]) for n in (3, 6)) for seed in range(20)}
    assert len(ranks) > 1
    assert all(one % 8 == 1 and other % 8 == 0 and one // 8 != other // 8 for one, other in ranks)


def _seconds(clock: str) -> int:
    hours, minutes, seconds = map(int, clock.split(":"))
    return 3600 * hours + 60 * minutes + seconds
