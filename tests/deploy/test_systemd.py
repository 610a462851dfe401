"""The units, as systemd itself reads them."""

import sys
from pathlib import Path

import pytest

from tests.deploy.files import DEPLOY, ran, tool

UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
PROGRAM = "/opt/logdoctor/bin/logdoctor"


@pytest.fixture(params=UNITS, ids=lambda path: path.name)
def unit(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A unit whose program is there."""
    text = request.param.read_text()
    assert PROGRAM in text
    copy = tmp_path / request.param.name
    copy.write_text(text.replace(PROGRAM, str(Path(sys.executable).with_name("logdoctor"))))
    return copy


def test_systemd_finds_nothing_wrong(unit: Path) -> None:
    done = ran(tool("systemd-analyze"), "verify", "--man=no", unit)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_systemd_would_find_something(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("ProtectSystem=strict", "ProtectSystem=very"))
    done = ran(tool("systemd-analyze"), "verify", "--man=no", unit)
    assert "Failed to parse protect system value" in done.stderr


def test_it_is_exposed_little(unit: Path) -> None:
    """Of 10, an unhardened service has 9.6; what is left is the network, and what Slurm's commands need."""
    done = ran(tool("systemd-analyze"), "security", "--offline=true", "--threshold=15", "--no-pager", unit)
    assert done.returncode == 0, done.stdout
    unit.write_text(unit.read_text().replace("CapabilityBoundingSet=\n", ""))
    done = ran(tool("systemd-analyze"), "security", "--offline=true", "--threshold=15", "--no-pager", unit)
    assert done.returncode != 0, "the threshold would let everything pass"


def test_workers_of_one_machine_share_no_folder() -> None:
    text = (DEPLOY / "systemd" / "logdoctor-worker@.service").read_text()
    for name in ("LOGDOCTOR_DATA_DIR=", "LOGDOCTOR_CACHE_DIR=", "StateDirectory=", "CacheDirectory="):
        assert "%i" in text.split(name, 1)[1].split()[0], name
