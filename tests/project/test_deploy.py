"""The files of deploy/ against the schemas of Kubernetes and Compose, and against the commands that they call."""

import pathlib
import re
import subprocess
import sys

import pytest
from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from mural_tf.export.serving import BATCHING_PARAMETERS, MODEL_CONFIG

yaml = pytest.importorskip("yaml", reason="needs the extra [test]")
DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
RESOURCES = [(path.stem, one) for path in MANIFESTS for one in yaml.safe_load_all(path.read_text("utf-8"))]
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))


def kind(kind_wanted):
    return [resource for _, resource in RESOURCES if resource["kind"] == kind_wanted]


@pytest.mark.parametrize("resource", [one for _, one in RESOURCES], ids=[f"{f}-{one['kind']}" for f, one in RESOURCES])
def test_manifests_fit_the_schema_of_kubernetes(resource):
    validator = pytest.importorskip("kubernetes_validate", reason="needs the extra [test]")
    for version in ("1.30", "1.33"):  # the oldest that the checker has, and a later one
        validator.validate(resource, version, strict=True)
    wrong = {**resource, "spek": {}}
    with pytest.raises(validator.ValidationError):
        validator.validate(wrong, "1.30", strict=True)


def filled(**environment):
    """compose.yaml with its variables in place, as Compose does it: ${A:-default} and $PWD."""
    text, pattern = (DEPLOY / "compose.yaml").read_text("utf-8"), re.compile(r"\$\{(\w+):-([^${}]*)\}")
    text = text.replace("$PWD", "/here")
    while pattern.search(text):
        text = pattern.sub(lambda match: environment.get(match[1], "") or match[2], text)
    assert "$" not in text.replace("$HOME", "")
    return text


def test_compose_fits_its_schema():
    specification = pytest.importorskip("compose_spec", reason="its checker needs Python 3.10")
    text = filled()
    assert set(specification.PyCompose.from_yaml(text).to_spec().services) == {"search", "caddy", "tensorflow_serving"}
    with pytest.raises(Exception, match="comand"):
        specification.PyCompose.from_yaml(text.replace("    command:", "    comand:", 1))


@pytest.mark.parametrize("environment, folder, mounts, flags", [
    ({}, "/here", {"/here": "/here"}, {"index": "index", "hosts": "localhost"}),
    ({"FOLDER": "/shop", "PICTURES": "/photos", "EXPORT": "/models/mine", "TITLE": "Shoes", "INDEX": "my",
      "HIDE": "cost,supplier", "HOST_NAME": "search.shop.example"}, "/shop",
     {"/shop": "/shop", "/photos": "/photos", "/models/mine": "/models/mine"},
     {"index": "my", "export": "/models/mine", "title": "Shoes", "hide": "cost,supplier",
      "hosts": "search.shop.example"}),
])  # fmt: skip
def test_the_page_of_a_folder_is_what_starts(environment, folder, mounts, flags):
    """Everything lies in the container where it lies outside, and cannot be written."""
    services = yaml.safe_load(filled(**environment))["services"]
    assert [name for name, service in services.items() if "profiles" not in service] == ["search"]
    service = services["search"]
    assert all(volume["read_only"] for volume in service["volumes"]) and service["working_dir"] == folder
    found = {volume["source"]: volume["target"] for volume in reversed(service["volumes"])}
    empty = dict.fromkeys(["export", "title", "link", "hide", "color", "language"], "")
    wanted = {"host": "0.0.0.0", **empty, **flags}
    assert found == mounts and service["command"][0] == "serve"
    assert dict(flag.removeprefix("--").split("=", 1) for flag in service["command"][1:]) == wanted


def test_both_start_the_same_tensorflow_serving_and_take_another():
    (pod,) = (one["spec"] for one in kind("Deployment") if one["metadata"]["name"] == "mural-serving")
    image, _, default = COMPOSE["services"]["tensorflow_serving"]["image"].partition("${TENSORFLOW_SERVING:-")
    assert pod["template"]["spec"]["containers"][0]["image"] == image + default.removesuffix("}") != image


def test_services_disruption_budgets_and_volumes_fit_the_pods():
    pods = {one["metadata"]["name"]: one["spec"] for one in kind("Deployment")}
    claims = {one["metadata"]["name"] for one in kind("PersistentVolumeClaim")}
    maps = {one["metadata"]["name"]: one["data"] for one in kind("ConfigMap")}
    assert pods and {one["metadata"]["name"] for one in kind("Service")} == set(pods)
    for name, pod in pods.items():
        labels = pod["template"]["metadata"]["labels"]
        assert pod["selector"]["matchLabels"].items() <= labels.items()
        (container,), template = pod["template"]["spec"]["containers"], pod["template"]["spec"]
        named = {port["name"]: port["containerPort"] for port in container["ports"]}
        for resource in (*kind("Service"), *kind("PodDisruptionBudget")):
            if resource["metadata"]["name"] == name:
                selector = resource["spec"]["selector"]
                assert selector.get("matchLabels", selector).items() <= labels.items()
                assert {port["targetPort"] for port in resource["spec"].get("ports", ())} <= named.keys()
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert next(iter(container[probe].values()))["port"] in named
        assert {"requests", "limits"} <= container["resources"].keys()
        volumes = {volume["name"]: volume for volume in template["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        for volume in volumes.values():
            assert volume.get("persistentVolumeClaim", {}).get("claimName", "mural-export") in claims
            assert volume.get("configMap", {}).get("name", "mural-serving") in maps
        for flag in container["args"]:
            if "=/configuration/" in flag:
                assert flag.rpartition("/")[2] in maps["mural-serving"]


def test_tensorflow_serving_is_configured_as_by_the_export():
    (data,) = (one["data"] for one in kind("ConfigMap"))

    def parsed(text, message):
        return text_format.Parse(text, message())

    models = model_server_config_pb2.ModelServerConfig
    assert parsed(data["models.config"], models) == parsed(MODEL_CONFIG, models)
    batching = [line for line in BATCHING_PARAMETERS.splitlines() if not line.startswith("#")]
    assert data["batching_parameters.txt"].splitlines() == batching
    text = (DEPLOY / "kubernetes/tensorflow_serving.yaml").read_text("utf-8")
    example = [line.strip("# ") for line in text.splitlines()]
    labels = "".join(line for line in example if line.startswith(("model_version_policy", "version_labels")))
    written = data["models.config"].replace('"tensorflow" }', f'"tensorflow" {labels} }}')
    assert parsed(written, models).model_config_list.config[0].version_labels == {"stable": 1, "canary": 2}


def test_the_flags_of_the_server_are_the_commands():
    command = [sys.executable, "-m", "mural_tf", "serve", "--help"]
    described = subprocess.run(command, cwd=DEPLOY.parent, capture_output=True, text=True).stdout
    for flag in COMPOSE["services"]["search"]["command"][1:]:
        assert f"  {flag.partition('=')[0]}:" in described, flag


def test_the_health_check_of_compose_asks_the_server():
    check = COMPOSE["services"]["search"]["healthcheck"]["test"]
    assert check[:2] == ["CMD", "python"] and "localhost:8501/healthz" in check[3]
    run = subprocess.run([sys.executable, "-c", check[3].replace("8501", "1")], capture_output=True, text=True)
    assert run.returncode == 1 and "URLError" in run.stderr  # nothing listens there
