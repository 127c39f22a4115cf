"""TODO room launch/backends."""
