"""Where a catalog was installed, by which a restored one knows that it was."""

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
    instant("since", "When it was installed there, or settled after a restore.", now=True),
    comment="The databases in which the numbers of roles and tables in this catalog hold; but for the one"
    " that it is in, a restore has brought them along.",
)
