"""Learned rules for tests, as an agent would enter them."""

from pathlib import Path
from typing import Any

import msgspec

from logdoctor.store.jobs.records import Records
from logdoctor.store.learning.learned import ERROR_WORD, Learned, LearnedRules, NewRule, Source
from logdoctor.store.learning.refusals import Votes

KIND = "megatron/pretrain_gpt.py"
SHARD = NewRule(
    kind=KIND,
    pattern="^Opening data shard [0-9]+ of [0-9]+ at /data/[a-z]+$",
    title="opening data shard (N) of (N)",
    examples=("Opening data shard 3 of 9 at /data/abc", "Opening data shard 4 of 9 at /data/abd"),
    metrics=(),
    status="shadow",
    waits_for="",
    agent="miner",
    source=Source("llama-7b", 1, "megatron", "registry.local/train:1", "torchrun pretrain_gpt.py", "u17", "llama"),
    votes=Votes(5, (0, 1, 3, 4), "4 of 5 runs agree"),
    lines=120,
)
HEARTBEAT = msgspec.structs.replace(
    SHARD,
    pattern="^retrying lost heartbeat [0-9]+ of [0-9]+$",
    title="heart beats",
    examples=("retrying lost heartbeat 3 of 9",),
    status="proposed",
    waits_for=f"{ERROR_WORD}: it takes lines that look like trouble, 'retrying lost heartbeat '",
)
EVIL = "\x1b[31mred\x1b[0m \u202egnp \x9b2J\x07 \u7814\u7a76\r\nsecond"
"""A title that would steer a terminal."""


def new(base: NewRule = SHARD, **changes: Any) -> NewRule:
    """A rule that differs from another."""
    return msgspec.structs.replace(base, **changes)


def opened(folder: Path) -> LearnedRules:
    """The learned rules of a data folder."""
    folder.mkdir(parents=True, exist_ok=True)
    return LearnedRules(Records(f"sqlite:///{folder / 'logdoctor.db'}").database)


def entered(rules: LearnedRules, *news: NewRule) -> list[Learned]:
    """The rules as they were entered."""
    return rules.add(news or [SHARD], "logdoctor", 1_795_250_000.0, why="learned from llama-7b/1")


def active(rules: LearnedRules, one: NewRule = SHARD) -> Learned:
    """A rule that was entered and approved until it is active."""
    (rule,) = entered(rules, one)
    while rule.status != "active":
        rule = rules.approve(rule.id, "user-17", "", 1_795_250_100.0)
    return rule
