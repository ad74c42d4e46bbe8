"""Weights that were learned elsewhere, for trainings to start from."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    Identity,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY

from tensile_db.catalog.tables.base import count, instant, metadata
from tensile_db.catalog.tables.parts import NAMES_OF_WEIGHTS, parts_of_tensors

_MADE_FOR = "Of the images that they are made for, in pixels."

pretrained_weights = Table(
    "pretrained_weights",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True, comment="The weights."),
    Column("name", Text, nullable=False, comment="What trainings call them: the option pretrained."),
    Column("architecture", Text, nullable=False, comment="The network that they are of, by timm's name."),
    Column("height", Integer, nullable=False, comment=_MADE_FOR),
    Column("width", Integer, nullable=False, comment=_MADE_FOR),
    Column(
        "mean",
        ARRAY(Double),
        nullable=False,
        comment="Of each channel: what is subtracted from pixels, which are 0 to 255.",
    ),
    Column(
        "scale", ARRAY(Double), nullable=False, comment="Of each channel: by what the difference is divided."
    ),
    count("nbytes", "The size of all, in bytes.", nullable=False),
    Column(
        "imported_by",
        Text,
        nullable=False,
        server_default=text("CURRENT_USER"),
        comment="The name of the role that imported them.",
    ),
    instant("created_at", "When they were imported.", now=True),
    UniqueConstraint("name"),
    CheckConstraint("height BETWEEN 1 AND 8192", name="height"),
    CheckConstraint("width BETWEEN 1 AND 8192", name="width"),
    CheckConstraint("cardinality(mean) > 0 AND cardinality(scale) = cardinality(mean)", name="channels"),
    # NaN comes behind infinity, and NULL is neither.
    CheckConstraint(
        "'-infinity' < ALL (mean) AND 'infinity' > ALL (mean) AND array_position(mean, NULL) IS NULL",
        name="mean",
    ),
    CheckConstraint(
        "0 < ALL (scale) AND 'infinity' > ALL (scale) AND array_position(scale, NULL) IS NULL", name="scale"
    ),
    comment="Weights that were learned elsewhere, for trainings to start from.",
)

pretrained_tensors = parts_of_tensors(
    "pretrained_tensors",
    of="weights_id",
    owner="The weights.",
    owners="pretrained_weights",
    names=NAMES_OF_WEIGHTS,
    comment="The tensors of pretrained weights, but for the outputs', a row for each part of one.",
)
