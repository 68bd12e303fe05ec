"""constraints.txt pins everything that a fresh installation gets, and names no place to get it from."""

import re
import tomllib
from importlib import metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.packaging.checkout import ROOT

EXTRAS = ("train", "dashboard", "grafana", "dev")
LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]


def pinned() -> dict[str, str]:
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in LINES)}


def needed(*, self_pinned: bool) -> set[str]:
    """Return what an installation with all of EXTRAS has, directly or not.

    Args:
        self_pinned: With those of which another package names the exact version already.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    roots = [*project["build-system"]["requires"], *project["project"]["dependencies"], *(r for extra in EXTRAS for r in extras[extra])]
    found: set[str] = set()
    seen: set[tuple[str, str]] = set()
    waiting = [Requirement(text) for text in roots]
    while waiting:
        requirement = waiting.pop()
        if [s.operator for s in requirement.specifier] == ["=="] and not self_pinned:
            continue
        found.add(canonicalize_name(requirement.name))
        for extra in ("", *requirement.extras):
            if (requirement.name, extra) in seen:
                continue
            seen.add((requirement.name, extra))
            further = [Requirement(text) for text in metadata.requires(requirement.name) or ()]
            waiting += [r for r in further if r.marker is None or r.marker.evaluate({"extra": extra})]
    return found


def test_every_line_is_a_name_and_a_public_version() -> None:
    wrong = [line for line in LINES if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][0-9a-z.]*", line)]
    assert wrong == []


def test_every_package_of_a_fresh_installation_is_pinned() -> None:
    found = needed(self_pinned=False)
    assert {"torch", "streamlit", "grafana-api", "hypothesis"} <= found
    assert found - pinned().keys() == set()


def test_nothing_is_pinned_that_no_installation_has() -> None:
    assert pinned().keys() - needed(self_pinned=True) - {"editables"} == set()  # hatchling wants it for a checkout only


def test_torch_is_the_version_that_the_private_names_were_tried_on() -> None:
    source = (ROOT / "pptoolkit" / "engine" / "torch_private.py").read_text()
    tried = re.search(r"^TRIED_ON = \(([^)]*)\)", source, re.MULTILINE)
    assert tried is not None
    assert f'"{pinned()["torch"]}"' in tried[1]
