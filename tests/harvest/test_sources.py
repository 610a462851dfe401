"""Harvesters read the messages that a source can print, on snippets made for these tests."""

from pathlib import Path

from eval.harvest import containers, gpu_tools, kernel, kubernetes, mpi, shell, slurm


def _tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


def test_slurm_speaks_as_the_program_that_says_it(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        {
            "src/sbatch/x.c": 'fatal("bad crane");',
            "src/srun/x.c": 'info("crane %ps up", &id);',
            "src/slurmd/slurmstepd/x.c": 'error("no crane: %m");\ninfo("not shown");',
            "src/plugins/mpi/pmix/x.c": 'static int _go(void)\n{\n\tPMIXP_ERROR("lost %s", host);\n}\n',
            "src/common/slurm_errno.c": '{ ERRTAB_ENTRY(ESLURM_CRANE),\n "Crane is " "busy" },',
            "src/common/job_state_reason.c": '[WAIT_CRANE] = {\n .str = "Crane",\n},\n[FAIL_ROPE] = { .str = "Rope" }',
        },
    )
    said = {message.text for message in slurm.SOURCES["slurm"](root)}
    assert said == {
        "sbatch: fatal: bad crane",
        "srun: crane StepId=88012.0 up",
        "slurmstepd: error: no crane: Connection timed out",
        "slurmstepd: error:  mpi/pmix_v4: _go: gpu-12 [0]: x.c:3: lost gpu-07",
        "srun: error: Unable to create step for job 88012: Crane is busy",
        "sbatch: error: Batch job submission failed: Crane is busy",
        "   JobState=PENDING Reason=Crane Dependency=(null)",
        "   JobState=FAILED Reason=Rope Dependency=(null)",
    }


def test_kernel_lines_have_the_prefix_of_their_file_and_device(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        {
            "fs/ext4/x.c": 'void work(void)\n{\n\text4_error(sb, "crane %u is lost", n);\n}\n',
            "drivers/nvme/host/x.c": 'void work(void)\n{\n\tdev_err(dev, "crane is down\\n");\n}\n'
            'void x_probe(void)\n{\n\tdev_err(dev, "crane not found\\n");\n}\n',
            "kernel/watchdog.c": '#define pr_fmt(fmt) "crane: " fmt\n'
            'void work(void)\n{\n\tpr_emerg("stuck for good\\n");\n}\n',
        },
    )
    parts = ("linux ext4", "linux nvme", "linux lock-ups")
    said = [message.text.removeprefix("[1824101.402911] ") for part in parts for message in kernel.SOURCES[part](root)]
    assert said == [
        "EXT4-fs error (device nvme0n1p1): work:3: crane 3 is lost",
        "nvme nvme0: crane is down",
        "crane: stuck for good",
    ]


def test_other_families_are_read(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        {
            "args.c": 'slurm_error("pyxis: no crane");',
            "src/x.sh": 'common::err "No crane: ${url}"',
            "bin/enroot-lift.c": 'err(1, "failed to lift: %s", path);',
            "cmd/x.go": 'sylog.Fatalf("no crane: %v", err)',
            "src/help-x.txt": "# words\n[no-crane]\nThere was no crane on %s\nat all.\n#\n[usage]\nUsage is so\n",
            "dcgmlib/dcgm_errors.h": '#define DCGM_FR_CRANE_MSG \\\n    "Crane %u " \\\n    "is lost"\n',
            "siglist.c": '  sys_siglist[SIGHUP] = _("Crane fell");',
            "pkg/x.go": '\tFailedCrane = "FailedCrane"\n',
        },
    )
    assert [one.text for one in containers.pyxis(root)][:1] == ["srun: error: pyxis: no crane"]
    assert {one.text for one in containers.enroot(root)} == {
        "slurmstepd: error: pyxis:     [ERROR] No crane: https://registry/v2",
        "slurmstepd: error: pyxis:     enroot-lift: failed to lift: /data/run/part-3: Operation not permitted",
    }
    assert [one.text for one in containers.apptainer(root)] == ["FATAL:   no crane: word-7"]
    assert [one.text for one in mpi.SOURCES["prrte"](root)] == ["There was no crane on word-7"]
    assert [one.text for one in gpu_tools.dcgm(root)] == ["Crane 3 is lost"]
    assert [one.text for one in shell.bash(root)] == [
        "train.sh: line 31: 41233 Crane fell              python train.py"
    ]
    assert [one.text for one in kubernetes.SOURCES["kubelet"](root)] == [
        "  Warning  FailedCrane  12s  kubelet  pod/train-worker-2"
    ]


def test_the_table_of_slurm_errors_is_sound() -> None:
    """Every text once, and each group says what to do about it."""
    lines = (
        (Path(__file__).parents[2] / "rules" / "knowledge" / "slurm_error.tsv").read_text(encoding="utf-8").splitlines()
    )
    head, *rows = [line.split("\t") for line in lines if not line.startswith("#")]
    assert {len(row) for row in rows} == {len(head)}
    keys = [key for row in rows for key in row[0].split(" | ")]
    assert len(keys) == len(set(keys)) > 300
    role, suggestion = head.index("role"), head.index("suggestion")
    assert all((row[role] == "note") == (not row[suggestion]) for row in rows)
