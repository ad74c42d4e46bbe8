from tensile_db.graph import Op, OpId, Phase, Role, StepGraph, Tensor, TensorId
from tensile_db.latency.roofline import predict_latencies_ns
from tensile_db.scheduler.plan import DeviceSpec

DEVICE = DeviceSpec(
    name="a",
    memory_nbytes=1 << 30,
    d2h_bytes_per_s=1_000_000,
    h2d_bytes_per_s=1_000_000,
    duplex=True,
    flops_per_s=2_000_000_000,
    memory_bytes_per_s=500_000_000,
    op_overhead_ns=700,
)


def one_op(*, flops: int, moved_nbytes: int) -> StepGraph:
    tensor = Tensor(
        id=TensorId(0), nbytes=4, dtype="float32", shape=(1,), role=Role.PARAMETER, persistent=True, name="p"
    )
    op = Op(
        id=OpId(0),
        target="aten.relu_.default",
        phase=Phase.FORWARD,
        reads=(TensorId(0),),
        writes=(TensorId(0),),
        workspace_nbytes=0,
        flops=flops,
        moved_nbytes=moved_nbytes,
        recomputable=False,
    )
    return StepGraph(tensors=(tensor,), ops=(op,))


def test_an_op_of_much_arithmetic_takes_its_flops_time():
    assert predict_latencies_ns(one_op(flops=4_000, moved_nbytes=10), DEVICE) == (2_700,)


def test_an_op_of_much_traffic_takes_its_bytes_time():
    assert predict_latencies_ns(one_op(flops=10, moved_nbytes=1_000), DEVICE) == (2_700,)


def test_an_op_of_nothing_takes_the_overhead():
    assert predict_latencies_ns(one_op(flops=0, moved_nbytes=0), DEVICE) == (700,)
