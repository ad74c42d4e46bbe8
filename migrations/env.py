"""Runs the migrations over the connection that `tensile_db.catalog.install` opened, or writes them out.

The caller owns the transaction: an install changes everything or nothing.
"""

from alembic import context

from tensile_db.catalog.schema import SCHEMA, metadata

options = {
    "target_metadata": metadata,
    "version_table": "migrations",
    "version_table_schema": SCHEMA,
    "include_schemas": True,
}
if context.is_offline_mode():
    # A script that runs within somebody's transaction.
    context.configure(dialect_name="postgresql", transactional_ddl=False, **options)
else:
    context.configure(connection=context.config.attributes["connection"], **options)
context.run_migrations()
