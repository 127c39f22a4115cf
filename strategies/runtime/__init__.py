"""TODO room strategies/runtime."""
