"""Types shared by the model client and the store: calls and their cost, requests and their answers."""

from typing import NamedTuple


class Spent(NamedTuple):
    """What calls of a model cost; tokens include prompts and answers."""

    calls: int
    tokens: int
    dollars: float


class Exchange(NamedTuple):
    """One request to a model and its reply.

    `at` is when it was sent in seconds since the epoch, `seconds` its duration; a `cached` one was not sent and cost
    nothing. `prompt` is the digest of the prompt's file. `sent` are (role, text) pairs, `request` (JSON) everything
    else that was sent; `got` is the reply's text, `calls` (a JSON list) the tools it calls. `failure` is "" for a good
    answer, else `unavailable` or `nonsense`, and `cause` says more.
    """

    at: float
    job: str
    attempt: int | None
    purpose: str
    model: str
    prompt: str
    key: str
    request: str
    sent: tuple[tuple[str, str], ...]
    got: str
    calls: str
    tokens_in: int
    tokens_out: int
    dollars: float
    seconds: float
    cached: bool
    failure: str
    cause: str


class Answered(NamedTuple):
    """A stored answer: the text, and the tools that it called, as a JSON list."""

    got: str
    calls: str
