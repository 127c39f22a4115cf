"""TODO room strategies/checkpoint."""
