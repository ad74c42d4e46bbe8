"""Models that do not fit into a real worker's memory together: who is on the device, and what that costs."""

import gc

import pytest
import torch

from tests.db.serving.clients import RESNET, restarted
from tests.examples import one_in
from tests.held_objects import objects_of
from tests.jobs.row_client import FEW, Client
from tests.patience import wait_until

MODELS = ("pictures", "pictures2", "pictures3")


@pytest.fixture
def serving_batch():
    return 2


@pytest.fixture
def client(database, start_worker, serving_batch):
    """With three models of one network, on a worker whose memory holds two of them."""
    client = Client(database)
    client.worker = start_worker()
    for seed, model in enumerate(MODELS, start=1):
        job = database.submit("pictures", epochs=1, **(RESNET | {"model": model, "seed": seed}))
        assert database.wait(job)["state"] == "succeeded"
    client.want = {model: client.few(model) for model in MODELS}
    (state,) = database.execute(
        "SELECT sum(octet_length(data))::int AS nbytes FROM tensile.model_weights"
        " WHERE model_id = (SELECT min(id) FROM tensile.models)"
    )
    client.state_nbytes = state["nbytes"]
    client.memory_nbytes = int(2.9 * state["nbytes"])
    restarted(client, start_worker, memory_nbytes=client.memory_nbytes, serving_batch=serving_batch)
    return client


def ask(client, model):
    """Ask for few rows of a model; return for how many turns its state was brought in."""
    query = (
        "SELECT (result ->> 'rows')::int AS rows, (result ->> 'moves')::int AS moves FROM tensile.jobs"
        " WHERE kind = 'serve' AND model = %s"
    )

    def told():
        rows = client.database.execute(query, model)
        return (rows[0]["rows"] or 0, rows[0]["moves"] or 0) if rows else (0, 0)

    rows, moves = told()
    assert client.ask_all(f"tensile_predict('{model}', image)", FEW) == client.want[model]
    # Told when nothing more is asked.
    wait_until(lambda: told()[0] == rows + len(client.want[model]))
    return told()[1] - moves


# Of a turn of one row's batches, plans by use change how long it lasts: their states stay all the same.
@pytest.mark.parametrize("serving_batch", one_in(2, [1, 2]))
def test_a_model_stays_until_another_needs_its_room_and_the_longest_unused_leaves(client):
    first, second, third = MODELS
    for model in (first, second, third, first, second):
        ask(client, model)
    wanted = [
        (first, 0),
        (second, 0),
        (second, 0),
        (third, 1),
        (second, 0),
        (first, 1),
        (third, 1),
        (third, 0),
    ]
    assert [(model, ask(client, model)) for model, _ in wanted] == wanted
    (device,) = client.database.execute(
        "SELECT peak_nbytes, used_nbytes FROM tensile.devices d JOIN tensile.workers w ON w.id = d.worker_id"
        " WHERE w.state = 'ready'"
    )
    assert device["used_nbytes"] <= device["peak_nbytes"] <= client.memory_nbytes
    # That is by use, without new plans.
    plans = "SELECT reason, count(*) FROM tensile.plans WHERE reason = 'use' GROUP BY 1"
    assert client.database.execute(plans) == []


def held_nbytes():
    """Return what all tensors of the process take."""
    gc.collect()
    found = objects_of(torch.Tensor, torch.nn.Parameter)
    storages = [tensor.untyped_storage() for tensor in found if type(tensor.data) is torch.Tensor]
    storages += objects_of(torch.UntypedStorage)
    return sum(
        {
            storage.data_ptr(): storage.nbytes() for storage in storages if storage.device.type == "cpu"
        }.values()
    )


@pytest.mark.thorough
def test_a_model_is_held_once_on_the_host_and_once_on_the_device(client):
    ask(client, MODELS[0])
    before_nbytes = held_nbytes()
    ask(client, MODELS[1])
    assert held_nbytes() - before_nbytes < 2.2 * client.state_nbytes
