"""Simulators behind one protocol, which yields layer 4 of the data specification."""
