"""What Slurm's commands print is read or refused, whatever it is."""

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.errors import InputError, LaunchError
from logdoctor.nodes.launch.slurm import SlurmLauncher, _answers, _exits, _Parted, _SrunOutput
from logdoctor.nodes.launching import LaunchTask, ProbeOptions
from logdoctor.nodes.slurm import environment, expanded, nodes_in, run, words
from logdoctor.types.nodes import Node, World

SHOWN = """\
NodeName=gpu-12 Arch=x86_64 CoresPerSocket=1 
   Gres=gpu:a100:8(S:0-1),nic:2
   NodeAddr=10.0.0.12 NodeHostName=gpu-12 Port=6818 Version=22.05.8
   OS=Linux 6.1 NodeAddr=10.9.9.9 State=IDLE
   State=DOWN*+DRAIN+MAINTENANCE ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Comment=it was State=IDLE NodeName=gpu-13
   Reason=fans [left] State=IDLE [root@2026-11-21T18:24:52]
          NodeName=gpu-14 X
             State=IDLE

NodeName=gpu-13 CoresPerSocket=1 
   Gres=gpu:8
   NodeHostName=gpu-13-host
   State=IDLE ThreadsPerCore=1

"""


class TestNodes:
    def test_as_shown(self) -> None:
        first, second = nodes_in(SHOWN)
        assert (first.name, first.address, first.gpu) == ("gpu-12", "10.0.0.12", "a100")
        assert first.states == {"DOWN", "DRAIN", "MAINTENANCE"} and first.raw == "DOWN*+DRAIN+MAINTENANCE"
        assert first.reason == "fans [left] State=IDLE"
        assert (second.name, second.address, second.gpu) == ("gpu-13", "gpu-13-host", "")
        assert second.states == {"IDLE"} and second.reason == ""

    @given(st.text() | st.text("NodeName=State \n[]@"))
    def test_any_text(self, text: str) -> None:
        assert len(nodes_in(text)) == sum(line.startswith("NodeName=") for line in text.split("\n"))

    @given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=200))
    def test_no_reason_becomes_another_field(self, reason: str) -> None:
        (node,) = nodes_in(f"NodeName=n1\n   State=IDLE+DRAIN X=1\n   Reason={reason} [me@2026-11-21T18:24:52]\n")
        assert node.reason == reason and node.states == {"IDLE", "DRAIN"} and node.address == "n1"

    def test_words(self) -> None:
        assert words("idle*+drain$") == {"IDLE", "DRAIN"}
        assert words("") == frozenset()


class TestHostlists:
    @pytest.mark.parametrize(
        ("hostlist", "names"),
        [
            ("n2,n10,n1", ["n2", "n10", "n1"]),
            ("gpu[08-10],login", ["gpu08", "gpu09", "gpu10", "login"]),
            ("r[1-2]n[1,3]-ib", ["r1n1-ib", "r1n3-ib", "r2n1-ib", "r2n3-ib"]),
            ("", []),
        ],
    )
    def test_names_in_order(self, hostlist: str, names: list[str]) -> None:
        assert expanded(hostlist) == names

    @pytest.mark.parametrize(
        "hostlist",
        [
            "n[",
            "n[1-2",
            "n]",
            "n[a-b]",
            "n[2-1]",
            "@all",
            "*",
            "n[1-9/2]",
            "n1 n2",
            "n[1-70000]",
            "n[]",
            "n[1-2-3-4-5]",
        ],
    )
    def test_what_is_none(self, hostlist: str) -> None:
        with pytest.raises(InputError):
            expanded(hostlist)

    @given(st.text("n019[]-,.") | st.text())
    def test_any_text(self, hostlist: str) -> None:
        try:
            names = expanded(hostlist)
        except InputError:
            return
        assert len(names) <= 65_536 and all(isinstance(name, str) for name in names)


class TestRun:
    def test_what_it_prints_and_its_complaint(self) -> None:
        ran = run(("/bin/sh", "-c", "echo out; echo one >&2; echo two >&2; exit 3"), {})
        assert (ran.status, ran.output, ran.complaint) == (3, "out\n", "one; two")

    def test_a_command_that_is_not_there(self) -> None:
        assert run(("scontrol",), {"PATH": "/nowhere"}).status == 127

    def test_one_that_does_not_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("logdoctor.nodes.slurm._COMMAND_SECONDS", 0.2)
        assert run(("/bin/sleep", "infinity"), {}).status is None

    def test_the_environment_of_commands(self) -> None:
        given = {"PATH": os.defpath, "SLURM_CONF": "/c", "SLURM_JOB_ID": "1", "SLURM_HOSTFILE": "h", "LOGDOCTOR_X": "s"}
        found = environment(given)
        assert found["PATH"] == os.defpath and found["SLURM_CONF"] == "/c" and found["LC_ALL"] == "C"
        assert not {"SLURM_JOB_ID", "SLURM_HOSTFILE", "LOGDOCTOR_X"} & set(found)


def task(*names: str) -> LaunchTask:
    """A world of these nodes."""
    nodes = tuple(Node(name, "127.0.0.1") for name in names)
    return LaunchTask("t1", World(1, 1, names, "a test"), nodes, 1, ProbeOptions())


class TestTheLauncher:
    """What it says without Slurm."""

    def test_an_allocation_is_a_number(self) -> None:
        with pytest.raises(LaunchError, match="not a job id"):
            SlurmLauncher({}, allocation="--reboot")

    def test_names_of_tests_are_checked(self) -> None:
        with pytest.raises(LaunchError, match="cannot be part of a job's name"):
            asyncio.run(SlurmLauncher({}).sweep("t1 --user=root"))

    @pytest.mark.parametrize("name", ["--uid=0", "n1,n2", "n[1-6]", "/etc/passwd", "n1 n2", ""])
    def test_names_are_checked_before_they_reach_a_command(self, name: str) -> None:
        with pytest.raises(InputError, match="not a valid node name"):
            asyncio.run(SlurmLauncher({"PATH": "/nowhere"}).run(task(name)))

    def test_no_scontrol_and_no_srun(self) -> None:
        launcher = SlurmLauncher({"PATH": "/nowhere"})
        with pytest.raises(LaunchError, match=r"scontrol: No such file"):
            asyncio.run(launcher.inventory([]))
        with pytest.raises(LaunchError, match="srun cannot be started"):
            asyncio.run(launcher.run(task("n1", "n2")))

    def test_a_slurm_that_stops_answering_in_the_middle(self, tmp_path: Path) -> None:
        """No node is blamed for it, and none is said to be unknown."""
        away = "slurm_load_node error: Unable to contact slurm controller (connect failure)"
        for name in ("srun", "scontrol"):
            (tmp_path / name).write_text(f"#!/bin/sh\necho '{away}' >&2\nexit 1\n")
            (tmp_path / name).chmod(0o755)
        with pytest.raises(LaunchError, match=r"scontrol: .*Unable to contact slurm controller"):
            asyncio.run(SlurmLauncher({"PATH": f"{tmp_path}:{os.defpath}"}).run(task("n1", "n2")))


class TestWhatSrunPrints:
    """Pure: hostile output cannot break it or go to another node."""

    @given(st.dictionaries(st.integers(0, 2), st.lists(st.binary(max_size=3000).map(lambda b: b.replace(b"\n", b"")))))
    def test_lines_go_to_their_task_and_are_whole(self, printed: dict[int, list[bytes]]) -> None:
        stream = asyncio.StreamReader
        labelled = b"".join(_as_srun(task, line) for task, lines in printed.items() for line in lines)

        async def parted() -> dict[int, bytes]:
            reader, parts = stream(), _Parted(3)
            reader.feed_data(labelled)
            reader.feed_eof()
            await parts.read(reader)
            return parts.whole()

        assert asyncio.run(parted()) == {
            task: b"".join(line + b"\n" for line in printed.get(task, [])) for task in range(3)
        }

    @given(st.binary(max_size=2000))
    def test_any_bytes(self, data: bytes) -> None:
        async def parted() -> _Parted:
            reader, parts = asyncio.StreamReader(), _Parted(2)
            reader.feed_data(data)
            reader.feed_eof()
            await parts.read(reader)
            return parts

        parts = asyncio.run(parted())
        assert sum(map(len, parts.whole().values())) + len(parts.unlabelled().encode()) <= 3 * len(data) + 1

    @given(
        st.dictionaries(st.sampled_from([0, 1]), st.binary(max_size=200) | st.just(b"logdoctor-probe started n5\n")),
        st.text(max_size=300) | st.just("srun: error: n5: tasks 0-999999999: Exited with exit code 7\n"),
        st.none() | st.integers(0, 255),
    )
    def test_one_answer_for_each_node_in_order(self, told: dict[int, bytes], said: str, status: int | None) -> None:
        errors = {0: told.get(0, b""), 1: told.get(1, b"")}
        answers = _answers(task("n5", "n2"), _SrunOutput({0: b"a", 1: b"b"}, errors, said, status))
        assert [answer.node for answer in answers] == ["n5", "n2"]
        assert sorted(answer.output for answer in answers) == [b"a", b"b"]

    def test_how_tasks_ended(self) -> None:
        said = (
            "srun: error: n1: task 0: Exited with exit code 3\nsrun: error: n2: tasks 1,3-4: Killed\n"
            "srun: error: n9: tasks 7-5: Exited with exit code 1\n"
        )
        assert _exits(said) == {0: ("n1", 3), 1: ("n2", None), 3: ("n2", None), 4: ("n2", None)}


def _as_srun(task: int, line: bytes) -> bytes:
    """A line as `srun --label` prints it: cut after 1024 bytes of text and line break."""
    whole = line + b"\n"
    pieces = [whole[start : start + 1024] for start in range(0, len(whole), 1024)]
    return b"".join(f"{task}: ".encode() + piece + (b"" if piece.endswith(b"\n") else b"\n") for piece in pieces)
