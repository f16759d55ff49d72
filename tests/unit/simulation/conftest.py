"""The profiles of a real run of three sandboxes, which all tests of the simulation start from."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from agentzip.simulation.profiles import Measured, Profile, profiles_of

# A machine that is busy elsewhere breaks no property.
settings.register_profile("simulation", deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("simulation")

FILE = Path(__file__).parent / "three_tool_users.json"
"""`bench fanout --workload B --sandboxes 3 --turns 6 --think 8s --size 120MB --mode
none,encode,prefetch,full`, without what the simulation does not read; workload B
held less then."""


@pytest.fixture
def kept_file() -> Path:
    """Where the kept run is."""
    return FILE


@pytest.fixture
def kept() -> dict[str, Any]:
    """The kept run as an object of a test's own, to be spoiled."""
    value: dict[str, Any] = json.loads(FILE.read_text())
    return value


@pytest.fixture(scope="session")
def profiles() -> dict[str, Profile]:
    """The kept run's profiles by mode."""
    return profiles_of(Measured.of(json.loads(FILE.read_text()), FILE.name))
