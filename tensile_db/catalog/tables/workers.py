"""Workers and their devices, what they know by name, and how this catalog was installed."""

from sqlalchemy import BigInteger, Boolean, Column, Double, ForeignKey, Identity, Integer, Table, Text, text

from tensile_db.catalog.tables.base import SCHEMA, count, instant, metadata, one_of

workers = Table(
    "workers",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True, comment="The worker."),
    Column(
        "login", Text, nullable=False, comment="The role it connects as; it must be able to become users."
    ),
    Column("host", Text, nullable=False, comment="The machine it runs on."),
    Column("pid", Integer, nullable=False, comment="Its process there."),
    Column("device_name", Text, nullable=False, comment="Its device, as given at its start."),
    count("memory_nbytes", "The device memory it may use, in bytes."),
    Column("version", Text, nullable=False, comment="The tensile_db it runs."),
    instant("started_at", "When it started.", now=True),
    instant("heartbeat_at", "Its last sign of life.", now=True),
    Column("state", Text, nullable=False, server_default="starting", comment="Where in its life it is."),
    Column(
        "max_jobs",
        Integer,
        nullable=False,
        server_default="16",
        comment="Jobs that it holds at a time, at most; those that search or serve apart.",
    ),
    Column(
        "runs_alone",
        Boolean,
        nullable=False,
        server_default=text("false"),
        comment="It runs one job at a time.",
    ),
    Column(
        "lease_s",
        Double,
        nullable=False,
        server_default="30",
        comment="It is taken for lost when nothing was heard of it for so many seconds.",
    ),
    Column(
        "cache",
        Text,
        nullable=False,
        server_default="",
        comment="Where it keeps rows that its jobs have read: machine and folder.",
    ),
    one_of("state", "starting", "ready", "stopping", "gone"),
    comment="Every worker that ever ran here; one is alive if its heartbeat is younger than the lease.",
)

devices = Table(
    "devices",
    metadata,
    Column(
        "worker_id",
        ForeignKey(f"{SCHEMA}.workers.id", ondelete="CASCADE"),
        primary_key=True,
        comment="Its worker.",
    ),
    Column("name", Text, primary_key=True, comment="The device."),
    count("memory_nbytes", "What its jobs may hold together, in bytes.", nullable=False),
    count("d2h_bytes_per_s", "The link to the host, in bytes a second."),
    count("h2d_bytes_per_s", "The link from the host, in bytes a second."),
    Column("duplex", Boolean, comment="Whether both directions run at once."),
    count("flops_per_s", "Sustained rate of arithmetic."),
    count("memory_bytes_per_s", "Sustained rate of its own memory."),
    count("op_overhead_ns", "Fixed cost of starting an op, in ns."),
    count("used_nbytes", "Held at present, in bytes."),
    count("peak_nbytes", "The most ever held, in bytes."),
    Column("utilization", Double, comment="The share of time it computes, from 0 to 1."),
    instant("updated_at", "When this row last changed.", now=True),
    count("shared_nbytes", "What the shares of its jobs take at present, in bytes."),
    count("others_nbytes", "What other processes hold of it at present, in bytes, if the driver tells."),
    comment="The device of each worker: what a planner knows of it, and its use.",
)

architectures = Table(
    "architectures",
    metadata,
    Column("name", Text, primary_key=True, comment="The name to give to tensile_train."),
    Column("kind", Text, nullable=False, comment="Where it comes from."),
    Column("resolves_to", Text, nullable=False, comment="The name that its maker knows."),
    one_of("kind", "alias", "timm", "mlp", "plugin"),
    comment="The networks that can be trained, so that a backend can check a name without torch.",
)

settings = Table(
    "settings",
    metadata,
    Column("name", Text, primary_key=True, comment="version, udf_digest or loopback."),
    Column("value", Text, nullable=False, comment="Its value."),
    instant("updated_at", "When it was set.", now=True),
    comment="How this catalog was installed, and how the server reaches itself.",
)
