"""Surroundings of a composed failure: hosts, ranks, paths, versions and the clock of one arrival."""

import datetime
import random

_PYTHONS = ("3.8", "3.9", "3.10", "3.10", "3.11", "3.12")
_PACKAGES = (
    "/usr/local/lib/python{v}/dist-packages",
    "/opt/conda/lib/python{v}/site-packages",
    "/opt/venv/lib/python{v}/site-packages",
    "/home/{u}/miniconda3/envs/{e}/lib/python{v}/site-packages",
    "/mnt/petrelfs/{u}/anaconda3/envs/{e}/lib/python{v}/site-packages",
)
_ROOTS = ("/workspace", "/home/{u}/code", "/mnt/{m}/{u}/src", "/opt/train", "/root", "/app")
_USERS = ("lwei", "okafor", "mdiaz", "tanaka", "svc-train", "jpark", "anovak", "rsingh", "ycohen", "hberg", "qchen")
_MOUNTS = ("data", "mnt/lustre", "fsx", "nfs/share", "gpfs", "mnt/petrelfs", "beegfs", "scratch", "mnt/weka", "cephfs")
_CORPORA = ("redpajama", "slimpajama", "dolma", "thestack", "cc-en", "wudao", "books3", "mathpile", "fineweb", "pile")
_MODELS = ("llama-2-70b", "internlm2-20b", "qwen2-72b", "mistral-7b", "baichuan2-13b", "yi-34b", "gemma-2-27b")
_STEMS = ("node", "gpu", "dgx", "worker", "cn", "hgx", "slurm-gpu-", "p4d-", "pod-", "a100-", "HOST-10-140-60-")
_WORDS = ("amber", "delta", "heron", "lotus", "onyx", "quartz", "sable", "tundra", "vireo", "zephyr")
_LAUNCHERS = {
    "task": ("slurm",),
    "host": ("deepspeed", "slurm", "torchrun"),
    "rank": ("torchrun",),
    "local": ("torchrun",),
    "ray": ("ray",),
    "": ("torchrun", "torchrun", "slurm", "deepspeed", "accelerate", "mpi"),
}
"""Launchers that may end a job whose healthy lines bear such a mark."""


class Site:
    """The surroundings of one arrival; `style` is how its healthy lines are marked, `time` the last line's."""

    def __init__(self, rng: random.Random, style: str, time: float | None) -> None:
        self._rng = rng
        self.launcher = rng.choice(_LAUNCHERS.get(style, ("torchrun", "slurm")))
        nodes = rng.choice((1, 1, 2, 4, 8, 16, 32))
        self.world = 8 * nodes
        self.user, self.mount = rng.choice(_USERS), rng.choice(_MOUNTS)
        self.name = f"{rng.choice(_WORDS)}-{rng.randint(1, 70)}b-v{rng.randint(1, 40)}"
        self.version = rng.choice(_PYTHONS)
        self.carets = self.version in ("3.11", "3.12") and rng.random() < 0.7
        words = {"v": self.version, "u": self.user, "e": rng.choice(("train", "llm", "torch2", "pt")), "m": self.mount}
        self._packages = rng.choice(_PACKAGES).format(**words)
        self._root = rng.choice(_ROOTS).format(**words)
        stem, first = rng.choice(_STEMS), rng.randint(1, 900)
        self._hosts = [f"{stem}{first + node}" for node in range(nodes)]
        self._net = f"10.{rng.randint(0, 254)}.{rng.randint(0, 254)}"
        self._pid = rng.randint(2000, 400_000)
        self._style = style if style else rng.choice(("", "", "rank", "rank", "local"))
        if self.launcher == "mpi":
            self._style = "mpi"
        self.mixes = self._style not in ("", "pod")
        self.time = (1_735_700_000.0 + rng.randint(0, 20_000_000)) if time is None else time
        self._uptime = rng.randint(9000, 9_000_000)
        self._dmesg = rng.random() < 0.5
        self.job = str(rng.randint(10_000, 9_000_000))

    def later(self) -> datetime.datetime:
        """Return the clock, which moves on a little at each call."""
        self.time += self._rng.random() * 0.8
        return datetime.datetime.fromtimestamp(self.time, datetime.UTC)

    def host(self, rank: int) -> str:
        """Return the host of a rank."""
        return self._hosts[rank // 8]

    @property
    def hosts(self) -> list[str]:
        """All hosts of the job."""
        return self._hosts

    def pid(self, rank: int) -> int:
        """Return a rank's process id."""
        return self._pid + 7 * (rank // 8) + rank % 8

    def ip(self, rank: int) -> str:
        """Return the address of a rank's host."""
        return f"{self._net}.{rank // 8 + 10}"

    def path(self, path: str) -> str:
        """Return a catalogue path as it is on this site."""
        if path.startswith("<"):
            return path
        if path.startswith("site/"):
            return f"{self._packages}/{path[5:]}"
        if path.startswith("lib/"):
            return f"{self._packages.rsplit('/', 1)[0]}/{path[4:]}"
        return f"{self._root}/{path}"

    def mark(self, rank: int) -> str:
        """Return the mark before a rank's lines."""
        match self._style:
            case "task":
                return f"{rank}: "
            case "host":
                return f"{self.host(rank)}: "
            case "rank":
                return f"[rank{rank}]: "
            case "local":
                return f"[default{rank % 8}]:"
            case "mpi":
                return f"[1,{rank}]<stderr>:"
            case "ray":
                return f"(WorkerDict pid={self.pid(rank)}, ip={self.ip(rank)}) "
        return ""

    def kernel(self, host: str, text: str) -> str:
        """Return a line of a host's kernel log."""
        self._uptime += 1
        stamp = f"[{self._uptime}.{self._rng.randint(0, 999_999):06d}]"
        if self._dmesg:
            return f"{host}: {stamp} {text}" if len(self._hosts) > 1 else f"{stamp} {text}"
        return f"{self.later():%b %d %H:%M:%S} {host} kernel: {stamp} {text}"

    def daemon(self, host: str, text: str) -> str:
        """Return a line of a host's system log."""
        return f"{self.later():%b %d %H:%M:%S} {host} {text}"

    def of_rank(self, name: str, rank: int) -> str:
        """Return a field that differs by rank."""
        match name:
            case "local":
                return str(rank % 8)
            case "pid":
                return str(self.pid(rank))
            case "host":
                return self.host(rank)
            case "glog":
                now = self.later()
                return f"{now:%m%d %H:%M:%S}.{self._rng.randint(0, 999_999_999):09d}"
        return str(rank)

    def of_job(self, name: str) -> str:
        """Return a field that is the same for all ranks; numbers and digests are random."""
        rng = self._rng
        match name:
            case "mnt":
                return self.mount
            case "user":
                return self.user
            case "run":
                return self.name
            case "job":
                return self.job
            case "corpus":
                return rng.choice(_CORPORA)
            case "model":
                return rng.choice(_MODELS)
            case "step":
                return str(rng.randint(1, 900) * 50)
            case "shard":
                return f"{rng.randint(0, 2047):05d}"
            case "hash":
                return f"{rng.getrandbits(48) | 1 << 47:012x}"
            case "addr":
                return str(rng.randint(10**14, 9 * 10**14))
            case "ip":
                return f"{self._net}.{rng.randint(2, 250)}"
            case "port":
                return str(rng.randint(30_000, 60_000))
            case "link":
                return str(rng.randint(0, 17))
            case "bus":
                return rng.choice(("07", "0f", "47", "4e", "87", "90", "b7", "bd"))
            case "iso":
                return f"{self.later():%Y-%m-%dT%H:%M:%S}"
            case "d3":
                return f"{rng.randint(10, 999):03d}"
            case "N":
                return str(rng.randint(20_000, 90_000_000))
        return str(rng.randint(2, 4000))
