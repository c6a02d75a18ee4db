"""What the system says about memory, and how short it is. Nothing here acts on it."""
