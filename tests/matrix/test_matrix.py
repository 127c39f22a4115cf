"""The table of versions in BUILD.md is what `nox` has found, and setup.cfg admits what it has shown to work."""

import json
import re

import pytest

from matrix import record
from matrix.combinations import COMBINATIONS, RESULTS, ROOT, Combination, lowest_requirements, settings
from matrix.table import PAGE, page, stored_results, table
from tfdist.strategies.versions import TESTED, minor

PACKAGES = ("tensorflow", "keras")


def passed():
    """The versions of each combination that works: package -> version."""
    return [result["versions"] for result in stored_results() if result["result"] == "PASS"]


def minors(package):
    return {minor(versions[package]) for versions in passed()}


def test_the_page_is_up_to_date():
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "python tests/matrix/table.py writes it"


def test_every_combination_has_run_with_its_versions():
    assert {path.stem for path in RESULTS.iterdir()} == {each.name for each in COMBINATIONS}
    for combination, result in zip(COMBINATIONS, stored_results(), strict=True):
        for package in ("python", *PACKAGES):
            assert minor(result["versions"][package]) == minor(getattr(combination, package))
        assert result["result"] == ("refused" if combination.refused else "PASS")
        assert result.get("message", "").startswith(combination.refused or "")


def test_setup_cfg_admits_the_versions_that_have_passed():
    requirements = settings()["install_requires"]
    for package in PACKAGES:
        oldest, newest = min(minors(package)), max(minors(package))
        assert TESTED[package] == (oldest, newest)
        assert f"\n{package} >= {oldest[0]}.{oldest[1]}, < {newest[0]}.{newest[1] + 1}\n" in requirements
        assert minors(package) == {(oldest[0], number) for number in range(oldest[1], newest[1] + 1)}
    oldest, newest = min(minors("python")), max(minors("python"))
    assert settings()["python_requires"] == f">={oldest[0]}.{oldest[1]}, <{newest[0]}.{newest[1] + 1}"
    classifiers = re.findall(
        r"^    Programming Language :: Python :: 3\.(\d+)$", (ROOT / "setup.cfg").read_text(), re.MULTILINE
    )
    assert {(3, int(number)) for number in classifiers} == minors("python")


def test_the_lowest_versions_of_all_dependencies_have_passed():
    (combination,) = (each for each in COMBINATIONS if each.lowest)
    versions = json.loads(combination.result.read_text())["versions"]
    assert len(lowest_requirements()) == len(settings()["install_requires"].strip().splitlines())
    for name, lowest in (requirement.split("==") for requirement in lowest_requirements()):
        assert re.fullmatch(rf"{re.escape(lowest)}(\.0)*", versions[name]), name


@pytest.fixture
def report(tmp_path):
    """Returns a function that writes a report of pytest with these elements in its test cases, and returns its path."""

    def write(*outcomes):
        path = tmp_path / "report.xml"
        cases = "".join(f'<testcase classname="tests.a" name="test_{n}">{what}</testcase>' for n, what in enumerate(outcomes))
        path.write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
        return path

    return write


def test_a_result_counts_tests_and_names_those_that_failed(report):
    result = record.tested(
        report("", '<failure message="assert 1 == 2\nmore">trace</failure>', '<skipped message="no sbatch"/>')
    )
    assert result == {
        "result": "FAIL",
        "passed": 1,
        "failed": ["tests.a.test_1: assert 1 == 2"],
        "skipped": ["tests.a.test_2: no sbatch"],
    }
    versions = dict.fromkeys(("python", *record.PACKAGES), "1.0")
    assert table([result | {"versions": versions}]).endswith("| 1.0 | FAIL: tests.a.test_1 |\n")


def test_no_test_at_all_is_a_failure(report):
    assert record.tested(report())["result"] == "FAIL"


def test_the_others_have_the_newest_versions_of_their_minor():
    assert Combination("3.12", "2.19", "3.13").constraints() == "tensorflow==2.19.*\nkeras==3.13.*\n"
