"""Where a catalog was installed, by which a restored one is told apart."""

from sqlalchemy import BigInteger, Column, Table
from sqlalchemy.dialects.postgresql import OID

from tensile_db.catalog.tables.base import instant, metadata

homes = Table(
    "homes",
    metadata,
    Column(
        "system_identifier",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="The cluster, as pg_control_system() tells it.",
    ),
    Column(
        "jobs_oid", OID, primary_key=True, autoincrement=False, comment="The number of tensile.jobs there."
    ),
    instant("since", "When it was installed there, or its owners were found after a restore.", now=True),
    comment="The databases whose numbers of roles and tables the catalog has: its own alone, or, after a"
    " restore, also that which was dumped.",
)
