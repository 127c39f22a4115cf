"""TODO room strategies/parameter_server."""
