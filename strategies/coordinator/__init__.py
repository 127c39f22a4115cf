"""TODO room strategies/coordinator."""
