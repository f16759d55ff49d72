"""
What an agent's Python process has imported by the time it waits.

Half of the memory of a real one is libraries: code objects, docstrings, classes, compiled patterns,
schemas of tools.  It is alike in all sandboxes of an image, and that is what peers are good for; an
instance of nothing but its own data would show too little of it.
"""

import contextlib
import importlib
import inspect
from typing import Any

__all__ = ["import_toolbox", "tool_schemas"]

_STANDARD = (
    *("argparse", "ast", "asyncio", "bdb", "calendar", "cgitb", "codecs", "concurrent.futures"),
    *("configparser", "csv", "ctypes", "curses.ascii", "dataclasses", "datetime", "decimal"),
    *("difflib", "dis", "doctest", "email.message", "email.mime.multipart", "ensurepip", "filecmp"),
    *("fileinput", "fractions", "ftplib", "getopt", "gettext", "glob", "graphlib", "html.parser"),
    *("http.client", "http.cookiejar", "http.server", "imaplib", "importlib.metadata", "inspect"),
    *("ipaddress", "json.tool", "locale", "logging.config", "logging.handlers", "mailbox"),
    *("mimetypes", "modulefinder", "multiprocessing.managers", "multiprocessing.pool", "netrc"),
    *("nntplib", "numbers", "optparse", "pathlib", "pdb", "pickle", "pickletools", "pkgutil"),
    *("platform", "plistlib", "poplib", "pprint", "profile", "pstats", "pyclbr", "pydoc"),
    *("pydoc_data.topics", "random", "runpy", "sched", "secrets", "shelve", "shlex", "shutil"),
    *("smtplib", "socketserver", "sqlite3", "ssl", "statistics", "string", "subprocess"),
    *(
        "symtable",
        "sysconfig",
        "tarfile",
        "telnetlib",
        "tempfile",
        "textwrap",
        "timeit",
        "tokenize",
    ),
    *("trace", "tracemalloc", "turtle", "types", "typing", "unittest.mock", "urllib.request"),
    *("urllib.robotparser", "uuid", "venv", "wave", "webbrowser", "wsgiref.simple_server"),
    *("xml.dom.minidom", "xml.etree.ElementTree", "xml.sax.saxutils", "xmlrpc.client"),
    *("xmlrpc.server", "zipapp", "zipfile", "zoneinfo", "lib2to3.pgen2.driver", "encodings.idna"),
)

_INSTALLED = (
    *("pydantic", "pydantic.v1", "yaml", "rich.console", "rich.markdown", "rich.progress"),
    *("rich.traceback", "typer", "pygments.lexers.python", "pygments.lexers.javascript"),
    *("pygments.lexers.c_cpp", "pygments.lexers.shell", "pygments.lexers.sql"),
    *("pygments.lexers.html", "pygments.lexers.jvm", "pygments.lexers.php"),
    *("pygments.lexers.ruby", "pygments.lexers.perl", "pygments.lexers.data", "websockets"),
    *("pip._internal.cli.main_parser", "pip._vendor.requests", "pip._vendor.urllib3"),
)
"""Each is imported where it is installed."""


def import_toolbox(*more: str) -> list[Any]:
    """Import what there is of it; returns the modules."""
    modules = []
    for name in (*_STANDARD, *_INSTALLED, *more):
        # What an old library warns of, or needs and does not have, is its own business.
        with contextlib.suppress(Exception):
            modules.append(importlib.import_module(name))
    return modules


def tool_schemas(modules: list[Any], count_max: int) -> list[Any]:
    """
    A model of the arguments of each function of some modules, as agent frameworks make of tools.

    Args:
        modules: Where to look.
        count_max: Most models.
    """
    from pydantic import create_model

    models: list[Any] = []
    for module in modules:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if len(models) == count_max:
                return models
            parameters = list(inspect.signature(function).parameters)
            fields: dict[str, Any] = {
                f"arg_{parameter.strip('_')}": (str | None, None) for parameter in parameters
            }
            if fields:
                made = create_model(name.strip("_") or "tool", __doc__=function.__doc__, **fields)
                made.model_json_schema()
                models.append(made)
    return models
