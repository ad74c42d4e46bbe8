"""The catalog's tables (schema `tensile`), by name.

Only `migrations/` changes tables in a database; a test holds that both agree.
"""

from tensile_db.catalog.tables.base import SCHEMA, metadata
from tensile_db.catalog.tables.graphs import graph_ops, graph_tensors, graphs, latency_logs
from tensile_db.catalog.tables.homes import homes
from tensile_db.catalog.tables.jobs import KINDS, PHASES, STATES, job_events, jobs, predictions
from tensile_db.catalog.tables.latency_models import latency_models, latency_samples
from tensile_db.catalog.tables.models import checkpoint_tensors, checkpoints, model_weights, models
from tensile_db.catalog.tables.parts import PART_NBYTES
from tensile_db.catalog.tables.plans import (
    memory_peaks,
    memory_timeline_points,
    plan_events,
    plans,
    training_metrics,
)
from tensile_db.catalog.tables.pretrained import pretrained_tensors, pretrained_weights
from tensile_db.catalog.tables.quotas import quotas
from tensile_db.catalog.tables.searches import search_requests, search_trials
from tensile_db.catalog.tables.serving import serving_requests
from tensile_db.catalog.tables.workers import architectures, devices, settings, workers
from tensile_db.catalog.tables.workspaces import op_workspaces

__all__ = [
    "KINDS",
    "PART_NBYTES",
    "PHASES",
    "SCHEMA",
    "STATES",
    "architectures",
    "checkpoint_tensors",
    "checkpoints",
    "devices",
    "graph_ops",
    "graph_tensors",
    "graphs",
    "homes",
    "job_events",
    "jobs",
    "latency_logs",
    "latency_models",
    "latency_samples",
    "memory_peaks",
    "memory_timeline_points",
    "metadata",
    "model_weights",
    "models",
    "op_workspaces",
    "plan_events",
    "plans",
    "predictions",
    "pretrained_tensors",
    "pretrained_weights",
    "quotas",
    "search_requests",
    "search_trials",
    "serving_requests",
    "settings",
    "training_metrics",
    "workers",
]
