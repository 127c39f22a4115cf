"""Caffe2: the flags of its `resnet50_trainer`, which its users' programs have as well, on a command line or in a dict.

Sources of the rules: pytorch `caffe2/python/examples/resnet50_trainer.py` @ 0ee53bf7 (flags, defaults, which store is taken),
`caffe2/distributed/{file,redis}_store_handler.cc` @ 01f2f07a.

All machines train together (AllReduce by Gloo): shard r is `worker:r`, and its slots are its GPUs. The keys in the store are
tfdist's own; a run of Caffe2 and one of tfdist in the same store do not see each other.
"""

import os
from collections.abc import Mapping
from typing import Any

from tfdist.cluster import Cluster, valid_host
from tfdist.dialects.command_line import Values, names, options
from tfdist.dialects.document import Document, close, shown
from tfdist.errors import Source
from tfdist.rank_info import RankInfo, Store

NAME = "caffe2"
EXAMPLE = "Caffe2's flags ({num_shards: 2, shard_id: 0, run_id: r1, file_store_path: /shared})"
IS_MAPPING = True
PROGRAMS = ("resnet50_trainer.py", "caffe2.python.examples.resnet50_trainer", "imagenet_trainer.py")

PASSWORD_VARIABLE = "TFDIST_REDIS_PASSWORD"
"""The password of the Redis store, for which Caffe2 has no flag."""

_MINE = names("num_shards shard_id run_id redis_host redis_port file_store_path num_gpus gpus distributed_transport")
WORDS = _MINE | names("distributed_interfaces redis_password use_cpu")
_OF_RENDEZVOUS = names("kv_handler engine transport interface mpi_rendezvous exit_nets")


def parse(document: Document, **_: Any) -> Cluster | RankInfo:
    """Reads the flags from a mapping, with other flags of the program among them; those of a `rendezvous` dict, too."""
    source = Source(NAME, document.name)
    texts = {}
    for key, value in document.mapping.items():
        if not isinstance(key, str) or (key not in WORDS and key not in _OF_RENDEZVOUS):
            meant = close(key, WORDS) if isinstance(key, str) else None
            if meant:
                raise source.error(f"there is no such flag; did you mean {meant}?", field=key, line=document.lines.get((key,)))
            continue
        if key == "gpus" and isinstance(value, list | tuple):
            value = ",".join(str(each) for each in value[:1000] if isinstance(each, int | str))
        if key in WORDS and value is not None:
            if not isinstance(value, str | int | bool):
                raise source.error(f"{shown(value)} is neither text nor a number", field=key, line=document.lines.get((key,)))
            try:
                texts[key] = str(value)
            except ValueError:  # An int of thousands of digits.
                raise source.error("there is a number of thousands of digits", field=key) from None
    return _read(Values(source, texts, ""))


def parse_command(words: list[str], source: Source) -> Cluster | RankInfo:
    """Reads a command line of the trainer; flags that do not concern the cluster are passed over."""
    if any(word.startswith("--redis_password") for word in words):
        raise source.error(
            f"everybody on the machine can read a command line; set {PASSWORD_VARIABLE} instead", field="--redis_password"
        )
    return _read(options(words[1:], source, WORDS - {"redis_password"}, is_program=True))


def _read(values: Values) -> Cluster | RankInfo:
    size = values.number("num_shards", 1, least=1)
    rank = values.number("shard_id", 0)
    if rank >= size:
        raise values.error("shard_id", f"{rank} is too high; shards count from 0 to num_shards - 1, which is {size - 1}")
    if values.text("distributed_transport", "tcp") not in ("tcp", "ibverbs"):
        raise values.error(
            "distributed_transport", f"{shown(values.text('distributed_transport'))} is not right; expected tcp or ibverbs"
        )
    if values.text("gpus"):
        slots = len([gpu for gpu in values.text("gpus").split(",") if gpu.strip()])
        if not slots:
            raise values.error("gpus", "it names no GPU; expected numbers such as 0,1")
    else:
        slots = values.number("num_gpus", 1, least=1)
    # One GPU is what the trainer assumes when nobody says anything; a machine without any is no contradiction then.
    said = (values.text("gpus") or values.text("num_gpus")) and not values.flag("use_cpu")
    rank_info = RankInfo(
        size=size,
        rank=rank,
        source=values.source,
        store=_store(values),
        run_id=values.text("run_id"),
        slots=slots,
        gpus=slots if said else 0,
    )
    return rank_info if size > 1 else rank_info.outline()


def _store(values: Values) -> Store:
    """Redis where its host is given, else the folder, as the trainer has it."""
    host = values.text("redis_host")
    if host:
        if not valid_host(host):
            raise values.error("redis_host", f"{shown(host)} is neither a host name nor an address")
        password = values.text("redis_password") or _password(os.environ)
        return Store("redis", host, values.port("redis_port", 6379), password=password)
    return Store("file", path=values.text("file_store_path", "/tmp"))


def _password(environ: Mapping[str, str]) -> str | None:
    return environ.get(PASSWORD_VARIABLE) or None
