"""The options of the installed DataLoader, without importing it."""

from __future__ import annotations

import inspect

from traceml_lite.experiment.installed import installed_options, options_in


def test_the_options_read_from_the_source_are_those_of_the_class():
    from torch.utils.data import DataLoader

    assert installed_options() == set(inspect.signature(DataLoader.__init__).parameters) - {"self"}


def test_a_class_that_takes_any_keyword_tells_nothing():
    text = "class DataLoader:\n    def __init__(self, dataset, **more): ..."
    assert options_in(text) is None


def test_a_module_without_the_class_tells_nothing():
    assert options_in("x = 1") is None
