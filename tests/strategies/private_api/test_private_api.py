"""Private names of TensorFlow and Keras: each is checked at import, every patch and every override is registered."""

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import tfdist.strategies
from tfdist.errors import UnsupportedVersionError
from tfdist.strategies import versions
from tfdist.strategies.private_api import eager_context
from tfdist.strategies.private_api.checks import (
    need,
    need_attributes,
    need_function,
    plain_function,
)
from tfdist.strategies.private_api.overrides import overrides
from tfdist.strategies.private_api.patch_point import AddedMethod, PatchPoint, PublicPatchPoint

ROOT = Path(tfdist.strategies.__path__[0])
FOREIGN = ("tensorflow", "keras")


@pytest.fixture
def keras_module(monkeypatch):
    """A module `keras.fake` with a class `Trainer` whose method `fit(self, x, epochs)` returns its arguments."""
    module = ModuleType("keras.fake")

    class Trainer:
        def fit(self, x, epochs=1):
            return [x, epochs]

    Trainer.__module__, Trainer.__qualname__ = "keras.fake", "Trainer"
    module.Trainer = Trainer
    monkeypatch.setitem(sys.modules, "keras.fake", module)
    return module


class TestNames:
    def test_a_name_that_is_there(self, keras_module):
        assert need("keras.fake", "Trainer") is keras_module.Trainer

    def test_a_module_whose_package_was_imported_again_after_an_interrupt(self, keras_module, monkeypatch):
        monkeypatch.setitem(sys.modules, "keras.fake.inner", inner := ModuleType("keras.fake.inner"))
        assert not hasattr(keras_module, "inner") and need("keras.fake", "inner") is inner

    @pytest.mark.parametrize("path", [("keras.fake", "Renamed"), ("keras.fake", "Trainer", "train"), ("keras.moved",)])
    def test_a_renamed_one_is_named_with_the_version_that_has_it(self, keras_module, path):
        with pytest.raises(UnsupportedVersionError) as error:
            need(*path)
        assert f"has no {'.'.join(path)}, which tfdist needs" in str(error.value)
        assert str(error.value).endswith("tested with keras 3.10 to 3.15: pip install 'keras>=3.10,<3.16'")

    def test_a_name_of_later_versions_only(self, keras_module, monkeypatch):
        monkeypatch.setitem(versions.INSTALLED, "keras", "3.11.3")
        assert need("keras.fake", "Renamed", since="3.12") is None
        assert need_function(keras_module.Trainer, "train", "self", "calls", since="3.12") is None
        assert need("keras.fake", "Trainer", since="3.11") is keras_module.Trainer
        monkeypatch.setitem(versions.INSTALLED, "keras", "3.12.0")
        with pytest.raises(UnsupportedVersionError, match=r"keras 3\.12\.0 has no keras\.fake\.Renamed, which tfdist needs"):
            need("keras.fake", "Renamed", since="3.12")
        with pytest.raises(UnsupportedVersionError, match=r"has no Trainer\.train, which tfdist calls"):
            need_function(keras_module.Trainer, "train", "self", "calls", since="3.12")

    def test_another_signature(self, keras_module):
        with pytest.raises(UnsupportedVersionError) as error:
            need_function(keras_module.Trainer, "fit", "self, x", "replaces")
        assert "has Trainer.fit(self, x, epochs), and tfdist replaces Trainer.fit(self, x);" in str(error.value)

    def test_an_attribute_that_objects_lack(self, keras_module):
        class Model(keras_module.Trainer):
            def __init__(self):
                self._there = 1

        Model.__module__ = "keras.fake"
        need_attributes(Model, "_there")
        with pytest.raises(UnsupportedVersionError, match=r"has no .*Model\._renamed, which tfdist needs"):
            need_attributes(Model, "_there", "_renamed")


class TestPatches:
    def test_a_patch_gets_the_original_and_is_applied_once(self, keras_module):
        point = PatchPoint(keras_module.Trainer, "fit", "self, x, epochs", "a test")

        def twice(original, trainer, x, epochs=1):
            return original(trainer, [x, x], epochs=epochs)

        def longer(original, trainer, *args, **kwargs):
            return [*original(trainer, *args, **kwargs), "longer"]

        for patch in (twice, longer, twice, longer):
            point.patch(patch)
        trainer = keras_module.Trainer()
        assert trainer.fit(1, epochs=3) == [[1, 1], 3, "longer"]
        assert point.original(trainer, 1) == [1, 1]
        assert list(inspect.signature(trainer.fit).parameters) == ["x", "epochs"]

    def test_a_public_function_is_replaced_in_every_module_that_has_it(self, monkeypatch):
        def scale(loss):
            return loss

        def module(name, function):
            monkeypatch.setitem(sys.modules, name, made := ModuleType(name))
            made.scale = function
            return made

        defining, first, second = (module(f"tensorflow.fake.{name}", scale) for name in ("python", "v1", "v2"))
        another = module("tensorflow.fake.another", lambda loss: 0)
        point = PublicPatchPoint(second, "scale", "loss", "a test")
        point.patch(lambda original, loss: 2 * original(loss))
        later = module("tensorflow.fake.later", defining.scale)
        point.patch(lambda original, loss: 1 + original(loss))
        assert [each.scale(3) for each in (defining, first, second, later, another)] == [7, 7, 7, 7, 0]
        assert point.original(3) == 3

    def test_a_renamed_method_raises(self, keras_module):
        with pytest.raises(UnsupportedVersionError, match=r"has no Trainer\._fit, which tfdist replaces"):
            PatchPoint(keras_module.Trainer, "_fit", "self, x, epochs", "a test")

    def test_a_method_is_not_added_over_one_of_the_same_name(self, keras_module):
        AddedMethod(keras_module.Trainer, "predict", "a test").add(lambda trainer: "predicted")
        assert keras_module.Trainer().predict() == "predicted"
        with pytest.raises(UnsupportedVersionError, match="has its own method fit now"):
            AddedMethod(keras_module.Trainer, "fit", "a test")

    def test_nothing_else_replaces_attributes_of_tensorflow_or_keras(self):
        found = [f"{path.relative_to(ROOT)}:{line}" for path in ROOT.rglob("*.py") for line in assignments_to_foreign(path)]
        found = [place for place in found if not place.startswith("private_api/")]
        assert found == []

    @pytest.mark.parametrize(("registry", "least"), [("patches", 25), ("file_patches", 10)])
    def test_every_entry_is_used_and_says_why(self, registry, least):
        module = importlib.import_module(f"tfdist.strategies.private_api.{registry}")
        entries = {name: entry for name, entry in vars(module).items() if name.isupper()}
        sources = "".join(path.read_text() for path in ROOT.rglob("*.py"))
        assert len(entries) > least
        for name, entry in entries.items():
            assert re.search(rf"\b{registry}\.{name}[.\[]", sources), name
            for each in entry.values() if isinstance(entry, dict) else [entry]:
                assert isinstance(each, PatchPoint | AddedMethod) and each.why.endswith(".")

    @pytest.mark.parametrize(
        "line", ["K.b.c = 1", "tf.f = 1", "setattr(T, 'f', 1)", "T.f, x = 1, 2", "setattr(K.Model, name, 1)", "T.f += 1"]
    )
    def test_the_search_finds(self, tmp_path, line):
        path = tmp_path / "module.py"
        path.write_text(
            f"import keras as K\nimport tensorflow as tf\nfrom tfdist.strategies.private_api import T\n{line}\nx = T\n"
        )
        assert assignments_to_foreign(path) == [4]


def assignments_to_foreign(path):
    """Lines of a file that set an attribute of a module or name imported from TensorFlow, Keras or private_api."""
    tree = ast.parse(path.read_text())
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {(a.asname or a.name).partition(".")[0] for a in node.names if a.name.partition(".")[0] in FOREIGN}
        elif isinstance(node, ast.ImportFrom) and is_foreign_module(node.module or ""):
            names |= {alias.asname or alias.name for alias in node.names}

    def is_foreign(target):
        while isinstance(target, ast.Attribute):
            target = target.value
        return isinstance(target, ast.Name) and target.id in names

    lines = []
    for node in ast.walk(tree):
        assigned = node.value if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) else None
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "setattr":
            assigned = node.args[0]
        if assigned is not None and is_foreign(assigned):
            lines.append(node.lineno)
    return lines


def is_foreign_module(name):
    return name.startswith("tfdist.strategies.private_api") or name.partition(".")[0] in FOREIGN


def our_classes():
    """Every class of tfdist.strategies that has a class of TensorFlow or Keras among its bases."""
    for module in pkgutil.walk_packages(tfdist.strategies.__path__, "tfdist.strategies."):
        for value in vars(importlib.import_module(module.name)).values():
            if inspect.isclass(value) and value.__module__ == module.name and foreign_bases(value):
                yield value


def foreign_bases(cls):
    return [base for base in cls.__mro__ if base.__module__.partition(".")[0] in FOREIGN]


class TestOverrides:
    def test_a_method_with_the_known_signature(self, keras_module):
        class Ours(keras_module.Trainer):
            @overrides(keras_module.Trainer)
            def fit(self, x, epochs=1):
                return "ours"

        assert Ours().fit(1) == "ours"

    def test_one_that_takes_anything(self, keras_module):
        @overrides(keras_module.Trainer)
        def fit(self, *args, **kwargs):
            pass

    def test_a_renamed_method_raises(self, keras_module):
        def train(self, x, epochs=1):
            pass

        with pytest.raises(UnsupportedVersionError, match=r"has no Trainer\.train, which tfdist overrides; .* pip install"):
            overrides(keras_module.Trainer)(train)

    def test_another_signature_raises(self, keras_module):
        def fit(self, x):
            pass

        with pytest.raises(UnsupportedVersionError, match=r"has Trainer\.fit\(self, x, epochs\), and tfdist overrides"):
            overrides(keras_module.Trainer)(fit)

    def test_every_override_of_a_private_method_is_registered(self):
        classes = list(our_classes())
        assert len(classes) > 10
        missing = []
        for cls in classes:
            for name, attribute in vars(cls).items():
                function = plain_function(attribute)
                is_private = name.startswith("_") and not name.startswith("__") and inspect.isfunction(function)
                is_override = is_private and any(name in vars(base) for base in foreign_bases(cls))
                if is_override and not hasattr(function, "_tfdist_overrides"):
                    missing.append(f"{cls.__module__}.{cls.__qualname__}.{name}")
        assert missing == []


def test_an_executor_that_is_deleted_raises_no_error_of_before(monkeypatch):
    """Python would print it as an exception that is ignored."""
    cleared = []
    executor = SimpleNamespace(clear_error=lambda: cleared.append(True))
    monkeypatch.setattr(eager_context, "use_own_executor", lambda: executor)
    with pytest.raises(RuntimeError), eager_context.own_executor():
        assert not cleared
        raise RuntimeError
    assert cleared == [True]
