"""Rows that are predicted one at a time: requests of sessions that wait, and their answers."""

from sqlalchemy import BigInteger, Boolean, Column, Identity, Index, Integer, LargeBinary, Table, Text, text
from sqlalchemy.dialects.postgresql import JSONB, OID

from tensile_db.catalog.tables.base import instant, metadata, one_of

FORMS = ("bytes", "array", "object")

serving_requests = Table(
    "serving_requests",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True, comment="The request."),
    # No foreign key: it would lock the model's row, and so write to it, for every request.
    Column("model_id", BigInteger, nullable=False, comment="The model that is to predict."),
    Column("requested_by", OID, nullable=False, comment="The role that asks."),
    Column("client_pid", Integer, nullable=False, comment="The server process that waits."),
    instant("client_started_at", "When that process started.", nullable=False),
    Column(
        "form",
        Text,
        nullable=False,
        comment="How the features are given: bytes, array (array_send of float8[]) or object (JSON).",
    ),
    Column(
        "wants_probabilities",
        Boolean,
        nullable=False,
        comment="Whether those of all classes are asked for.",
    ),
    Column("features", LargeBinary, nullable=False, comment="Of one row, in that form."),
    Column(
        "asked",
        Integer,
        nullable=False,
        server_default=text("1"),
        comment="How often the workers were told of it.",
    ),
    Column(
        "answered",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="Whether what follows is the answer.",
    ),
    Column(
        "prediction",
        Text,
        comment="The class, or the number as text; NULL where a feature was and the model takes no NULLs.",
    ),
    Column(
        "probabilities",
        JSONB(none_as_null=True),
        comment="Of each class; NULL where they were not asked for, or as the prediction is.",
    ),
    Column("error_sqlstate", Text, comment="Why there is none, as an SQLSTATE."),
    Column("error_message", Text, comment="Why there is none, as a sentence."),
    Column("error_hint", Text, comment="What to change."),
    one_of("form", *FORMS),
    Index("serving_requests_model_id_idx", "model_id"),
    Index("serving_requests_requested_by_idx", "requested_by"),
    prefixes=["UNLOGGED"],
    comment="Rows that sessions wait to have predicted, and the answers, until they have been read.",
)
