"""What all packages share. Nothing here is public."""
