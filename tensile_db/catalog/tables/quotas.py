"""Quotas: what each role may have of the devices."""

from sqlalchemy import CheckConstraint, Column, Double, Integer, Table, Text
from sqlalchemy.dialects.postgresql import OID

from tensile_db.catalog.tables.base import count, instant, metadata

quotas = Table(
    "quotas",
    metadata,
    Column(
        "role_oid",
        OID,
        primary_key=True,
        autoincrement=False,
        comment="The role; 0: every role without a row of its own.",
    ),
    Column("role", Text, comment="Its name when the quota was set; NULL for that of all others."),
    Column(
        "max_concurrent_jobs",
        Integer,
        comment="Jobs that it may have at a time that have not ended, but for those that search or serve;"
        " NULL: any number.",
    ),
    count("max_device_nbytes", "Device memory that each of its jobs may have, in bytes; NULL: no limit."),
    Column(
        "max_device_seconds",
        Double,
        comment="Device time that all its jobs together may use, ever, in seconds; NULL: no limit.",
    ),
    instant("updated_at", "When it was set.", now=True),
    Column(
        "max_serving_requests",
        Integer,
        comment="Rows that its sessions may wait to have predicted at a time; NULL: any number.",
    ),
    CheckConstraint("max_concurrent_jobs >= 0", name="max_concurrent_jobs"),
    CheckConstraint("max_device_nbytes > 0", name="max_device_nbytes"),
    CheckConstraint("max_device_seconds >= 0", name="max_device_seconds"),
    CheckConstraint("max_serving_requests >= 0", name="max_serving_requests"),
    comment="What roles may have of the devices: a role's own row holds, else that of all others.",
)

#: Not advisory locks: any login could take those.  A request for a row must not wait for the disk.
quota_locks = Table(
    "quota_locks",
    metadata,
    Column("role_oid", OID, primary_key=True, autoincrement=False, comment="The role."),
    Column("counted", Text, primary_key=True, comment="What is counted: jobs or rows."),
    CheckConstraint("counted IN ('jobs', 'rows')", name="counted"),
    prefixes=["UNLOGGED"],
    comment="Rows that whoever counts what a role has locks meanwhile; nobody else may read them.",
)
