"""gcloud's command lines: jobs of AI Platform, training on this machine, and custom jobs of Vertex AI."""

from pathlib import Path

import pytest

import tfdist
from tfdist.errors import ClusterError

SUBMIT = "gcloud ai-platform jobs submit training $JOB --region us-central1"
CREATE = "gcloud beta ai custom-jobs create --display-name=x"


def kinds(line: str) -> list[tuple[str, int, str | None]]:
    return [(task.job, task.gpus, task.machine_type) for task in tfdist.read(line).tasks]


def test_a_scale_tier_or_machines() -> None:
    assert tfdist.read(f"{SUBMIT} --scale-tier STANDARD_1 --stream-logs -- --scale-tier x") == tfdist.read("STANDARD_1")
    assert tfdist.read(f"{SUBMIT.replace('ai-platform', 'beta ml-engine')} --module-name a.b") == tfdist.read("BASIC")
    machines = "--scale-tier=custom --master-machine-type=n1-standard-8 --master-accelerator=type=nvidia-tesla-t4,count=2"
    machines += " --worker-machine-type n1-standard-4 --worker-count 2 --job-dir=gs://b/1"
    assert kinds(f"{SUBMIT} {machines}") == [
        ("chief", 2, "n1-standard-8+2xNVIDIA_TESLA_T4"),
        ("worker", 0, "n1-standard-4"),
        ("worker", 0, "n1-standard-4"),
    ]
    evaluator = "--scale-tier=CUSTOM --master-machine-type=standard --evaluator-machine-type=standard --evaluator-count=1"
    assert tfdist.read(f"{SUBMIT} {evaluator}").describe() == "1 chief, 1 evaluator"
    assert tfdist.read(f"{SUBMIT} {machines}").job_dir == "gs://b/1"
    assert tfdist.read(f"{SUBMIT} --job-dir=$DIR").job_dir is None


def test_flags_may_stand_before_the_command() -> None:
    for line in (
        SUBMIT.replace("gcloud", "gcloud --project=$P -q"),
        SUBMIT.replace("gcloud", "gcloud --project p beta"),
        SUBMIT.replace("jobs", "--verbosity debug jobs"),
    ):
        assert tfdist.read(f"{line} --scale-tier STANDARD_1") == tfdist.read("STANDARD_1")
    pool = "--worker-pool-spec=machine-type=n1-standard-4,replica-count={}"
    assert tfdist.read(f"{CREATE.replace('=x', ' beta')} {pool.format(1)} {pool.format(2)}").describe() == "1 chief, 2 workers"


def test_flags_win_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("config.yaml").write_text(
        "trainingInput: {scaleTier: CUSTOM, masterType: standard, workerType: standard, workerCount: 5}"
    )
    assert tfdist.read(f"{SUBMIT} --config=config.yaml").describe() == "1 chief, 5 workers"
    assert tfdist.read(f"{SUBMIT} --config config.yaml --worker-count=2").describe() == "1 chief, 2 workers"
    Path("job.yaml").write_text("workerPoolSpecs: [{replicaCount: 1}, {replicaCount: 3}]")
    assert tfdist.read(f"{CREATE} --config=job.yaml").describe() == "1 chief, 3 workers"
    Path("tuning.yaml").write_text("trainingInput: {hyperparameters: {goal: MAXIMIZE}}")
    assert tfdist.read(f"{SUBMIT} --config=tuning.yaml").describe() == "1 chief"


def test_training_on_this_machine() -> None:
    assert tfdist.read("gcloud ml-engine local train --module-name a.b -- --distributed").describe() == "1 chief"
    assert tfdist.read("gcloud ai-platform local train --distributed").describe() == "1 chief, 2 workers, 2 ps"
    line = "gcloud ai-platform local train --distributed --worker-count=4 --parameter-server-count 3"
    assert tfdist.read(line).describe() == "1 chief, 4 workers, 3 ps"
    none = line.replace("4", "0").replace("3", "0")  # gcloud starts two.
    assert tfdist.read(none).describe() == "1 chief, 2 workers, 2 ps"
    spec = tfdist.read(f"{line} --start-port=5000").cluster_spec()
    assert (spec["chief"], spec["ps"][0], spec["worker"][0]) == (["localhost:5000"], "localhost:5001", "localhost:5004")


def test_worker_pools() -> None:
    pool = "--worker-pool-spec=machine-type=n1-standard-8,replica-count={}"
    line = f"{CREATE} {pool.format(1)} {pool.format(2)},accelerator-type=nvidia-tesla-t4,accelerator-count=2"
    gpus = "n1-standard-8+2xNVIDIA_TESLA_T4"
    assert kinds(line) == [("chief", 0, "n1-standard-8"), ("worker", 2, gpus), ("worker", 2, gpus)]
    assert tfdist.read(f"{CREATE} --worker-pool-spec=machine-type=n1-standard-8,container-image-uri=$I").describe() == "1 chief"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"{SUBMIT} --scale-tier=${{T}}", "--scale-tier: '\\${T}' has a shell variable"),
        (f"{SUBMIT} $FLAGS", "'\\$FLAGS' is a shell variable among the options"),
        (f"{SUBMIT} --scale-tir=BASIC", "there is no such flag; did you mean scale-tier"),
        (f"{SUBMIT} --scale-tier", "--scale-tier: this flag has no value"),
        (f"{SUBMIT} --scale-tier=STANDARD_2", "'STANDARD_2' is not a scale tier"),
        (f"{SUBMIT} --worker-accelerator=2xT4", "--worker-accelerator: '2xT4' is not right; expected type="),
        (f"{SUBMIT} --worker-count=2", "scaleTier is missing; --worker-count goes with CUSTOM"),
        (f"{CREATE} --region=us", "--worker-pool-spec: neither this nor --config is given"),
        (f"{CREATE} --worker-pool-spec=$SPEC", "'\\$SPEC' is a shell variable among the options"),
        (f"{CREATE} --worker-pool-spec=machine-type=$M", "machine-type: '\\$M' has a shell variable"),
        (f"{CREATE} --worker-pool-spec=machine_type=x", "'machine_type' is not a field of a pool; did you mean machine-type"),
        (f"{SUBMIT} --flags-file=f.yaml", "--flags-file: tfdist does not read this file; give its flags here"),
        (f"{CREATE} --worker-pool-spec=replica-count=2", "the first worker pool has 2 replicas"),
        (
            "gcloud ml-engine models create m",
            "'gcloud ml-engine models create m' starts no training that tfdist reads; expected gcloud ai-platform",
        ),
        ("gcloud config list", "'gcloud config list' starts no training"),
        ("gcloud", "'gcloud' starts no training"),
        ("gcloud ai custom-jobs local-run --script=t.py", "'gcloud ai custom-jobs local-run' starts no training that tfdist"),
    ],
)
def test_bad_command_lines(line: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        tfdist.read(f"{line}\n")


def test_other_commands_of_gcloud_do_not_count() -> None:
    script = f"gcloud config set project p\n{SUBMIT} --scale-tier BASIC_GPU\ngcloud ml-engine models list\n"
    assert tfdist.read(script).describe() == "1 chief"
    assert tfdist.read("gcloud auth list\ntorchrun --nproc_per_node=2 t.py\n").describe() == "2 workers"


def test_a_list_may_have_another_delimiter() -> None:
    pools = ("machine-type=n1-standard-4|container-image-uri=x", "machine-type=n1-standard-4|replica-count=2")
    line = " ".join([CREATE, *(f"'--worker-pool-spec=^|^{pool}'" for pool in pools)])
    assert tfdist.read(line).describe() == "1 chief, 2 workers"
