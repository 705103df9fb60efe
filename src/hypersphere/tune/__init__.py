"""Choose settings by validation accuracy: successive halving over a space of configs (SphereNet, 2.4)."""
