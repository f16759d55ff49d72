"""
CPython's common tests of multiprocessing, with the start method `spawn`.
"""

import importlib

importlib.import_module("test._test_multiprocessing").install_tests_in_module_dict(
    globals(), "spawn"
)
