"""Two processes enter, count and promote learned rules beside each other."""

import subprocess
import sys

from logdoctor.store.jobs.records import Records
from logdoctor.store.learning.learned import LearnedRules
from logdoctor.store.learning.model_calls import ModelCalls, Spent
from tests.store.conftest import on_both
from tests.store.test_learned import KIND

pytestmark = on_both


WORKER = """
import sys
from logdoctor.errors import RuleRefused
from logdoctor.store.learning.learned import LearnedRules
from logdoctor.store.learning.model_calls import ModelCalls
from logdoctor.store.learning.refusals import Refused
from logdoctor.store.jobs.records import Records
from tests.store.test_learned import KIND, entered
url, me = sys.argv[1:]
records = Records(url)
learned, calls = LearnedRules(records.database), ModelCalls(records.database)
print("ready", flush=True)
sys.stdin.readline()
won = 0
for n in range(25):
    rule = entered(learned, f"^{n}$")
    own = entered(learned, f"^{me} {n}$")
    learned.hits.count(KIND, f"job-{me}", n, {rule.id: (2, 1), own.id: (1, 0)}, 1.0)
    learned.shapes.add_seen(KIND, [n, hash(me) % 2**40 + n])
    learned.refusals.add(KIND, "j", 1, me, [Refused("x", "g", "c")], 1.0)
    calls.enter("j", "m", "p", 1, 1, 0.5, "", 1.0)
    try:
        learned.move(rule.id, "active", me, "", 2.0, "promote", expected="shadow")
        won += 1
    except RuleRefused:
        pass
print(won, flush=True)
"""


def test_two_processes_write_beside_each_other(records: Records, url: str) -> None:
    learned = LearnedRules(records.database)
    command = [sys.executable, "-c", WORKER, url]
    workers = [
        subprocess.Popen([*command, me], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for me in ("p", "q")
    ]
    try:
        for worker in workers:
            assert worker.stdout and worker.stdout.readline() == "ready\n"
        won = run(workers)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    assert sum(won) == 25
    rules = learned.list(KIND)
    assert [rule.place for rule in rules] == list(range(75))
    shared = [rule for rule in rules if rule.status == "active"]
    assert len(shared) == 25 and {(rule.jobs, rule.lines, rule.taken) for rule in shared} == {(2, 4, 2)}
    assert learned.version() == 75 + 25 == len(learned.events(limit=500))
    assert learned.refusals.counts() == {"g": 50}
    assert ModelCalls(records.database).spent("j", 0.0) == Spent(50, 100, 25.0)
    assert len(learned.shapes.seen(KIND)) == 75


def run(workers: list["subprocess.Popen[str]"]) -> list[int]:
    """Lets all begin at once; what each printed at its end."""
    for worker in workers:
        assert worker.stdin
        worker.stdin.write("go\n")
        worker.stdin.flush()
    return [int(worker.communicate(timeout=300)[0]) for worker in workers]
