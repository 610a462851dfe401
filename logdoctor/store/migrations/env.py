"""What alembic runs for `upgrade`: the steps, on the caller's connection and in its transaction."""

from alembic import context

context.configure(connection=context.config.attributes["connection"], transactional_ddl=True)
with context.begin_transaction():
    context.run_migrations()
