"""What every layer shares: messages, errors and settings. Imports nothing of the project."""
