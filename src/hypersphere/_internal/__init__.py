"""Helpers shared by all packages. Nothing here is public."""
