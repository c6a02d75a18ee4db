"""The process that serves: application, start-up, shutdown."""
