"""Runs of one job are of one kind, other programs are of another, and no text from outside breaks it."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from logdoctor.learning.filters.kind import kind_of
from logdoctor.store.jobs.records import JobFacts, Records
from logdoctor.store.learning.learned import LearnedRules
from logdoctor.store.learning.rule_rows import MAX_KIND
from tests.log_agent.samples import new_rule


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LearnedRules]:
    records = Records(f"sqlite:///{tmp_path_factory.mktemp('kind')}/records.sqlite")
    yield LearnedRules(records.database)
    records.close()


def kind(job: str = "job-1", **facts: Any) -> str:
    return kind_of(job, JobFacts(**facts))


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("python train.py --lr 1", "train.py"),
        ("python3 -u /srv/run-17/train.py", "train.py"),
        ("torchrun --nproc_per_node=8 --rdzv_endpoint=n1:29400 train.py", "train.py"),
        ("python -m torch.distributed.run --nproc_per_node 8 pretrain_gpt.py", "pretrain_gpt.py"),
        ("python -m acme.train --config x", "acme.train"),
        ("accelerate launch --num_processes 8 finetune.py", "finetune.py"),
        ("deepspeed --hostfile /job/hostfile train.py", "train.py"),
        ("srun -N 4 -p gpu bash run.sh", "run.sh"),
        ("env PYTHONPATH=/x python train.py", "train.py"),
        ("cd /work && exec python train.py", "train.py"),
        ("/bin/sh -c 'python train.py --lr 1'", "train.py"),
        ('bash -c "torchrun train.py"', "train.py"),
        ("./megatron_train --layers 8", "megatron_train"),
        ("mpirun -np 8 -H n1,n2 ./train", "train"),
        ("srun -p gpu ./a.out", "a.out"),
        ("srun --gres gpu:8 /opt/bin/sim --x 1", "sim"),
    ],
)
def test_the_program_is_found_behind_its_launchers(command: str, program: str) -> None:
    assert kind(command=command) == program
    assert kind(command=command, framework="Acme") == f"acme/{program}"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("python train.py --lr 1e-4 --seed 1", "python train.py --lr 3e-4 --seed 2"),
        ("torchrun --master_addr n1 train.py", "torchrun --master_addr gpu-0713 train.py"),
        ("/bin/sh -c 'python train.py --lr 1'", "/bin/sh -c 'python train.py --lr 2'"),
        ("python /scratch/ann/job-1/train.py", "python /scratch/ann/job-2/train.py"),
        ("mpirun -np 8 -H n1,n2 ./train", "mpirun -np 16 -H n3,n4,n5 ./train"),
    ],
)
def test_runs_of_one_job_are_of_one_kind(one: str, other: str) -> None:
    assert kind("job-1", command=one) == kind("job-2", command=other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"command": "python train.py"}, {"command": "python finetune.py"}),
        ({"command": "srun -p gpu ./a.out"}, {"command": "srun -p gpu ./b.out"}),
        ({"command": "python -m a.train"}, {"command": "python -m b.train"}),
        ({"framework": "megatron"}, {"framework": "nemo"}),
        ({"framework": "megatron", "command": "python a.py"}, {"framework": "megatron", "command": "python b.py"}),
        ({"image": "acme/llm:1"}, {"image": "acme/vision:1"}),
        ({"user": "user-17"}, {"user": "bob"}),
        ({"name": "bert-large"}, {"name": "bert-base"}),
        ({"name": "bert"}, {"name": "gpt"}),
    ],
)
def test_other_programs_are_of_other_kinds(one: dict[str, str], other: dict[str, str]) -> None:
    assert kind(**one) != kind(**other)


def test_images_count_without_registry_tag_and_digest() -> None:
    names = ("reg.example.org:5000/team/llm:2024.3", "llm@sha256:" + "ab" * 32, "team/llm", "LLM:latest")
    assert {kind(image=name) for name in names} == {"image/llm"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("bert-large-run-12", "bert-large-run-13"),
        ("bert_20260101_ab12cd34", "bert_20260202_ffeedd1"),
        ("nightly.7", "nightly.8"),
        ("gpt-try3", "gpt-try4"),
    ],
)
def test_names_of_a_family(one: str, other: str) -> None:
    assert kind(one) == kind(other) == kind("odd", name=one)
    assert kind(one, user="user-17") == kind(other, user="user-17") != kind(one)


def test_of_a_job_that_is_a_number_nothing_is_learned() -> None:
    assert kind("12345") == "" and kind("12345", user="user-17") == "user-17/job"
    assert kind("12345", framework="OLMo") == "olmo"


@pytest.mark.parametrize(
    "command", ["", " ", "'", '"unclosed python', "-m", "python -m", "..", "/", "=", "\x00", "\u202e", "日本", "-" * 99]
)
def test_a_command_that_tells_nothing_leaves_it_to_the_name(command: str) -> None:
    assert kind("bert-7", command=command) in ("name/bert", "unclosed")


@given(
    st.text(max_size=80), st.dictionaries(st.sampled_from(["name", "user", "framework", "image", "command"]), st.text())
)
def test_fuzz_any_facts_make_a_kind_that_can_be_stored(rules: LearnedRules, job: str, facts: dict[str, str]) -> None:
    if not (found := kind(job, **facts)):
        return  # nothing but a number is known
    assert found.isascii() and found.isprintable() and found == found.lower() and len(found) <= MAX_KIND
    assert not set(found) & set(" '\"\\<>&%?#\x00") and ".." not in found.split("/") and "" not in found.split("/")
    assert rules.add([new_rule("^x$", found)], "me", 1.0)[0].kind == found


@pytest.mark.parametrize(
    "unit", ["a", "-", "a-", "1", "a1", "/", "'", '"', "\\", "run1-", "x.py ", "-m ", "deadbeef", "v1"]
)
def test_long_facts_take_bounded_time(unit: str) -> None:
    text = unit * (100_000 // len(unit))
    begin = time.process_time()
    for facts in ({"command": text}, {"image": text}, {"name": text}, {"framework": text, "user": text}):
        assert len(kind(text, **facts)) <= MAX_KIND
    assert time.process_time() - begin < 8


def test_paths_do_not_matter(tmp_path: Path) -> None:
    assert kind(command=f"python {tmp_path}/train.py") == kind(command="python train.py")
