"""What columns mean for a job that serves a model, which came later than they did."""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _say(
        "jobs",
        submitted_by="The role that asked, or whose model is served; its table is read as this role.",
        client_pid="The server process that asked; NULL of a job that serves a model.",
        source_oid="The table or view; 0 of a job that serves a model.",
        source_name="Its name when asked, qualified and quoted; empty of a job that serves a model.",
        samples_per_second="Rows trained on or predicted a second, lately; of a job that serves, since it"
        " began to.",
        rows_total="Rows read from the source; of a job that serves, rows predicted.",
        result="What came of it: metrics and seconds, or an explain job's rows; how far it is, where it"
        " searches or serves.  Of a job that serves: rows, batches, seconds, for how many batches (moves) and"
        " by how many bytes (moved_nbytes) the model was brought to the device.",
    )
    _say(
        "quotas",
        max_concurrent_jobs="Jobs that it may have at a time that have not ended, but for those that search"
        " or serve; NULL: any number.",
    )
    _say("workers", max_jobs="Jobs that it holds at a time, at most; those that search or serve apart.")
    _say(
        "serving_requests",
        features="Of one row, in that form.",
        prediction="The class, or the number as text; NULL where a feature was NULL.",
        probabilities="Of each class; NULL where they were not asked for, or a feature was NULL.",
    )


def _say(table: str, **comments: str) -> None:
    for column, comment in comments.items():
        op.alter_column(table, column, schema="tensile", comment=comment)
