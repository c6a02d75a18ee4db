"""Text on the HTTP side of the engine: templates, tokenizers, detokenizing, stop strings."""
