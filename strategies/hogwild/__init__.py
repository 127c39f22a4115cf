"""TODO room strategies/hogwild."""
