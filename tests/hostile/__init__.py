"""Hostile run folders, exports and datasets, and whether anything ran or was read outside of them."""
