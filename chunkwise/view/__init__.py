"""A dataset as a local page: what each package gives for its readers, the server, and the page."""
