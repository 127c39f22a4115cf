"""What dialects share when they write: errors about clusters that a language cannot express, and the program in a container.

It imports `parsing`, `cluster` and `errors`, and PyYAML when a manifest is written. Start with `unsupported.py`.
"""
