"""Continuous batching over a paged KV cache: queue, blocks, prefixes, scheduler. Pure Python."""
