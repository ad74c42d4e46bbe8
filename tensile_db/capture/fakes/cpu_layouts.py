"""Gives fake results the strides and the storages that the CPU's kernels give.

Fake kernels are written for all devices, and here and there lay their results out as the CPU's do not, mostly
where a dimension has size 1.  Kernels choose their algorithm by their arguments' strides, those of size 1
included.  The executor makes arguments from the captured strides and accounts for the captured sizes, so that
both must be the real ones.

Source: for each rule the kernel's own file in aten/src/ATen.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import unset_fake_temporarily

from tensile_db.capture.fakes.correcting import CorrectingFakeMode
from tensile_db.capture.fakes.cpu_mixed import with_real_dtypes
from tensile_db.capture.fakes.cpu_recurrent import CORRECTIONS as RECURRENT
from tensile_db.capture.fakes.tensor_iterator import follows_tensor_iterator, is_dense, result_stride

# PyTorch gives an operator's internals no public name.
# ruff: noqa: SLF001

aten = torch.ops.aten

_Backend = torch._C._ConvBackend  # type: ignore[attr-defined] # the stub gives it another name
_MATRIX_BACKENDS = (_Backend.Slow2d, _Backend.SlowTranspose2d)


class CpuFakeMode(CorrectingFakeMode):  # type: ignore[no-untyped-call] # PyTorch's
    """A fake mode whose results have the CPU kernels' layouts."""

    def correct(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
        """Return the result with its kernel's dtypes, strides and storage."""
        return _corrected(func, args, kwargs, with_real_dtypes(func, args, result))


def _corrected(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> Any:
    if func in _COPIES and kwargs.get("memory_format") in (None, torch.preserve_format):
        return _like_first(args, result)
    if isinstance(result, torch.Tensor):
        if (rule := _RULES.get(func)) is not None:
            return rule(args, result)
        if follows_tensor_iterator(func):
            return _strided(result, result_stride(func, args, result))
        return result
    if func is aten.convolution_backward.default:
        return _convolution_backward(args, result)
    if func is aten.log_sigmoid_forward.default:
        return tuple(_contiguous(args, made) for made in result)
    if func in RECURRENT:
        return RECURRENT[func](result)
    rule = _RULES.get(func)
    if rule is None or result[0] is None:
        return result
    return rule(args, result[0]), *result[1:]


def _strided(result: torch.Tensor, stride: tuple[int, ...]) -> torch.Tensor:
    if result.stride() == stride:
        return result
    return torch.empty_strided(result.shape, stride, dtype=result.dtype, device=result.device)


def _laid_out(result: torch.Tensor, memory_format: torch.memory_format) -> torch.Tensor:
    return _strided(result, torch.empty(result.shape, device="meta", memory_format=memory_format).stride())


def _view(args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """native/TensorShape.cpp: asked of a tensor without data, since the fake kernel is a rewrite."""
    viewed: torch.Tensor = args[0]
    with unset_fake_temporarily():
        real = torch.empty_strided(viewed.shape, viewed.stride(), dtype=viewed.dtype, device="meta")
        stride = real.view(list(args[1])).stride()
    if result.stride() == stride:
        return result
    return viewed.as_strided(result.shape, stride, viewed.storage_offset())


def _contiguous(_args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """native/layer_norm.cpp, LinearAlgebra.cpp, Loss.cpp, Activation.cpp, GatedLinearUnit.cpp: always."""
    return _laid_out(result, torch.contiguous_format)


def _convolution(args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """native/Convolution.cpp, `_convolution`: without oneDNN, as in float64, group by group."""
    features, weight, bias, *shape = args
    groups = shape[-1]
    if groups == 1 or torch._C._select_conv_backend(features, weight, bias, *shape) not in _MATRIX_BACKENDS:
        return result
    return _of_groups(result, groups, _format_of_group(features, weight, groups))


def _convolution_backward(args: Sequence[Any], results: Sequence[Any]) -> Sequence[Any]:
    """native/ConvolutionMM2d.cpp: gradients are laid out as their tensors are for it, group by group.

    Which backend it is depends on the number of threads, too.
    """
    _, features, weight, bias_sizes, *shape, _ = args
    of_input, of_weight, of_bias = results
    backend = torch._C._select_conv_backend(features, weight, None, *shape, bias_sizes)
    if backend not in _MATRIX_BACKENDS:
        return results
    groups = shape[-1]
    memory_format = _format_of_group(features, weight, groups)
    if of_input is not None and groups > 1:
        of_input = _of_groups(of_input, groups, memory_format)
    if of_weight is not None:
        made = _group(weight, 0, groups).contiguous(memory_format=memory_format)
        of_weight = _joined(of_weight, made, 0)
    return of_input, of_weight, of_bias


def _of_groups(result: torch.Tensor, groups: int, memory_format: torch.memory_format) -> torch.Tensor:
    """Lay channels out as those of all groups, each made in a memory format."""
    rows, channels, *size = result.shape
    made = torch.empty((rows, channels // groups, *size), device="meta", memory_format=memory_format)
    return _joined(result, made, 1)


def _format_of_group(features: torch.Tensor, weight: torch.Tensor, groups: int) -> torch.memory_format:
    """native/ConvUtils.h, `thnn_conv_use_channels_last`."""
    formats = {
        suggest_memory_format(_group(tensor, dim, groups)) for tensor, dim in ((features, 1), (weight, 0))
    }
    return torch.channels_last if torch.channels_last in formats else torch.contiguous_format


def _group(tensor: torch.Tensor, dim: int, groups: int) -> torch.Tensor:
    """native/Convolution.cpp, `subtensor`: a group's channels, on no device."""
    whole = torch.empty_strided(tensor.shape, tensor.stride(), device="meta")
    if groups == 1:
        return whole
    part = whole.narrow(dim, 0, tensor.shape[dim] // groups)
    return part.contiguous(memory_format=suggest_memory_format(tensor))


def _joined(result: torch.Tensor, of_group: torch.Tensor, dim: int) -> torch.Tensor:
    """Lay a result out as what comes of all groups, concatenated."""
    groups = result.shape[dim] // of_group.shape[dim]
    joined = of_group if groups == 1 else torch.cat([of_group] * groups, dim)
    return _strided(result, joined.stride())


def _resized(args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """native/UpSample*.cpp, native/ChanelShuffle.cpp: in the input's memory format."""
    return _laid_out(result, suggest_memory_format(args[0]))


def _rolled(args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """native/TensorTransformations.cpp: concatenated in the input's memory format; flattened, contiguous."""
    dims = args[2] if len(args) > 2 else ()
    return _resized(args, result) if dims else _contiguous(args, result)


def _padded_backward(args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """native/ReflectionPad.cpp, native/ReplicationPadding.cpp: in the input's memory format."""
    return _laid_out(result, suggest_memory_format(args[1]))


def _rrelu_backward(args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """native/Activation.cpp: in training the noise times the gradient, else a leaky ReLU's."""
    gradient, features, noise, lower, upper, training, _ = args
    if training and upper - lower > 1e-6:
        return _strided(result, result_stride(aten.mul.Tensor, (noise, gradient), result))
    return _strided(result, result_stride(aten.mul.Tensor, (features, gradient), result))


def _batch_norm(args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """native/Normalization.cpp, `suggest_memory_format_contig` of the input."""
    return _in_format_of(args[0], result)


def _batch_norm_backward(args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """native/Normalization.cpp: follows the input, not the gradient."""
    return _in_format_of(args[1], result)


def _in_format_of(template: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    plain = template.is_contiguous()
    return _laid_out(result, torch.contiguous_format if plain else suggest_memory_format(template))


def _like_first(args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """native/transformers/attention.cpp, native/Activation.cpp `hardtanh`: made by empty_like.

    native/TensorFactories.cpp: which keeps a dense tensor's very strides.
    """
    template: torch.Tensor = args[0]
    return _strided(result, template.stride() if is_dense(template) else torch.empty_like(template).stride())


def _made_like_input(args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """native/Loss.cpp `mse_loss`, `smooth_l1_loss`, native/Im2Col.cpp, native/Col2Im.cpp.

    They make a tensor of their input's size and shrink it to the result, which keeps the larger storage.
    """
    count = max(args[0].numel(), result.numel())
    storage = torch.empty((count,), dtype=result.dtype, device=result.device)
    return storage.as_strided(result.shape, result.stride())


def _cross_entropy(args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """native/Loss.cpp `binary_cross_entropy`: as `mse_loss`, where it reduces."""
    if result.shape == args[0].shape:
        return _like_first(args, result)
    return _made_like_input(args, result)


def _cross_entropy_backward(args: Sequence[Any], result: torch.Tensor) -> torch.Tensor:
    """native/Loss.cpp `binary_cross_entropy_backward`: follows the input, not the gradient."""
    return _like_first(args[1:], result)


#: Laid out as their argument, unless told otherwise.
_COPIES = frozenset(
    {aten.clone.default, aten.empty_like.default, aten.zeros_like.default, aten.ones_like.default}
)

#: Corrections of an operator's only or first result.
_RULES: Mapping[OpOverload, Callable[[Sequence[Any], torch.Tensor], torch.Tensor]] = {
    aten.view.default: _view,
    aten._unsafe_view.default: _view,
    aten.upsample_bilinear2d.default: _resized,
    aten.upsample_bicubic2d.default: _resized,
    aten.upsample_nearest2d.default: _resized,
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.native_layer_norm.default: _contiguous,
    aten.native_layer_norm_backward.default: _contiguous,
    aten.linalg_vector_norm.default: _contiguous,
    aten.convolution.default: _convolution,
    aten.mse_loss.default: _made_like_input,
    aten.mse_loss_backward.default: _contiguous,
    aten.smooth_l1_loss.default: _made_like_input,
    aten.smooth_l1_loss_backward.default: _contiguous,
    aten.huber_loss_backward.default: _contiguous,
    aten.binary_cross_entropy.default: _cross_entropy,
    aten.binary_cross_entropy_backward.default: _cross_entropy_backward,
    aten.glu_backward.default: _contiguous,
    aten.rrelu_with_noise.default: _contiguous,
    aten.rrelu_with_noise_backward.default: _rrelu_backward,
    aten.roll.default: _rolled,
    aten.channel_shuffle.default: _resized,
    aten.native_channel_shuffle.default: _resized,
    aten.reflection_pad2d_backward.default: _padded_backward,
    aten.replication_pad2d_backward.default: _padded_backward,
    aten.im2col.default: _made_like_input,
    aten.col2im.default: _made_like_input,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _like_first,
    aten.hardtanh.default: _like_first,
}
