"""Enters scores of checkpoints into a service."""

from collections.abc import Sequence

from logdoctor.cli.client.connection import Connection, path
from logdoctor.jobs.scores import MOST_SCORES, Score
from logdoctor.web.jobs.answers import EnteredScores


def enter_scores(connection: Connection, job: str, scores: Sequence[Score]) -> int:
    """Enter scores of a job, and return how many were entered."""
    count = 0
    for at in range(0, len(scores), MOST_SCORES):
        sent = {"scores": list(scores[at : at + MOST_SCORES])}
        count += connection.post(EnteredScores, path("jobs", job, "scores"), sent).entered
    return count
