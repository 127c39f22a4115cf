"""Pictures of a cluster: outputs of `tfdist.translate` for people.

`picture` decides what is drawn: groups, tasks and arrows. `mermaid`, `svg` (with `canvas`) and `tree` draw it. Each takes a
Cluster and returns text, which depends only on the cluster. Pictures of up to 100 tasks show all of them. Larger clusters show
the first and the last of similar tasks, and the number of those in between. This package imports `cluster` and `choice`. Start
with `picture.py`.
"""

from collections.abc import Callable

from tfdist.cluster import Cluster
from tfdist.pictures import mermaid, svg, tree

PICTURES: dict[str, Callable[[Cluster], str]] = {"mermaid": mermaid.write, "svg": svg.write, "tree": tree.write}
"""Name that `--to` takes -> function that draws."""
