"""`tfdist completion`: prints a script with which a shell completes commands, flags, tiers, back ends and handles."""

from collections.abc import Callable

from tfdist.launch.backends.interface import handle_of
from tfdist.launch.background.job_folder import JobFolder
from tfdist.launch.commands import COMMANDS
from tfdist.launch.errors import UsageError

USAGE = """usage: tfdist completion bash|zsh|fish

Prints a script that completes commands, flags, their values, and handles of jobs. For this shell only:

  source <(tfdist completion bash)              zsh: the same with zsh
  tfdist completion fish | source

For all shells, put it into a file that your shell reads:

  tfdist completion bash > ~/.local/share/bash-completion/completions/tfdist
  tfdist completion zsh > "${fpath[1]}/_tfdist"
  tfdist completion fish > ~/.config/fish/completions/tfdist.fish
"""

_BASH = """# Completion of tfdist in bash. Written by `tfdist completion bash`.
_tfdist() {
    local word="$2" words=""
    # Bash splits words at colons and equals signs; handles have both.
    local line="${COMP_LINE:0:COMP_POINT}"
    local whole="${line##*[[:space:]]}"
    local command="${COMP_WORDS[1]}"
    COMPREPLY=()
    if (( COMP_CWORD == 1 )); then
        words="@COMMANDS@"
    else
        case "$command" in
@CASES@
        esac
    fi
    # The word before this one may be a flag, whose value this is: `--tier STANDARD_1`.
    local before="${line%"$whole"}" each values="" is_value=""
    before="${before%"${before##*[![:space:]]}"}"
    local flag="${before##*[[:space:]]}"
    if [[ "$flag" == --* && " $words" == *" $flag="* ]]; then
        is_value=1
        for each in $words; do
            [[ "$each" == "$flag="?* ]] && values+=" ${each#*=}"
        done
        words="$values"
    fi
    local prefix="${whole%"$word"}"
    for each in $(compgen -W "$words" -- "$whole"); do
        COMPREPLY+=("${each#"$prefix"}")
    done
    if [[ ( "$command" =~ ^(run|plan)$ || "$is_value" ) && "$whole" != -* && ${#COMPREPLY[@]} -eq 0 ]]; then
        COMPREPLY=($(compgen -f -- "$word"))
    fi
    [[ "${COMPREPLY[0]}" == *= ]] && compopt -o nospace 2>/dev/null
    return 0
}
complete -o filenames -F _tfdist tfdist
"""

_ZSH = """#compdef tfdist
# Completion of tfdist in zsh. Written by `tfdist completion zsh`.
_tfdist() {
    local -a words_here
    if (( CURRENT == 2 )); then
        words_here=(@COMMANDS@)
    else
        case "${words[2]}" in
@CASES@
        esac
    fi
    # The word before this one may be a flag, whose value this is: `--tier STANDARD_1`.
    local flag="${words[CURRENT-1]}"
    local -a taken values
    taken=(${(M)words_here:#$flag=*})
    if [[ "$flag" == --* ]] && (( $#taken )); then
        values=(${taken#*=})
        if (( $#values )); then compadd -- $values; else _files; fi
        return 0
    fi
    compadd -- $words_here
    [[ "${words[2]}" == (run|plan) && "$PREFIX" != -* ]] && _files
    return 0
}
if [[ "$funcstack[1]" == _tfdist ]]; then _tfdist "$@"; else compdef _tfdist tfdist; fi
"""


def main(argv: list[str]) -> int:
    """Runs the command; returns its exit code."""
    if {"--help", "-h"} & set(argv):
        print(USAGE, end="")
        return 0
    if argv == ["handles"]:
        for folder, job in JobFolder.all():
            print(handle_of(str(job.get("backend", "local")), folder.id))
        return 0
    if len(argv) != 1 or argv[0] not in SHELLS:
        raise UsageError(f"tfdist completion: expected one of {', '.join(SHELLS)}")
    print(SHELLS[argv[0]](_words()), end="")
    return 0


def _words() -> dict[str, list[str]]:
    """Returns for each command the words that may follow it; `HANDLES` stands for handles."""
    from tfdist.launch.commands import run_command
    from tfdist.launch.commands.help_topics import topics
    from tfdist.translate import options, outputs

    run, choices = [], _choices()
    for names in topics(run_command.FLAGS).values():
        for name in names:
            flag = run_command.FLAGS[name]
            values = choices.get(name) or getattr(flag.parser, "enum_values", None) or []
            run += [f"--{name}"] if flag.boolean else [f"--{name}={value}" for value in values] or [f"--{name}="]
    words = {command: ["--help"] for command in COMMANDS}
    words["run"] = ["-n", "-m", *run, "--help"]
    words["plan"] = ["-m", *_plan_flags(), "--help"]
    more = [f"--{name}=" for name in sorted({"hostfile", "task", *options()})]
    words["translate"] = [*(f"--to={name}" for name in sorted(outputs())), *more, "--help"]
    words["status"] = ["--json", "--mermaid", "--svg=", "--help", "HANDLES"]
    words["logs"] = ["--follow", "--help", "HANDLES"]
    words["cancel"] = ["--help", "HANDLES"]
    words["scale"] = ["worker=", "--help", "HANDLES"]
    words["doctor"] = ["--quick", "--help"]
    words["completion"] = [*SHELLS, "--help"]
    return words


def _plan_flags() -> list[str]:
    from tfdist.launch.plan.arguments import define

    values = define()
    names = sorted(name for name in values if len(name) > 1 and name != "help" and not name.startswith("?"))
    return [f"--{name}" if values[name].boolean else f"--{name}=" for name in names]


def _choices() -> dict[str, list[str]]:
    """Returns the values of flags that are known, though the type of the flag does not say so."""
    from tfdist.choice import STRATEGIES
    from tfdist.dialects.cloudml.tiers import TIERS
    from tfdist.launch.backends.registry import backends

    return {"tier": [*TIERS], "backend": [*backends()], "strategy": [*STRATEGIES]}


def _bash(commands: dict[str, list[str]]) -> str:
    cases = "\n".join(f'            {command}) words="{_listed(words)}" ;;' for command, words in commands.items())
    return _BASH.replace("@COMMANDS@", " ".join(commands)).replace("@CASES@", cases)


def _zsh(commands: dict[str, list[str]]) -> str:
    cases = "\n".join(f"            {command}) words_here=({_listed(words)}) ;;" for command, words in commands.items())
    return _ZSH.replace("@COMMANDS@", " ".join(commands)).replace("@CASES@", cases)


def _fish(commands: dict[str, list[str]]) -> str:
    lines = ["# Completion of tfdist in fish. Written by `tfdist completion fish`.", "complete -c tfdist -f"]
    for command, words in commands.items():
        lines.append(f"complete -c tfdist -n __fish_use_subcommand -a {command}")
        fixed = " ".join(word for word in words if word != "HANDLES" and not (word.startswith("--") and "=" in word))
        seen = f"-n '__fish_seen_subcommand_from {command}'"
        lines.append(f"complete -c tfdist {seen} -a '{fixed}'")
        values: dict[str, list[str]] = {}
        for flag, _, value in (word.partition("=") for word in words if word.startswith("--") and "=" in word):
            values.setdefault(flag[2:], []).extend([value] if value else [])
        for flag, known in values.items():
            kind = f"-x -a '{' '.join(known)}'" if known else "-r -F"
            lines.append(f"complete -c tfdist {seen} -l {flag} {kind}")
        if "HANDLES" in words:
            lines.append(f"complete -c tfdist {seen} -a '(tfdist completion handles 2>/dev/null)'")
    lines.append("complete -c tfdist -n '__fish_seen_subcommand_from run plan translate' -F")
    return "\n".join(lines) + "\n"


def _listed(words: list[str]) -> str:
    return " ".join("$(tfdist completion handles 2>/dev/null)" if word == "HANDLES" else word for word in words)


SHELLS: dict[str, Callable[[dict[str, list[str]]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
