"""The database: its tables, how it is opened, and how one reads and writes.

The SQL is neutral between SQLite and PostgreSQL; what only one of them has stands in `Database`.
"""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, NoSuchModuleError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from logdoctor.errors import InputError, StorageFull, StoreError
from logdoctor.store.migrations import UnknownRevision, upgrade

BUSY_MS = 30_000
"""How long a writer waits for one of another process, in milliseconds."""

READERS = 40
"""Connections at most; as many as the web server has threads."""


metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")  # only INTEGER is an alias of SQLite's row id

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("facts", sa.Text, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("updated", sa.Double, nullable=False),
    sa.Index("ix_jobs_newest", "created", "job"),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("job", sa.Text, sa.ForeignKey("jobs.job"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("key", sa.Text),
    sa.Column("started", sa.Double, nullable=False),
    sa.Column("ended", sa.Double),
    sa.Column("settled", sa.Boolean, nullable=False),
    sa.Column("deleted", sa.Double),
    sa.UniqueConstraint("job", "key"),
    sa.Index("ix_attempts_settled", "settled", "job", "number"),
)

ends = sa.Table(
    "ends",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("stream", sa.Text, primary_key=True),
    sa.Column("exit_code", sa.BigInteger),
    sa.Column("signal", sa.BigInteger),
    sa.Column("scheduler_state", sa.Text),
    sa.Column("at", sa.Double, nullable=False),
    sa.ForeignKeyConstraint(["job", "attempt"], ["attempts.job", "attempts.number"]),
)

verdicts = sa.Table(
    "verdicts",
    metadata,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("event", sa.BigInteger, nullable=False, unique=True),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("final", sa.Boolean, nullable=False),
    sa.Column("superseded_by", _NUMBER, sa.ForeignKey("verdicts.id")),
    sa.Column("user", sa.Text),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("category", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("recovery", sa.Text, nullable=False),
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Column("decided", sa.Text, nullable=False, server_default=""),
    sa.ForeignKeyConstraint(["job", "attempt"], ["attempts.job", "attempts.number"]),
    sa.Index("ix_verdicts_history", "job", "attempt", "id"),
)
"""What lists look for. The bodies are elsewhere, so that a walk over many verdicts touches few pages."""

CURRENT = verdicts.c.superseded_by.is_(None)
"""True of the current verdict of an attempt."""

FACETS = ("reason", "category", "user", "job", "outcome", "recovery", "fingerprint")
"""Columns that a list is filtered by; each has its own index in the order of the list."""

for _name, _columns in {"newest": (), **{facet: (facet,) for facet in FACETS}}.items():
    sa.Index(
        f"ix_verdicts_{_name}",
        *(verdicts.c[column] for column in (*_columns, "at", "id")),
        sqlite_where=CURRENT,
        postgresql_where=CURRENT,
    )

bodies = sa.Table(
    "verdict_bodies",
    metadata,
    sa.Column("verdict", _NUMBER, sa.ForeignKey("verdicts.id"), primary_key=True, autoincrement=False),
    sa.Column("body", sa.Text, nullable=False),
)

nodes = sa.Table(
    "verdict_nodes",
    metadata,
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("at", sa.Double, primary_key=True),
    sa.Column("verdict", _NUMBER, sa.ForeignKey("verdicts.id"), primary_key=True, autoincrement=False),
    sa.Index("ix_verdict_nodes_verdict", "verdict"),
)
"""The suspected nodes of current verdicts; when a verdict is superseded its rows go (its body keeps them)."""

counters = sa.Table(
    "counters",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.BigInteger, nullable=False),
)

_COUNTERS = sa.DDL(  # type: ignore[no-untyped-call] # SQLAlchemy gives it no types
    "INSERT INTO counters (name, value) VALUES ('event', 0), ('learned', 0), ('confirmed', 0)"
)
sa.event.listen(counters, "after_create", _COUNTERS)


def next_event(connection: sa.Connection) -> int:
    """A number above all given; the row stays locked until the transaction ends, so they are seen in order."""
    query = sa.update(counters).where(counters.c.name == "event").values(value=counters.c.value + 1)
    return int(connection.execute(query.returning(counters.c.value)).scalar_one())


tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False, unique=True),
    sa.Column("scopes", sa.Text, nullable=False),
    sa.Column("prefixes", sa.Text, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("expires", sa.Double),
    sa.Column("revoked", sa.Double),
)

work = sa.Table(
    "work",
    metadata,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("due", sa.Double, nullable=False),
    sa.Column("tries", sa.Integer, nullable=False),
    sa.UniqueConstraint("kind", "key"),
    sa.Index("ix_work_due", "kind", "due", "id"),
    sqlite_autoincrement=True,  # who finishes work must not remove what was entered anew
)
"""What a service has to do in the background (store/work.py). Rows go when it is done."""

# Rules that were learned (store/learned.py)

learned_rules = sa.Table(
    "learned_rules",
    metadata,
    sa.Column("number", _NUMBER, primary_key=True),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("place", sa.Integer, nullable=False),
    sa.Column("digest", sa.Text, nullable=False, unique=True),
    sa.Column("pattern", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("harmless", sa.Boolean, nullable=False),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("jobs", sa.BigInteger, nullable=False),
    sa.Column("lines", sa.BigInteger, nullable=False),
    sa.Column("taken", sa.BigInteger, nullable=False),
    sa.Column("last_turn", sa.BigInteger, nullable=False),
    sa.Column("last_hit", sa.Double),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("changed", sa.Double, nullable=False),
    sa.Column("origin", sa.Text, nullable=False),
    sa.UniqueConstraint("kind", "place"),
    sa.Index("ix_learned_rules_status", "status", "number"),
)
"""`number` orders all rules by their entry, `digest` is that of kind and pattern, `origin` what never changes
and is not looked for, as JSON. `last_turn` is the kind's `counted` when the rule last matched or came into shadow,
`last_hit` when an attempt was last counted in which it matched."""

rule_kinds = sa.Table(
    "rule_kinds",
    metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("counted", sa.BigInteger, nullable=False),
)
"""How many attempts of a kind were counted."""

counted_attempts = sa.Table(
    "counted_attempts",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("turn", sa.BigInteger, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
)
"""The attempts whose hits were counted; `turn` numbers those of a kind."""

rule_hits = sa.Table(
    "rule_hits",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("rule", _NUMBER, sa.ForeignKey("learned_rules.number"), primary_key=True, autoincrement=False),
    sa.Column("lines", sa.BigInteger, nullable=False),
    sa.Column("taken", sa.BigInteger, nullable=False),
    sa.Column("seen", sa.BigInteger, nullable=False),
)
"""What a rule matched and took in an attempt; `seen` are the lines it was entered with, which count at least."""

rule_events = sa.Table(
    "rule_events",
    metadata,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("rule", _NUMBER, sa.ForeignKey("learned_rules.number"), nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("step", sa.Text, nullable=False),
    sa.Column("from_status", sa.Text, nullable=False),
    sa.Column("to_status", sa.Text, nullable=False),
    sa.Column("from_harmless", sa.Boolean, nullable=False),
    sa.Column("to_harmless", sa.Boolean, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("undoes", _NUMBER, sa.ForeignKey("rule_events.id"), unique=True),
    sa.Index("ix_rule_events_rule", "rule", "id"),
)

rule_refusals = sa.Table(
    "rule_refusals",
    metadata,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("agent", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("pattern", sa.Text, nullable=False),
    sa.Column("guard", sa.Text, nullable=False),
    sa.Column("cause", sa.Text, nullable=False),
    sa.Column("votes", sa.Text),
    sa.Index("ix_rule_refusals_kind", "kind", "id"),
)

refusal_counts = sa.Table(
    "refusal_counts",
    metadata,
    sa.Column("guard", sa.Text, primary_key=True),
    sa.Column("refused", sa.BigInteger, nullable=False),
)
"""Of all refusals ever, those whose rows went too."""

seen_shapes = sa.Table(
    "seen_shapes",
    metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("shapes", sa.LargeBinary, nullable=False),
)
"""64-bit numbers, little-endian, the oldest first: one row is read and written as a whole."""

printed_shapes = sa.Table(
    "printed_shapes",
    metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("shapes", sa.LargeBinary, nullable=False),
)
"""In the same form, what jobs of a kind print that no shipped rule explains: by this the next one is recognised."""

noticed_lines = sa.Table(
    "noticed_lines",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("stream", sa.Text, primary_key=True),
    sa.Column("line", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("runs", sa.Integer, nullable=False),
)

model_calls = sa.Table(
    "model_calls",
    metadata,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("purpose", sa.Text, nullable=False),
    sa.Column("tokens_in", sa.BigInteger, nullable=False),
    sa.Column("tokens_out", sa.BigInteger, nullable=False),
    sa.Column("dollars", sa.Double, nullable=False),
    sa.Column("failure", sa.Text, nullable=False),
    sa.Index("ix_model_calls_at", "at"),
    sa.Index("ix_model_calls_job", "job", "at"),
)

model_totals = sa.Table(
    "model_totals",
    metadata,
    sa.Column("model", sa.Text, primary_key=True),
    sa.Column("purpose", sa.Text, primary_key=True),
    sa.Column("result", sa.Text, primary_key=True),
    sa.Column("calls", sa.BigInteger, nullable=False),
    sa.Column("tokens_in", sa.BigInteger, nullable=False),
    sa.Column("tokens_out", sa.BigInteger, nullable=False),
    sa.Column("dollars", sa.Double, nullable=False),
)

# Failures that were confirmed, and what is left of settled attempts (store/confirmed.py)

confirmations = sa.Table(
    "confirmations",
    metadata,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("withdrawn", sa.Boolean, nullable=False),
    sa.Column("withdrawn_by", sa.Text, nullable=False),
    sa.Column("withdrawn_why", sa.Text, nullable=False),
    sa.Column("withdrawn_at", sa.Double),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("ix_confirmations_attempt", "job", "attempt", "id"),
)
"""Rows are only appended, and withdrawn ones stay. Of an attempt the one that is not withdrawn counts; `body` is what
was confirmed, as JSON."""

LIVE = confirmations.c.withdrawn.is_(False)
"""True of what counts."""

sa.Index(
    "uq_confirmations_live",
    confirmations.c.job,
    confirmations.c.attempt,
    unique=True,
    sqlite_where=LIVE,
    postgresql_where=LIVE,
)

residuals = sa.Table(
    "residuals",
    metadata,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("recovery", sa.Text, nullable=False),
    sa.Column("decided", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("frame", sa.LargeBinary, nullable=False),
    sa.UniqueConstraint("job", "attempt"),
    sa.Index("ix_residuals_digest", "digest", "decided"),
)
"""The newest settled attempts: what their verdict said, who decided, the digest of the episode that named the failure,
and the lines of their records as (stream, number, text), MessagePack in a Zstandard frame."""

model_exchanges = sa.Table(
    "model_exchanges",
    metadata,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("attempt", sa.Integer),
    sa.Column("purpose", sa.Text, nullable=False),
    sa.Column("model", sa.Text, nullable=False),
    sa.Column("prompt", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("tokens_in", sa.BigInteger, nullable=False),
    sa.Column("tokens_out", sa.BigInteger, nullable=False),
    sa.Column("dollars", sa.Double, nullable=False),
    sa.Column("seconds", sa.Double, nullable=False),
    sa.Column("cached", sa.Boolean, nullable=False),
    sa.Column("failure", sa.Text, nullable=False),
    sa.Column("usable", sa.Boolean, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
    sa.Index("ix_model_exchanges_attempt", "job", "attempt", "id"),
    sa.Index("ix_model_exchanges_key", "key", "usable", "id"),
)
"""What was said to models and by them (store/exchanges.py). `key` stands for all that an answer depends on, `usable`
for an answer that may be given again, `body` holds the texts: JSON, compressed with zstd."""

# Tests of nodes, cordons and actions (store/node_records.py)

node_tests = sa.Table(
    "node_tests",
    metadata,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("launcher", sa.Text, nullable=False),
    sa.Column("verdict", sa.BigInteger),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("ended", sa.Double),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("nodes", sa.Text, nullable=False),
    sa.Column("options", sa.Text, nullable=False),
    sa.Column("conclusion", sa.Text),
    sa.Column("followed", sa.Boolean, nullable=False),
    sa.Index("ix_node_tests_state", "state", "id"),
    sa.Index("ix_node_tests_followed", "followed", "id"),
    sa.Index("ix_node_tests_verdict", "verdict", "id"),
)
"""`nodes`, `options` and `conclusion` are JSON; `followed` once all that follows from its end is on record."""

tested_nodes = sa.Table(
    "tested_nodes",
    metadata,
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("test", _NUMBER, sa.ForeignKey("node_tests.id"), primary_key=True, autoincrement=False),
)
"""Which tests a node was in, also those that were not finished."""

world_results = sa.Table(
    "world_results",
    metadata,
    sa.Column("test", _NUMBER, sa.ForeignKey("node_tests.id"), primary_key=True, autoincrement=False),
    sa.Column("world", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("place", sa.Integer, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.UniqueConstraint("test", "place"),
)
"""`place` counts the results of a test from 1, as they came."""

node_findings = sa.Table(
    "node_findings",
    metadata,
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("test", _NUMBER, sa.ForeignKey("node_tests.id"), primary_key=True, autoincrement=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("standing", sa.Text, nullable=False),
    sa.Column("fault", sa.Text, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("boot", sa.Text, nullable=False),
    sa.Index("ix_node_findings_standing", "standing", "node"),
)

node_cordons = sa.Table(
    "node_cordons",
    metadata,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("node", sa.Text, nullable=False),
    sa.Column("how", sa.Text, nullable=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("verdict", sa.BigInteger),
    sa.Column("test", sa.BigInteger),
    sa.Column("changed", sa.Double, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Index("ix_node_cordons_node", "node", "id"),
    sa.Index("ix_node_cordons_state", "state", "id"),
    sa.Index("ix_node_cordons_recent", "how", "at"),
    sa.Index("ix_node_cordons_verdict", "verdict", "id"),
)
"""`owner` is the name that stands on the node, whatever the settings say later."""

OPEN_CORDON = node_cordons.c.state.in_([sa.literal_column("'wanted'"), sa.literal_column("'standing'")])
"""True of a cordon that holds its node, or may."""

sa.Index(
    "uq_node_cordons_open",
    node_cordons.c.node,
    node_cordons.c.how,
    unique=True,
    sqlite_where=OPEN_CORDON,
    postgresql_where=OPEN_CORDON,
)

node_actions = sa.Table(
    "node_actions",
    metadata,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("verdict", sa.BigInteger),
    sa.Column("test", sa.BigInteger),
    sa.Column("job", sa.Text),
    sa.Column("attempt", sa.Integer),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("changed", sa.Double, nullable=False),
    sa.Index("ix_node_actions_subject", "subject", "id"),
    sa.Index("ix_node_actions_state", "state", "id"),
    sa.Index("ix_node_actions_verdict", "verdict", "id"),
)
"""`body` is the action as it was proposed, as JSON, `why` says why it is in its state. Actions that come to the same
have the same `subject`, a digest."""

OPEN_ACTION = node_actions.c.state.in_([sa.literal_column("'waiting'"), sa.literal_column("'approved'")])
"""True of an action that waits for a person or for being done."""

sa.Index(
    "uq_node_actions_open",
    node_actions.c.subject,
    unique=True,
    sqlite_where=OPEN_ACTION,
    postgresql_where=OPEN_ACTION,
)

node_audit = sa.Table(
    "node_audit",
    metadata,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("what", sa.Text, nullable=False),
    sa.Column("subject", sa.BigInteger, nullable=False),
    sa.Column("node", sa.Text, nullable=False),
    sa.Column("step", sa.Text, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Index("ix_node_audit_node", "node", "id"),
    sa.Index("ix_node_audit_subject", "what", "subject", "id"),
)
"""Rows are only appended: the database itself refuses to change one or to delete it."""

# Incidents (store/incidents.py)

incidents = sa.Table(
    "incidents",
    metadata,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("event", sa.BigInteger, nullable=False, unique=True),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("fingerprint", sa.Text, nullable=False),
    sa.Column("node", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("category", sa.Text, nullable=False),
    sa.Column("recovery", sa.Text, nullable=False),
    sa.Column("fault", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("changed", sa.Double, nullable=False),
    sa.Column("opened", sa.Double, nullable=False),
    sa.Column("last", sa.Double, nullable=False),
    sa.Column("attempts", sa.BigInteger, nullable=False),
    sa.Column("jobs", sa.BigInteger, nullable=False),
    sa.Column("newest", _NUMBER, sa.ForeignKey("verdicts.id")),
    sa.Column("merged_into", _NUMBER, sa.ForeignKey("incidents.id")),
    sa.Column("notified", sa.Boolean, nullable=False),
    sa.Index("ix_incidents_fingerprint", "fingerprint", "id"),
    sa.Index("ix_incidents_newest", "last", "id"),
    sa.Index("ix_incidents_state", "state", "last", "id"),
    sa.Index("ix_incidents_reason", "reason", "last", "id"),
    sa.Index("ix_incidents_notified", "notified", "id"),
)
"""`key` tells groups apart. Reason, category, recovery, fault and `last` are those of the newest attempt, whose verdict
is `newest` (none when all attempts left). `attempts` and `jobs` count what `incident_attempts` holds."""

OPEN_INCIDENT = incidents.c.state.in_([sa.literal_column("'new'"), sa.literal_column("'acknowledged'")])
"""True of an incident that attempts may join."""

UNMERGED = incidents.c.merged_into.is_(None)
"""True of an incident that was not merged into another one: those are in no list."""

sa.Index(
    "ix_incidents_facets",
    *(incidents.c[name] for name in ("state", "reason", "category", "recovery", "fault")),
    sqlite_where=UNMERGED,
    postgresql_where=UNMERGED,
)

sa.Index(
    "uq_incidents_open",
    incidents.c.key,
    unique=True,
    sqlite_where=OPEN_INCIDENT,
    postgresql_where=OPEN_INCIDENT,
)

incident_attempts = sa.Table(
    "incident_attempts",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("incident", _NUMBER, sa.ForeignKey("incidents.id"), nullable=False),
    sa.Column("verdict", _NUMBER, sa.ForeignKey("verdicts.id"), nullable=False, unique=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("user", sa.Text),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("category", sa.Text, nullable=False),
    sa.Column("recovery", sa.Text, nullable=False),
    sa.Column("fault", sa.Text, nullable=False),
    sa.Column("words", sa.Text, nullable=False),
    sa.Index("ix_incident_attempts_newest", "incident", "at", "verdict", "job"),
    sa.Index("ix_incident_attempts_job", "incident", "job"),
    sa.Index("ix_incident_attempts_user", "user", "incident"),
)
"""The attempts of each incident with what their current verdicts say. `words` are what a search for text looks through,
folded to lower case: the first line is the user."""

incident_events = sa.Table(
    "incident_events",
    metadata,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("incident", _NUMBER, sa.ForeignKey("incidents.id"), nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("step", sa.Text, nullable=False),
    sa.Column("note", sa.Text, nullable=False),
    sa.Column("job", sa.Text),
    sa.Column("attempt", sa.Integer),
    sa.Index("ix_incident_events_incident", "incident", "id"),
)
"""Rows are only appended."""

rule_totals = sa.Table(
    "rule_totals",
    metadata,
    sa.Column("rule", sa.Text, primary_key=True),
    sa.Column("attempts", sa.BigInteger, nullable=False),
    sa.Column("lines", sa.BigInteger, nullable=False),
    sa.Column("last", sa.Double, nullable=False),
)
"""In how many current verdicts a rule took part, with how many lines, and when last (store/rule_totals.py)."""

# Notifications (store/notices.py)

notices = sa.Table(
    "notices",
    metadata,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("incident", _NUMBER, sa.ForeignKey("incidents.id")),
    sa.Column("key", sa.Text, nullable=False, unique=True),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("tries", sa.Integer, nullable=False),
    sa.Column("due", sa.Double, nullable=False),
    sa.Column("until", sa.Double, nullable=False),
    sa.Column("changed", sa.Double, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("summary", _NUMBER, sa.ForeignKey("notices.id")),
    sa.Index("ix_notices_due", "target", "state", "due", "id"),
    sa.Index("ix_notices_state", "state", "id"),
    sa.Index("ix_notices_incident", "incident", "id"),
    sa.Index("ix_notices_summary", "summary"),
)
"""What is to be told to whom: `key` is the id that receivers know it by, `body` the message, `state` whether it waits,
is held back, was delivered, is given up (dead), withdrawn or put into a `summary`; `due` when it is tried next, `until`
when no more, `why` what the last try said, `by` the person who wanted it sent."""

notice_targets = sa.Table(
    "notice_targets",
    metadata,
    sa.Column("target", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
)
"""Targets that are sent nothing any more, because they said that they are gone; `digest` is that of the URL."""

_ONLY_APPENDED = {
    "sqlite": (
        "CREATE TRIGGER tr_node_audit_update BEFORE UPDATE ON node_audit "
        "BEGIN SELECT RAISE(ABORT, 'the audit is only appended to'); END",
        "CREATE TRIGGER tr_node_audit_delete BEFORE DELETE ON node_audit "
        "BEGIN SELECT RAISE(ABORT, 'the audit is only appended to'); END",
        "CREATE TRIGGER tr_node_audit_replace BEFORE INSERT ON node_audit WHEN NEW.id IN (SELECT id FROM node_audit) "
        "BEGIN SELECT RAISE(ABORT, 'the audit is only appended to'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION node_audit_kept() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the audit is only appended to'; END $$",
        "CREATE TRIGGER tr_node_audit_kept BEFORE UPDATE OR DELETE OR TRUNCATE ON node_audit "
        "FOR EACH STATEMENT EXECUTE FUNCTION node_audit_kept()",
    ),
}
for _dialect, _statements in _ONLY_APPENDED.items():
    for _statement in _statements:
        _ddl = sa.DDL(_statement)  # type: ignore[no-untyped-call] # SQLAlchemy gives it no types
        sa.event.listen(node_audit, "after_create", _ddl.execute_if(dialect=_dialect))


_WRITER = 0x6C6F67646F63  # "logdoc": the advisory lock of PostgreSQL that stands for the right to write


class Database:
    """An open database of the newest form; any thread may use it. `StoreError` when it cannot be opened.

    `url` is SQLAlchemy's, such as `sqlite:////var/lib/logdoctor/records.sqlite`.
    """

    def __init__(self, url: str) -> None:
        self._engine = _engine(url)
        self._is_sqlite = self._engine.dialect.name == "sqlite"
        self._writes: dict[str, Any] = {"logdoctor_writes": True}
        if not self._is_sqlite:  # who waited for the others must see what they wrote
            self._writes["isolation_level"] = "READ COMMITTED"
        self._thing = f"the database {self._engine.url.render_as_string()}"  # without its password
        # SQLite's own wait for a writer is a series of naps in which the unlucky starve; among the threads
        # of this process a lock is fair enough, and quicker.
        self._writer = threading.Lock()
        try:
            with self.writing() as connection:
                upgrade(connection, metadata)
        except UnknownRevision as error:
            self.close()
            raise _unknown(self._thing, error) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connections that nobody uses."""
        self._engine.dispose()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """Yield a connection that sees one state of the database. `StoreError` when the database fails."""
        with self._store_errors(), self._engine.connect() as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """Yield a connection in a transaction beside which nobody else writes; durable when the block is left.

        `StoreError` when the database fails; then nothing of it was written.
        """
        with self._store_errors(), self._writer, self._engine.connect() as connection:
            connection = connection.execution_options(**self._writes)
            with connection.begin():
                yield connection

    @contextlib.contextmanager
    def _store_errors(self) -> Iterator[None]:
        """Turn what the database says into a `StoreError`."""
        try:
            yield
        except (DBAPIError, PoolTimeout) as error:
            cause = getattr(error, "orig", error)
            if _is_full(cause):
                raise StorageFull(self._thing, f"it cannot grow ({cause})", "Free some space.") from error
            if isinstance(error, DataError) and not self._is_sqlite:
                raise _unstorable(cause) from error
            checked = "disk's space, the file and its permissions" if self._is_sqlite else "database server and its log"
            raise StoreError(self._thing, f"fails ({cause})", f"Check the {checked}.") from error
        except (UnicodeEncodeError, OverflowError) as error:
            raise _unstorable(error) from error


def _unknown(thing: str, error: UnknownRevision) -> StoreError:
    if error.is_older:
        cause = f"was written by a development version, before the first release (revision {error.revision})"
        return StoreError(thing, cause, "Use a new data folder or database; this one is left as it is.")
    cause = f"was written by a newer logdoctor (revision {error.revision})"
    return StoreError(thing, cause, "Upgrade logdoctor, or use another database.")


def _is_full(cause: object) -> bool:
    """Whether the disk of the database is full, as SQLite and PostgreSQL say it."""
    return getattr(cause, "sqlite_errorname", "") == "SQLITE_FULL" or getattr(cause, "sqlstate", "") == "53100"


def _unstorable(cause: object) -> InputError:
    return InputError("a value", f"cannot be stored ({cause})", "Send valid UTF-8 and 64-bit numbers.")


def _engine(url: str) -> sa.Engine:
    try:
        parsed = sa.make_url(url)
        pool: dict[str, Any] = {"pool_size": 5, "max_overflow": READERS - 5}
        if parsed.get_backend_name() != "sqlite":  # who reads sees one state of all, as SQLite shows it
            engine = sa.create_engine(parsed, isolation_level="REPEATABLE READ", pool_pre_ping=True, **pool)
            sa.event.listen(engine, "connect", _bound_waiting)
        elif parsed.database in (None, "", ":memory:"):
            raise StoreError("the database URL", "names no file", "Use sqlite:////path/of/the/file.")
        else:  # BEGIN is ours, see _begin
            engine = sa.create_engine(parsed, connect_args={"isolation_level": None, "timeout": BUSY_MS / 1000}, **pool)
            sa.event.listen(engine, "connect", _prepare)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise StoreError("the database URL", f"cannot be used ({error})", "Use sqlite:////path/of/the/file.") from error
    sa.event.listen(engine, "begin", _begin)
    return engine


def _prepare(connection: Any, _record: object) -> None:
    for pragma in (f"busy_timeout={BUSY_MS}", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _bound_waiting(connection: Any, _record: object) -> None:
    with contextlib.closing(connection.cursor()) as cursor:
        cursor.execute(f"SET lock_timeout = {BUSY_MS}")
    connection.commit()  # or the setting goes with the transaction


def _begin(connection: sa.Connection) -> None:
    """Begin as the only writer: one that reads first and then finds the database changed cannot wait."""
    writes = connection.get_execution_options().get("logdoctor_writes")
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
    elif writes and connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITER})")
