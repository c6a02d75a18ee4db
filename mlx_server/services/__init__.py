"""Services that know nothing of HTTP and nothing of MLX."""
