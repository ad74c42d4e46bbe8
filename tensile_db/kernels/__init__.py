"""Operators that PyTorch does not have: `torch.ops.tensile`, on the processor and on a GPU."""
