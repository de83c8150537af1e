"""Renders the Helm chart and checks the result, for chart.test.mjs and compose.test.mjs.

Reads {"chart": FILE, "source": FOLDER, "versions": [KUBERNETES...], "accepted": {NAME: VALUES}, "refused": {NAME: VALUES}} from
standard input. Prints the rendered documents and the faults of each accepted combination, and the error of each refused one.
With a list of YAML files as arguments it only prints them as JSON.
"""

import json
import sys

import yaml


def parse(text):
    return [document for document in yaml.safe_load_all(text) if document]


def fault(document, version):
    import kubernetes_validate

    try:
        kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{version}: {document['kind']}: {error.message}"
    return None


def render(request):
    import helm_python as helm

    answer = {"rendered": {}, "faults": {}, "refused": {}}
    answer["lint"] = helm.lint(request["source"], strict=True)
    with helm.Chart.load(request["chart"]) as chart:
        for name, values in request["accepted"].items():
            files = chart.render(values, name="demo", namespace="prod")
            documents = [d for path, text in files.items() if path.endswith(".yaml") for d in parse(text)]
            answer["rendered"][name] = documents
            # The schemas of Kubernetes do not contain resources of operators.
            known = [d for d in documents if d["kind"] != "ServiceMonitor"]
            faults = [fault(d, version) for d in known for version in request["versions"]]
            answer["faults"][name] = [f for f in faults if f]
        for name, values in request["refused"].items():
            try:
                chart.render(values, name="demo", namespace="prod")
                answer["refused"][name] = None
            except Exception as error:
                answer["refused"][name] = str(error)
    return answer


if len(sys.argv) > 1:
    documents = {}
    for file in sys.argv[1:]:
        with open(file, encoding="utf-8") as text:
            documents[file] = yaml.safe_load(text)
    print(json.dumps(documents))
else:
    print(json.dumps(render(json.load(sys.stdin))))
