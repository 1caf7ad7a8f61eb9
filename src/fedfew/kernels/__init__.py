"""What makes the stacked engine fast on a GPU: kernels in Triton, each with a twin in plain PyTorch.

Nothing here is needed to train: without Triton, or on the CPU, the stack runs on PyTorch's own operations.
"""
