"""What scripts of bench/ work out of recordings: of a small plan's own program."""

import pytest

from bench import joined_updates, placing, replayed_plans
from bench.recorded_cases import planned
from tensile_db.bench.networks.captures import Captures
from tensile_db.bench.networks.workloads import workload
from tensile_db.graph import Role

pytestmark = pytest.mark.slow

MIB = 2**20


@pytest.fixture(scope="module")
def captures(tmp_path_factory):
    return Captures(folder=tmp_path_factory.mktemp("captures"))


def test_joined_updates_are_counted_once_for_each_page_of_gradients(captures):
    row = joined_updates._row(captures, "vgg16", 1, "momentum", 1.0)
    graph, _ = planned(captures, "vgg16", 1, "momentum", 1.0)
    gradients = [tensor.nbytes for tensor in graph.tensors if tensor.role is Role.GRADIENT]
    small = [nbytes for nbytes in gradients if nbytes <= MIB]
    # Large parameters are updated in parts, each with state of its own.
    assert row["of the optimizer"] == 3 * sum(tensor.role is Role.OPTIMIZER_STATE for tensor in graph.tensors)
    assert row["ops"] == len(graph.ops) - 2
    # Three ops each, of which one is left by page.
    most = 3 * (len(small) - 1)
    assert most - 3 * (sum(small) // MIB + 1) <= row["ops"] - row["calls"] <= most


def test_places_chosen_ahead_save_memory_at_will_the_most(captures):
    row = placing._row(captures, "vgg16", 1, 0.8)
    assert 1 <= row["at will"] <= row["steered"] <= row["as the allocator"]
    assert row["search_s"] > 0


def test_a_share_in_which_nothing_fits_is_left_out(captures):
    assert placing._row(captures, "vgg16", 1, 0.1) is None
    assert joined_updates._row(captures, "vgg16", 1, "momentum", 0.1) is None


def test_steered_recordings_leave_no_less_to_plans(captures):
    graph = captures.graph(workload("vgg16"), 1, "momentum")
    left, steered = (replayed_plans._planned(graph, 0.9, steers=steers) for steers in (False, True))
    assert left["replayed"]
    assert steered["replayed"]
    assert 0.5 < left["plan/eager"] <= steered["plan/eager"] <= 0.9
    assert 1 <= steered["time/eager"] <= left["time/eager"]
