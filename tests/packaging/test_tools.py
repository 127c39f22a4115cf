"""Tests that need a tool are skipped where it is missing, or fail there, as TFDIST_REQUIRE_TOOLS says."""

import pytest
import tools


@pytest.fixture
def redis_is_missing(monkeypatch):
    monkeypatch.setitem(tools.TOOLS, "redis", (["no-such-program-of-tfdist"], [], "apt-get install it"))


@pytest.fixture
def set_up(request, monkeypatch):
    """Sets up this test once more, as one that needs a tool."""

    def again(tool, required):
        monkeypatch.setenv(tools.VARIABLE, required)
        request.node.add_marker(tools.needs(tool))
        request.config.pluginmanager.get_plugin("tools").pytest_runtest_setup(request.node)

    return again


@pytest.mark.parametrize("required", ["", "slurm", "slurm, mpirun"])
def test_a_test_without_its_tool_is_skipped_with_the_reason(redis_is_missing, set_up, required):
    with pytest.raises(pytest.skip.Exception, match=r"^no-such-program-of-tfdist is not installed \(apt-get install it\)$"):
        set_up("redis", required)


@pytest.mark.parametrize("required", ["redis", "all", "slurm, redis"])
def test_a_test_without_a_tool_that_is_required_fails(redis_is_missing, set_up, required):
    with pytest.raises(
        pytest.fail.Exception, match=r"no-such-program-of-tfdist is not installed.*TFDIST_REQUIRE_TOOLS names redis$"
    ):
        set_up("redis", required)


def test_a_missing_package_is_named_and_what_is_there_is_not_missing(monkeypatch):
    monkeypatch.setitem(tools.TOOLS, "redis", (["sh"], ["pytest", "no_such_package_of_tfdist"], "pip install it"))
    assert tools.missing("redis") == "no_such_package_of_tfdist is not installed (pip install it)"
    monkeypatch.setitem(tools.TOOLS, "redis", (["sh"], ["pytest"], ""))
    assert tools.missing("redis") is None


def test_a_required_tool_that_nobody_knows_is_an_error(monkeypatch):
    monkeypatch.setenv(tools.VARIABLE, "redis,reddis")
    with pytest.raises(pytest.UsageError, match=r"^TFDIST_REQUIRE_TOOLS: reddis: expected all, or redis, slurm, "):
        tools.required()
