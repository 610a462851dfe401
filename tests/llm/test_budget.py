"""The ledger in memory; how budgets hold is shown in test_spending.py."""

from logdoctor.llm.budget import Budget, Cost, MemoryLedger, Purse


def test_the_memory_ledger_forgets_the_oldest() -> None:
    ledger = MemoryLedger(most=3)
    for at in range(5):
        ledger.enter("j", "m", "p", 1, 1, 0.5, "", float(at))
    assert ledger.spent("j", 0.0) == (3, 6, 1.5)
    assert ledger.spent("x", 0.0) == (0, 0, 0.0) and ledger.spent(None, 4.0) == (1, 2, 0.5)


def test_what_is_set_aside_counts_until_it_is_given_back() -> None:
    purse, cost = Purse(Budget(tokens_per_job=100, calls_per_hour=3), MemoryLedger()), Cost(60, 0.0)
    purse.set_aside("a", cost)
    assert "TOKENS_PER_JOB" in purse.overdrawn("a", cost, 0.0) and not purse.overdrawn("b", cost, 0.0)
    purse.set_aside("b", cost)
    purse.set_aside("c", cost)
    assert "CALLS_PER_HOUR" in purse.overdrawn("d", cost, 0.0)
    for job in "abc":
        purse.give_back(job, cost)
    assert not purse.overdrawn("a", cost, 0.0) and not purse._running
