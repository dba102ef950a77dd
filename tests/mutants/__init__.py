"""Small faults put into the program, one at a time, to see whether the tests notice: `python -m tests.mutants`."""
