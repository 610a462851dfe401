"""The fifth form: tests of nodes, cordons, actions, and the audit of all three."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
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


def upgrade() -> None:
    """Makes the tables; those of the fourth form stay as they are."""
    _tests()
    _cordons()
    _actions()
    _audit()


def _tests() -> None:
    op.create_table(
        "node_tests",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("launcher", sa.Text(), nullable=False),
        sa.Column("verdict", sa.BigInteger(), nullable=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("ended", sa.Double(), nullable=True),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("nodes", sa.Text(), nullable=False),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("conclusion", sa.Text(), nullable=True),
        sa.Column("followed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_node_tests")),
    )
    op.create_index("ix_node_tests_state", "node_tests", ["state", "id"])
    op.create_index("ix_node_tests_followed", "node_tests", ["followed", "id"])
    op.create_table(
        "tested_nodes",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("test", _NUMBER, autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("node", "test", name=op.f("pk_tested_nodes")),
        sa.ForeignKeyConstraint(["test"], ["node_tests.id"], name=op.f("fk_tested_nodes_test")),
    )
    op.create_table(
        "world_results",
        sa.Column("test", _NUMBER, autoincrement=False, nullable=False),
        sa.Column("world", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("test", "world", name=op.f("pk_world_results")),
        sa.UniqueConstraint("test", "place", name=op.f("uq_world_results_test_place")),
        sa.ForeignKeyConstraint(["test"], ["node_tests.id"], name=op.f("fk_world_results_test")),
    )
    op.create_table(
        "node_findings",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("test", _NUMBER, autoincrement=False, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("standing", sa.Text(), nullable=False),
        sa.Column("fault", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("boot", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("node", "test", name=op.f("pk_node_findings")),
        sa.ForeignKeyConstraint(["test"], ["node_tests.id"], name=op.f("fk_node_findings_test")),
    )
    op.create_index("ix_node_findings_standing", "node_findings", ["standing", "node"])


def _cordons() -> None:
    op.create_table(
        "node_cordons",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("how", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("verdict", sa.BigInteger(), nullable=True),
        sa.Column("test", sa.BigInteger(), nullable=True),
        sa.Column("changed", sa.Double(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_node_cordons")),
    )
    op.create_index("ix_node_cordons_node", "node_cordons", ["node", "id"])
    op.create_index("ix_node_cordons_state", "node_cordons", ["state", "id"])
    op.create_index("ix_node_cordons_recent", "node_cordons", ["how", "at"])
    _one_open("node_cordons", ["node", "how"], "wanted", "standing")


def _actions() -> None:
    op.create_table(
        "node_actions",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("verdict", sa.BigInteger(), nullable=True),
        sa.Column("test", sa.BigInteger(), nullable=True),
        sa.Column("job", sa.Text(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("changed", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_node_actions")),
    )
    op.create_index("ix_node_actions_subject", "node_actions", ["subject", "id"])
    op.create_index("ix_node_actions_state", "node_actions", ["state", "id"])
    _one_open("node_actions", ["subject"], "waiting", "approved")


def _audit() -> None:
    op.create_table(
        "node_audit",
        sa.Column("id", _NUMBER, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("what", sa.Text(), nullable=False),
        sa.Column("subject", sa.BigInteger(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("step", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_node_audit")),
    )
    op.create_index("ix_node_audit_node", "node_audit", ["node", "id"])
    op.create_index("ix_node_audit_subject", "node_audit", ["what", "subject", "id"])
    for statement in _ONLY_APPENDED[op.get_bind().dialect.name]:
        op.execute(statement)


def _one_open(table: str, columns: list[str], *states: str) -> None:
    """An index that lets only one row with the same columns be in one of the states."""
    where = sa.text(f"state IN ({', '.join(repr(state) for state in states)})")
    op.create_index(f"uq_{table}_open", table, columns, unique=True, sqlite_where=where, postgresql_where=where)
