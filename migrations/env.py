"""Runs the migrations over the connection that `tensile_db.catalog.install` opened.

The caller owns the transaction: an install changes everything or nothing.
"""

from alembic import context

from tensile_db.catalog.schema import SCHEMA, metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    version_table="migrations",
    version_table_schema=SCHEMA,
    include_schemas=True,
)
context.run_migrations()
