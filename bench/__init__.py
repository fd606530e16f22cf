"""Measurements of the whole system over emulated links."""
