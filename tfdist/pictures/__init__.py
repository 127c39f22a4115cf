"""Pictures of a cluster: outputs of `tfdist.translate` for people, which nothing reads back.

Each takes a Cluster and returns text, the same for the same cluster. Up to 100 tasks all are shown, of larger clusters the
first and the last of what is alike, with the number of those between.
"""

from collections.abc import Callable

from tfdist.cluster import Cluster
from tfdist.pictures import mermaid, svg, tree

PICTURES: dict[str, Callable[[Cluster], str]] = {"mermaid": mermaid.write, "svg": svg.write, "tree": tree.write}
"""All pictures by the name that `--to` takes."""
