"""The tables of spherenet."""
