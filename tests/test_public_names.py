"""Importing chainrule costs nothing, and every public name is there when asked for."""

import os
import subprocess
import sys

import pytest

import chainrule


@pytest.mark.parametrize("name", chainrule.__all__)
def test_a_public_name_is_there(name):
    assert getattr(chainrule, name) is not None
    assert name in dir(chainrule)


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = chainrule.nonsense


def test_importing_chainrule_imports_nothing_heavy():
    code = "import sys, chainrule; print({'torch', 'numpy', 'tokenizers', 'rich'} & set(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == "set()\n"


@pytest.mark.parametrize(("given", "wanted"), [(None, "10000"), ("7", "7")])
def test_waiting_threads_soon_sleep_unless_the_user_says_otherwise(given, wanted):
    env = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    env |= {} if given is None else {"GOMP_SPINCOUNT": given}
    code = "import chainrule, os; print(os.environ['GOMP_SPINCOUNT'])"
    answer = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == wanted


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_after_an_import_as_it_was_before(collects):
    code = f"""if True:
        import gc, chainrule
        gc.enable() if {collects} else gc.disable()
        chainrule.load
        print(gc.isenabled(), gc.get_freeze_count() > 100_000)
        before = gc.get_freeze_count()
        chainrule.train, chainrule.evaluate
        print(gc.get_freeze_count() <= before)"""
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout == f"{collects} True\nTrue\n"
