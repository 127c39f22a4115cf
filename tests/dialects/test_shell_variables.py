"""Variables of scripts: literals that are set once are expanded as a shell does it, and no others."""

import subprocess

import pytest

import tfdist
from tfdist.dialects.parsing.shell import commands
from tfdist.errors import ClusterError, Source

KNOWN = [
    ("N=4\nmpirun -np $N python x", "4 workers"),
    ("N=4; mpirun -np ${N} python x", "4 workers"),
    ("N=4 && mpirun -np $N python x", "4 workers"),
    ("export N=4\nmpirun -np $N python x", "4 workers"),
    ("N='4'\nmpirun -np \"$N\" python x", "4 workers"),
    ("A=4\nN=$A\nmpirun -np $N python x", "4 workers"),
    ("N=1\nmpirun -np ${N}2 python x", "12 workers"),
    ("N=2;M=3\nmpirun -np $((N*M)) python x", "6 workers"),
    ("N=2\nM=$((${N} * 2))\nmpirun -np $(($M * $N * 2)) python x", "16 workers"),
    ("N=2\nM=`expr $N \\* 2`\nmpirun -np $(expr $N '*' 2 \\* 3) python x", "12 workers"),
    ('R="mpirun -np $(expr 2 \\* 3)"\n$R python x', "6 workers"),
    ("HOSTS=a:4,b:4\nhorovodrun -np 8 -H $HOSTS python x", "8 workers"),
    ('ARGS="-np 8 \\\n -H a:4,b:4"\nhorovodrun $ARGS python x', "8 workers"),
    ("RUN='mpirun -np 4'\n$RUN python x", "4 workers"),
    ("#!/bin/sh\n{\nN=4\nmpirun -np $N python x\n} > log", "4 workers"),
    (
        "#!/bin/bash\nfunction f\n{\necho hi\n}\nf() {\necho hi\n}\nM=2\n{\nN=$((M * 2))\n}\nmpirun -np $N python x | tee log",
        "4 workers",
    ),
    ("sleep 1 &\nN=4\nmpirun -np $N python x", "4 workers"),
    ("N=4\nif [ $N = 4 ]; then mpirun -np $N python x; fi", "4 workers"),
    ("case $1 in\na) M=4;;\nesac\nN=3\nmpirun -np $N python x", "3 workers"),
    ("f() { echo hi; }\nN=4\nf\nmpirun -np $N python x", "4 workers"),
    ("# N=3\nN=4\necho N=$N\nmpirun -np $N python x", "4 workers"),
    ("# for N=2 nodes\nN=4  # let N be 8, or N=2\necho starts for N=$N\nmpirun -np $N python x", "4 workers"),
    ("N=4\nsource venv/bin/activate\nmpirun -np $N python x", "4 workers"),
    ("A=(-np 8 -H a:4,b:4)\nhorovodrun ${A[@]} python x", "8 workers"),
    ('A=(\n  -np 8  # all\n  -H a:4,b:4\n)\nhorovodrun "${A[@]}" python x', "8 workers"),
    ("N=8; A=(-np $N)\nmpirun ${A[*]} python x", "8 workers"),
    ("A=(x 8)\nmpirun -np ${A[1]} python x", "8 workers"),
    ('A=(mpirun -np 4 python x)\n"${A[@]}"', "4 workers"),
    ('RUN="mpirun -np 4 -x A=$HOME/b"\n$RUN python x', "4 workers"),
    ('D=/x/$USER\nS="$D/train.py"\nmpirun -np 4 $S', "4 workers"),
    ("#!/bin/bash\n#SBATCH -N 2\nN=$SLURM_NNODES\nsrun -n $((N * 4)) python x", "8 workers"),
    ("declare N=4\nmpirun -np $N python x", "4 workers"),
    ('declare -a A=(-np 8\n -H a:4,b:4)\nhorovodrun "${A[@]}" python x', "8 workers"),
    ("export N=4\nbash -c 'mpirun -np $N python x'", "4 workers"),
    ("N=4 bash -c 'mpirun -np $N python x'", "4 workers"),
    ('R="mpirun -np 4 -x A=$(cat a b) -x B=`cat a`"\nexport C="$R python x"\neval "$C" | tee log', "4 workers"),
    ('R="mpirun -np 4 -x A=\\$B"\nbash -c "$R python x \\$C"', "4 workers"),
    ('R="mpirun \\\r\n -np 4"\r\n$R python x\r\n', "4 workers"),
    ('torchrun --nproc_per_node 4 `pwd`/x.py $(dirname "$0")/y', "4 workers"),
    ("N=4\nR=$(cat <<EOF\nmpirun -np $N\nEOF\n)\n$R python x", "4 workers"),
    ("R=\"$(cat <<-'EOF'\nmpirun -np 4\nEOF\n)\"\n$R python x", "4 workers"),
    ("N=${N:-4}\nmpirun -np $N python x", "4 workers"),
    ('export N="${N-4}"\nmpirun -np $N python x', "4 workers"),
    ('mpirun -np "${N:-4}" python x', "4 workers"),
    (': "${N:=4}"\nmpirun -np $N python x', "4 workers"),
    ("N=2\nM=$((${N:-8} * ${K:-3}))\nmpirun -np $M python x", "6 workers"),
    ('R="mpirun -np ${N:=4}"\n$R python x', "4 workers"),
    ("#!/bin/bash\n#SBATCH -N 2\nsrun -n $((${SLURM_NNODES:-1} * ${N:-4})) python x", "8 workers"),
]
UNKNOWN = {
    "it is set on a condition": "[ $A ] && N=4",
    "it is set in an if": "if true; then\nN=4\nfi",
    "it is set in a loop": "for N in 1 2; do\ntrue\ndone",
    "it is set in a case": "case $1 in\na) N=4;;\nesac",
    "it is set in a function": "f() {\nN=4\n}",
    "it is set in a function whose body is below": "f()\n\n{\nN=4\n}",
    "it is set in a function of bash": "function f {\nN=4\n}",
    "it is set in such a function below": "function f\n{\nN=4\n}",
    "it is set on a condition above": "[ $A ] &&\n\nN=4",
    "it is set in a block on a condition": "[ $A ] || {\nN=4\n}",
    "it is set in a block of another process": "#!/bin/sh\n{\nN=4\n} | cat",
    "it is set in an if in a block": "#!/bin/sh\n{\nif true; then\nN=4\nfi\n}",
    "it is set in another process": "(N=4)",
    "it is set in a pipe": "N=4 | cat",
    "it is set for one command": "N=4 python y",
    "it is set in a here-document": "cat > y <<EOF\nN=4\nEOF",
    "it is set twice": "N=4\nN=5",
    "it is set twice, after a text with #": "A='b # c'; N=4\nB='b # c'; N=5",
    "it is read": "N=4\nread N",
    "it is counted in echo": "N=4\necho $((N++))",
    "it is counted": "N=4\n((N++))",
    "it is unset": "N=4\nunset N",
    "it is a command's output": "N=$(nproc)",
    "it is an argument": "N=$1",
    "it has a default that is no number": "N=${N:-a}",
    "it has a default or another value": "[ $A ] && N=2\nN=${N:-4}",
    "it has a default on a condition": "[ $A ] && N=${N:-4}",
    "it has a default and is read": "read N\nN=${N:-4}",
    "it has a default that another script may set": "source conf.sh\nN=${N:-4}",
    "it has the default of an argument": "N=${1:-4}",
    "it has the default of what a system sets": "N=${WORLD_SIZE:-4}",
    "it is an array": "N=(4)",
    "it is computed": "M=4\ndeclare -i N=M",
    "it belongs to a function": "f() { declare N=4\n}",
    "it is another variable's name": "M=4\nN='$M'",
    "it is a pattern": "N=~/4",
    "another script may set it": "N=4\nsource conf.sh",
}


@pytest.mark.parametrize(("script", "cluster"), KNOWN)
def test_literals_that_are_set_once_are_expanded(script: str, cluster: str) -> None:
    assert tfdist.read(script).describe() == cluster


@pytest.mark.parametrize("before", UNKNOWN.values(), ids=UNKNOWN)
def test_other_variables_are_refused(before: str) -> None:
    with pytest.raises(ClusterError, match="'\\$N' has a shell variable, and only literals that are set once are expanded"):
        tfdist.read(f"{before}\nmpirun -np $N python x")


def test_a_variable_whose_default_is_a_program_is_a_program() -> None:
    assert tfdist.read("torchrun --nproc_per_node=4 ${1:-train.py} $2").describe() == "4 workers"
    chosen = "if [ $A ]; then\nS=./a.py\nfi\nexport S=${S:=../b.py}\ntorchrun --nproc_per_node=4 $S"
    assert tfdist.read(chosen).describe() == "4 workers"
    for instead in ("-n.py", '"--nnodes 2 a.py"', "$1"):
        with pytest.raises(ClusterError, match="is a shell variable among the options"):
            tfdist.read(chosen.replace("./a.py", instead))
    for word in ("${1:-x}", "${1:--x.py}", "${1:-a b.py}"):
        with pytest.raises(ClusterError, match="is a shell variable among the options"):
            tfdist.read(f"torchrun --nproc_per_node=4 {word}")


@pytest.mark.parametrize("script", ["mpirun -np ${N:-4} python x", ": ${N:=4}\nmpirun -np $N python x"])
@pytest.mark.parametrize(
    "before", ["N=$(nproc)\n", "[ $A ] && N=8\n", "for N in 1 2; do\n", "f() {\nN=${N:-8}\n}\n", "let N=A\n"]
)
def test_a_default_counts_only_of_a_variable_without_another_value(script: str, before: str) -> None:
    with pytest.raises(ClusterError, match="has a shell variable"):
        tfdist.read(before + script)


def test_a_default_does_not_count_where_the_variable_may_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for inner in ("bash -c 'mpirun -np ${N:-4} python x'", "N=8 bash -c 'mpirun -np ${N:-4} python x'"):
        with pytest.raises(ClusterError, match="has a shell variable"):
            tfdist.read(inner.replace("N=8", "N=$(nproc)"))
    monkeypatch.setenv("N", "8")
    for script in ("mpirun -np ${N:-4} python x", "N=${N:-4}\nmpirun -np $N python x", ": ${N:=4}\nmpirun -np $N python x"):
        with pytest.raises(ClusterError, match="has a shell variable"):
            tfdist.read(script)


def test_a_file_that_a_script_names_and_that_is_missing_is_said_with_the_line() -> None:
    with pytest.raises(ClusterError, match="<text>:2: missing: there is no such file"):
        tfdist.read("cd /\naccelerate launch --config_file missing x.py")


def test_a_shell_gets_what_is_exported() -> None:
    for before in ("N=4", "[ $A ] && export N=4", "export N=$(nproc)", "N=4\nf() {\nexport N\n}"):
        with pytest.raises(ClusterError, match="'\\$N' has a shell variable"):
            tfdist.read(f"{before}\nbash -c 'mpirun -np $N python x'")
    with pytest.raises(ClusterError, match=r"'\$\(cat x\)' is a shell variable among the options"):
        tfdist.read("mpirun -np 4 $(cat x) python x")


def test_single_quotes_and_backslashes_keep_a_variable() -> None:
    for word in ("'$N'", "\\$N", '"\\$N"', "$N2"):
        with pytest.raises(ClusterError, match="has a shell variable"):
            tfdist.read(f"N=4\nmpirun -np {word} python x")


@pytest.mark.parametrize("value", ["a", "a b", " a  b ", "a\tb", "", "--x=1 -y", "a.b/c:d,e@f%g+h=i"])
@pytest.mark.parametrize("word", ["$V", "${V}", '"$V"', 'x"$V"y', "x$V", "${V}y", "x${V}y$V", "$V $V", "x$((2))$V", "'$V'$V"])
def test_words_are_those_of_a_shell(value: str, word: str) -> None:
    script = f"V='{value}'\nprogram first {word} last"
    shell = subprocess.run(
        ["sh", "-c", "program() { printf '%s\\0' program \"$@\"; }\n" + script], capture_output=True, text=True, check=True
    )
    *_, command = commands(script, Source("command", "a test"))
    ours = [each.replace("$((2))", "2") for each in command.words]
    assert ours == shell.stdout.split("\0")[:-1]


def test_a_long_value_that_is_used_many_times_takes_no_memory() -> None:
    value = "a" * 1000
    for script in (f'V={value}\nx "{"$V" * 100_000}"', f"V={value}\n" + "x $V\n" * 10_000):
        found = list(commands(script, Source("command", "a test")))
        assert sum(len(word) for command in found for word in command.words) < 2_000_000


@pytest.mark.parametrize(
    "before",
    [
        "A=(-np 4)\nA+=(-np 8)",
        "if true; then\nA=(-np 4)\nfi",
        "A=(-np 4)\nA[1]=8",
        "A=(-np 4)\nread -a A",
        "A=(-np 4 '')",
        "f && A=(4)",
    ],
)
def test_arrays_that_are_not_known(before: str) -> None:
    with pytest.raises(ClusterError, match="is a shell variable among the options"):
        tfdist.read(f"{before}\nmpirun ${{A[@]}} python x")


def test_an_element_behind_an_unknown_one_is_not_known() -> None:
    with pytest.raises(ClusterError, match=r"'\$\{A\[1\]\}' has a shell variable"):
        tfdist.read("A=($X 4)\nmpirun -np ${A[1]} python x")
    with pytest.raises(ClusterError, match="torchrun is put into a variable"):
        tfdist.read('A=(torchrun --nproc-per-node 2)\nA+=(--nnodes 2)\n"${A[@]}" t.py')


@pytest.mark.parametrize("array", ["()", "(a)", "(a 'b c' d)", "('' a)", "(  a\n  b # c\n)", '(-x "$((2))" y)'])
@pytest.mark.parametrize("word", ["${A[@]}", '"${A[@]}"', 'x"${A[0]}"', "x${A[1]}y", "$A"])
def test_elements_are_those_of_bash(array: str, word: str) -> None:
    script = f"A={array}\nprogram first {word} last"
    shell = subprocess.run(
        ["bash", "-c", "program() { printf '%s\\0' program \"$@\"; }\n" + script], capture_output=True, text=True, check=True
    )
    *_, command = commands(script, Source("command", "a test"))
    ours = [each.replace("$((2))", "2") for each in command.words]
    as_written = ["program", "first", word.replace('"', ""), "last"]  # What is not known stays.
    is_known = "[@]" in word and "''" not in array
    assert ours == shell.stdout.split("\0")[:-1] or (ours == as_written and not is_known)
