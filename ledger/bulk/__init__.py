"""One action on many tasks: stored, done one task a transaction by the workers' sweeps."""
