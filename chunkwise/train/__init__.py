"""The train loop and what it is made of: updates, optimiser, sharding, metrics, the folder of a run."""
