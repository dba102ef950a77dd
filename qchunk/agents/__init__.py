"""The agents, one file an algorithm: QC and its relatives, RLPD, DQC, QAM."""
