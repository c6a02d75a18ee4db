"""HTTP surfaces, one package per dialect."""
