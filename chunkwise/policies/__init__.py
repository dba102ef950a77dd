"""A trained policy: loading, calling and serving it."""
