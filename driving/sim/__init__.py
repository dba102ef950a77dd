"""A town to drive in: roads, traffic, a driver, and five cameras rendered by MuJoCo."""
