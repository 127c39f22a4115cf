"""What dialects share when they read: documents, the values in them, options of command lines, addresses.

Everything here turns untrusted text into checked plain values, raises `ClusterError` with the place of a fault, and knows no
dialect. It imports `cluster` and `errors`. Start with `document.py`; `node.py` is for JSON and YAML, `values.py` for options
and variables.
"""
