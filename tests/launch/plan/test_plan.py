"""`tfdist plan`: its command line, what it prints of an earlier measurement, and a probe of a real program."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import ssh_here
from reserved import free_port
from tools import needs
from waits import wait_until

from tfdist.choice import choose
from tfdist.launch.commands import COMMANDS
from tfdist.launch.commands import run as run_command
from tfdist.launch.plan import arguments, configurations, host_link
from tfdist.planner import measurement
from tfdist.planner.measurement import Measurement, Run, Variable
from tfdist.planner.placement import whole_and_split
from tfdist.synchronization import Synchronization

pytestmark = pytest.mark.slow


@pytest.fixture
def plan(tmp_path, monkeypatch, capsys):
    """Runs the command in a folder with a measurement m.json; returns its exit code, output and messages."""
    monkeypatch.chdir(tmp_path)
    runs = (
        Run("default", 1, 0, 100, 1.0, 50, 0.010),
        Run("parameter_server", 1, 1, 100, 4.0, 50, 0.020, 0.010, 0.002),
        Run("parameter_server", 1, 2, 100, 4.0, 50, 0.021, 0.006, 0.0025),
        Run("hogwild", 1, 1, 100, 4.0, 50, 0.015, 0.003, 0.0011, 4),
        Run("hogwild", 1, 1, 100, 4.0, 50, 0.0103, 0.0002, 0.00016, 64),
        Run("multi_worker_mirrored", 2, 0, 100, 4.0, 50, 0.014),
    )
    values = Measurement("train.py", 1, 50, 1000, (Variable("kernel", (1000, 2000), 8_000_000),), runs)
    measurement.save(values, "m.json")

    def run(*words):
        code = run_command(["plan", *words])
        got = capsys.readouterr()
        return code, got.out, got.err

    return run


def test_a_table_of_an_earlier_measurement(plan):
    code, out, err = plan("--from", "m.json", "--tier", "CUSTOM", "--worker_count", "8", "--link", "100mbit")
    assert code == 0
    assert out.splitlines()[1].startswith("*  ")
    assert {line[3:].split("  ")[0] for line in out.splitlines()[1:]} == {
        "hogwild",
        "one process",
        "parameter_server",
        "multi_worker_mirrored",
    }
    assert "--master_machine_type, --worker_machine_type: n1-standard-4, because none is given" in err
    assert "links of 100 Mbit/s, 4 cores per machine" in err
    assert "measured with 1 core: how much faster 4 are is an extrapolation" in err


def test_a_recommendation_that_rests_on_nothing_measured_is_called_a_guess(plan):
    assert "guess" not in plan("--from", "m.json", "--machines", "4")[2]
    values = json.loads(Path("m.json").read_text())
    Path("m.json").write_text(json.dumps(values | {"runs": values["runs"][:1]}))
    said = plan("--from", "m.json", "--machines", "4")[2]
    assert "no cluster was measured, only one process: the other speeds are guesses from typical costs" in said
    assert "recommended (a guess: hogwild was not measured): hogwild" in said


def test_values_of_flags_stay_as_they_are_before_and_after_the_program():
    words = ["train.py", "--env", "--b-c=d-e", "--machines=3", "--link", "1gbit"]
    given = arguments.parsed(words)
    assert given is not None and given.program is not None
    assert (given.program.script, given.values["env"].value) == ("train.py", ["--b-c=d-e"])


def test_as_json_with_prices_and_a_drawing(plan, tmp_path):
    (tmp_path / "prices.json").write_text('{"n1-highcpu-8": 0.3, "n1-standard-4": 0.2}')
    words = ["--from", "m.json", "--tier", "STANDARD_1", "--prices", "prices.json", "--svg", "p.svg", "--json"]
    code, out, _ = plan(*words)
    assert code == 0
    options = json.loads(out)["options"]
    assert [each["recommended"] for each in options].count(True) == 1
    as_described = {"strategy": "parameter_server", "workers": 4, "ps": 3, "chief_apart": True}
    (described,) = [each for each in options if as_described.items() <= each.items()]
    assert described["cost_per_hour"] == pytest.approx(5 * 0.3 + 3 * 0.2)
    assert (tmp_path / "p.svg").read_text().startswith("<svg")


def test_the_description_is_one_of_the_rows_and_simulated_like_the_others(plan):
    one_row = ["--from", "m.json", "--rows", "1"]
    shown = plan(*one_row, "--tier", "STANDARD_1")[1]
    (row,) = [line for line in shown.splitlines() if line.endswith("  described")]
    assert row.split()[0] == "parameter_server" and row.split()[2:4] == ["3", "apart"]
    shown = plan(*one_row, "--cluster", '{"chief": 1, "worker": 3, "ps": 3}', "--json")[1]
    (found,) = [each for each in json.loads(shown)["options"] if each["described"]]
    assert (found["strategy"], found["ps"], found["simulated"]) == ("parameter_server", 3, True)


def test_several_devices_of_one_machine_are_compared_with_one_process(plan):
    description = ["--cluster", "cluster { nworkers_per_group: 4 nworkers_per_procs: 4 }"]
    for words in (description, [*description, "--strategy", "mirrored"]):
        code, out, err = plan("--from", "m.json", *words)
        assert code == 0, err
        (row,) = [line for line in out.splitlines() if line.endswith("  described")]
        assert row.strip("* ").split()[:2] == ["mirrored", "4"]
        assert "several slots" not in err
    several = '{"cluster": {"worker": ["a:1", "b:1"]}, "tfdist": {"slots": {"worker": [[4, 4], [4, 4]]}}}'
    assert (
        "workers with several slots are predicted as if each trained on one"
        in plan("--from", "m.json", "--cluster", several)[2]
    )


def test_workers_on_this_machine_and_workers_that_join_are_counted(plan):
    code, out, err = plan("--from", "m.json", "-n", "3")
    assert code == 0, err
    (row,) = [line for line in out.splitlines() if line.endswith("  described")]
    assert row.split()[:2] == ["multi_worker_mirrored", "3"]
    joining = ["--from", "m.json", "--cluster", '{"chief": 1, "worker": 2, "ps": 1}', "--max_workers", "5", "--link", "10gbit"]
    code, out, err = plan(*joining, "--strategy", "hogwild", "--to", "tf_config")
    assert code == 0, err
    assert "2 workers begin, and there is room for 5: the table is about all 5" in err
    (config,) = {json.dumps(each["tfdist"]) for each in json.loads(out).values()}
    assert json.loads(config)["min_workers"] == 2
    code, out, err = plan(*joining, "--strategy", "parameter_server", "--to", "cloudml")
    assert code == 0 and "workerCount: '5'" in out
    assert "cloudml has no words for workers that join later: all 5 begin" in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["--tier", "STANDARD_1", "--to", "cloudml", "--strategy", "parameter_server", "--link", "100gbit"],
            "workerCount: '4'",
        ),
        (["--machines", "6", "--to", "tfjob", "--link", "10gbit"], "kind: TFJob"),
        (
            ["--cluster", '{"worker": 3}', "--to", "tf_config", "--strategy", "hogwild", "--sync_period", "32"],
            '"sync_period": 32',
        ),
        (["--machines", "4", "--to", "slurm", "--link", "10gbit"], "#SBATCH"),
        (["--machines", "4", "--to", "mermaid", "--link", "10gbit"], "flowchart"),
        (["--machines", "3", "--to", "cloudml"], "scaleTier: BASIC\n"),
        (["--machines", "9", "--to", "cloudml", "--link", "100gbit"], "masterType: n1-standard-4\n  workerType"),
        (["-n", "4", "--to", "vertex", "--link", "100gbit"], "replicaCount: 4\n"),
    ],
)
def test_the_recommended_cluster_in_a_language(plan, words, expected):
    code, out, err = plan("--from", "m.json", *words)
    assert code == 0, err
    assert expected in out
    assert "examples/s" in err


def test_flags_of_hogwild_are_kept_and_what_a_language_lacks_becomes_flags(plan):
    words = ["--tier=STANDARD_1", "--link=100mbit", "--strategy=hogwild", "--sync_period=64", "--compression=int8"]
    for to, expected in (("cloudml", "scaleTier"), ("cluster_spec", '"ps": [')):
        code, out, err = plan("--from", "m.json", *words, "--to", to)
        assert code == 0
        assert expected in out
        assert "give the program --strategy hogwild --sync_period 64 --compression int8" in err
    description = ["--cluster", '{"cluster": {"worker": ["a:1", "b:1"]}, "tfdist": {"job_dir": "/runs"}}']
    code, out, err = plan("--from", "m.json", *description, "--link", "10gbit", "--to", "horovod")
    assert (code, out) == (0, "a slots=1\n"), err
    assert 'tfdist: Horovod has no job directory: give your program "/runs" itself.\n' in err
    assert "tfdist: Horovod chooses the ports: those of the description are not carried over.\n" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "expected a program to measure"),
        (["--machines", "3"], "expected a program to measure"),
        (["none.py", "--machines", "3"], "none.py: there is no such program"),
        (["--from", "m.json"], "no cluster is described: give --machines N"),
        (["--from", "m.json", "train.py"], "leave the program out"),
        (["a.py", "b.py", "--machines", "3"], "expected one program; its own arguments come after --"),
        (["--from", "none.json", "--machines", "3"], "none.json: there is no such file"),
        (["--from", "m.json", "--machines", "0"], "--machines=0"),
        (["--from", "m.json", "--machines", "3", "--link", "quick"], "--link: 'quick' is not the rate of a link"),
        (["--from", "m.json", "--machines", "3", "--link", "measured"], "it needs a description that names several hosts"),
        (["--from", "m.json", "--machines", "3", "--strategy", "hogwld"], "--strategy hogwld: it is not a strategy"),
        (
            ["--from", "m.json", "-n", "3", "--strategy", "mirrored"],
            "--strategy mirrored: it needs one task with several slots",
        ),
        (["--from", "m.json", "--machines", "3", "--strategy", "mirrored"], "it trains on the devices of one machine, and no"),
        (["--from", "m.json", "-n", "1", "--strategy", "hogwild"], "--strategy hogwild: it needs two workers or more"),
        (
            ["--from", "m.json", "--machines", "1", "--strategy", "multi_worker_mirrored"],
            "it needs two workers or more, and no",
        ),
        (["--from", "m.json", "--machines", "3", "--sync_period", "0"], "--sync_period 0: expected a whole number from 1"),
        (["--from", "m.json", "--machines", "3", "--compression", "zip"], "'zip'"),
        (["--from", "m.json", "--machines", "3", "--to", "nothing"], "--to nothing: it is not one of"),
        (["--from", "m.json", "--machines", "3", "--to", "svg", "--json"], "give one of them"),
        (["--from", "m.json", "--machines", "3", "--prices", "none"], "none: there is no such file"),
        (["--from", "m.json", "--machines", "3", "--svg", "no/where.svg"], "--svg no/where.svg: this file cannot be written"),
        (["--from", "m.json", "--tier", "STANDARD_7"], "STANDARD_7"),
        (["--from", "m.json", "-n", "3", "--tier", "BASIC"], "-n counts the workers of a cluster without another description"),
        (["--from", "m.json", "-n", "3", "--max_workers", "2"], "--max_workers 2: the description has 3 workers already"),
        (["--from", "m.json", "--machines", "3", "--max_workers", "2"], "--max_workers is about the workers of a description"),
        (
            ["--from", "m.json", "-n", "4", "--partition", "kernel=rows", "--partition_tasks", "2", "--to", "tf_config"],
            "--partition: tfdist plan predicts only models that each worker holds as a whole",
        ),
        (["--from", "m.json", "--machines", "3", "--partition_devices", "2"], "--partition_devices: tfdist plan predicts only"),
        (["--from", "m.json", "--cluster", "sharded.json"], "leave the partition out"),
        (["--from", "m.json", "--machine", "3"], "Unknown command line flag 'machine'"),
    ],
)
def test_bad_command_lines_are_one_sentence_and_exit_code_2(plan, words, message):
    sharded = {"partition": {"layouts": [["kernel", "rows"]], "devices": 2}, "slots": {"worker": [[2, 0], [2, 0]]}}
    config = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}, "tfdist": sharded}
    Path("sharded.json").write_text(json.dumps(config))
    code, out, err = plan(*words)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_help_is_without_tensorflow(plan):
    code, out, err = plan("--help")
    assert (code, err) == (0, "")
    assert "plan" in COMMANDS
    for flag in ("--machines", "--link", "--cores", "--prices", "--from", "--save", "--seconds", "--json", "--svg", "--to"):
        assert flag in out
    check = (
        "import sys; from tfdist.launch.commands import run; "
        "assert run(['plan', '--from', 'm.json', '--machines', '3']) == 0; "
        "assert not {'tensorflow', 'keras', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", check], check=True, timeout=60, capture_output=True)


def test_the_configurations_of_the_probe():
    everyone = configurations.everyone().addressed()
    for each in configurations.ALL:
        cluster = each.cluster(everyone, Synchronization(topology="ring", fragments=2, compression="int8"))
        assert (len(cluster.job("worker")), len(cluster.job("ps"))) == (each.workers, each.ps)
        assert each.reporter in {task.name for task in cluster.tasks}
        if each.strategy == "hogwild":
            assert (cluster.sync_period, cluster.synchronization.compression) == (each.period, "int8")
            lengthened = each.cluster(everyone, Synchronization(longest_period=64))
            assert choose(lengthened).strategy == "hogwild"
    assert [each.strategy for each in configurations.for_strategies({"multi_worker_mirrored"})] == [
        "default",
        "multi_worker_mirrored",
    ]


@pytest.mark.cluster
def test_a_probe_measures_an_unchanged_program_and_leaves_nothing(start, tmp_path):
    program = """
        import json, pathlib
        import keras, numpy as np
        import tfdist

        strategy = tfdist.strategy()
        with strategy.scope():
            layers = [keras.layers.Dense(600, activation="relu"), keras.layers.Dense(400), keras.layers.Dense(3)]
            model = keras.Sequential([keras.Input((700,)), *layers])
            placed = getattr(strategy.extended, "_tfdist_bytes", None)
            if placed is not None and len(placed) == 2:
                pathlib.Path("placed.json").write_text(json.dumps(placed))
            model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        x, y = np.zeros([320, 700], "float32"), np.zeros([320], "int64")
        kept = keras.callbacks.ModelCheckpoint("model.keras")
        pathlib.Path("begun").touch()
        model.fit(x, y, batch_size=16, epochs=2, validation_data=(x, y), callbacks=[kept], verbose=0)
        pathlib.Path("ended").touch()
    """
    (tmp_path / "train.py").write_text(textwrap.dedent(program))
    quick = """
        import sys
        from tfdist.launch.commands import run
        from tfdist.launch.plan import configurations, probe, window

        of = configurations.for_strategies
        configurations.for_strategies = lambda wanted: of({*wanted, "multi_worker_mirrored"})
        probe.MEASURED_SECONDS = probe.LEAST_SECONDS = 1.0
        window.WARM_SECONDS = 0.5
        sys.exit(run(["plan", *sys.argv[1:]]))
    """
    (tmp_path / "quick.py").write_text(textwrap.dedent(quick))
    words = ["quick.py", "train.py", "--machines", "3", "--strategy", "parameter_server"]
    # A backup and an evaluator's folder of the user's own training.
    folders = {"TFDIST_BACKUP_DIR": "backup", "TFDIST_EVALUATOR_DIR": "evaluated"}
    job = start(*words, "--save", "m.json", "--json", "--seconds", "200", environment=folders)
    assert job.wait(280) == 0, job.output
    assert not job.left(within=5.0)
    assert not {"ended", "model.keras", "tfdist_logs", "backup", "evaluated"} & {path.name for path in tmp_path.iterdir()}
    found = measurement.read(str(tmp_path / "m.json"))
    assert (found.batch, found.batch_bytes) == (16, 16 * (700 * 4 + 8))
    assert [(run.strategy, run.ps) for run in found.runs] == [
        ("default", 0),
        ("parameter_server", 1),
        ("parameter_server", 2),
        ("multi_worker_mirrored", 0),
    ]
    one = found.runs[1]
    assert min(one.worker, one.server, one.chief) > 0
    assert 0.9 < one.moved / (2 * found.model_bytes) < 1.5  # A step pulls all parameters, and pushes all gradients.
    assert 0.9 < found.runs[3].moved / (4 * found.model_bytes) < 1.5  # Each of two workers sends and receives a whole sum.
    # As the strategy has really placed the variables.
    assert whole_and_split(found.variables, 2) == json.loads((tmp_path / "placed.json").read_text())
    # Ended while it measures, it leaves nothing either.
    (tmp_path / "begun").unlink()
    again = start(*words)
    wait_until((tmp_path / "begun").exists)
    again.process.send_signal(signal.SIGTERM)
    assert again.wait() == 143
    assert not again.left(within=5.0)


@pytest.mark.cluster
@needs("sshd")
def test_the_link_between_hosts_is_measured_over_ssh(plan, tmp_path, monkeypatch):
    ssh_here.keys(tmp_path)
    port = free_port()
    ssh_here.add_host(tmp_path, "127.0.0.1 127.0.0.2", "127.0.0.1", port)
    ssh_here.add_host(tmp_path, "127.0.0.3", "127.0.0.1", 1)
    monkeypatch.setattr(host_link, "SECONDS", 0.4)
    words = ["--from", "m.json", "--link", "measured", "--ssh_config", "config", "--save", "kept.json", "--cluster"]
    with ssh_here.server(tmp_path, "127.0.0.1", port):
        code, _, err = plan(*words, '{"worker": ["127.0.0.1:1", "127.0.0.2:1"]}')
        assert code == 0, err
        assert "Gbit/s (measured between hosts)" in err
        assert measurement.read("kept.json").link > 1e8
        code, out, err = plan(*words, '{"worker": ["127.0.0.1:1", "127.0.0.3:1"]}')
    assert (code, out) == (2, "")
    assert "--link measured: 127.0.0.3: ssh: connect to host 127.0.0.1 port 1" in err
    assert len(err.splitlines()) == 1
    assert "(measured between hosts)" in plan("--from", "kept.json", "--machines", "3")[2]


def test_a_host_that_never_answers_is_named(plan, tmp_path, monkeypatch):
    (tmp_path / "ssh").write_text("#!/bin/sh\nexec sleep 600\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(host_link, "WAIT_SECONDS", 0.3)
    code, out, err = plan("--from", "m.json", "--link", "measured", "--cluster", '{"worker": ["a:1", "b:1"]}')
    assert (code, out) == (2, "") and "--link measured: b did not answer within" in err


def test_over_slow_links_progress_is_compressed_and_parameters_are_not(plan):
    words = ["--from", "m.json", "--machines", "4", "--link", "100mbit", "--strategy", "hogwild"]
    assert "sends parameters as int8" in plan(*words)[2]
    for ending in (["--json"], ["--to", "tfjob"]):
        code, out, err = plan(*words, "--outer", "elastic", *ending)
        assert code == 0 and "int8" not in out + err


def test_languages_with_a_chief_on_a_machine_of_its_own_get_one(plan):
    words = ["--from", "m.json", "--machines", "4", "--link", "100gbit"]
    options = {to: plan(*words, "--to", to)[2].splitlines() for to in ("cloudml", "tfjob")}
    rows = {to: [line for line in lines if "  parameter_server  " in line] for to, lines in options.items()}
    assert any("beside workers" in row for row in rows["tfjob"]) and not any("beside workers" in row for row in rows["cloudml"])
    for row in rows["cloudml"]:
        _, workers, ps, _, machines, *_ = row.split()
        assert int(machines) == int(workers) + int(ps) + 1


def test_a_chief_alone_has_a_machine_of_its_own_beside_ps(plan, tmp_path):
    (tmp_path / "prices.json").write_text('{"n1-standard-4": 1}')
    code, out, err = plan("--from", "m.json", "--tier", "BASIC", "--prices", "prices.json", "--json")
    assert code == 0, err
    served = [each for each in json.loads(out)["options"] if each["ps"]]
    assert served and all(each["machines"] == 2 + each["ps"] == each["cost_per_hour"] for each in served)


def test_machine_types_that_prices_assume_are_said(plan, tmp_path):
    (tmp_path / "prices.json").write_text('{"n1-standard-4": 1, "n1-highcpu-8": 1}')
    words = ["--from", "m.json", "--prices", "prices.json", "--rows", "1"]
    said = "prices: workers and ps count as n1-standard-4, because no machine type is given for them"
    assert said in plan(*words, "-n", "4")[2]
    assert said in plan(*words, "--machines", "2")[2]
    assert "count as" not in plan(*words, "--tier", "STANDARD_1")[2]


@pytest.mark.parametrize("flag", ["--cores", "--seconds"])
def test_a_number_that_is_none_is_refused(plan, flag):
    code, out, err = plan("--from", "m.json", "--machines", "4", f"{flag}=nan")
    assert (code, out) == (2, "") and f"flag {flag}=nan: expected a number" in err


def test_what_travels_of_tables_is_said(plan, tmp_path):
    text = (tmp_path / "m.json").read_text().replace('"is_table": false', '"is_table": true')
    for moved, said in ((0, "tables of Embedding layers count as a whole"), (800_000, "moves 5% of the tables of")):
        (tmp_path / "m.json").write_text(text.replace('"moved": 0.0', f'"moved": {moved}'))
        assert said in plan("--from", "m.json", "-n", "2")[2]
