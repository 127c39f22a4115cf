"""Caffe2's flags, on a command line and in a dict."""

import pytest

from tfdist import Cluster, ClusterError
from tfdist.dialects import description
from tfdist.rank_info import RankInfo, Store


@pytest.fixture(autouse=True)
def no_password(monkeypatch):
    monkeypatch.delenv("TFDIST_REDIS_PASSWORD", raising=False)


def test_a_dict_with_a_folder_is_a_shard_that_meets_the_others_there():
    me = description(
        {"num_shards": 4, "shard_id": 2, "run_id": "r1", "file_store_path": "/shared", "num_gpus": 2, "train_data": "x"}
    )
    assert isinstance(me, RankInfo)
    assert (me.size, me.rank, me.run_id, me.slots, me.gpus) == (4, 2, "r1", 2, 2)
    assert me.store == Store("file", path="/shared")


def test_redis_is_taken_where_its_host_is_given_as_the_trainer_does():
    me = description(
        "python resnet50_trainer.py --train_data null --num_shards 2 --shard_id=1 --run_id 5 --redis_host cache "
        "--file_store_path /shared --gpus 0,1,2 --use_cpu True"
    )
    assert me.store == Store("redis", "cache", 6379)
    assert (me.size, me.rank, me.run_id, me.slots, me.gpus) == (2, 1, "5", 3, 0)


def test_the_password_comes_from_a_dict_or_the_environment_and_no_command_line(monkeypatch):
    flags = {"num_shards": 2, "redis_host": "cache", "redis_port": 7000}
    assert description({**flags, "redis_password": "x"}).store == Store("redis", "cache", 7000, password="x")
    monkeypatch.setenv("TFDIST_REDIS_PASSWORD", "y")
    assert description(flags).store.password == "y"
    with pytest.raises(
        ClusterError, match="everybody on the machine can read a command line; set TFDIST_REDIS_PASSWORD"
    ) as error:
        description("python resnet50_trainer.py --num_shards 2 --redis_host cache --redis_password=a-secret")
    assert "a-secret" not in str(error.value)


def test_a_yaml_or_json_file_holds_the_same(tmp_path):
    (tmp_path / "run.yaml").write_text("num_shards: 2\nshard_id: 1\nrun_id: a\nfile_store_path: /shared\ngpus: [0, 1]\n")
    me = description(tmp_path / "run.yaml")
    assert (me.size, me.rank, me.slots, me.gpus) == (2, 1, 2, 2)


def test_the_rendezvous_dict_of_the_examples_is_read_and_meets_in_the_default_folder():
    me = description({"kv_handler": "store_handler", "shard_id": 0, "num_shards": 2, "engine": "GLOO", "exit_nets": None})
    assert (me.size, me.rank, me.store) == (2, 0, Store("file", path="/tmp"))


def test_one_machine_with_several_gpus_is_one_task_with_slots():
    cluster = description({"num_shards": 1, "num_gpus": 4})
    assert isinstance(cluster, Cluster)
    assert [(task.name, task.slots, task.gpus) for task in cluster.tasks] == [("worker:0", 4, 4)]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"num_shards": 2, "shard_id": 2}, "shard_id: 2 is too high; shards count from 0 to num_shards - 1, which is 1"),
        ({"num_shards": 0}, "num_shards: '0' is not right"),
        ({"num_shards": 2, "shard_ids": 1}, "shard_ids: there is no such flag; did you mean shard_id"),
        ({"num_shards": 2, "redis_host": "a b"}, "redis_host: 'a b' is neither a host name nor an address"),
        ({"num_shards": 2, "redis_host": "a", "redis_port": 70000}, "redis_port: '70000' is not right"),
        (
            {"num_shards": 2, "distributed_transport": "udp"},
            "distributed_transport: 'udp' is not right; expected tcp or ibverbs",
        ),
        ({"num_shards": [2]}, r"num_shards: \[2\] is neither text nor a number"),
        ({"num_shards": 10**5000}, "num_shards: there is a number of thousands of digits"),
        ({"num_shards": 2, "gpus": ","}, "gpus: it names no GPU"),
        ("python resnet50_trainer.py --num_shard 2", "--num_shard: there is no such option; did you mean num_shards"),
    ],
)
def test_flags_that_cannot_be_are_named(flags, message):
    with pytest.raises(ClusterError, match=message):
        description(flags)
