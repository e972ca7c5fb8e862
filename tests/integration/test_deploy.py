#!/usr/bin/env python3
"""deploy/docker and deploy/kubernetes are valid and match the server's options, routes and times.

No container runs here. The README files in these folders list the steps that need a cluster or a
Docker daemon.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from tarn_test import REPO, build_dir, free_port, program, server, skip  # noqa: E402

KUBERNETES = REPO / "deploy/kubernetes"
DOCKER = REPO / "deploy/docker"
CANCEL_SECONDS = 5  # seconds that a drain adds after its timeout, server/main.c
VENV_PYTHON = build_dir() / "venv/bin/python3"


def use_venv():
    """Go on in the tests' virtual environment, which has the schemas of Kubernetes."""
    try:
        import kubernetes_validate  # noqa: F401
    except ImportError:
        if os.environ.get("TARN_TEST_IN_VENV") or not VENV_PYTHON.exists():
            skip("no kubernetes-validate: deploy/test installs tests/tools/requirements.txt")
        os.environ["TARN_TEST_IN_VENV"] = "1"
        os.execv(VENV_PYTHON, [str(VENV_PYTHON), *sys.argv])


def documents(path):
    import yaml
    return [d for d in yaml.safe_load_all(path.read_text()) if d]


def manifest(kind):
    found = [d for d in documents(KUBERNETES / "tarn.yaml") if d["kind"] == kind]
    assert len(found) == 1, kind
    return found[0]


def pod():
    return manifest("StatefulSet")["spec"]["template"]["spec"]


def container():
    found, = pod()["containers"]
    return found


def conf():
    lines = manifest("ConfigMap")["data"]["tarn.conf"].splitlines()
    return dict(re.split(r"\s*=\s*", line, maxsplit=1) for line in lines
                if line and not line.startswith("#"))


# --- Kubernetes ---

def manifests_fit_the_schemas_of_kubernetes():
    import kubernetes_validate
    seen = documents(KUBERNETES / "tarn.yaml")
    for document in seen:
        kubernetes_validate.validate(document, "1.37", strict=True)
    wrong = json.loads(json.dumps(manifest("StatefulSet")))
    wrong["spec"]["template"]["spec"]["terminationGracePeriod"] = 90  # the check itself
    try:
        kubernetes_validate.validate(wrong, "1.37", strict=True)
    except kubernetes_validate.ValidationError:
        return
    raise AssertionError("a misspelt field passed")


def manifests_fit_together():
    names = {(d["kind"], d["metadata"]["name"]) for d in documents(KUBERNETES / "tarn.yaml")}
    label = manifest("Service")["spec"]["selector"]
    workload = manifest("StatefulSet")["spec"]
    assert workload["selector"]["matchLabels"] == label
    assert workload["template"]["metadata"]["labels"] == label
    assert ("Service", workload["serviceName"]) in names
    volumes = {v["name"]: v for v in pod()["volumes"]}
    assert ("ConfigMap", volumes["conf"]["configMap"]["name"]) in names
    assert ("Secret", volumes["keys"]["secret"]["secretName"]) in names
    claims = {c["metadata"]["name"] for c in workload["volumeClaimTemplates"]}
    mounts = {m["name"]: m["mountPath"] for m in container()["volumeMounts"]}
    assert set(mounts) == set(volumes) | claims
    # Files that outlive the process are on the claim; the rest of the file system is read-only.
    assert conf()["cache-dir"].startswith(mounts["state"])
    assert conf()["kv-disk-path"].startswith(mounts["state"])
    assert container()["securityContext"]["readOnlyRootFilesystem"] is True
    size = {"G": 1 << 30, "Gi": 1 << 30}
    claim = workload["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
    assert int(claim[:-2]) * size[claim[-2:]] > int(conf()["kv-disk-bytes"][:-1]) * size["G"]
    port = int(conf()["port"])
    assert container()["ports"] == [{"name": "http", "containerPort": port}]


def pod_outlives_the_drain():
    hook = container()["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[0] == "sleep"
    needed = int(hook[1]) + int(conf()["drain-timeout"]) + CANCEL_SECONDS
    assert pod()["terminationGracePeriodSeconds"] > needed


def gpu_overlay_names_what_it_changes():
    overlay, = documents(KUBERNETES / "gpu/kustomization.yaml")
    assert overlay["resources"] == [".."] and (KUBERNETES / "kustomization.yaml").is_file()
    for patch in overlay["patches"]:
        changed, = documents(KUBERNETES / "gpu" / patch["path"])
        base = manifest(changed["kind"])
        assert changed["metadata"]["name"] == base["metadata"]["name"]
        theirs, = changed["spec"]["template"]["spec"]["containers"]
        assert theirs["name"] == container()["name"]
        # A list of arguments is replaced as a whole.
        assert theirs["args"][:2] == container()["args"]
        assert theirs["resources"]["limits"]["nvidia.com/gpu"] == "1"
    images = {image["name"] for image in overlay["images"]}
    assert images == {container()["image"]}


def write_as_mounted(folder):
    """The configuration of the ConfigMap with its paths below `folder`, and the Secret's file."""
    keys = folder / "keys.json"
    keys.write_text(manifest("Secret")["stringData"]["keys.json"])
    here = {**conf(), "model": REPO / "deploy/demo-model", "api-key-file": keys,
            "cache-dir": folder / "state", "kv-disk-path": folder / "state/kv",
            "kv-disk-bytes": "32M"}
    here.pop("port")
    path = folder / "tarn.conf"
    path.write_text("".join(f"{name} = {value}\n" for name, value in here.items()))
    return path


def server_takes_the_config_map_and_answers_the_probes():
    with tempfile.TemporaryDirectory() as name:
        path = write_as_mounted(Path(name))
        with server(REPO / "deploy/demo-model", "--config", str(path)) as url:
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                with urllib.request.urlopen(url + container()[probe]["httpGet"]["path"]) as answer:
                    assert answer.status == 200
            key = json.loads(manifest("Secret")["stringData"]["keys.json"])["keys"][0]["key"]
            request = urllib.request.Request(url + "/v1/models",
                                             headers={"Authorization": f"Bearer {key}"})
            with urllib.request.urlopen(request) as answer:
                assert answer.status == 200


def service_links_are_off_because_they_would_stop_the_server():
    environment = {**os.environ, "TARN_PORT": "tcp://10.0.0.7:8000"}
    done = subprocess.run([str(program("tarn-server")), "--model", str(REPO / "deploy/demo-model")],
                          env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "TARN_PORT" in done.stderr, done
    assert pod()["enableServiceLinks"] is False


# --- Docker ---

def instructions(path):
    """(WORD, rest) of each instruction, continued lines joined."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.M).replace("\\\n", " ")
    found = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    return [(word, re.sub(r"\s+", " ", rest)) for word, rest in found]


def images_run_as_the_user_of_the_manifest():
    user = str(pod()["securityContext"]["runAsUser"])
    for path in (DOCKER / "Dockerfile", DOCKER / "Dockerfile.cuda"):
        lines = instructions(path)
        words = [word for word, _ in lines]
        assert words.count("FROM") == 2, path
        last = [rest for word, rest in lines if word == "USER"][-1]
        assert last == f"{user}:{user}", path
        assert any(f"--uid {user}" in rest for word, rest in lines if word == "RUN"), path
        found = dict(lines)
        assert found["EXPOSE"] == conf()["port"] and found["STOPSIGNAL"] == "SIGTERM"
        assert found["VOLUME"] == conf()["cache-dir"]
        assert f"TARN_CACHE_DIR={conf()['cache-dir']}" in found["ENV"]
        assert json.loads(found["CMD"])[1] == conf()["model"]
        for name in re.findall(r"\bTARN_([A-Z_]+)=", found["ENV"]):
            option = "--" + name.lower().replace("_", "-")
            assert option in help_text(), option


def help_text():
    return subprocess.run([str(program("tarn-server")), "--help"], capture_output=True, text=True,
                          timeout=60, check=True).stdout


def cuda_image_has_every_build_package():
    text = (REPO / "deploy/lib.sh").read_text()
    wanted = re.search(r"^BUILD_PACKAGES=\(([^)]*)\)", text, re.M).group(1).split()
    run = " ".join(rest for word, rest in instructions(DOCKER / "Dockerfile.cuda") if word == "RUN")
    missing = set(wanted) - set(run.split()) - {"curl", "ca-certificates"}  # for quickstart only
    assert not missing, missing


def healthcheck_tells_a_server_from_none():
    command = json.loads(dict(instructions(DOCKER / "Dockerfile"))["HEALTHCHECK"]
                         .partition("CMD ")[2])
    assert command[0] == "tarnctl"

    def status(url):
        return subprocess.run([str(program("tarnctl")), *command[1:]], timeout=60, check=False,
                              env={"TARN_URL": url}, capture_output=True).returncode

    with server(REPO / "deploy/demo-model") as url:
        assert status(url) == 0
    assert status(f"http://127.0.0.1:{free_port()}") == 1


CASES = [manifests_fit_the_schemas_of_kubernetes, manifests_fit_together, pod_outlives_the_drain,
         gpu_overlay_names_what_it_changes, server_takes_the_config_map_and_answers_the_probes,
         service_links_are_off_because_they_would_stop_the_server,
         images_run_as_the_user_of_the_manifest, cuda_image_has_every_build_package,
         healthcheck_tells_a_server_from_none]


def main():
    use_venv()
    for case in CASES:
        case()
        print(f"ok {case.__name__}", flush=True)


if __name__ == "__main__":
    main()
