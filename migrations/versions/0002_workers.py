"""Workers."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "architectures",
        sa.Column("name", sa.Text(), nullable=False, comment="The name to give to tensile_train."),
        sa.Column("kind", sa.Text(), nullable=False, comment="Where it comes from."),
        sa.Column("resolves_to", sa.Text(), nullable=False, comment="The name that its maker knows."),
        sa.CheckConstraint(
            "kind IN ('alias', 'timm', 'mlp', 'plugin')", name=op.f("architectures_kind_check")
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("architectures_pkey")),
        schema="tensile",
        comment="The networks that can be trained, so that a backend can check a name without torch.",
    )
    op.create_table(
        "settings",
        sa.Column("name", sa.Text(), nullable=False, comment="version, udf_digest or loopback."),
        sa.Column("value", sa.Text(), nullable=False, comment="Its value."),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When it was set.",
        ),
        sa.PrimaryKeyConstraint("name", name=op.f("settings_pkey")),
        schema="tensile",
        comment="How this catalog was installed, and how the server reaches itself.",
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False, comment="The worker."),
        sa.Column(
            "login",
            sa.Text(),
            nullable=False,
            comment="The role it connects as; it must be able to become users.",
        ),
        sa.Column("host", sa.Text(), nullable=False, comment="The machine it runs on."),
        sa.Column("pid", sa.Integer(), nullable=False, comment="Its process there."),
        sa.Column("device_name", sa.Text(), nullable=False, comment="Its device, as given at its start."),
        sa.Column(
            "memory_nbytes", sa.BigInteger(), nullable=True, comment="The device memory it may use, in bytes."
        ),
        sa.Column("version", sa.Text(), nullable=False, comment="The tensile_db it runs."),
        sa.Column(
            "started_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When it started.",
        ),
        sa.Column(
            "heartbeat_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="Its last sign of life.",
        ),
        sa.Column(
            "state", sa.Text(), server_default="starting", nullable=False, comment="Where in its life it is."
        ),
        sa.CheckConstraint(
            "state IN ('starting', 'ready', 'stopping', 'gone')", name=op.f("workers_state_check")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("workers_pkey")),
        schema="tensile",
        comment="Every worker that ever ran here; one is alive if its heartbeat is younger than the lease.",
    )
    op.create_table(
        "devices",
        sa.Column("worker_id", sa.BigInteger(), nullable=False, comment="Its worker."),
        sa.Column("name", sa.Text(), nullable=False, comment="The device."),
        sa.Column(
            "memory_nbytes",
            sa.BigInteger(),
            nullable=False,
            comment="What its jobs may hold together, in bytes.",
        ),
        sa.Column(
            "d2h_bytes_per_s",
            sa.BigInteger(),
            nullable=True,
            comment="The link to the host, in bytes a second.",
        ),
        sa.Column(
            "h2d_bytes_per_s",
            sa.BigInteger(),
            nullable=True,
            comment="The link from the host, in bytes a second.",
        ),
        sa.Column("duplex", sa.Boolean(), nullable=True, comment="Whether both directions run at once."),
        sa.Column("flops_per_s", sa.BigInteger(), nullable=True, comment="Sustained rate of arithmetic."),
        sa.Column(
            "memory_bytes_per_s", sa.BigInteger(), nullable=True, comment="Sustained rate of its own memory."
        ),
        sa.Column(
            "op_overhead_ns", sa.BigInteger(), nullable=True, comment="Fixed cost of starting an op, in ns."
        ),
        sa.Column("used_nbytes", sa.BigInteger(), nullable=True, comment="Held at present, in bytes."),
        sa.Column("peak_nbytes", sa.BigInteger(), nullable=True, comment="The most ever held, in bytes."),
        sa.Column(
            "utilization", sa.Double(), nullable=True, comment="The share of time it computes, from 0 to 1."
        ),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When this row last changed.",
        ),
        sa.ForeignKeyConstraint(
            ["worker_id"], ["tensile.workers.id"], name=op.f("devices_worker_id_fkey"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("worker_id", "name", name=op.f("devices_pkey")),
        schema="tensile",
        comment="The device of each worker: what a planner knows of it, and its use.",
    )
    for table in ("workers", "devices", "architectures", "settings"):
        op.execute(f"ALTER TABLE tensile.{table} ENABLE ROW LEVEL SECURITY")
