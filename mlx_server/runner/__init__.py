"""The only package that imports MLX: loading, the KV pool, the forward pass, sampling.

Importing it loads OpenBLAS first, where there is one: MLX's own CPU build brings the reference BLAS, and
symbols that are in the process before `mlx.core` win.
"""

from mlx_server.runner.openblas import preload

OPENBLAS = preload()
"""Name of the OpenBLAS library in use, or None (macOS needs none)."""
