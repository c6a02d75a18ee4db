"""Fault injection: the real daemon under load while its engine is killed, and a checker that knows every true text."""
