"""Files and folders: durable writing, bounded reading, what a dataset is made of, what is never trusted."""
