"""Caffe2: the flags of its `resnet50_trainer`, which users' programs share, on a command line or in a dict.

Sources of the rules: pytorch `caffe2/python/examples/resnet50_trainer.py` @ 0ee53bf7 (flags, defaults, choice of the store),
`caffe2/distributed/{file,redis}_store_handler.cc` @ 01f2f07a.

All machines step together (AllReduce by Gloo): shard r is `worker:r`, and its slots are its GPUs. tfdist has its own keys in
the store, so a run of Caffe2 and a run of tfdist can share one.
"""

import os

from tfdist.cluster import Cluster, valid_host
from tfdist.dialects.dialect import CommandReader, Dialect, TextReader
from tfdist.dialects.parsing.command_line import names, options
from tfdist.dialects.parsing.document import Document, close, shown
from tfdist.dialects.parsing.values import Values, scalar_text
from tfdist.errors import Source
from tfdist.rank_info import RankInfo, Store

NAME = "caffe2"

PASSWORD_VARIABLE = "TFDIST_REDIS_PASSWORD"
"""Password of the Redis store. Caffe2 has no flag for it."""

_MINE = names("num_shards shard_id run_id redis_host redis_port file_store_path num_gpus gpus distributed_transport")
WORDS = _MINE | names("distributed_interfaces redis_password use_cpu")
_OF_RENDEZVOUS = names("kv_handler engine transport interface mpi_rendezvous exit_nets")


def parse(document: Document) -> Cluster | RankInfo:
    """Reads a mapping of flags, or a `rendezvous` dict. Beside `shard_id` other flags are ignored.

    Raises:
        ClusterError: for bad values, and for `num_shards` among the words of another tool.
    """
    source = Source(NAME, document.name)
    texts = {}
    foreign = [key for key in document.mapping if isinstance(key, str) and key not in WORDS | _OF_RENDEZVOUS]
    if foreign and "shard_id" not in document.mapping and not any(close(key, WORDS) for key in foreign):
        raise source.error(
            f"num_shards without shard_id, beside {shown(foreign[0], 30)}, is no description of Caffe2; "
            "a shard of a cluster has both"
        )
    for key, value in document.mapping.items():
        if not isinstance(key, str) or (key not in WORDS and key not in _OF_RENDEZVOUS):
            meant = close(key, WORDS) if isinstance(key, str) else None
            if meant:
                raise source.error(f"there is no such flag; did you mean {meant}?", field=key, line=document.lines.get((key,)))
            continue
        if key == "gpus" and isinstance(value, list | tuple):
            value = ",".join(str(each) for each in value[:1000] if isinstance(each, int | str))
        if key in WORDS and value is not None:
            texts[key] = scalar_text(value, source, key, document.lines.get((key,)))
    return _read(Values(source, texts, ""))


def parse_command(words: list[str], source: Source) -> Cluster | RankInfo:
    """Reads a command line of the trainer. Other flags are ignored. Raises ClusterError for bad ones."""
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
    # The trainer's default is one GPU; with the default a machine without GPUs is no contradiction.
    is_given = (values.text("gpus") or values.text("num_gpus")) and not values.flag("use_cpu")
    rank_info = RankInfo(
        size=size,
        rank=rank,
        source=values.source,
        store=_store(values),
        run_id=values.text("run_id"),
        slots=slots,
        gpus=slots if is_given else 0,
    )
    return rank_info if size > 1 else rank_info.outline()


def _store(values: Values) -> Store:
    """Returns the Redis store if its host is given, else the folder, as the trainer does."""
    host = values.text("redis_host")
    if host:
        if not valid_host(host):
            raise values.error("redis_host", f"{shown(host)} is neither a host name nor an address")
        password = values.text("redis_password") or os.environ.get(PASSWORD_VARIABLE) or None
        return Store("redis", host, values.port("redis_port", 6379), password=password)
    return Store("file", path=values.text("file_store_path", "/tmp"))


DIALECT = Dialect(
    name=NAME,
    title="Caffe2",
    example="Caffe2's flags ({num_shards: 2, shard_id: 0, run_id: r1, file_store_path: /shared})",
    text=TextReader(parse, words=WORDS, marks=names("num_shards shard_id"), is_mapping=True),
    command=CommandReader(
        ("resnet50_trainer.py", "caffe2.python.examples.resnet50_trainer", "imagenet_trainer.py"), parse_command
    ),
)
