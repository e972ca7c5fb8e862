#!/usr/bin/env python3
"""The files of deploy/docker, kubernetes, haproxy and envoy are valid and match the server's
options, routes and times; packages with services are installed without them.

No container runs here. The README files in these folders list the steps that need a cluster or a
Docker daemon.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
from tarn_test import REPO, free_port, patience, program, server, skip  # noqa: E402

KUBERNETES = REPO / "deploy/kubernetes"
POOL = KUBERNETES / "pool"
DOCKER = REPO / "deploy/docker"
CANCEL_SECONDS = 5  # seconds that a drain adds after its timeout, server/main.c
VENV_PYTHON = REPO / "build/venv/bin/python3"


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


def pool_documents():
    return [d for name in ("redis.yaml", "network.yaml") for d in documents(POOL / name)]


def pool_patch():
    """The StatefulSet of the pool's overlay, and its container."""
    patch, = documents(POOL / "pool.yaml")
    found, = patch["spec"]["template"]["spec"]["containers"]
    return patch, found


def found_in_pool(kind, name):
    found, = [d for d in pool_documents() if (d["kind"], d["metadata"]["name"]) == (kind, name)]
    return found


def pool_manifests_fit_the_schemas_of_kubernetes():
    import kubernetes_validate
    for document in pool_documents():
        kubernetes_validate.validate(document, "1.37", strict=True)
    # The patch as kustomize merges it: lists of named entries by name, all else is replaced.
    merged = merge(json.loads(json.dumps(manifest("StatefulSet"))), pool_patch()[0])
    kubernetes_validate.validate(merged, "1.37", strict=True)
    names = [v["name"] for v in merged["spec"]["template"]["spec"]["volumes"]]
    assert {"conf", "keys", "tmp", "pool-secret"} <= set(names)
    assert merged["spec"]["template"]["spec"]["enableServiceLinks"] is False


def merge(base, patch):
    if isinstance(base, dict) and isinstance(patch, dict):
        return {k: merge(base[k], patch[k]) if k in base and k in patch else
                patch.get(k, base.get(k)) for k in {**base, **patch}}
    if isinstance(base, list) and base and isinstance(base[0], dict):
        mine = {entry["name"]: entry for entry in base}
        for entry in patch:
            mine[entry["name"]] = merge(mine.get(entry["name"], {}), entry)
        return list(mine.values())
    return patch


def options_of(args):
    """The value of each option of a list of arguments."""
    assert len(args) % 2 == 0 and all(a.startswith("--") for a in args[::2]), args
    return dict(zip(args[::2], args[1::2]))


def pool_overlay_fits_together():
    patch, ours = pool_patch()
    overlay, = documents(POOL / "kustomization.yaml")
    assert overlay["resources"] == ["..", "redis.yaml", "network.yaml"]
    assert overlay["patches"] == [{"path": "pool.yaml"}]
    images = {image["name"] for image in overlay["images"]}
    redis, = found_in_pool("Deployment", "tarn-redis")["spec"]["template"]["spec"]["containers"]
    assert images == {container()["image"], redis["image"]}
    base = manifest("StatefulSet")
    assert (patch["kind"], patch["metadata"]["name"]) == (base["kind"], base["metadata"]["name"])
    assert ours["name"] == container()["name"]
    options = options_of(ours["args"])
    for name in options:
        assert name in help_text(), name
    assert ours["args"][:2] == container()["args"]
    # The directory, the data port and the secret are where the other manifests have them.
    service = found_in_pool("Service", "tarn-redis")
    assert options["--pool"] == f"redis://tarn-redis:{service['spec']['ports'][0]['port']}/0"
    ports = {p["name"]: p["containerPort"] for p in ours["ports"]}
    assert options["--pool-listen"] == f"0.0.0.0:{ports['pool']}"
    mount, = ours["volumeMounts"]
    volume, = patch["spec"]["template"]["spec"]["volumes"]
    secret = found_in_pool("Secret", volume["secret"]["secretName"])
    name, = secret["stringData"]
    assert mount["name"] == volume["name"]
    assert options["--pool-secret"] == f"{mount['mountPath']}/{name}"
    assert len(secret["stringData"][name]) >= 16
    variables = {v["name"]: v["valueFrom"]["fieldRef"]["fieldPath"] for v in ours["env"]}
    assert variables == {"POD_IP": "status.podIP", "POD_NAME": "metadata.name"}
    assert options["--pool-announce"] == "$(POD_IP)"
    assert options["--instance-name"] == "$(POD_NAME)"
    headless = found_in_pool("Service", patch["spec"]["serviceName"])
    assert headless["spec"]["clusterIP"] == "None"
    assert headless["spec"]["selector"] == manifest("Service")["spec"]["selector"]


def only_members_reach_the_data_port_and_redis():
    label = manifest("Service")["spec"]["selector"]
    for name, port in (("tarn-pool", 7000), ("tarn-redis", 6379)):
        policy = found_in_pool("NetworkPolicy", name)["spec"]
        rule, = [r for r in policy["ingress"] if r["ports"][0]["port"] == port]
        assert rule["from"] == [{"podSelector": {"matchLabels": label}}], name
        assert policy["podSelector"]["matchLabels"] == (
            label if name == "tarn-pool" else {"app.kubernetes.io/name": name})
    redis, = found_in_pool("Deployment", "tarn-redis")["spec"]["template"]["spec"]["containers"]
    assert redis["ports"] == [{"name": "redis", "containerPort": 6379}]


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


def server_takes_the_arguments_of_the_pool():
    """Redis is away here, which is no error."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        secret = folder / "secret"
        secret.write_text(*found_in_pool("Secret", "tarn-pool-secret")["stringData"].values())
        secret.chmod(0o440)
        here = {"/etc/tarn/conf/tarn.conf": str(write_as_mounted(folder)),
                "redis://tarn-redis:6379/0": "redis://127.0.0.1:1/0",
                "/etc/tarn/pool/secret": str(secret), "0.0.0.0:7000": "0.0.0.0:0",
                "$(POD_IP)": "127.0.0.1", "$(POD_NAME)": "tarn-0"}
        args = [here.get(a, a) for a in pool_patch()[1]["args"]]
        assert not [a for a in args if "$(" in a or "/etc/" in a], args
        with server(REPO / "deploy/demo-model", *args) as url:
            with urllib.request.urlopen(url + "/health/ready") as answer:
                assert answer.status == 200


def service_links_are_off_because_they_would_stop_the_server():
    environment = {**os.environ, "TARN_PORT": "tcp://10.0.0.7:8000"}
    done = subprocess.run([str(program("tarn-server")), "--model", str(REPO / "deploy/demo-model")],
                          env=environment, capture_output=True, text=True,
                          timeout=patience(60), check=False)
    assert done.returncode == 1 and "TARN_PORT" in done.stderr, done
    assert pod()["enableServiceLinks"] is False


# --- load balancers ---

def haproxy_takes_its_file():
    assert shutil.which("haproxy"), "haproxy is missing: see TEST_PACKAGES in deploy/lib.sh"
    path = REPO / "deploy/haproxy/haproxy.cfg"
    done = subprocess.run(["haproxy", "-c", "-f", str(path)], capture_output=True, text=True,
                          timeout=patience(60), check=False)
    assert done.returncode == 0, done
    text = path.read_text()
    assert re.search(r"^    balance roundrobin$", text, re.M)
    assert "option httpchk GET " + container()["readinessProbe"]["httpGet"]["path"] in text
    assert re.search(r"^    retry-on .*\b503\b", text, re.M)
    wrong = subprocess.run(["haproxy", "-c", "-f", "/dev/stdin"], input=text + "    balanced\n",
                           capture_output=True, text=True, timeout=patience(60), check=False)
    assert wrong.returncode != 0, wrong  # the check itself


def envoy_goes_round_and_tries_again():
    import yaml
    resources = yaml.safe_load((REPO / "deploy/envoy/envoy.yaml").read_text())["static_resources"]
    listener, = resources["listeners"]
    manager, = listener["filter_chains"][0]["filters"]
    manager = manager["typed_config"]
    route = manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]
    cluster, = resources["clusters"]
    assert route["cluster"] == cluster["name"] and cluster["lb_policy"] == "ROUND_ROBIN"
    assert manager["stream_idle_timeout"] == route["timeout"] == "0s"  # long answers
    assert route["retry_policy"]["retriable_status_codes"] == [503]
    assert "retriable-status-codes" in route["retry_policy"]["retry_on"]
    check, = cluster["health_checks"]
    probe = container()["readinessProbe"]["httpGet"]["path"]
    assert check["http_health_check"]["path"] == probe
    endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
    address = endpoint["address"]["socket_address"]
    headless = found_in_pool("Service", "tarn-pool")
    assert address == {"address": "tarn-pool", "port_value": headless["spec"]["ports"][0]["port"]}


# --- packages ---

PRETEND = """
set -euo pipefail
source deploy/lib.sh
POLICY=$1; shift
missing_packages() { printf '%s\\n' "$@"; }
as_root() { case $1 in apt-get) ;; systemctl) echo "$@" ;; *) "$@" ;; esac; }
apt_install() { echo "apt $*: $([[ ! -x $POLICY ]] || cat "$POLICY")"; }
systemctl() { :; }
ensure_packages "$@"
"""


def services_of_packages_neither_start_nor_stay_enabled():
    def said(policy, *packages):
        done = subprocess.run(["bash", "-c", PRETEND, "bash", policy, *packages], cwd=REPO,
                              text=True, capture_output=True, timeout=patience(60), check=True)
        return done.stdout.splitlines()[1:]

    disable = "systemctl --quiet disable redis-server"
    with tempfile.TemporaryDirectory() as name:
        policy = Path(name, "policy-rc.d")
        assert said(policy, "zsh", "redis-server") == [
            "apt zsh redis-server: #!/bin/sh", "exit 101", disable]
        assert said(policy, "zsh") == ["apt zsh: "]
        assert not policy.exists()
        policy.write_text("exit 7")  # the machine's own stays
        policy.chmod(0o755)
        assert said(policy, "redis-server") == ["apt redis-server: exit 7", disable]
        assert policy.read_text() == "exit 7"


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
                          timeout=patience(60), check=True).stdout


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
        return subprocess.run([str(program("tarnctl")), *command[1:]],
                              timeout=patience(60), check=False,
                              env={"TARN_URL": url}, capture_output=True).returncode

    with server(REPO / "deploy/demo-model") as url:
        assert status(url) == 0
    assert status(f"http://127.0.0.1:{free_port()}") == 1


CASES = [manifests_fit_the_schemas_of_kubernetes, manifests_fit_together, pod_outlives_the_drain,
         pool_manifests_fit_the_schemas_of_kubernetes, pool_overlay_fits_together,
         only_members_reach_the_data_port_and_redis, haproxy_takes_its_file,
         envoy_goes_round_and_tries_again, services_of_packages_neither_start_nor_stay_enabled,
         gpu_overlay_names_what_it_changes, server_takes_the_config_map_and_answers_the_probes,
         server_takes_the_arguments_of_the_pool,
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
