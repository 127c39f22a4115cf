"""TODO room strategies/data_parallel."""
