"""The harvesters of accelerator stacks read invented sources as their programs would print them."""

from collections.abc import Callable, Iterator
from pathlib import Path

from eval.harvest import amd, ascend, gaudi, intel, neuron, tpu
from eval.harvest.messages import Message


def _texts(folder: Path, name: str, text: str, harvest: Callable[[Path], Iterator[Message]]) -> list[str]:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return [message.text for message in harvest(folder)]


def test_amd(tmp_path: Path) -> None:
    name = "libhsakmt/src/tea.c"
    assert _texts(tmp_path, name, 'pr_err("cup %d broke\\n", cup);', amd.runtime) == ["cup 3 broke"]
    said = _texts(tmp_path, "src/tea.cpp", 'MIOPEN_THROW("no tea");', amd.miopen)
    assert said == ["MIOpen Error: /opt/src/convolution.cpp:120: no tea"]


def test_tpu(tmp_path: Path) -> None:
    source = 'return absl::DeadlineExceededError(absl::StrCat("no tea: ", task));\nLOG(ERROR) << "no cup\\nat all";\n'
    said = _texts(tmp_path, "tsl/distributed_runtime/tea.cc", source, tpu.coordination)
    assert said == [
        "DEADLINE_EXCEEDED: no tea: /job:jax_worker/replica:0/task:3",
        "E0302 11:08:47.123456    4182 tea.cc:2] no cup",
        "at all",
    ]
    said = _texts(tmp_path, "jax/_src/distributed.py", 'raise RuntimeError("no tea left")', tpu.jax)
    assert said == ["RuntimeError: no tea left"]


def test_ascend(tmp_path: Path) -> None:
    name = "torch_npu/csrc/distributed/Tea.cpp"
    source = 'TORCH_NPU_WARN("less tea");\nTORCH_CHECK(x, "no tea", DIST_ERROR(y));\nLOG(ERROR) << "no cup";\n'
    assert _texts(tmp_path, name, source, ascend.raised) == ["RuntimeError: no tea"]
    assert _texts(tmp_path, name, source, ascend.logged) == [
        "[W302 11:08:47.123456789 Tea.cpp:1] Warning: less tea (function operator())",
        "[rank3]:[E302 11:08:47.123456789 Tea.cpp:3] no cup",
    ]
    said = _texts(tmp_path, "NPUErrorCodes.h", '{123456,\n "No tea.\\n"},', ascend.returned)
    assert said[0].endswith("error code is 123456")
    lists = (
        '"ErrCode": "EX0001",\n "ErrMessage": "No tea in %s."\nX(EY0002, "EY0002", ("a"),  "No cup. ErrorCode=EY0002")'
    )
    marks = "[PID: 41233] 2026-03-02-11:08:47.123.456"
    said = _texts(tmp_path / "cann", "codes.cc", lists, ascend.codes)
    assert said == [f"EX0001: {marks} No tea in word-7.", f"EY0002: {marks} No cup. ErrorCode=EY0002"]


def test_gaudi(tmp_path: Path) -> None:
    source = 'PT_DEVMEM_FATAL(Logger::status(s), "no tea");\nPT_DEVICE_WARN("less tea");\n'
    assert _texts(tmp_path, "backend/synapse_helpers/tea.cpp", source, gaudi.bridge) == [
        "RuntimeError: [Rank:0] FATAL ERROR :: MODULE:PT_DEVMEM no tea",
        "[11:08:47.123456][PT_DEVICE     ][warning][tid:41233] less tea",
    ]
    said = _texts(tmp_path, "hcl/tea.cpp", 'LOG_HCL_ERR(HCL, "no tea in {}", cup);', gaudi.hcl)
    assert said == ["[11:08:47.123456][HCL           ][error][tid:41233] no tea in word-7"]
    said = _texts(tmp_path, "synapse_common_types.h", "synSuccess = 0,\n synNoTea = 9,\n", gaudi.statuses)
    assert said == ["RuntimeError: synLaunch failed. synStatus=9 [synNoTea]."]


def test_intel(tmp_path: Path) -> None:
    said = _texts(tmp_path, "src/tea.cpp", 'LOG_ERROR("no tea in ", cup);', intel.oneccl)
    assert said == ["2026:03:02-11:08:47:(41233) |CCL_ERROR| tea.cpp:1 operator(): no tea in word-7"]
    said = _texts(tmp_path, "include/ze_api.h", "  ZE_RESULT_ERROR_NO_TEA = 0x7,  ///< text\n", intel.results)
    assert said == ["RuntimeError: Native API failed. Native API returns: 0x7 (ZE_RESULT_ERROR_NO_TEA)"]


def test_neuron(tmp_path: Path) -> None:
    said = _texts(tmp_path, "nrt/nrt_status.h", " NRT_NO_TEA = 77, // text\n", neuron.statuses)
    assert [text.split("   ")[-1].strip() for text in said] == [
        "Failure: NRT_NO_TEA in nrt_execute()",
        "Failed to execute model m.neff with status 77",
    ]
    assert _texts(tmp_path, "tea.c", 'pr_err("no tea\\n");', neuron.driver) == [
        "[ 1234.567890] neuron:ncdev_ioctl: no tea"
    ]
