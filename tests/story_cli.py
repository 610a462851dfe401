"""The real program: what only a process of its own shows, and what it imports."""

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.test_cli import (
    ECC_LOG,
    ERROR,
    GOOD_LOG,
    Ran,
    assert_refused,
    program,
    rule_folder,
    run,
)
from tests.test_cli_config import file
from tests.test_cli_many_logs import ranks

__all__ = ["file", "ranks", "rule_folder", "run"]  # fixtures


@pytest.mark.parametrize(("path", "code"), [(GOOD_LOG, 0), (ECC_LOG, 1), ("nowhere.log", 2)])
def test_the_exit_code_of_the_real_program(path: object, code: int) -> None:
    ran = program("diagnose", "--json", path)
    assert ran.code == code and "Traceback" not in ran.err and ran.err.count("\n") == (code == 2)


def test_standard_input_of_the_real_program() -> None:
    assert program("diagnose", "--json", "-", stdin=GOOD_LOG.read_bytes()).verdicts[0]["outcome"] == "completed"


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_file_s_name_need_not_be_utf_8(tmp_path: Path, flags: list[str]) -> None:
    for folder in (tmp_path, tmp_path / "ranks"):
        folder.mkdir(exist_ok=True)
        path = os.path.join(os.fsencode(folder), b"a\xff.log")
        Path(os.fsdecode(path)).write_text(f"{ERROR}\n")
        ran = program("diagnose", *flags, folder if folder != tmp_path else os.fsdecode(path))
        assert (ran.code, ran.err) == (1, "")
        assert "ECC Error" in ran.out


def test_a_terminal_that_knows_only_ascii(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text(f"{ERROR} \N{SNOWMAN}\n")
    ran = program("diagnose", tmp_path / "x.log", PYTHONIOENCODING="ascii", LC_ALL="C")
    assert (ran.code, ran.err) == (1, "")
    assert "ECC Error" in ran.out


@pytest.mark.parametrize("in_folder", [False, True])
def test_a_file_that_one_may_not_read(rule_folder: Path, tmp_path: Path, in_folder: bool) -> None:
    path = tmp_path / "secret" / "x.log"
    path.parent.mkdir()
    path.write_text("KeyError: 'a'\n")
    path.chmod(0)
    for folder in path.parents[:-2]:
        folder.chmod(0o755)
    code = (
        "import os, sys\n"
        "from logdoctor import cli, diagnose\n"
        "from logdoctor.pipeline import attempts\n"
        "from logdoctor.pipeline.batch import processes, sources\n"
        "diagnose(sys.argv.pop())\n"  # imports the rest, which another user need not be able to read
        "if os.getuid() == 0: os.setgid(65534); os.setuid(65534)\n"
        "cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "diagnose", "--json", str(path.parent if in_folder else path), str(GOOD_LOG)],
        env={**os.environ, "LOGDOCTOR_RULES": str(rule_folder), "LOGDOCTOR_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        check=False,
    )
    assert_refused(Ran(done.returncode, done.stdout, done.stderr), path, "Permission denied", "permissions")


def test_completion_completes() -> None:
    ran = program(_LOGDOCTOR_COMPLETE="bash_complete", COMP_WORDS="logdoctor rules ", COMP_CWORD="2")
    assert ran.out.split() == [
        f"plain,{name}"
        for name in (
            *("approve", "check", "export", "import", "list", "mute", "override", "overrides", "restore", "retire"),
            *("show", "undo", "why"),
        )
    ]


def python(code: str, *args: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, args)], capture_output=True, check=False, text=True, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_library_gives_a_typed_verdict() -> None:
    code = (
        "import sys, logdoctor\n"
        "from logdoctor.types import Verdict\n"
        "verdict = logdoctor.diagnose(sys.argv[1])\n"
        "print(isinstance(verdict, Verdict), verdict.reason, verdict.recovery, verdict.evidence[0].line, sep='|')\n"
    )
    assert python(code, ECC_LOG) == "True|ECC Error|isolate_and_restart|126\n"


def test_the_library_s_name_is_a_function_whatever_was_imported_before() -> None:
    code = "import sys, logdoctor.pipeline\nprint(logdoctor.diagnose(sys.argv[1]).reason)\n"
    assert python(code, ECC_LOG) == "ECC Error\n"


@pytest.mark.parametrize("args", [["--help"], ["diagnose", "--help"], ["--version"], ["completion", "bash"]])
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    code = (
        "import sys\n"
        "from logdoctor.cli import cli\n"
        "cli.main(sys.argv[1:], prog_name='logdoctor', standalone_mode=False)\n"
        "heavy = {'numpy', 'hyperscan', 'rich', 'regex', 'yaml', 'zstandard', 'torch'}\n"
        "print('HEAVY', sorted(heavy & set(sys.modules)))\n"
    )
    out = python(code, *args)
    assert "HEAVY []" in out and len(out.splitlines()) > 1


def test_a_diagnosis_as_json_imports_no_terminal_and_no_yaml(run: Callable[..., Ran]) -> None:
    run("diagnose", "--json", ECC_LOG)  # the compiled rules are kept now
    code = (
        "import sys\n"
        "from logdoctor.cli import cli\n"
        "cli.main(['diagnose', '--json', sys.argv[1]], standalone_mode=False)\n"
    )
    wrapped = f"import atexit, sys\natexit.register(lambda: print('HEAVY', sorted({{'rich', 'yaml', 'torch'}} & set(sys.modules))))\ntry:\n    exec({code!r})\nexcept SystemExit: pass\n"  # noqa: E501
    assert "HEAVY []" in python(wrapped, ECC_LOG)


def test_a_terminal_shows_how_far_it_is(ranks: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "LOGDOCTOR_WORKERS": "2", "TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-m", "logdoctor.cli", "diagnose", str(ranks)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    out, _ = process.communicate()
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert process.returncode == 1 and b"ECC Error" in out
    assert "reading" in shown and "100%" in shown


def test_variables_of_others_reach_what_is_started(file: Path) -> None:
    command = (sys.executable, "-S", "-c", "import os; print(os.environ['OTHER'])")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOGDOCTOR_")}
    environment |= {"LOGDOCTOR_URL": "http://127.0.0.1:9", "LOGDOCTOR_SPOOL_DIR": str(file.parent / "spool")}
    words = ("--env-file", str(file), "run", "--job", "j", "--drain-seconds", "0", "--", *command)
    program = [sys.executable, "-m", "logdoctor.cli", *words]
    done = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
