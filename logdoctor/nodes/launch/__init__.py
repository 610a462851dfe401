"""Ways to start the probe on nodes: one module for each kind of cluster."""
