"""What the Linux kernel and the NVIDIA driver print about memory, hardware, disks and networks (dmesg in a job's log).

Messages at boot, at the set-up of a driver, and debug output are left out.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import regex

from eval.harvest.c_messages import Call, calls, printed
from eval.harvest.messages import Message, Reader
from eval.harvest.trees import below, files
from eval.harvest.values import filled

_PRINTK = (
    *(f"pr_{level}" for level in ("emerg", "alert", "crit", "err", "warn")),
    *(f"pr_{level}_{how}" for level in ("emerg", "err", "warn") for how in ("ratelimited", "once")),
    *("printk", "printk_ratelimited", "panic", "die", "nmi_panic"),
)
_DEVICE = tuple(
    f"{who}_{level}{how}"
    for who in ("dev", "pci", "netdev", "mlx5_core", "mlx5_ib", "ibdev", "drm", "sdev", "dev_WARN")
    for level in ("emerg", "alert", "crit", "err", "warn")
    for how in ("", "_once", "_ratelimited", "_rl")
)
_OWN = (
    *(
        "ext4_error",
        "ext4_error_inode",
        "ext4_error_file",
        "ext4_warning",
        "ext4_warning_inode",
        "ext4_msg",
        "__ext4_error",
    ),
    *("xfs_alert", "xfs_crit", "xfs_err", "xfs_warn", "xfs_emerg", "xfs_alert_ratelimited", "xfs_warn_ratelimited"),
    *("DMERR", "DMERR_LIMIT", "DMWARN", "DMWARN_LIMIT", "DRM_ERROR", "DRM_DEV_ERROR", "sd_printk", "scmd_printk"),
    *("edac_mc_printk", "edac_printk", "edac_mc_chipset_printk", "ata_dev_err", "ata_link_err", "ata_port_err"),
    *("ata_dev_warn", "ata_link_warn", "ata_port_warn", "buffer_io_error", "sdev_printk", "reporter_printk"),
    *("CERROR", "CWARN", "LCONSOLE_ERROR_MSG", "LCONSOLE_ERROR", "LCONSOLE_WARN", "CEMERG", "CNETERR", "DEBUG_REQ"),
)
_PR_FMT = regex.compile(r"#define pr_fmt\(fmt\)\s+(?P<before>\"(?:[^\"]|\\.)*\"|KBUILD_MODNAME\s*\"[^\"]*\")?")
_BEFORE = {
    "drivers/net/ethernet/mellanox": "mlx5_core 0000:c3:00.0: ",
    "drivers/infiniband/hw/mlx5": "mlx5_ib mlx5_3: ",
    "drivers/infiniband": "infiniband mlx5_3: ",
    "drivers/nvme": "nvme nvme0: ",
    "drivers/pci": "pcieport 0000:3a:00.0: ",
    "drivers/gpu/drm/amd": "amdgpu 0000:c1:00.0: amdgpu: ",
    "drivers/edac": "EDAC skx MC3: ",
    "drivers/ata": "ata3.00: ",
    "drivers/scsi": "sd 0:0:0:0: [sda] ",
    "drivers/iommu": "DMAR: ",
}
_MODULES = {
    "tcp": "nvme_tcp",
    "rdma": "nvme_rdma",
    "fabrics": "nvme_fabrics",
    "fc": "nvme_fc",
    "mad": "ib_mad",
    "cm": "ib_cm",
}
_VALUES = {
    "^pfx$": "{1}[Hardware Error]: ",
    "^message$": "Memory cgroup out of memory",
    "^loglvl$": "",
    "^sb->s_id$": "nvme0n1p1",
}
_MLX5 = "drivers/net/ethernet/mellanox/mlx5/core"
_PATHS: dict[str, tuple[str, ...]] = {
    "memory": ("mm/oom_kill.c", "mm/memcontrol.c", "mm/memory-failure.c", "kernel/cgroup/pids.c"),
    "lock-ups": ("kernel/watchdog.c", "kernel/watchdog_hld.c", "kernel/hung_task.c", "kernel/rcu", "kernel/panic.c"),
    "traps": (
        *("arch/x86/kernel/traps.c", "arch/x86/mm/fault.c", "arch/x86/kernel/nmi.c"),
        *("kernel/signal.c", "fs/coredump.c"),
    ),
    "machine checks": (
        *("arch/x86/kernel/cpu/mce", "drivers/acpi/apei/ghes.c", "drivers/firmware/efi/cper.c", "drivers/ras"),
    ),
    "edac": (
        *(f"drivers/edac/edac_{name}.c" for name in ("mc", "device", "pci")),
        *(f"drivers/edac/{name}.c" for name in ("skx_common", "i10nm_base", "amd64_edac", "mce_amd", "igen6_edac")),
    ),
    "pcie": ("drivers/pci/pcie",),
    "mlx5": (
        *(f"{_MLX5}/{name}.c" for name in ("health", "cmd", "eq", "events", "fw_reset", "pagealloc", "main", "port")),
        *(f"{_MLX5}/{name}.c" for name in ("en_main", "en/health", "en/reporter_tx", "en/reporter_rx", "en_tx")),
        *(f"{_MLX5}/{name}.c" for name in ("cq", "qp", "pci_irq")),
    ),
    "infiniband": ("drivers/infiniband/hw/mlx5", "drivers/infiniband/core", "drivers/infiniband/ulp/ipoib"),
    "nvme": ("drivers/nvme/host",),
    "block": (
        *("block", "drivers/scsi", "fs/buffer.c"),
        *(f"drivers/md/{name}.c" for name in ("md", "raid1", "raid5", "raid10")),
    ),
    "ext4": ("fs/ext4", "fs/jbd2"),
    "xfs": ("fs/xfs",),
    "nfs": ("fs/nfs", "net/sunrpc"),
    "network": (
        *("net/sched/sch_generic.c", "net/core/dev.c", "drivers/net/bonding/bond_main.c", "net/ipv4", "net/netfilter"),
    ),
    "iommu": ("drivers/iommu", "drivers/thermal", "kernel/irq/spurious.c", "kernel/time/clocksource.c"),
    "amdgpu": ("drivers/gpu/drm/amd/amdgpu", "drivers/gpu/drm/amd/amdkfd", "drivers/gpu/drm/scheduler"),
}
_TESTS = regex.compile(r"rcutorture|rcuscale|refscale|_test\.c|/inject\.c|partitions/|/debugfs")
_SET_UP = regex.compile(
    r"_init$|_probe$|_setup$|_register|alloc|_create|parse|_debugfs|sysfs|configfs|module|_exit$|fill_super|_remount|__setup|"
    r"_ioctl|_show$|_store$|selftest|_mount|handle_mount|_param|discover|ip_block|_sw_init|_early|_load$|_add_|validate_super"
)


def lines(part: str, root: Path) -> Iterator[Message]:
    """Yield lines of a kernel part, at warning or worse, from functions that run during jobs."""
    for path, text in files(root, below(_PATHS[part], "c")):
        found = _PR_FMT.search(text)
        before = (found["before"] or "") if found else ""
        module = _MODULES.get(Path(path).stem, Path(path).stem) if "KBUILD_MODNAME" in before else ""
        before = module + before.split('"')[1] if '"' in before else "amdgpu: " if "drm/amd" in path else ""
        before = filled(before).strip() + " " if before else ""
        device = next((said for folder, said in _BEFORE.items() if path.startswith(folder)), "")
        for call in calls(
            text,
            (*_PRINTK, *_DEVICE, *_OWN),
            {"HW_ERR": "[Hardware Error]: ", "FW_WARN": "[Firmware Warn]: ", "FW_BUG": "[Firmware Bug]: "},
        ):
            if (
                _TESTS.search(path)
                or _SET_UP.search(call.function)
                or (call.name == "printk" and "KERN_DEBUG" in text.splitlines()[call.line - 1])
            ):
                continue
            yield from _said(path, call, before, device, part)


def _said(path: str, call: Call, before: str, device: str, part: str) -> Iterator[Message]:
    """Yield a call as the kernel prints it, with its file's, device's or file system's prefix."""
    text = printed(call, _VALUES)
    if call.name.startswith("ext4"):
        level = "warning" if "warning" in call.name else "error"
        prefix = (
            "EXT4-fs (nvme0n1p1): "
            if call.name == "ext4_msg"
            else f"EXT4-fs {level} (device nvme0n1p1): {call.function}:{call.line}: "
        )
    elif call.name.startswith("xfs"):
        prefix = "XFS (nvme0n1p1): "
    elif call.name.startswith("DM"):
        prefix = "device-mapper: "
    elif call.name in ("panic", "nmi_panic"):
        prefix = "Kernel panic - not syncing: "
    elif call.name.startswith(("C", "LCONSOLE", "DEBUG_REQ")):
        prefix = f"LustreError: 41233:0:({Path(path).name}:{call.line}:{call.function}()) "
        prefix = "LustreError: 11-0: " if call.name == "LCONSOLE_ERROR_MSG" else prefix
        prefix = "Lustre: " if call.name in ("LCONSOLE_WARN", "CWARN") else prefix
    elif call.name.startswith(("pr_", "printk", "die")):
        prefix = before
    else:
        prefix = device or before
    first = next((one for one in text.split("\n") if len(one.strip()) > 3), "")
    if len(regex.findall(r"[A-Za-z]{3,}", first)) >= 2:
        yield Message(f"linux: {part}", f"{path}:{call.line}", f"[1824101.402911] {prefix}{first.strip()}")


def lustre(root: Path) -> Iterator[Message]:
    """Yield messages of the Lustre client: its network, requests and mounts."""
    under = (
        "lnet/lnet",
        "lnet/klnds",
        "lustre/ptlrpc",
        "lustre/llite",
        "lustre/mdc",
        "lustre/osc",
        "lustre/ldlm",
        "lustre/lov",
        "lustre/mgc",
    )
    for path, text in files(root, below(under, "c")):
        for call in calls(text, _OWN):
            if not _SET_UP.search(call.function):
                yield from (one._replace(source="lustre client") for one in _said(path, call, "", "", ""))


_NV_PRINT = (
    "nv_printf",
    "NV_PRINTF",
    "NV_PRINTF_EX",
    "NVSWITCH_PRINT",
    "nvidia_dev_err",
    "nvlink_print",
    "NV_DEV_PRINTF",
    "NV_DEV_PRINTF_STATUS",
    "NV_ERROR_PRINT",
    "portDbgPrintf",
)
_NV_PATHS = ("kernel-open/nvidia", "src/nvidia/arch/nvalloc/unix/src", "src/nvidia/src/kernel/gpu/gsp")
_NV_LEVEL = regex.compile(r"LEVEL_(?:ERROR|FATAL|NOTICE)|NV_DBG_(?:ERRORS|NOTICE)|DBG_LEVEL_ERROR|ERROR")


def nvrm(root: Path) -> Iterator[Message]:
    """Yield the NVIDIA driver's lines other than Xid, at the levels of release builds."""
    for path, text in files(root, below(_NV_PATHS, "c")):
        for call in calls(text, _NV_PRINT, {"GPU_NAME": "GPU 0000:c1:00.0"}):
            line = text.splitlines()[call.line - 1 : call.line + 1]
            if not _NV_LEVEL.search(" ".join(line)):
                continue
            first = printed(call).split("\n")[0].removeprefix("NVRM:").strip()
            if len(regex.findall(r"[A-Za-z]{3,}", first)) >= 2:
                where = f"GPU0 {call.function}: " if call.name.startswith("NV_PRINTF") else ""
                where = "GPU 0000:c1:00.0: " if call.name.startswith("NV_DEV") else where
                yield Message("nvidia driver", f"{path}:{call.line}", f"[1824101.402911] NVRM: {where}{first}")


SOURCES: dict[str, Reader] = {
    **{f"linux {part}": partial(lines, part) for part in _PATHS},
    "lustre client": lustre,
    "nvidia driver": nvrm,
}
