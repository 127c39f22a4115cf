"""The host file of SINGA: one host per line.

Source: apache/singa src/utils/job_manager.cc and tool/node.sh v0.3.0-rc3.
"""

from tfdist.cluster import valid_host
from tfdist.dialects.parsing.document import check_text, read_text, shown
from tfdist.errors import Source


def read_hostfile(path: str) -> list[str]:
    """Returns the hosts of a file: the first field of each line that is not blank and does not start with `#`.

    Raises:
        ClusterError: if the file cannot be read, or a field is not a host name or an address.
    """
    source = Source("singa hostfile", path)
    text = check_text(read_text(path, source), source)
    hosts = []
    for number, line in enumerate(text.split("\n"), start=1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        if not valid_host(fields[0]):
            raise source.error(f"{shown(fields[0])} is not a host name or an address (ports do not go here)", line=number)
        hosts.append(fields[0])
    return hosts
