"""What `mlx-serve doctor` looks at: one function for each matter, which returns findings and raises nothing."""
