"""How much memory a model, its KV cache and its prefill take, from the model's files alone: no MLX here."""
