"""mlx-serve: a local LLM serving daemon on MLX with an OpenAI-compatible endpoint."""

__version__ = "0.1.0"
