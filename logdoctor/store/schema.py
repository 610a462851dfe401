"""The tables of the database.

The SQL is neutral between SQLite and PostgreSQL; store/database.py has what only one of them has.
"""

import math
import secrets
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

if TYPE_CHECKING:
    pass


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
"""The columns that lists filter and sort by. Bodies are elsewhere, so that a walk over many verdicts touches few
pages."""

CURRENT = verdicts.c.superseded_by.is_(None)
"""Condition: the verdict is the current one of its attempt."""

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
"""The suspected nodes of current verdicts; the rows of a superseded verdict are deleted (its body keeps them)."""

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


def counter(connection: sa.Connection, name: str) -> int:
    """Return the value of a counter; 0 before it is first raised."""
    return int(connection.scalar(sa.select(counters.c.value).where(counters.c.name == name)) or 0)


def count_up(connection: sa.Connection, name: str) -> int:
    """Raise a counter and return its value; its row stays locked until the transaction ends, so that values are seen in
    order."""
    query = sa.update(counters).where(counters.c.name == name).values(value=counters.c.value + 1)
    return int(connection.execute(query.returning(counters.c.value)).scalar_one())


def next_event(connection: sa.Connection) -> int:
    """Return a number above all events so far."""
    return count_up(connection, "event")


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

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("token", sa.Text, nullable=False),
    sa.Column("expires", sa.Double, nullable=False),
)
"""Browser sessions: the SHA-256 of each id, and the name of its token."""

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
    sqlite_autoincrement=True,  # finishing work must not delete the same work entered again
)
"""Queued background work (store/keeping/work.py). Rows are deleted when it is done."""

# Learned rules (store/learning/learned.py)

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
"""`number` orders all rules by their entry, `digest` is that of kind and pattern, `origin` (JSON) what never changes
and is not searched. `last_turn` is the kind's `counted` when the rule last matched or entered shadow, `last_hit`
when an attempt in which it matched was last counted."""

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
"""What a rule matched and took in an attempt; `seen` are the lines it was entered with, a minimum."""

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
"""Counts of all refusals ever, including those whose rows were deleted."""

seen_shapes = sa.Table(
    "seen_shapes",
    metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("shapes", sa.LargeBinary, nullable=False),
)
"""64-bit numbers, little-endian, oldest first: one row is read and written as a whole."""

printed_shapes = sa.Table(
    "printed_shapes",
    metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("shapes", sa.LargeBinary, nullable=False),
)
"""In the same form, the shapes that jobs of a kind print and no shipped rule explains; they identify the kind of other
jobs."""

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

# Confirmed failures, and the kept lines of settled attempts (store/learning/confirmed.py)

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
"""Rows are only appended, and withdrawn ones stay. The one that is not withdrawn is the live one of its attempt; `body`
(JSON) is what was confirmed."""

LIVE = confirmations.c.withdrawn.is_(False)
"""Condition: the confirmation is live."""

OF_ITS_ATTEMPT = sa.and_(
    LIVE,
    ~sa.exists().where(
        attempts.c.job == confirmations.c.job,
        attempts.c.number == confirmations.c.attempt,
        attempts.c.started > confirmations.c.at,
    ),
)
"""Condition: it is live and of the present attempt, not of a past one that this one replaced."""

sa.Index(
    "uq_confirmations_live",
    confirmations.c.job,
    confirmations.c.attempt,
    unique=True,
    sqlite_where=LIVE,
    postgresql_where=LIVE,
)

rule_overrides = sa.Table(
    "rule_overrides",
    metadata,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("rule", sa.Text, nullable=False),
    sa.Column("scope", sa.Text, nullable=False),
    sa.Column("whose", sa.Text, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("withdrawn", sa.Boolean, nullable=False),
    sa.Column("withdrawn_by", sa.Text, nullable=False),
    sa.Column("withdrawn_why", sa.Text, nullable=False),
    sa.Column("withdrawn_at", sa.Double),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("ix_rule_overrides_rule", "rule", "id"),
)
"""Overrides of diagnosis rules (store/learning/overrides.py). Rows are only appended, and withdrawn ones stay; `body`
(JSON) is what was said."""

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
"""The newest settled attempts: their verdict, who decided, the digest of the episode that named the failure, and the
lines of their records as (stream, number, text), MessagePack in a Zstandard frame."""

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
"""Exchanges with models (store/learning/exchanges.py). `key` identifies all that an answer depends on, `usable` marks
an answer that may be reused, `body` holds the texts: JSON, compressed with zstd."""

# Tests of nodes, cordons and actions (store/nodes/records.py)

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
    sa.Column("seen", sa.Double, nullable=False),
    sa.Index("ix_node_tests_state", "state", "id"),
    sa.Index("ix_node_tests_followed", "followed", "id"),
    sa.Index("ix_node_tests_verdict", "verdict", "id"),
)
"""`nodes`, `options` and `conclusion` are JSON; `followed` once everything that follows from its end is on record;
`seen` is the last sign of life of its process, by the clock of the database."""

tested_nodes = sa.Table(
    "tested_nodes",
    metadata,
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("test", _NUMBER, sa.ForeignKey("node_tests.id"), primary_key=True, autoincrement=False),
)
"""Which tests a node was in, including unfinished ones."""

world_results = sa.Table(
    "world_results",
    metadata,
    sa.Column("test", _NUMBER, sa.ForeignKey("node_tests.id"), primary_key=True, autoincrement=False),
    sa.Column("world", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("place", sa.Integer, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.UniqueConstraint("test", "place"),
)
"""`place` numbers the results of a test from 1, in order of arrival."""

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
"""`owner` is the name written on the node, whatever the settings say later."""

OPEN_CORDON = node_cordons.c.state.in_([sa.literal_column("'wanted'"), sa.literal_column("'standing'")])
"""Condition: the cordon holds its node, or may."""

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
"""`body` (JSON) is the action as proposed, `why` the reason for its state. Actions with the same effect have the same
`subject`, a digest."""

OPEN_ACTION = node_actions.c.state.in_([sa.literal_column("'waiting'"), sa.literal_column("'approved'")])
"""Condition: the action waits for a person, or to be done."""

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
"""Rows are only appended: the database itself refuses to change or delete one."""

# Incidents (store/incidents/table.py)

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
    sa.Column("assignee", sa.Text, nullable=False, server_default=""),
    sa.Column("snoozed_until", sa.Double),
    sa.Column("snoozed_attempts", sa.BigInteger),
    sa.Column("woken", sa.Double),
    sa.Index("ix_incidents_fingerprint", "fingerprint", "id"),
    sa.Index("ix_incidents_newest", "last", "id"),
    sa.Index("ix_incidents_state", "state", "last", "id"),
    sa.Index("ix_incidents_reason", "reason", "last", "id"),
    sa.Index("ix_incidents_notified", "notified", "id"),
)
"""`key` identifies a group. Reason, category, recovery, fault and `last` are those of the newest attempt, whose verdict
is `newest` (none when all attempts left). `attempts` and `jobs` count the rows of `incident_attempts`. It is snoozed
until `snoozed_until`, or until it has `snoozed_attempts`; `woken` is when its last snooze ended by itself."""

OPEN_INCIDENT = incidents.c.state.in_([sa.literal_column("'new'"), sa.literal_column("'acknowledged'")])
"""Condition: attempts may join the incident."""

UNMERGED = incidents.c.merged_into.is_(None)
"""Condition: the incident was not merged into another one; merged ones are in no list."""

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
    sa.Column("gpus", sa.BigInteger),
    sa.Column("seconds", sa.BigInteger),
    sa.Index("ix_incident_attempts_newest", "incident", "at", "verdict", "job"),
    sa.Index("ix_incident_attempts_job", "incident", "job"),
    sa.Index("ix_incident_attempts_user", "user", "incident"),
)
"""The attempts of each incident, as their current verdicts describe them. `words` is the search text in lower case: the
first line is the user. `gpus` are those of the job and `seconds` the time from the start to the failure, null if
unknown."""

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

mutes = sa.Table(
    "mutes",
    metadata,
    sa.Column("id", _NUMBER, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("value", sa.Text, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("until", sa.Double, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("lifted", sa.Double),
    sa.Column("lifted_by", sa.Text, nullable=False),
    sa.Index("ix_mutes_value", "kind", "value", "until"),
)
"""Fingerprints and nodes (`kind`) muted until a time. Rows stay, even if `lifted` before it."""

runbooks = sa.Table(
    "runbooks",
    metadata,
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, primary_key=True),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
)
"""Runbooks for failures with a reason, a rule or a fingerprint (`kind`)."""

scores = sa.Table(
    "scores",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("set", sa.Text, primary_key=True),
    sa.Column("metric", sa.Text, primary_key=True),
    sa.Column("step", sa.Integer, primary_key=True),
    sa.Column("value", sa.Double, nullable=False),
    sa.Column("samples", sa.Integer),
    sa.Column("at", sa.Double, nullable=False),
    sa.Index("ix_scores_step", "job", "step"),
)
"""Scores of the checkpoint of a job at a step, and when they were entered."""

rule_totals = sa.Table(
    "rule_totals",
    metadata,
    sa.Column("rule", sa.Text, primary_key=True),
    sa.Column("attempts", sa.BigInteger, nullable=False),
    sa.Column("lines", sa.BigInteger, nullable=False),
    sa.Column("last", sa.Double, nullable=False),
)
"""In how many current verdicts a rule took part, with how many lines, and when last (store/learning/rule_totals.py)."""

# Notifications (store/incidents/notices.py)

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
"""The outbox: `key` is the id that receivers see, `body` the message, `state` waiting, held, delivered, given up
(dead), withdrawn or put into a `summary`; `due` is the next try, `until` the end of trying, `why` the result of the
last try, `by` the person who wanted it sent."""

notice_targets = sa.Table(
    "notice_targets",
    metadata,
    sa.Column("target", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
)
"""Closed targets, which said that they are gone; `digest` is that of the URL."""

# The log and its archive (store/log/)

shards = sa.Table(
    "shards",
    metadata,
    sa.Column("shard", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("owner", sa.Text, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("until", sa.Double, nullable=False),
    sa.Column("head", sa.BigInteger, nullable=False),
    sa.Column("asked", sa.BigInteger, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("rulebook", sa.Text, nullable=False),
    postgresql_with={"fillfactor": 20},
)
"""Parts of the log, each with the attempts whose names hash to it. The worker `owner` reads it until `until` by the
clock of the database; `epoch` counts the owners. `head` is the last row of the log, `asked` the last one with a
request to the owner, `bytes` the size of its rows, `rulebook` the digest of the rules behind the owner's snapshots."""

SHARDS = 64
"""The number of shards, fixed for ever: the shard of an attempt must not change."""


@sa.event.listens_for(shards, "after_create")
def _fill(_table: sa.Table, connection: sa.Connection, **_options: object) -> None:
    fresh = {"owner": "", "epoch": 0, "until": 0.0, "head": 0, "asked": 0, "bytes": 0, "rulebook": ""}
    connection.execute(sa.insert(shards), [{"shard": shard, **fresh} for shard in range(SHARDS)])


workers = sa.Table(
    "workers",
    metadata,
    sa.Column("worker", sa.Text, primary_key=True),
    sa.Column("rulebook", sa.Text, nullable=False),
    sa.Column("until", sa.Double, nullable=False),
    sa.Column("figures", sa.Text, nullable=False, server_default=""),
)
"""The processes that own shards, or want some; each counts as alive until `until`. `figures` (JSON) is what it
publishes for metrics."""

leaders = sa.Table(
    "leaders",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("process", sa.Text, nullable=False),
    sa.Column("until", sa.Double, nullable=False),
)
"""One row: the process that leads until `until` (store/keeping/leader.py)."""


@sa.event.listens_for(leaders, "after_create")
def _lead(_table: sa.Table, connection: sa.Connection, **_options: object) -> None:
    connection.execute(sa.insert(leaders).values(id=1, process="", until=0.0))


streams = sa.Table(
    "streams",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("stream", sa.Text, primary_key=True),
    sa.Column("shard", sa.Integer, nullable=False),
    sa.Column("next", sa.BigInteger, nullable=False),
    sa.Column("lines", sa.BigInteger, nullable=False),
    sa.Column("archived", sa.BigInteger, nullable=False),
    sa.Column("changed", sa.Double, nullable=False),
    sa.Column("scanned", sa.BigInteger, nullable=False),
    sa.Column("kept", sa.BigInteger, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("problem", sa.Text, nullable=False),
    sa.Index("ix_streams_shard", "shard"),
    postgresql_with={"fillfactor": 50},
)
"""`next` is the offset of the next byte, `lines` the newlines before it, `archived` the first byte that is only in the
log, `changed` when bytes last came. `scanned` and `kept` are lines compressed and left, as last published by the
owner. `state` is the object with its last snapshot, `problem` what was lost of it, "" for none."""

log_rows = sa.Table(
    "log",
    metadata,
    sa.Column("shard", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("frame", sa.LargeBinary, nullable=False),
)
"""Acknowledged but unarchived bytes of streams, as frames (store/log/frames.py). Rows are only appended, and deleted
once all their bytes are archived; `bytes` is their size."""
for _dialect, _statement in {"postgresql": "ALTER TABLE log ALTER COLUMN frame SET STORAGE EXTERNAL"}.items():
    _ddl = sa.DDL(_statement)  # type: ignore[no-untyped-call] # SQLAlchemy gives it no types
    sa.event.listen(log_rows, "after_create", _ddl.execute_if(dialect=_dialect))  # it is compressed already

marks = sa.Table(
    "marks",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("stream", sa.Text, primary_key=True),
    sa.Column("mark", sa.Text, primary_key=True),
    sa.Column("at", sa.Double, nullable=False),
    sa.Index("ix_marks_at", "at"),
)
"""The marks of pushes without an offset that were taken, so that repetitions are dropped."""

parts = sa.Table(
    "parts",
    metadata,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("object", sa.Text, nullable=False, unique=True),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Column("index", sa.LargeBinary, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
)
"""The objects of the archive, in order, with their frame indexes."""

identity = sa.Table(
    "identity",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("archive", sa.Text, nullable=False, server_default=""),
    sa.Column("session_key", sa.Text, nullable=False),
)
"""One row: the id of this database and that of its archive, "" before it has one (store/keeping/identity.py), and the
key that signs browser sessions, shared by all serving processes."""


@sa.event.listens_for(identity, "after_create")
def _identify(_table: sa.Table, connection: sa.Connection, **_options: object) -> None:
    connection.execute(sa.insert(identity).values(id=secrets.token_hex(16), session_key=secrets.token_hex(32)))


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


class _NoNaN(sa.types.TypeDecorator[float]):
    """A number of PostgreSQL; NaN becomes NULL, as in SQLite."""

    impl = sa.Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: sa.Dialect) -> float | None:
        """Return the value to store or compare with."""
        return None if value is None or math.isnan(value) else value


_FITTING: dict[type[Any], sa.types.TypeEngine[Any]] = {
    sa.Text: sa.Text().with_variant(sa.Text(collation="C"), "postgresql"),
    sa.Integer: _NUMBER,
    sa.Double: sa.Double().with_variant(_NoNaN(), "postgresql"),
}
"""Types that make PostgreSQL store and compare values as SQLite does: texts are ordered by code point, whatever the
collation of the database, and integers have 64 bits."""

for _table in metadata.tables.values():
    for _column in _table.columns:
        _column.type = _FITTING.get(type(_column.type), _column.type)
