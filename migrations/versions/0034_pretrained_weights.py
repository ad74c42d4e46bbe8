"""Weights that were learned elsewhere, for trainings to start from."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None

_TABLES = ("pretrained_weights", "pretrained_tensors")


def upgrade() -> None:
    op.create_table(
        "pretrained_weights",
        sa.Column("id", sa.BigInteger(), sa.Identity(always=True), nullable=False, comment="The weights."),
        sa.Column(
            "name", sa.Text(), nullable=False, comment="What trainings call them: the option pretrained."
        ),
        sa.Column(
            "architecture", sa.Text(), nullable=False, comment="The network that they are of, by timm's name."
        ),
        sa.Column(
            "height", sa.Integer(), nullable=False, comment="Of the images that they are made for, in pixels."
        ),
        sa.Column(
            "width", sa.Integer(), nullable=False, comment="Of the images that they are made for, in pixels."
        ),
        sa.Column(
            "mean",
            postgresql.ARRAY(sa.Double()),
            nullable=False,
            comment="Of each channel: what is subtracted from pixels, which are 0 to 255.",
        ),
        sa.Column(
            "scale",
            postgresql.ARRAY(sa.Double()),
            nullable=False,
            comment="Of each channel: by what the difference is divided.",
        ),
        sa.Column("nbytes", sa.BigInteger(), nullable=False, comment="The size of all, in bytes."),
        sa.Column(
            "imported_by",
            sa.Text(),
            server_default=sa.text("CURRENT_USER"),
            nullable=False,
            comment="The name of the role that imported them.",
        ),
        sa.Column(
            "created_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("now()"),
            nullable=False,
            comment="When they were imported.",
        ),
        sa.CheckConstraint("height BETWEEN 1 AND 8192", name=op.f("pretrained_weights_height_check")),
        sa.CheckConstraint("width BETWEEN 1 AND 8192", name=op.f("pretrained_weights_width_check")),
        sa.CheckConstraint(
            "cardinality(mean) > 0 AND cardinality(scale) = cardinality(mean)",
            name=op.f("pretrained_weights_channels_check"),
        ),
        # NaN comes behind infinity, and NULL is neither.
        sa.CheckConstraint(
            "'-infinity' < ALL (mean) AND 'infinity' > ALL (mean) AND array_position(mean, NULL) IS NULL",
            name=op.f("pretrained_weights_mean_check"),
        ),
        sa.CheckConstraint(
            "0 < ALL (scale) AND 'infinity' > ALL (scale) AND array_position(scale, NULL) IS NULL",
            name=op.f("pretrained_weights_scale_check"),
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pretrained_weights_pkey")),
        sa.UniqueConstraint("name", name=op.f("pretrained_weights_name_key")),
        schema="tensile",
        comment="Weights that were learned elsewhere, for trainings to start from.",
    )
    op.create_table(
        "pretrained_tensors",
        sa.Column("weights_id", sa.BigInteger(), nullable=False, comment="The weights."),
        sa.Column(
            "name",
            sa.Text(),
            nullable=False,
            comment="parameter/... or buffer/..., as the architecture names it.",
        ),
        sa.Column("part", sa.Integer(), nullable=False, comment="From 0."),
        sa.Column("dtype", sa.Text(), nullable=False, comment="The elements."),
        sa.Column(
            "shape",
            postgresql.ARRAY(sa.BigInteger()),
            nullable=False,
            comment="Of the whole tensor, in elements.",
        ),
        sa.Column(
            "data",
            sa.LargeBinary(),
            nullable=False,
            comment="This part's bytes, little-endian, at most 16 MiB.",
        ),
        sa.ForeignKeyConstraint(
            ["weights_id"],
            ["tensile.pretrained_weights.id"],
            name=op.f("pretrained_tensors_weights_id_fkey"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("weights_id", "name", "part", name=op.f("pretrained_tensors_pkey")),
        schema="tensile",
        comment="The tensors of pretrained weights, but for the outputs', a row for each part of one.",
    )
    # As of models: they do not compress, and parts of a value are read without reading all of it.
    op.execute("ALTER TABLE tensile.pretrained_tensors ALTER COLUMN data SET STORAGE EXTERNAL")
    for table in _TABLES:
        op.execute(f"ALTER TABLE tensile.{table} ENABLE ROW LEVEL SECURITY")
    op.add_column(
        "jobs",
        sa.Column(
            "pretrained_id",
            sa.BigInteger(),
            nullable=True,
            comment="The pretrained weights that a training starts from.",
        ),
        schema="tensile",
    )


def downgrade() -> None:
    # An installation makes it anew.
    op.execute("DROP VIEW IF EXISTS tensile.queue")
    op.drop_column("jobs", "pretrained_id", schema="tensile")
    for table in reversed(_TABLES):
        op.drop_table(table, schema="tensile")
