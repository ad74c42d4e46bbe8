"""What the section `product` does with a server and a worker, each run an entry or more of its results."""

import json
from collections.abc import Mapping
from typing import Any

import torch

from bench.gpu import product_eager
from bench.gpu.machine import Machine
from bench.gpu.product import Asked, Site, kill_midway, what_the_catalog_has
from bench.gpu.product_eager import Trained
from bench.gpu.product_requests import Request, Subjects
from bench.gpu.results import Results
from bench.gpu.subjects import different
from tensile_db.catalog import models
from tensile_db.catalog.engine import make_engine
from tensile_db.worker.jobs.checkpoints import from_stored

#: Of the larger eager peak, what the worker may hold: one job as eager PyTorch holds it, and not two.
_MEMORY = 1.15
#: Of eager's peak, a job's limit.
_SHARE = 0.5
#: A third of all iterations at most.
_CHECKPOINT_ITERATIONS = 10
#: Kept of the section's time when it waits for anything, to end what it has started.
_RESERVE_S = 6.0

_PREDICT = "SELECT row_key, prediction, probability FROM tensile_predict(%s, 'images')"
_PREDICT_ROW = "SELECT id AS row_key, tensile_predict(%s, image) AS prediction FROM images WHERE id <= 8"
_EXPLAIN = """
    SELECT property, value, unit FROM tensile_explain(%(architecture)s, 'images', optimizer => %(optimizer)s,
        batch_size => %(batch_size)s, validation => %(validation)s, options => %(options)s)
"""


def memory_for(subjects: Subjects, machine: Machine) -> tuple[int, dict[str, int]]:
    """Return what the worker may hold, too little for both trainings in eager, and eager's peaks by model."""
    peaks = {
        request.model: product_eager.eager_peak_nbytes(request, machine)
        for request in (subjects.first, subjects.second)
    }
    return int(_MEMORY * max(peaks.values())), peaks


class Runs:
    """The runs, which share what eager PyTorch comes to."""

    def __init__(
        self,
        site: Site,
        subjects: Subjects,
        machine: Machine,
        results: Results,
        *,
        memory_nbytes: int,
        peaks: Mapping[str, int],
    ) -> None:
        """memory_nbytes: the worker's; peaks: eager PyTorch's by model, in bytes."""
        self.machine = machine
        self.results = results
        self._site = site
        self._subjects = subjects
        self._memory_nbytes = memory_nbytes
        self._peaks = peaks
        self._eager: dict[str, tuple[Trained, Trained]] = {}
        self._engine = make_engine(site.admin.info.dsn, application_name="bench", pool_size=1)

    def within_half(self) -> None:
        """Train the first network within half of eager's peak."""
        limit = int(_SHARE * self._peaks[self._subjects.first.model])
        row = self._site.train(self._subjects.first, limit, at_most_s=self._left_s())
        self._add("alone", self._subjects.first, row, limit)

    def without_limit(self) -> None:
        """Train it in all of the worker's memory."""
        row = self._site.train(self._subjects.first, None, at_most_s=self._left_s())
        self._add("alone", self._subjects.first, row, None)

    def two_at_once(self) -> None:
        """Train both, asked for by two sessions at once."""
        requests = (self._subjects.first, self._subjects.second)
        asked = [Asked(self._site, each, None, at_most_s=self._left_s()) for each in requests]
        rows = [each.row() for each in asked]
        for request, row in zip(requests, rows, strict=True):
            self._add("two at once", request, row, None)

    def killed(self) -> None:
        """Kill the worker while it trains the first network, and see the training go on."""
        request = self._subjects.first
        changed = request.with_options(
            f"{request.model}_killed", checkpoint_iterations=_CHECKPOINT_ITERATIONS
        )
        asked = Asked(self._site, changed, None, at_most_s=self._left_s())
        killed = kill_midway(self._site, changed.model, asked, at_most_s=self._left_s())
        # The same training, but for when it is saved.
        self._add("killed", request, asked.row(), None, **killed)

    def predictions(self) -> None:
        """Predict all rows, and some one at a time, with the first network's model, its default version."""
        request = self._subjects.first
        trained, _ = self._eager_of(request)
        probabilities = product_eager.predict(
            trained, request, self._subjects.images, self._features(request)
        )
        for way, query in (("predicted", _PREDICT), ("predicted one by one", _PREDICT_ROW)):
            rows = self._site.ask(query, (request.model,), at_most_s=self._left_s())
            right = [str(probabilities[int(row["row_key"]) - 1].argmax()) for row in rows]
            entry = {
                "way": way,
                "network": request.architecture,
                "rows": len(rows),
                "as_eager": sum(row["prediction"] == each for row, each in zip(rows, right, strict=True)),
                "labelled_so": sum(
                    row["prediction"] == str(self._subjects.images.labels[int(row["row_key"]) - 1])
                    for row in rows
                ),
            }
            if "probability" in rows[0]:
                entry["largest_difference"] = max(
                    abs(row["probability"] - float(probabilities[int(row["row_key"]) - 1].max()))
                    for row in rows
                )
            self.results.add(entry)

    def explained(self) -> None:
        """Ask what the first training would need."""
        request = self._subjects.first
        names = ("architecture", "batch_size", "optimizer", "validation")
        arguments = {name: getattr(request, name) for name in names}
        arguments["options"] = json.dumps(request.options)
        rows = self._site.ask(_EXPLAIN, arguments, at_most_s=self._left_s())
        said = [[row["property"], row["value"], row["unit"]] for row in rows]
        self.results.add({"way": "explained", "network": request.architecture, "said": said})

    def _add(self, way: str, request: Request, row: dict[str, Any], limit: int | None, **more: Any) -> None:
        """Add an entry for a training, with what the catalog has of it and how its weights compare."""
        found = what_the_catalog_has(self._site, row["job_id"])
        entry = {
            "way": way,
            "network": request.architecture,
            "memory_limit_nbytes": limit,
            "within": found["peak_nbytes"] <= (limit or self._memory_nbytes)
            and found["device_peak_nbytes"] <= self._memory_nbytes,
            "over_eager_peak": found["peak_nbytes"] / self._peaks[request.model],
            **more,
            **{
                name: row[name]
                for name in ("state", "version", "epochs", "loss", "metrics", "seconds", "waited_s")
            },
            **found,
        }
        # Eager may fail where the product did not.
        try:
            entry |= self._compared(request, row["job_id"])
        finally:
            self.results.add(entry)

    def _compared(self, request: Request, job: int) -> dict[str, Any]:
        got = self._weights(job)
        trained, again = self._eager_of(request)
        names = different(got, trained.state)
        gaps = [
            (got[name].double() - trained.state[name].double()).abs().max().item()
            for name in names
            if name in got and name in trained.state
        ]
        return {
            "equal": not names,
            "differing": len(names),
            "of": len(trained.state),
            "largest_difference": max(gaps, default=0.0),
            "eager_differs_from_itself": len(different(again.state, trained.state)),
            "eager_iteration_ns": trained.iteration_ns,
        }

    def _weights(self, job: int) -> dict[str, torch.Tensor]:
        (model,) = self._site.rows("SELECT id FROM tensile.models WHERE job_id = %s", job)
        with self._engine.connect() as conn, models.read_weights(conn, model["id"]) as stored:
            return from_stored(stored)

    def _eager_of(self, request: Request) -> tuple[Trained, Trained]:
        """Return two equal eager trainings: where they differ, nothing can be equal to them."""
        if request.model not in self._eager:
            features = self._features(request)
            one, two = (
                product_eager.train(request, self._subjects.images, features, self.machine) for _ in range(2)
            )
            self._eager[request.model] = (one, two)
            self.machine.clean()
        return self._eager[request.model]

    def _features(self, request: Request) -> dict[str, Any]:
        (found,) = self._site.rows(
            "SELECT features FROM tensile.models WHERE name = %s ORDER BY version DESC LIMIT 1", request.model
        )
        features: dict[str, Any] = found["features"]
        return features

    def _left_s(self) -> float:
        return self.results.left_s - _RESERVE_S
