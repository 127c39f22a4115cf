"""TODO room strategies/keras_hooks."""
