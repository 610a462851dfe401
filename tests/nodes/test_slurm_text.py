"""What Slurm's commands print is read or refused, whatever it is."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.errors import InputError
from logdoctor.nodes.slurm import environment, expanded, nodes_in, run, words

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
        assert run(("/bin/sleep", "9"), {}).status is None

    def test_the_environment_of_commands(self) -> None:
        given = {"PATH": os.defpath, "SLURM_CONF": "/c", "SLURM_JOB_ID": "1", "SLURM_HOSTFILE": "h", "LOGDOCTOR_X": "s"}
        found = environment(given)
        assert found["PATH"] == os.defpath and found["SLURM_CONF"] == "/c" and found["LC_ALL"] == "C"
        assert not {"SLURM_JOB_ID", "SLURM_HOSTFILE", "LOGDOCTOR_X"} & set(found)
