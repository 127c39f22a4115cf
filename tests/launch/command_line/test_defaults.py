"""Defaults of flags from tfdist.toml and pyproject.toml: who wins, what is refused, what is shown."""

import pytest
from absl import flags

from tfdist.launch.command_line import defaults
from tfdist.launch.errors import UsageError


@pytest.fixture
def applied(tmp_path, monkeypatch):
    """Returns a function that writes a file, parses a command line, and returns the flags and what was set."""
    monkeypatch.chdir(tmp_path)

    def apply(text, *words, file="tfdist.toml", left_out=()):
        (tmp_path / file).write_text(text)
        values = flags.FlagValues()
        flags.DEFINE_string("tier", None, "", flag_values=values)
        flags.DEFINE_string("master_machine_type", None, "", flag_values=values)
        flags.DEFINE_integer("workers", None, "", short_name="n", lower_bound=1, flag_values=values)
        flags.DEFINE_enum("view", "auto", ["auto", "lines"], "", flag_values=values)
        flags.DEFINE_bool("detach", False, "", flag_values=values)
        flags.DEFINE_multi_string("env", [], "", flag_values=values)
        flags.DEFINE_list("task_restarts", [], "", flag_values=values)
        flags.DEFINE_string("backend", "local", "", flag_values=values)
        flags.DEFINE_string("ssh_folder", None, "", flag_values=values)
        flags.DEFINE_bool("dry_run", False, "", flag_values=values)
        values(["tfdist run", *words])
        known = {values[name].name for name in values}
        found = defaults.apply(values, known, lambda: set(left_out) if values.backend == "local" else set())
        return values, found

    return apply


def test_the_command_line_wins_and_the_rest_comes_from_the_file(applied):
    values, found = applied('tier = "BASIC"\nview = "lines"\ndetach = true\ntask-restarts = ["worker=5"]\n', "--nodetach")
    assert (values.tier, values.view, values.detach, values.task_restarts) == ("BASIC", "lines", False, ["worker=5"])
    assert applied('\ufefftier = "BASIC"\n')[0].tier == "BASIC"  # Editors on Windows write this mark.
    assert found == [
        ("--tier=BASIC", "tfdist.toml"),
        ("--view=lines", "tfdist.toml"),
        ("--task_restarts=worker=5", "tfdist.toml"),
    ]
    assert values["tier"].present and not values["tier"].using_default_value


def test_a_cluster_on_the_command_line_replaces_that_of_the_file(applied):
    values, found = applied('tier = "STANDARD_1"\nview = "lines"\n', "-n", "2")
    assert (values.tier, values.workers, values.view) == (None, 2, "lines") and len(found) == 1


def test_a_cluster_on_the_command_line_replaces_the_machine_types_of_the_file(applied):
    text = 'tier = "CUSTOM"\nmaster_machine_type = "n1-standard-4"\n'
    values, found = applied(text, "-n", "2")
    assert (values.tier, values.master_machine_type, found) == (None, None, [])
    values, _ = applied(text, "--master_machine_type=n1-standard-8")
    assert (values.tier, values.master_machine_type) == ("CUSTOM", "n1-standard-8")


def test_variables_of_the_file_are_shown_without_values_and_replaced_by_those_given(applied):
    values, found = applied('env = ["TOKEN=geheim", "HOME"]\n')
    assert values.env == ["TOKEN=geheim", "HOME"] and found == [("--env=TOKEN,HOME", "tfdist.toml")]
    assert applied('env = ["TOKEN=geheim"]\n', "--env=A=1")[0].env == ["A=1"]


def test_flags_of_other_back_ends_are_left_out(applied):
    text = 'ssh_folder = "/data"\n'
    assert applied(text, left_out={"ssh_folder"})[0].ssh_folder is None
    assert applied(text + 'backend = "ssh"\n', left_out={"ssh_folder"})[0].ssh_folder == "/data"


def test_pyproject_is_read_where_there_is_no_file_of_its_own(applied, tmp_path):
    project = '[project]\nname = "x"\n[tool.tfdist]\nn = 3\n'
    assert applied(project, file="pyproject.toml")[1] == [("--workers=3", "pyproject.toml [tool.tfdist]")]
    assert applied("[tool.other]\nx = 1\n", file="pyproject.toml")[1] == []
    assert applied("no TOML at all", file="pyproject.toml")[1] == []
    (tmp_path / "pyproject.toml").write_text(project)
    assert applied('tier = "BASIC"\n')[0].workers is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('teir = "BASIC"', "tfdist.toml: 'teir' is not a flag of tfdist run; did you mean tier?"),
        ("workers = 0", "tfdist.toml: workers: .*0 is not a positive integer"),
        ('view = "alive"', "tfdist.toml: view: .*alive"),
        ('detach = "yes"', "tfdist.toml: detach: expected true or false"),
        ("tier = true", "tfdist.toml: tier: expected a text or a number"),
        ('tier = ["a"]', "tfdist.toml: tier: expected a text or a number"),
        ("[tier]\nx = 1", "tfdist.toml: tier: expected a text or a number"),
        ("dry_run = true", "tfdist.toml: dry_run belongs on the command line"),
        ("tier = ", "tfdist.toml is not TOML: "),
    ],
)
def test_what_is_wrong_in_a_file_is_named(applied, text, message):
    with pytest.raises(UsageError, match=message):
        applied(text)
