"""Engine replicas behind one address, on Ray Serve (docs/cluster.md)."""
