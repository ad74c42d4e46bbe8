"""Which of the models that a caller may see is meant by a name.

Runs inside PostgreSQL, as the caller.
"""

import difflib
import json
from typing import Any

from tensile_db.errors import NEAREST, AmbiguousTarget, InvalidRequest, UndefinedModel, format_value
from tensile_db.udf.session import Session


def model_of(
    session: Session, name: str | None, version: int | None, *, settled: bool = False
) -> dict[str, Any]:
    """Return a model of the caller's, its default version unless one is given; an admin reaches all models.

    settled: leave out, where there are others, those that a search under way may still replace.
    Raises UndefinedModel, AmbiguousTarget where several owners have one of that name, InvalidRequest for
    NULL.
    """
    if name is None:
        raise InvalidRequest("the model is NULL", hint="tensile_models() lists yours.")
    known = session.rows(
        "SELECT m.id, m.name, m.version, m.owned_by, coalesce(r.rolname, m.owner) AS owner, m.architecture,"
        " m.task, m.target, m.features::text AS features, r.rolname = current_user AS own,"
        " m.pinned, NOT m.pinned AND EXISTS (SELECT FROM tensile.jobs t JOIN tensile.jobs s"
        " ON s.id = t.search_id WHERE t.id = m.job_id AND s.finished_at IS NULL) AS passing"
        " FROM tensile.models m LEFT JOIN pg_catalog.pg_roles r ON r.oid = m.owned_by"
        " WHERE m.name = {name} ORDER BY m.pinned DESC, m.version DESC",
        name=("text", name),
    )
    known = [model for model in known if model["own"]] or known
    if settled:
        known = [model for model in known if not model["passing"]] or known
    if not known:
        names = [row["name"] for row in session.rows("SELECT DISTINCT name FROM tensile.models ORDER BY 1")]
        nearest = difflib.get_close_matches(name, names, n=1, cutoff=NEAREST)
        raise UndefinedModel(
            f'no model "{format_value(name)}"',
            hint=f'Did you mean "{nearest[0]}"?' if nearest else "tensile_models() lists yours.",
        )
    owners = sorted({model["owner"] for model in known})
    if len(owners) > 1:
        raise AmbiguousTarget(
            f'several owners have a model "{name}": {", ".join(owners)}', hint="SET ROLE to one of them."
        )
    versions = [model["version"] for model in known]
    if version is not None and version not in versions:
        raise UndefinedModel(
            f'model "{name}" has no version {version}',
            hint=f"It has: {', '.join(map(str, sorted(versions)))}.",
        )
    model = known[0 if version is None else versions.index(version)]
    return model | {"features": json.loads(model["features"])}
