"""TODO room launch/backends/local."""
