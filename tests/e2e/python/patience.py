"""How long tests wait for what should come soon."""

# A bound on hangs, not a measure: machines at a quarter of the usual speed pass, too.
PATIENCE_SECONDS = 300.0
PATIENCE = f"{PATIENCE_SECONDS:.0f}"  # In variables of the environment.
