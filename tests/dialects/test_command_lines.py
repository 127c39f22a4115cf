"""The launcher in a command line or a script: what stands before it, variables, assignments, several commands."""

import json
from pathlib import Path

import pytest

import tfdist
from tfdist.dialects import description
from tfdist.dialects.parsing.shell import commands
from tfdist.errors import ClusterError, Source
from tfdist.rank_info import RankInfo

TF_CONFIG = {"cluster": {"worker": ["a:1", "b:2"]}, "task": {"type": "worker", "index": 1}}


def words(script: str) -> list[tuple[str, ...]]:
    return [command.words for command in commands(script, Source("command", "x"))]


def test_a_script_is_split_as_a_shell_does_it() -> None:
    assert words('a \'b  c\' "d \\" e" f\\ g # h\ni#j k') == [("a", "b  c", 'd " e', "f g"), ("i#j", "k")]
    assert words("cd x && a|b; c & d\\\n e") == [("cd", "x"), ("a",), ("b",), ("c",), ("d", "e")]
    assert words("if [ -f x ]; then a; else b; fi") == [("[", "-f", "x", "]"), ("a",), ("b",), ()]
    assert words("a > log 2>&1 <in b\nc <N> 2> d") == [("a", "b"), ("c", "<N>")]
    assert words("cat <<EOF\ntorchrun 'x\nEOF\na") == [("cat",), ("a",)]
    assert words('a $(b (c) "d") ${e:-f g} `h i`') == [("a", '$(b (c) "d")', "${e:-f g}", "`h i`")]
    assert words("> a b\nc > d") == [("a", "b"), ("c",)]  # A prompt.
    (command,) = commands("\n\nexport A=1 B='x y' C", Source("command", "x"))
    assert command.variables == {"A": "1", "B": "x y"} and command.line == 3 and not command.words
    with pytest.raises(ClusterError, match=r"x:2: .*no closing quotation"):
        words("a\nb 'c")


@pytest.mark.parametrize(
    "text",
    [
        'A=${B:-"${C}/d ${E}.x"}',
        ': ${A:="b \\\n  c\n d\'"}',
        'A="$(dirname "$0")" B="${C:-it\'s}"',
        "A=$(awk 'BEGIN {print ('${b}' >= \\\n ('${c}' * 2))}')",
        "A=$(cat <<'EOF'\nit's \"one\nEOF\n)",
        "A=$(b # it's a comment\nc)",
        'A=$((1 << 3)) B="a #b" C="<<x"',
        "A=$'it\\'s'",
        'A="`b \'c`"',
        'A=$((b<<c)) B=$(d\n"e\'f"\n)',
    ],
)
def test_quotations_and_substitutions_inside_others(text: str) -> None:
    assert words(f"{text}\ntorchrun x")[-1] == ("torchrun", "x")
    assert tfdist.read(f"#!/bin/bash\n{text}\ntorchrun --nproc_per_node=2 x.py\n").describe() == "2 workers"


@pytest.mark.parametrize("opening", ["$(", "${", "$((", "$(<<a\n", "$('", "`", "$((a<<b)) "])
@pytest.mark.timeout(120)  # Two seconds if each character is looked at a few times; hours if it is for each opening.
def test_openings_without_an_end_are_read_once(opening: str) -> None:
    try:
        words(opening * 200_000)
    except ClusterError:
        pass


@pytest.mark.parametrize(
    "before",
    [
        "time ",
        "exec ",
        "nohup ",
        "env A=1 B=2 ",
        "A=1 B='2 3' ",
        "uv run ",
        "poetry run ",
        "cd x && ",
        "set -e; ",
        "sudo -E ",
        "stdbuf -oL ",
        "timeout 10m ",
        "numactl --cpunodebind=0 ",
        "conda run -n env ",
        "singularity exec --nv image.sif ",
        "srun --export=ALL ",
        "$ ",
        "# one machine\n",
        "if true; then ",
        "/usr/bin/",
        "env -u B A=1 ",
        "bash -c 'source x; exec ",
    ],
)
def test_words_before_the_launcher_do_not_matter(before: str) -> None:
    after = "'" if before.startswith("bash") else ""
    assert tfdist.read(f"{before}torchrun --nproc-per-node 3 train.py{after}").describe() == "3 workers"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "torchrun $ARGS train.py",
            "'$ARGS' is a shell variable among the options, and only literals that are set once are expanded",
        ),
        ("torchrun --nproc_per_node=8 $EXTRA --nnodes=2 train.py", "'$EXTRA' is a shell variable among the options"),
        ('torchrun "${ARGS[@]}" train.py', "'${ARGS[@]}' is a shell variable"),
        (
            "torchrun --nnodes=$N train.py",
            "--nnodes: '$N' has a shell variable, and only literals that are set once are expanded; write its",
        ),
        ("mpirun -np 8 $OPTS -H a:4,b:4 python x", "'$OPTS' is a shell variable among the options"),
        ("mpiexec --allow-run-as-root ${BIND} -np 8 python x", "'${BIND}' is a shell variable"),
        ("mpirun -np $N python x", "-np: '$N' has a shell variable"),
        ("horovodrun -np 4 -H $HOSTS python x", "-H: '$HOSTS' has a shell variable"),
        ("mpirun -np 4 --hostfile ${FILE} python x", "--hostfile: '${FILE}' has a shell variable"),
        ("accelerate launch --num_processes=$((A * 2)) x.py", "--num_processes: '$((A * 2))' has a shell variable"),
        ("deepspeed --num_gpus=`nproc` x.py", "--num_gpus: '`nproc`' has a shell variable"),
        ("fleetrun --gpus $GPUS x.py", "--gpus: '$GPUS' has a shell variable"),
        ("python x.py --ps_hosts=$PS --worker_hosts=a:1", "--ps_hosts: '$PS' has a shell variable"),
        ("srun -n $N python x.py", "--ntasks: '$N' has a shell variable"),
        ("TF_CONFIG='{\"cluster\": '$C'}' python x.py", "TF_CONFIG: '{\"cluster\": $C}' has a shell variable"),
        (
            "[ $A ] && L='torchrun --nnodes 2'\n$L x.py",
            "<text>:1: torchrun is put into a variable, and this one is not expanded",
        ),
        (
            'D="-m torch.distributed.run --nproc_per_node=$(nproc)"\npython $D x.py',
            "<text>:2: --nproc_per_node: '$(nproc)' has a shell variable",
        ),
        ('run="A=1 deepspeed $(cat x) x.py"\neval $run', "<text>:2: '$(cat x)' is a shell variable among the options"),
        ("[ $A ] && export TORCHRUN=torchrun\nsrun $TORCHRUN x.py", "<text>:1: torchrun is put into a variable"),
        ("ssh host torchrun --nnodes 2 x.py", "'ssh' starts torchrun elsewhere, or does not start it; give the command from"),
        (
            "mpirun -np 2 torchrun --nproc-per-node 2 x.py",
            "this launcher starts torchrun on every task, and each of these starts",
        ),
        (
            "mpirun -np 2 -H a,b accelerate launch --num_processes 8 x.py",
            "this launcher starts accelerate on every task, and each",
        ),
        ("mpirun -np 2 env -i torchrun x.py", "this launcher starts torchrun on every task, and each"),
        ("mpirun -np 2 -H a,b conda run -n x deepspeed x.py", "this launcher starts deepspeed on every task, and each"),
        (
            "mpirun -N 1 -H a,b python -m paddle.distributed.launch x.py",
            "this launcher starts paddle.distributed.launch on every task",
        ),
        (
            "srun -n 4 torchrun --nproc-per-node 2 x.py",
            "srun starts torchrun on each of 4 tasks, and its own options describe one",
        ),
        ("srun python x.py", "the number of tasks is missing; write srun --ntasks=4"),
        ("torchrun 'x", "this cannot be split into words: no closing quotation"),
    ],
)
def test_what_cannot_be_known_is_refused_with_the_reason(line: str, message: str) -> None:
    with pytest.raises(ClusterError) as caught:
        tfdist.read(line)
    assert message in str(caught.value)


def test_variables_that_do_not_concern_the_cluster_are_passed_over() -> None:
    for line in (
        "torchrun --standalone --nproc_per_node=2 --rdzv_id=$ID --log_dir $LOGS $HOME/train.py $ARGS",
        "mpirun -np 2 -x PATH=$PATH -mca btl $BTL python train.py $ARGS",
        "accelerate launch --num_processes 2 --mixed_precision=$MP train.py $ARGS",
        "mpirun -np 2 conda run -n deepspeed python train.py --deepspeed",
    ):
        assert tfdist.read(line).describe() == "2 workers"


def test_variables_that_a_container_gets_count() -> None:
    config = '{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
    for options in (f"-e TF_CONFIG='{config}'", f"--env A=1 --env TF_CONFIG='{config}'", f"--rm --env=TF_CONFIG='{config}'"):
        for given in (options, options.replace(", ", ",\n  ").replace("{", "{\n")):
            cluster = tfdist.read(f"sudo docker run -v /data:/data {given} image python train.py -e 5")
            assert (cluster.describe(), cluster.task) == ("2 workers", ("worker", 1))
    several = [config.replace("1}}", f"{index}}}}}") for index in range(2)]
    cluster = tfdist.read("\n".join(f"docker run -d -e TF_CONFIG='{each}' image python train.py" for each in several))
    assert (cluster.describe(), cluster.task) == ("2 workers", None)
    line = "docker run -e CUDA_VISIBLE_DEVICES=0,1 image deepspeed train.py"
    assert tfdist.read(line).describe() == "2 workers"


def test_values_with_the_name_of_a_launcher_start_none() -> None:
    for line in (
        "srun -n 2 --chdir=/home/me/deepspeed python train.py",
        "srun -n 2 -D /home/me/deepspeed -o logs/torchrun python train.py",
        "mpirun -np 2 -H a,b -wdir /opt/deepspeed python train.py",
        "horovodrun -np 2 -H a,b --output-filename logs/torchrun python train.py",
        "accelerate launch --config_file=$FILE --num_machines 1 --num_processes 2 -m train --strategy deepspeed",
        "torchrun --nproc-per-node 2 -m train --strategy deepspeed",
        "docker run --name paddle -v /data:/paddle -w /paddle image torchrun --nproc-per-node 2 train.py",
        "srun -n 2 apptainer exec --bind /scratch/deepspeed image.sif python train.py",
    ):
        assert sum(task.slots for task in tfdist.read(line).tasks) == 2, line


def test_a_script_has_one_launcher_that_counts(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text("#!/bin/bash\npip install x\n\nhorovodrun --check-build\nhorovodrun -np 4 \\\n  python train.py\n")
    assert tfdist.read(script).describe() == "4 workers"
    script.write_text("#!/bin/sh\nmpirun -np 4 python a.py\nmpirun -np 4 python b.py\n")
    assert tfdist.read(str(script)).describe() == "4 workers"
    script.write_text("#!/bin/sh\nmpirun -np 4 python a.py\nmpirun -np 8 python b.py\n")
    with pytest.raises(ClusterError, match=r"run.sh: the commands in lines 2, 3 describe different clusters; give only one"):
        tfdist.read(script)
    script.write_text("#!/bin/sh\n\ntorchrun --nproc-per-node=x a.py\n")
    with pytest.raises(ClusterError, match=r"run.sh:3: --nproc_per_node: 'x' is not right"):
        tfdist.read(script)
    node = "torchrun --nnodes 2 --node-rank {} --master-addr a x.py\n"
    with pytest.raises(ClusterError, match="lines 1, 2 start different nodes of one job"):
        description(node.format(0) + node.format(1))
    again = description(node.format(1) + node.format(1).replace("x.py", "evaluate.py"))
    assert isinstance(again, RankInfo) and (again.rank, again.size) == (1, 2)
    with pytest.raises(ClusterError, match=r"lines 1, 2 start several jobs, and one of them cannot be read \(-np: '\$N'"):
        tfdist.read("mpirun -np 2 x\nmpirun -np $N x\n")


@pytest.mark.parametrize("python", ["python", "python3 -u", "python -W ignore", "python3 -X faulthandler -W error -u"])
def test_options_of_python_before_the_module_do_not_matter(python: str) -> None:
    assert tfdist.read(f"{python} -m torch.distributed.run --nproc-per-node 3 train.py").describe() == "3 workers"


@pytest.mark.parametrize(
    "start",
    ["A=1 {} ", "env -i A=1 {} ", "time env --unset A {} B=2 ", "srun -n 1 env -C /work {} ", "sudo -u me -E {} env B=2 "],
)
def test_variables_of_one_command_count_for_its_launcher(start: str) -> None:
    gpus = start.format("CUDA_VISIBLE_DEVICES=2,3,5")
    assert tfdist.read(f"{gpus}deepspeed train.py").describe() == "3 workers"


@pytest.mark.parametrize(
    "form",
    [
        "TF_CONFIG='{}' python train.py",
        "env A=1 TF_CONFIG='{}' python train.py",
        "export TF_CONFIG='{}'",
        "TF_CONFIG='{}'\npython train.py",
        "export TF_CONFIG=$(cat <<EOF\n{}\nEOF\n)\npython train.py",
        "TF_CONFIG=\"$(cat <<-'END'\n{}\n  END\n)\"\npython train.py",
    ],
)
def test_an_assignment_of_a_launchers_variable_is_read(form: str) -> None:
    cluster = tfdist.read(form.replace("{}", json.dumps(TF_CONFIG, indent=1)))
    assert cluster == tfdist.read(TF_CONFIG) and cluster.task == ("worker", 1)


@pytest.mark.parametrize(
    "before", ["TFDIST_CLUSTER=STANDARD_1 ", "export TFDIST_CLUSTER=STANDARD_1\n", "env TFDIST_CLUSTER=STANDARD_1 "]
)
def test_a_description_that_the_program_gets_counts_and_not_the_ranks_that_run_it(before: str) -> None:
    assert tfdist.read(f"{before}mpirun -np 8 python train.py\n") == tfdist.read("STANDARD_1")
    with pytest.raises(ClusterError, match="TFDIST_CLUSTER: STANDARD_2: this is neither a file nor a scale tier; did you mean"):
        tfdist.read(f"{before.replace('D_1', 'D_2')}mpirun -np 8 python train.py\n")


def test_the_tasks_of_one_script_are_one_cluster() -> None:
    lines = [f"TF_CONFIG='{json.dumps(TF_CONFIG | {'task': {'type': 'worker', 'index': n}})}' python x.py &" for n in range(2)]
    cluster = tfdist.read("\n".join(lines))
    assert cluster == tfdist.read(TF_CONFIG) and cluster.task is None
    ranks = description("RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=3 python x.py")
    assert isinstance(ranks, RankInfo) and (ranks.rank, ranks.size) == (1, 2)


@pytest.mark.parametrize(
    "text",
    [
        f"TF_CONFIG={json.dumps(TF_CONFIG)}\n",
        f"os.environ['TF_CONFIG'] = json.dumps({TF_CONFIG})\n",
        f"tf.train.ClusterSpec({TF_CONFIG['cluster']})\n",
        f"cluster = tf.train.ClusterSpec({TF_CONFIG['cluster']},)",
        f"tf_config = {TF_CONFIG}",
        f"import json, os\nfrom a.b import c\n\ntf_config = {TF_CONFIG}\nos.environ['TF_CONFIG'] = json.dumps(tf_config)  # mine\n",
        "{'cluster': {'worker': ['a:1', 'b:2']}, 'task': {'type': 'worker', 'index': 1}}",  # Python prints a dict like this.
        "{'cluster': {'worker': ('a:1', 'b:2')}, 'task': {'type': 'worker', 'index': 1}, 'rpc_layer': None}  # mine",
        "{cluster: {worker: [a:1, b:2,]}, task: {type: worker, index: 1,},}",  # YAML, as gcloud takes it.
    ],
)
def test_a_brace_may_begin_a_python_dict_or_yaml(text: str) -> None:
    assert tfdist.read(text) == tfdist.read(TF_CONFIG)


def test_what_is_neither_is_reported_as_json() -> None:
    with pytest.raises(ClusterError, match=r"this is not JSON .*is a comma or a quote missing here"):
        tfdist.read('{"cluster": {"worker": ["a:1" "b:2"]}')
    with pytest.raises(ClusterError, match=r"a template, \{\{...\}\}, has to be filled in first"):
        tfdist.read("{{- if .Values.x }}\nkind: TFJob\n{{- end }}\n")


CONFIG = """export TF_CONFIG='{
  "cluster": {"ps": ["a:1"], "chief": ["b:1"], "worker": ["c:1"]},
  "task": {"type": "%s", "index": 0}
}'
nohup python train.py &
"""


@pytest.mark.parametrize("first", ["", "#!/bin/bash\n"])
def test_a_script_that_exports_tf_config(first: str) -> None:
    """Several tasks are the cluster without one of them; it was the last."""
    cluster = tfdist.read(first + CONFIG % "ps")
    assert cluster.task == ("ps", 0) and cluster.describe() == "1 chief, 1 worker, 1 ps"
    both = tfdist.read(first + CONFIG % "ps" + CONFIG % "chief")
    assert both == cluster and both.task is None
    with pytest.raises(ClusterError, match=r"the commands in lines ., . describe different clusters"):
        tfdist.read(first + CONFIG % "ps" + (CONFIG % "chief").replace("c:1", "d:1"))
    # Variables of one task may have a line each.
    names = (
        "PADDLE_PSERVERS_IP_PORT_LIST=a:1",
        "PADDLE_TRAINER_ENDPOINTS=b:1,c:1",
        "TRAINING_ROLE=TRAINER",
        "PADDLE_TRAINER_ID=1",
    )
    cluster = tfdist.read(first + "".join(f"export {name}\n" for name in names) + "python train.py\n")
    assert (cluster.describe(), cluster.task) == ("2 workers, 1 ps", ("worker", 1))


def test_a_manifest_in_a_script_is_no_description() -> None:
    job = "cat > job.yaml <<EOF\nworkerPoolSpecs:\n  - machineSpec: {machineType: n1-standard-4}\nEOF\n"
    line = "gcloud ai custom-jobs create --worker-pool-spec=machine-type=n1-standard-4\n"
    assert tfdist.read(f"#!/bin/bash\n{job}{line}").describe() == "1 chief"
    with pytest.raises(ClusterError, match="this is no cluster description that tfdist knows"):
        tfdist.read(f"#!/bin/bash\n{job}kubectl apply -f job.yaml\n")
    assert tfdist.read("script -c 'python resnet50_trainer.py --gpus 0,1' log").slots == 2
