"""The second form: learned rules, what became of them, and what models cost."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Makes the tables; those of the first form stay as they are."""
    _make_rules()
    _make_refusals()
    _make_ledger()
    op.execute("INSERT INTO counters (name, value) VALUES ('learned', 0)")


def _make_rules() -> None:
    op.create_table(
        "learned_rules",
        sa.Column("number", _NUMBER, nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("pattern", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("harmless", sa.Boolean(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("jobs", sa.BigInteger(), nullable=False),
        sa.Column("lines", sa.BigInteger(), nullable=False),
        sa.Column("taken", sa.BigInteger(), nullable=False),
        sa.Column("last_turn", sa.BigInteger(), nullable=False),
        sa.Column("created", sa.Double(), nullable=False),
        sa.Column("changed", sa.Double(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("number", name=op.f("pk_learned_rules")),
        sa.UniqueConstraint("id", name=op.f("uq_learned_rules_id")),
        sa.UniqueConstraint("digest", name=op.f("uq_learned_rules_digest")),
        sa.UniqueConstraint("kind", "place", name=op.f("uq_learned_rules_kind_place")),
    )
    op.create_index("ix_learned_rules_status", "learned_rules", ["status", "number"])
    op.create_table(
        "rule_kinds",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("counted", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("kind", name=op.f("pk_rule_kinds")),
    )
    op.create_table(
        "counted_attempts",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("turn", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("job", "attempt", name=op.f("pk_counted_attempts")),
    )
    op.create_table(
        "rule_hits",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("rule", _NUMBER, autoincrement=False, nullable=False),
        sa.Column("lines", sa.BigInteger(), nullable=False),
        sa.Column("taken", sa.BigInteger(), nullable=False),
        sa.Column("seen", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["rule"], ["learned_rules.number"], name=op.f("fk_rule_hits_rule")),
        sa.PrimaryKeyConstraint("job", "attempt", "rule", name=op.f("pk_rule_hits")),
    )
    op.create_table(
        "rule_events",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("rule", _NUMBER, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("from_status", sa.Text(), nullable=False),
        sa.Column("to_status", sa.Text(), nullable=False),
        sa.Column("from_harmless", sa.Boolean(), nullable=False),
        sa.Column("to_harmless", sa.Boolean(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("undoes", _NUMBER, nullable=True),
        sa.ForeignKeyConstraint(["rule"], ["learned_rules.number"], name=op.f("fk_rule_events_rule")),
        sa.ForeignKeyConstraint(["undoes"], ["rule_events.id"], name=op.f("fk_rule_events_undoes")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rule_events")),
        sa.UniqueConstraint("undoes", name=op.f("uq_rule_events_undoes")),
    )
    op.create_index("ix_rule_events_rule", "rule_events", ["rule", "id"])


def _make_refusals() -> None:
    op.create_table(
        "rule_refusals",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("agent", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("pattern", sa.Text(), nullable=False),
        sa.Column("guard", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text(), nullable=False),
        sa.Column("votes", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rule_refusals")),
    )
    op.create_index("ix_rule_refusals_kind", "rule_refusals", ["kind", "id"])
    op.create_table(
        "refusal_counts",
        sa.Column("guard", sa.Text(), nullable=False),
        sa.Column("refused", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("guard", name=op.f("pk_refusal_counts")),
    )
    op.create_table(
        "seen_shapes",
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("shapes", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("kind", name=op.f("pk_seen_shapes")),
    )
    op.create_table(
        "noticed_lines",
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("stream", sa.Text(), nullable=False),
        sa.Column("line", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("runs", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job", "attempt", "stream", "line", name=op.f("pk_noticed_lines")),
    )


def _make_ledger() -> None:
    op.create_table(
        "model_calls",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("job", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("tokens_in", sa.BigInteger(), nullable=False),
        sa.Column("tokens_out", sa.BigInteger(), nullable=False),
        sa.Column("dollars", sa.Double(), nullable=False),
        sa.Column("failure", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model_calls")),
    )
    op.create_index("ix_model_calls_at", "model_calls", ["at"])
    op.create_index("ix_model_calls_job", "model_calls", ["job", "at"])
    op.create_table(
        "model_totals",
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("purpose", sa.Text(), nullable=False),
        sa.Column("result", sa.Text(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("tokens_in", sa.BigInteger(), nullable=False),
        sa.Column("tokens_out", sa.BigInteger(), nullable=False),
        sa.Column("dollars", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("model", "purpose", "result", name=op.f("pk_model_totals")),
    )
