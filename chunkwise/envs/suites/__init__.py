"""Suites of simulated tasks, each behind the protocol of environment.py; their packages are imported on first use."""
