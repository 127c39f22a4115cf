"""The languages in which a cluster may be described, and `read`, which reads all of them.

A dialect is one value, `dialect.Dialect`, in a file or folder of its name; `registry` lists them in order, `entry_points`
adds those of other packages. `reading` has `read`: `detection` finds the dialect of a description, `commands` the launcher in
a script, and `environment` decides which launcher's variables count. `parsing` and `writing` contain what several dialects
share. This package imports the values that it produces (`cluster`, `rank_info`, `synchronization`, `errors`). It never
imports TensorFlow, and imports PyYAML and protobuf only for descriptions that need them. Start with `dialect.py`, then read a
short dialect, `caffe2.py`.
"""

from tfdist.dialects.dialect import CommandReader as CommandReader
from tfdist.dialects.dialect import Dialect as Dialect
from tfdist.dialects.dialect import EnvironmentReader as EnvironmentReader
from tfdist.dialects.dialect import Presets as Presets
from tfdist.dialects.dialect import TextReader as TextReader
from tfdist.dialects.dialect import Writer as Writer
from tfdist.dialects.parsing.document import Document as Document
from tfdist.dialects.reading import description as description
from tfdist.dialects.reading import from_environment as from_environment
from tfdist.dialects.reading import read as read
