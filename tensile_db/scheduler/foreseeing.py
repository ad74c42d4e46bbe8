"""Works out ahead what plans of a graph will begin with, as far as the graph alone decides it.

Who plans jobs does so before anybody waits: when a step has been captured, and after an answer.  What is
worked out is kept with the graph (`analysis/once.py`).

Source: ours; docs/planner/planning_again.md.
"""

from tensile_db.graph import StepGraph
from tensile_db.scheduler.analysis.once import once_for_each
from tensile_db.scheduler.analysis.residency import Residency
from tensile_db.scheduler.bounds import lower_bound_peak_nbytes
from tensile_db.scheduler.choosing.gaps import gaps_between_ops
from tensile_db.scheduler.choosing.order import EarlyUpdates
from tensile_db.scheduler.choosing.sources import made_of_passing
from tensile_db.scheduler.choosing.updates import gradients_that_can_wait
from tensile_db.scheduler.laid_out import tensor_lists_of
from tensile_db.scheduler.lowering import lower
from tensile_db.scheduler.packing.packed_graph import known_packed_graph
from tensile_db.scheduler.policies import vanilla
from tensile_db.scheduler.policies.packing import worth_packing
from tensile_db.scheduler.settling.assemble import assemble


@once_for_each
def foresee(graph: StepGraph) -> None:
    """Work out what the first plan of a graph within little memory begins with, and plans made again."""
    vanilla.peak_nbytes(graph)
    lower_bound_peak_nbytes(graph)
    packed = worth_packing(graph)
    planned = known_packed_graph(graph, packed).graph if packed else graph
    vanilla.peak_nbytes(planned)
    lower_bound_peak_nbytes(planned)
    gradients_that_can_wait(planned)
    # Latencies bear on no order in which neither state nor gradients are waited for.
    no_latencies = [0] * len(planned.ops)
    order = EarlyUpdates(planned, no_latencies).order()
    nothing_away = Residency(planned, no_latencies, order)
    gaps_between_ops(nothing_away.table)
    made_of_passing(nothing_away.table)
    tensor_lists_of(planned)
    lower(planned, assemble(nothing_away, "auto"))
