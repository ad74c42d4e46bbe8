"""Searches for hyperparameters: what is asked for beyond a training's request, and the trials begun."""

from sqlalchemy import CheckConstraint, Column, Double, ForeignKey, Integer, Table, Text
from sqlalchemy.dialects.postgresql import JSONB

from tensile_db.catalog.tables.base import SCHEMA, instant, job_id, metadata, one_of

METHODS = ("grid", "random", "tpe", "halving", "hyperband")
METRICS = (
    *("loss", "accuracy", "balanced_accuracy", "macro_f1", "precision", "recall", "f1", "roc_auc"),
    *("mse", "rmse", "mae", "r2"),
)

search_requests = Table(
    "search_requests",
    metadata,
    job_id(primary_key=True),
    Column("space", JSONB, nullable=False, comment="Arguments and options to vary, and over what values."),
    Column("method", Text, nullable=False, comment="Who chooses the values: grid, random, tpe, ..."),
    Column("trials", Integer, nullable=False, comment="Trainings to begin, at most."),
    Column("max_parallel", Integer, nullable=False, comment="Trainings under way at a time, at most."),
    Column("metric", Text, nullable=False, comment="The validation metric by which trials are compared."),
    one_of("method", *METHODS),
    one_of("metric", *METRICS),
    CheckConstraint("trials BETWEEN 1 AND 10000", name="trials"),
    CheckConstraint("max_parallel BETWEEN 1 AND 1000", name="max_parallel"),
    comment="What each search asks for; all else that its trainings have in common is in its row of jobs.",
)

search_trials = Table(
    "search_trials",
    metadata,
    Column(
        "search_id",
        ForeignKey(f"{SCHEMA}.jobs.id", ondelete="CASCADE"),
        primary_key=True,
        comment="The search.",
    ),
    Column("number", Integer, primary_key=True, autoincrement=False, comment="The trial, from 0."),
    Column(
        "job_id",
        ForeignKey(f"{SCHEMA}.jobs.id", ondelete="CASCADE"),
        nullable=False,
        unique=True,
        comment="The training.",
    ),
    Column("params", JSONB, nullable=False, comment="The values that were chosen for it, by name."),
    Column("value", Double, comment="The metric of its model; of a pruned trial, of its last epoch."),
    Column("pruned_reason", Text, comment="Why it was stopped early; NULL: it was not."),
    instant("created_at", "When it was begun.", now=True),
    comment="The trials of searches: trainings with values of their own.",
)
