"""TODO room strategies/inputs."""
