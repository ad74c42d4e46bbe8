"""Runs the migrations over the connection that `tensile_db.catalog.install` opened, or writes their SQL.

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
    # For `tensile_db.catalog.extension`, without BEGIN and COMMIT: it runs in the transaction of CREATE or
    # ALTER EXTENSION.  So a migration reads nothing of the database.
    context.configure(dialect_name="postgresql", transactional_ddl=False, **options)
else:
    context.configure(connection=context.config.attributes["connection"], **options)
context.run_migrations()
