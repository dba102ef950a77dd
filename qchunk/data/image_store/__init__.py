"""The images of a pool in memory: how they are kept, decoded and handed to batches."""
