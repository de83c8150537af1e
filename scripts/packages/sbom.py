#!/usr/bin/env python3
"""Prints the software bill of materials of the program, as CycloneDX 1.6 in JSON.

    scripts/packages/sbom.py PROGRAM VERSION

It lists the crates of Cargo.lock that the package `countersign` is built from on this platform. Crates that are not linked into
the program (build scripts, procedural macros and what only these use) have the scope `excluded`. The same commit gives the same
bytes: the times come from SOURCE_DATE_EPOCH, and the serial number from the content.
"""

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import uuid
from datetime import datetime, timezone

REPOSITORY = "https://github.com/countersign/countersign"


def cargo_metadata():
    target = f"{platform.machine()}-unknown-linux-gnu"
    command = ["cargo", "metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", target]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def read_checksums():
    """Returns the checksums of Cargo.lock by name and version; crates of the workspace have none."""
    with open("Cargo.lock", encoding="utf-8") as file:
        entries = re.findall(r'^name = "(.+)"\nversion = "(.+)"\nsource = ".+"\nchecksum = "(.+)"$', file.read(), re.MULTILINE)
    return {(name, version): checksum for name, version, checksum in entries}


def used_dependencies(node, kinds):
    """Returns the ids of the packages that a package needs for one of the kinds; cargo names the normal kind `None`."""
    return sorted(
        dependency["pkg"] for dependency in node["deps"] if any(kind["kind"] in kinds for kind in dependency["dep_kinds"])
    )


def reachable(root, edges):
    """Returns the ids of all packages that the root leads to, with its own."""
    seen, waiting = {root}, [root]
    while waiting:
        for package in edges(waiting.pop()):
            if package not in seen:
                seen.add(package)
                waiting.append(package)
    return seen


def hash_file(path):
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


def describe(package, checksums, linked):
    """Returns the component of a package."""
    name, version = package["name"], package["version"]
    component = {"type": "library", "bom-ref": f"{name}@{version}", "name": name, "version": version}
    if package["source"] is None:
        # The crates of the workspace are parts of the program and are not published.
        component["bom-ref"] = f"workspace:{name}"
    else:
        component["purl"] = component["bom-ref"] = f"pkg:cargo/{name}@{version}"
        component["scope"] = "required" if linked else "excluded"
        component["hashes"] = [{"alg": "SHA-256", "content": checksums[name, version]}]
        if package["repository"]:
            component["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    if package["license"]:
        # Old manifests separate alternatives by a slash.
        component["licenses"] = [{"expression": re.sub(r"\s*/\s*", " OR ", package["license"])}]
    elif package["license_file"]:
        component["licenses"] = [{"license": {"name": f"in the crate's file {os.path.basename(package['license_file'])}"}}]
    return component


def main(program, program_version):
    metadata, checksums = cargo_metadata(), read_checksums()
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = next(id for id in metadata["workspace_members"] if packages[id]["name"] == "countersign")

    def is_macro(package):
        return any("proc-macro" in target["kind"] for target in packages[package]["targets"])

    def linked_dependencies(package):
        return [] if is_macro(package) else [other for other in used_dependencies(nodes[package], {None}) if not is_macro(other)]

    linked = reachable(root, linked_dependencies)
    used = reachable(root, lambda package: used_dependencies(nodes[package], {None, "build"}))
    components = {package: describe(packages[package], checksums, package in linked) for package in used}
    application = components[root] | {
        "type": "application",
        "bom-ref": f"pkg:github/countersign/countersign@v{program_version}",
        "version": program_version,
        "purl": f"pkg:github/countersign/countersign@v{program_version}",
        "hashes": [{"alg": "SHA-256", "content": hash_file(program)}],
        "externalReferences": [{"type": "vcs", "url": REPOSITORY}],
    }
    components[root] = application

    def by_reference(chosen):
        return sorted((components[package] for package in chosen if package != root), key=lambda component: component["bom-ref"])

    application["components"] = by_reference(package for package in used if packages[package]["source"] is None)
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "lifecycles": [{"phase": "build"}],
            "component": application,
        },
        "components": by_reference(package for package in used if packages[package]["source"] is not None),
        "dependencies": sorted(
            (
                {
                    "ref": components[package]["bom-ref"],
                    "dependsOn": sorted(components[other]["bom-ref"] for other in used_dependencies(nodes[package], {None, "build"})),
                }
                for package in used
            ),
            key=lambda dependency: dependency["ref"],
        ),
    }
    content = json.dumps(document, sort_keys=True)
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{REPOSITORY}#{content}')}"
    json.dump(document, sys.stdout, indent=1, sort_keys=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])
