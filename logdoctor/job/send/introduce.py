"""Introduces a job to the service: sends its facts, and gets the number of the attempt."""

from logdoctor.errors import NotTaken
from logdoctor.job.send.client import Client
from logdoctor.job.send.notices import ShippingNotices
from logdoctor.job.send.target import ShippingTarget


def introduce(client: Client, target: ShippingTarget, notices: ShippingNotices) -> int:
    """Send the facts about the job and return the attempt's number; `NotTaken` when the service is unavailable.

    Refused facts do not prevent sending logs.
    """
    answer = client.describe_job(dict(target.metadata))
    if answer.status in (401, 403, 429) or answer.status >= 500:
        raise answer.refusal()
    if answer.status >= 300:
        notices.once("job", f"the job's metadata was not accepted: {answer.refusal().cause}.")
    if target.attempt is not None:
        return target.attempt
    answer = client.number_attempt(target.attempt_key)
    number = answer.body.get("attempt")
    if answer.status >= 300:
        raise answer.refusal()
    if not isinstance(number, int):
        raise NotTaken("its response has no attempt; is this logdoctor?", 30.0)
    return number
