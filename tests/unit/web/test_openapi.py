"""The OpenAPI documents: valid, and those that are in docs/."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openapi_spec_validator
import pytest

from agentzip.web import host, host_document, inside, inside_document
from source_tree import ROOT

FILES = {"host": "openapi.json", "inside": "openapi-inside.json"}


@pytest.mark.parametrize("name", FILES)
def test_the_page_in_docs_is_the_one_that_is_served(name: str, tmp_path: Path) -> None:
    """`python -m agentzip.web NAME > docs/FILE` makes it."""
    printed = subprocess.run(
        [sys.executable, "-m", "agentzip.web", name],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    ).stdout

    assert (ROOT / "docs" / FILES[name]).read_text() == printed


@pytest.mark.parametrize("document", [host_document, inside_document])
def test_the_documents_are_valid(document: Callable[[], dict[str, Any]]) -> None:
    """By the standard's own schema, whose judge is somebody else."""
    openapi_spec_validator.validate(document())


@pytest.mark.parametrize(
    ("routes", "document"), [(host.ROUTES, host_document), (inside.ROUTES, inside_document)]
)
def test_every_route_is_in_its_document(
    routes: tuple[Any, ...], document: Callable[[], dict[str, Any]]
) -> None:
    """Neither more nor less, and each under a name of its own."""
    found = [
        (method.upper(), path, operation["operationId"])
        for path, operations in document()["paths"].items()
        for method, operation in operations.items()
    ]

    assert sorted((route.method, route.path) for route in routes) == sorted(
        (method, path) for method, path, _ in found
    )
    assert len(found) == len({operation for _, _, operation in found})


def test_fields_carry_their_meaning() -> None:
    """What stands below a field in Python is its description."""
    schemas = host_document()["components"]["schemas"]

    assert "`orig_mem`" in schemas["SandboxStatus"]["properties"]["bytes_logical"]["description"]
    assert ["number", "null"] == schemas["SandboxStatus"]["properties"]["wake_p99_ms"]["type"]
    assert ["phase"] == schemas["Hint"]["required"]


def test_the_command_names_what_it_can_print() -> None:
    """A wrong word is not taken for one of the two."""
    result = subprocess.run(
        [sys.executable, "-m", "agentzip.web", "moon"], capture_output=True, text=True, check=False
    )

    assert 1 == result.returncode
    assert "host|inside" in result.stderr
    assert "" == result.stdout


def test_the_documents_have_no_empty_places() -> None:
    """Every schema that is named is described."""
    for document in (host_document(), inside_document()):
        assert all(document["components"]["schemas"].values()), json.dumps(document)
