"""Build the language model behind its budget, its breaker and its mask."""

import threading
import time
from collections.abc import Callable
from functools import partial

from logdoctor.errors import SettingsError
from logdoctor.extras import require as require_library
from logdoctor.llm.budget import Ledger
from logdoctor.llm.exchanges import ExchangeStore
from logdoctor.llm.langchain import LangChainModel
from logdoctor.llm.masking import Masker
from logdoctor.llm.scripted import ScriptedModel
from logdoctor.llm.spending import Budget, Guarded, MemoryLedger
from logdoctor.settings import PREFIX, Settings, llm_key
from logdoctor.store.learning.exchanges import Exchanges
from logdoctor.wiring.stored import redis_state


class Model:
    """The model of the settings, built on first use; callers share its budget and breaker."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._lock = settings, threading.Lock()
        self._made: Guarded | None = None

    def __call__(self, ledger: Ledger, exchanges: Exchanges) -> Guarded:
        with self._lock:
            if self._made is None:
                self._made = guarded(self._settings, ledger, exchanges)
            return self._made


def guarded(
    settings: Settings,
    ledger: Ledger,
    exchanges: ExchangeStore | None = None,
    bears_nonsense: bool = False,
    clock: Callable[[], float] = time.time,
) -> Guarded:
    """Return the model of the settings behind its budget and breaker, with the stored exchanges. All callers share
    one."""
    for name in ("llm_base_url", "llm_model"):
        if not getattr(settings, name):
            variable = f"{PREFIX}{name.upper()}"
            raise SettingsError(variable, "is not set, but a model is needed", "Set it, or LOGDOCTOR_LEARN=miner.")
    require_library("langchain")  # imported at the first call, which is too late for an error
    key = llm_key(settings)
    model = LangChainModel(settings.llm_base_url, settings.llm_model, key, settings.llm_output, settings.llm_seconds)
    budget = Budget(
        settings.llm_calls_per_job,
        settings.llm_calls_per_hour,
        settings.llm_tokens_per_hour,
        settings.llm_dollars_in,
        settings.llm_dollars_out,
        settings.llm_tokens_per_job,
        settings.llm_tokens_per_day,
        settings.llm_tokens_in_all,
        settings.llm_dollars_per_day,
        settings.llm_dollars_in_all,
    )
    return Guarded(
        model,
        ledger,
        budget,
        clock,
        exchanges=exchanges,
        key=key,
        bears_nonsense=bears_nonsense,
        masker=_masker(settings),
        pauses=redis_state(settings),
    )


def nobody(settings: Settings) -> Guarded:
    """Return a model that is not there, which masks like the one of the settings: to show what that would be sent."""
    return Guarded(ScriptedModel(()), MemoryLedger(), masker=_masker(settings))


def _masker(settings: Settings) -> Callable[[], Masker]:
    return partial(Masker, settings.mask_hosts, settings.mask_ips, secrets=settings.mask == "on")
