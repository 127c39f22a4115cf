"""`partition_dim`: which layers of the neural network SINGA partitions over the workers of a group.

Sources: apache/singa src/proto/job.proto (NetProto, LayerProto), src/neuralnet/neuralnet.cc and
include/singa/neuralnet/layer.h v0.3.0-rc3. A layer without `partition_dim` has that of the net. 0 partitions the batch, 1 the
features of the layer's output, -1 nothing. What else the network has is not looked at.
"""

import re

from tfdist.dialects.parsing.document import shown
from tfdist.dialects.singa.text_proto import Entry, entries, tokens
from tfdist.errors import Source

FIELD = "partition_dim"
_DIMS = {"-1": -1, "0": 0, "1": 1}
_WEIGHTS = "(kernel|bias|embeddings)"
"""Weights of Keras' layers that have the layer's features along their last axis."""

Layouts = tuple[tuple[str, int | None], ...]


def read_layouts(text: str, source: Source, net: Entry) -> Layouts:
    """Returns the layouts that `partition_dim` means for a Keras model whose layers are called as those of the file.

    Only layers with parameters (`param`) have variables. If the file has none, the net's `partition_dim` is that of all layers.

    Raises:
        ClusterError: for a value that SINGA does not have, and a layer with two of them.
    """
    if not net.is_block or FIELD not in text[net.start : net.end]:
        return ()
    inside = entries(text, source, *net.inside)
    net_dim = _dim(text, source, inside, "neuralnet")
    dims: dict[str, int] = {}
    for layer in inside:
        if layer.name != "layer":
            continue
        if not layer.is_block:
            raise source.error("layer is a block; write `layer { ... }`", field="neuralnet.layer", line=layer.line)
        fields = entries(text, source, *layer.inside)
        own = _dim(text, source, fields, "neuralnet.layer")
        name = next((_value(text, source, entry) for entry in fields if entry.name == "name" and not entry.is_block), None)
        if name is None or not any(entry.name == "param" for entry in fields):
            continue
        dim = net_dim if own is None else own
        if dims.setdefault(name, dim or 0) != (dim or 0):
            raise source.error(
                f"the layer {shown(name)} has another {FIELD} above; give both the same",
                field="neuralnet.layer",
                line=layer.line,
            )
    if not dims and net_dim == 1:
        return ((_WEIGHTS, -1),)
    return tuple((f"{re.escape(name)}/{_WEIGHTS}", -1) for name, dim in dims.items() if dim == 1)


def write_net(layouts: Layouts) -> str:
    """Returns the block `neuralnet` that means `layouts`; an empty text if SINGA has no words for them."""
    if layouts == ((_WEIGHTS, -1),):
        return f"neuralnet {{ {FIELD}: 1 }}\n"
    lines = []
    for pattern, _ in layouts:
        name = re.sub(r"\\(.)", r"\1", pattern.removesuffix(f"/{_WEIGHTS}"))
        if not re.fullmatch(r"[^\x00-\x1f\"'\\]+", name):
            return ""
        lines.append(f'  layer {{ name: "{name}" {FIELD}: 1 param {{ }} }}\n')
    return "neuralnet {\n" + "".join(lines) + "}\n" if lines else ""


def _dim(text: str, source: Source, fields: list[Entry], where: str) -> int | None:
    """Returns the `partition_dim` among the fields of a message; None if there is none."""
    number = None
    for entry in fields:
        if entry.name == FIELD:
            value = "a block" if entry.is_block else _value(text, source, entry)
            if value not in _DIMS:
                expected = "0 for the batch, 1 for the features, -1 for neither"
                raise source.error(
                    f"{shown(value)} is no dimension; expected {expected}", field=f"{where}.{FIELD}", line=entry.line
                )
            if number is not None:
                raise source.error("it is given twice; keep one", field=f"{where}.{FIELD}", line=entry.line)
            number = _DIMS[value]
    return number


def _value(text: str, source: Source, entry: Entry) -> str:
    """Returns the value of a field, without quotes."""
    found = [token for token in tokens(text, source, entry.start, entry.end) if token.kind in ("word", "string")][1:]
    return "".join(token.text[1:-1] if token.kind == "string" else token.text for token in found)
