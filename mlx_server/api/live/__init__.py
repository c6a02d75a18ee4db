"""What the daemon is doing right now: requests being answered, latencies, recent errors, and their feed."""
