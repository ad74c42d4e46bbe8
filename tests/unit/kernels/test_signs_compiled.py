"""Triton's compiler makes the kernels for GPUs that are not here: its interpreter is less particular."""

import warnings

import pytest

from tests.examples import one_in

compiler = pytest.importorskip("triton.compiler")
backends = pytest.importorskip("triton.backends.compiler")
signs_triton = pytest.importorskip("tensile_db.kernels.signs_triton")

#: Compute capabilities: A100's, H100's.
CAPABILITIES = (80, 90)


@pytest.mark.slow
@pytest.mark.parametrize("capability", one_in(len(CAPABILITIES), CAPABILITIES))
@pytest.mark.parametrize("dtype", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("flat", [True, False])
@pytest.mark.parametrize(
    ("kernel", "tensors"),
    [
        (signs_triton._pack, {"x": "*{}", "signs": "*u8"}),
        (signs_triton._pack, {"x": "*u8", "signs": "*u8"}),
        (signs_triton._mask, {"grad": "*{}", "signs": "*u8", "out": "*{}", "scaled": False}),
        (signs_triton._mask, {"grad": "*{}", "signs": "*u8", "out": "*{}", "scaled": True}),
    ],
    ids=["pack", "pack a mask", "mask", "scaled mask"],
)
@pytest.mark.parametrize("counts", ["i32", "i64"])
def test_a_kernel_is_made(monkeypatch, tmp_path, kernel, tensors, flat, dtype, capability, counts):
    # Else one that was made by an earlier version of the source might be taken.
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    constants = {"flat": flat, "block": 256}
    constants |= {name: value for name, value in tensors.items() if isinstance(value, bool)}
    signature = {name: "fp32" if name == "scale" else counts for name in kernel.arg_names}
    signature |= dict.fromkeys(constants, "constexpr")
    signature |= {name: kind.format(dtype) for name, kind in tensors.items() if isinstance(kind, str)}
    source = compiler.ASTSource(fn=kernel, signature=signature, constexprs=constants)
    with warnings.catch_warnings():
        # Of Triton's own defaults, which change.
        warnings.simplefilter("ignore", UserWarning)
        made = compiler.compile(source, target=backends.GPUTarget("cuda", capability, 32))
    assert made.asm["cubin"].startswith(b"\x7fELF")


@pytest.mark.parametrize("kernel", [signs_triton._pack, signs_triton._mask], ids=["pack", "mask"])
def test_counts_of_elements_have_the_bits_that_they_need(kernel):
    # Two thousand million elements and more, whose number Triton would cut to 32 bits.
    assert not [p.name for p in kernel.params if p.annotation_type in ("i32", "u32")]
