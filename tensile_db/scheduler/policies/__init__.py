"""The policies by name."""

from tensile_db.scheduler.policies import tensile, vanilla

POLICIES = {
    "tensile": tensile.plan,
    "vanilla": vanilla.plan,
}
