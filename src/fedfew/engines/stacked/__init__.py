"""The stacked engine: all replicas of all clients trained as one batched computation.

``engine.py`` holds the engine, ``differentiation.py`` its gradients and steps; the other files are the layers,
recordings, CUDA graphs and kernels that make it fast.
"""

from fedfew.engines.stacked.engine import Stacked

__all__ = ["Stacked"]
