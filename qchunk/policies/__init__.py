"""A trained policy of a run: loading and calling it, in evaluation, on a robot, behind a server."""
