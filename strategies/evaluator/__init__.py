"""TODO room strategies/evaluator."""
