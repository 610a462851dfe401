"""Messages are read out of sources as programs print them, and held against the rules; on sources of our own."""

import json
import struct
from pathlib import Path

from click.testing import CliRunner

from eval.commands import measure
from eval.harvest import codes, nccl, pytorch, ucx
from eval.harvest.messages import Message, coverage
from logdoctor.rules.scanner import Scanner
from tests.harvest.test_readers import C_SOURCE


def test_warnings_stand_behind_the_prefix_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "src" / "misc").mkdir(parents=True)
    (tmp_path / "src" / "misc" / "demo.cc").write_text(C_SOURCE)
    texts = [message.text for message in nccl.warnings("NCCL", tmp_path)]
    assert "gpu-07:4182:4417 [3] misc/demo.cc:183 NCCL WARN Two lines of rank 3 at 10.1.2.3<40121>" in texts
    assert "gpu-07:4182:4417 [3] misc/demo.cc:183 NCCL WARN Call to connect failed : Connection timed out" in texts


def test_pieces_come_from_the_parts_of_a_library_that_a_family_shares(tmp_path: Path) -> None:
    other = [f"Nothing of interest stands here number {number}" for number in range(40)]
    ours = [f"ProcessGroup of rank {number} has gone away" for number in range(6)]
    (tmp_path / "libtorch_cpu.so").write_bytes(b"\0".join(text.encode() for text in (*other, *ours, *other)))
    texts = [message.text for message in pytorch.pieces("c10d of PyTorch", tmp_path)]
    assert len(texts) == 6 and all("has gone away" in text for text in texts)


def test_read_only_data_is_a_section_of_an_elf_file(tmp_path: Path) -> None:
    header = bytearray(64)
    header[:5] = b"\x7fELF\x02"
    names, data = b"\0.rodata\0.shstrtab\0", b"what it says"
    struct.pack_into("<Q", header, 40, 64 + len(names) + len(data))
    struct.pack_into("<HHH", header, 58, 64, 2, 1)
    sections = bytearray(128)
    struct.pack_into("<IIQQQQ", sections, 0, 1, 1, 0, 0, 64 + len(names), len(data))
    struct.pack_into("<IIQQQQ", sections, 64, 9, 3, 0, 0, 64, len(names))
    path = tmp_path / "lib.so"
    path.write_bytes(bytes(header) + names + data + bytes(sections))
    assert pytorch.read_only_data(path) == data


def test_ucx_lines_carry_their_level(tmp_path: Path) -> None:
    (tmp_path / "src" / "ucp").mkdir(parents=True)
    (tmp_path / "src" / "ucp" / "a.c").write_text('ucs_fatal("out of %s", ucs_status_string(s)); ucs_debug("no");')
    (message,) = ucx.errors(tmp_path)
    assert message.text.endswith("a.c:183  UCX  FATAL out of Endpoint timeout")


def test_enumerations_are_printed_by_symbol_and_number(tmp_path: Path) -> None:
    (tmp_path / "cuda.h").write_text("enum { CUDA_SUCCESS = 0, CUDA_ERROR_ASSERT = 710 };")
    assert [message.text for message in codes.cuda(tmp_path)] == [
        "RuntimeError: call failed: CUDA_ERROR_ASSERT",
        "CUDA driver error: 710",
    ]


def test_what_counts_as_decided(scanner: Scanner) -> None:
    lines = {
        "diagnosis/framework/nccl-wrong-call": "gpu-07:1:2 [0] a.cc:1 NCCL WARN Reduce : invalid root 9",
        "diagnosis/infrastructure/cuda-error": "RuntimeError: CUDA error: invalid pitch argument",
        "structure/Value Error": "ValueError: the value is odd",
        "": "RuntimeError: CUDA error: a text that no table holds",
    }
    (told,) = coverage([Message("x", "a.c:1", line) for line in (*lines.values(), lines[""])], scanner)
    assert (told.messages, told.decided) == (4, 3)
    assert set(told.rules) == set(lines) - {""}
    assert [message.text for message in told.undecided] == [lines[""]]


def test_the_command_tells_and_writes_shares(tmp_path: Path) -> None:
    (tmp_path / "rdma").mkdir()
    (tmp_path / "rdma" / "fi_errno.h").write_text("#define FI_ETIMEDOUT ETIMEDOUT\n#define FI_EODD 7\n")
    out = tmp_path / "out"
    source = f"libfabric errors={tmp_path}"
    told = CliRunner().invoke(measure, ["knowledge", source, "--json", "--write", str(out)])
    assert told.exit_code == 0, told.output
    (row,) = json.loads(told.output)["sources"]
    assert (row["source"], row["messages"], row["decided"], row["share"]) == ("libfabric errors", 2, 1, 0.5)
    assert json.loads((out / "knowledge.json").read_text())["sources"] == [row]
    assert "| libfabric errors | 2 | 1 | 50.0% |" in (out / "knowledge.md").read_text()
    told = CliRunner().invoke(measure, ["knowledge", source, "--undecided", "5"])
    assert "FI_EODD" in told.output
    told = CliRunner().invoke(measure, ["knowledge", "nonesuch=/"])
    assert told.exit_code == 2 and "there is no source" in told.output
