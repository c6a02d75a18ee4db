"""The `mlx-serve` command."""
