"""Command lines: arguments with the documented exit codes, progress."""
