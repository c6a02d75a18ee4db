"""Requests made from the service's own OpenAPI document, against a real daemon."""
