"""The engine: one generation thread, the async scheduling loop, and the client that is the way in."""
