"""Environments and what is recorded of them."""
