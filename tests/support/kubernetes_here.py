"""A small stand-in for Kubernetes on this machine, because no registry has a real API server: `Cluster`.

It answers, over HTTP and with a token, the requests that the back end makes: create, get, list with selectors, patch, delete
with what an object owns, logs that are followed. It takes only objects that the schemas of Kubernetes allow. Indexed Jobs
become pods, and the container of a pod is a process of this machine: its output, exit code and end by a signal are real.
Images are folders; a pod that asks for GPUs finds no node. Not here: names of pods in DNS, access rights, admission, watches.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

TOKEN = "token-of-a-test"
VERSION = "1.34"
_REFERENCE = re.compile(r"\$\$|\$\(([-._a-zA-Z0-9]+)\)")
_INDEX = "batch.kubernetes.io/job-completion-index"


def expanded(text: str, variables: dict[str, str]) -> str:
    """Returns a text as Kubernetes reads it: `$$` is a $, `$(NAME)` a variable, or itself where there is none."""
    return _REFERENCE.sub(lambda m: "$" if m[0] == "$$" else variables.get(m[1], m[0]), text)


def now() -> str:
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)  # One reading: gmtime() without seconds has a clock that lags.
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{nanoseconds:09d}Z"


class Cluster:
    """The API server, the controller of Jobs, and one node."""

    def __init__(self, folder: Path, images: dict[str, Path], environment: dict[str, str], kinds: tuple[str, ...] = ()) -> None:
        """Starts it, and writes `folder/kubeconfig`.

        Args:
            folder: for its files.
            images: names of images -> their folders.
            environment: the variables of every image.
            kinds: plurals of the custom kinds that are installed (`tfjobs`). Their objects are stored, and nothing runs.
        """
        self.folder, self.images, self.environment, self.kinds = folder, images, environment, kinds
        self.objects: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.processes: dict[str, subprocess.Popen] = {}
        self.lock = threading.RLock()
        self.requests: list[tuple[str, str]] = []
        self.is_busy = False  # As while a new version of the server is installed: it answers 503.
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_request(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    cluster.answer(self, body)

            do_GET = do_POST = do_PATCH = do_DELETE = handle_request

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.http.server_port}"}}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "ml"}}],
        }
        (folder / "kubeconfig").write_text(json.dumps(config))

    def close(self) -> None:
        """Ends everything."""
        self.http.shutdown()
        self.http.server_close()
        for process in list(self.processes.values()):
            _kill(process, signal.SIGKILL)

    def clear(self) -> None:
        """Deletes everything."""
        with self.lock:
            for key in list(self.objects):
                self.delete(*key)

    def has_ended(self, name: str) -> bool:
        """Returns whether the Jobs of a job of tfdist have ended."""
        with self.lock:
            found = [
                body for (plural, _, each), body in self.objects.items() if plural == "jobs" and each.startswith(f"{name}-")
            ]
        return bool(found) and all(body["status"].get("conditions") for body in found)

    def names(self) -> list[str]:
        """Returns what is stored, except events."""
        with self.lock:
            return [f"{plural}/{name}" for plural, _, name in self.objects if plural != "events"]

    def answer(self, handler: BaseHTTPRequestHandler, body: Any) -> None:
        url = urlsplit(handler.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        self.requests.append((handler.command, url.path))
        match = re.fullmatch(r"(/api/v1|/apis/[^/]+/[^/]+)/namespaces/([^/]+)/([a-z]+)(?:/([^/]+))?(?:/([a-z]+))?", url.path)
        if handler.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _status(handler, 401, "Unauthorized")
        if self.is_busy:
            return _status(handler, 503, "the server is currently unable to handle the request")
        if match is None or (match[3] in ("tfjobs", "trainjobs") and match[3] not in self.kinds):
            return _status(handler, 404, "the server could not find the requested resource")
        _, space, plural, name, part = match.groups()
        if part == "log":
            return self.send_log(handler, space, name, query)
        with self.lock:
            found = self.objects.get((plural, space, name or ""))
            if handler.command == "POST":
                return self.create(handler, plural, space, body)
            if name is None:
                entries = [
                    entry for key, entry in self.objects.items() if key[:2] == (plural, space) and _selected(entry, query)
                ]
                return _send(handler, {"kind": "List", "items": [{k: e[k] for k in e if k != "kind"} for e in entries]})
            if found is None:
                return _status(handler, 404, f'{plural} "{name}" not found')
            if handler.command == "PATCH":
                assert handler.headers["Content-Type"] == "application/merge-patch+json"
                found["metadata"].update(body["metadata"])
            if handler.command == "DELETE":
                self.delete(plural, space, name)
            return _send(handler, found)

    def create(self, handler: Any, plural: str, space: str, body: dict[str, Any]) -> None:
        import kubernetes_validate

        metadata = body["metadata"]
        if plural not in self.kinds:
            try:
                kubernetes_validate.validate(body, VERSION, strict=True)
            except Exception as error:
                return _status(handler, 422, f"invalid: {str(error).splitlines()[0]}")
        if metadata.get("namespace", space) != space:
            return _status(handler, 400, "the namespace of the provided object does not match the namespace sent")
        if (plural, space, metadata["name"]) in self.objects:
            return _status(handler, 409, f'{plural} "{metadata["name"]}" already exists')
        metadata |= {"uid": str(uuid.uuid4()), "namespace": space, "creationTimestamp": now()}
        body["status"] = {}
        self.objects[plural, space, metadata["name"]] = body
        if plural == "jobs":
            threading.Thread(target=self.run_job, args=(body,), daemon=True).start()
        return _send(handler, body)

    def delete(self, plural: str, space: str, name: str) -> None:
        """Deletes an object and what it owns. The processes of pods get SIGTERM, and have ended when this returns."""
        entry = self.objects.pop((plural, space, name), None)
        if entry is None:
            return
        for (other, there, called), each in list(self.objects.items()):
            owners = {reference["uid"] for reference in each["metadata"].get("ownerReferences", ())}
            if entry["metadata"]["uid"] in owners:
                self.delete(other, there, called)
        process = self.processes.pop(entry["metadata"]["uid"], None)
        if process is not None:
            _kill(process, signal.SIGTERM)
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                _kill(process, signal.SIGKILL)

    def run_job(self, job: dict[str, Any]) -> None:
        """The controller of Jobs: makes the pods, and says how they end."""
        spec, space = job["spec"], job["metadata"]["namespace"]
        threads = [
            threading.Thread(target=self.run_pod, args=(job, index), daemon=True) for index in range(spec["completions"])
        ]
        for thread in threads:
            thread.start()
        while True:
            time.sleep(0.05)
            with self.lock:
                if ("jobs", space, job["metadata"]["name"]) not in self.objects:
                    return
                phases = [pod["status"]["phase"] for pod in self.pods_of(job)]
                if phases.count("Succeeded") == spec["completions"]:
                    job["status"]["conditions"] = [{"type": "Complete", "status": "True"}]
                    return
                if self.is_past_limit(job):
                    message = "Job has reached the specified backoff limit"
                    job["status"]["conditions"] = [
                        {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": message}
                    ]
                    for pod in self.pods_of(job):
                        if pod["status"]["phase"] in ("Pending", "Running"):
                            self.delete("pods", space, pod["metadata"]["name"])
                    return

    def is_past_limit(self, job: dict[str, Any]) -> bool:
        """Counts as Kubernetes does: failed pods, and restarts of all containers of the pods that are still there."""
        limit = job["spec"].get("backoffLimit", 6)
        statuses = [pod["status"] for pod in self.pods_of(job)]
        if sum(status["phase"] == "Failed" for status in statuses) > limit:
            return True
        if job["spec"]["template"]["spec"]["restartPolicy"] != "OnFailure":
            return False
        containers = [
            each
            for status in statuses
            if status["phase"] in ("Pending", "Running")
            for each in status.get("containerStatuses", ())
        ]
        restarts = sum(each["restartCount"] for each in containers)
        return restarts >= limit if limit else restarts > 0

    def pods_of(self, job: dict[str, Any]) -> list[dict[str, Any]]:
        uid = job["metadata"]["uid"]
        owners = lambda entry: [each["uid"] for each in entry["metadata"].get("ownerReferences", ())]  # noqa: E731
        return [entry for (plural, _, _), entry in self.objects.items() if plural == "pods" and uid in owners(entry)]

    def run_pod(self, job: dict[str, Any], index: int) -> None:
        """The scheduler and the kubelet, for one pod."""
        space, template = job["metadata"]["namespace"], job["spec"]["template"]
        name = f"{job['metadata']['name']}-{index}-{uuid.uuid4().hex[:5]}"
        metadata = {"name": name, "uid": str(uuid.uuid4()), "namespace": space, "creationTimestamp": now()}
        metadata |= {"labels": template["metadata"]["labels"], "annotations": {_INDEX: str(index)}}
        metadata["ownerReferences"] = [{"uid": job["metadata"]["uid"], "kind": "Job", "name": job["metadata"]["name"]}]
        spec = json.loads(json.dumps(template["spec"]))
        pod = {"kind": "Pod", "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
        container = spec["containers"][0]
        state = {"name": container["name"], "restartCount": 0, "state": {"waiting": {"reason": "ContainerCreating"}}}
        with self.lock:
            self.objects["pods", space, name] = pod
            if "nvidia.com/gpu" in container.get("resources", {}).get("limits", {}):
                why = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
                pod["status"]["conditions"] = [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why}
                ]
                return
            spec["nodeName"] = "node-1"
            pod["status"]["containerStatuses"] = [state]
            if container["image"] not in self.images:
                why = f'Back-off pulling image "{container["image"]}": not found'
                state["state"] = {"waiting": {"reason": "ImagePullBackOff", "message": why}}
                return
        while True:
            code = self.run_container(pod, container, state)
            with self.lock:
                if ("pods", space, name) not in self.objects:
                    return
                reason = "Completed" if code == 0 else "OOMKilled" if code == 137 else "Error"
                ended = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": now()[:19] + "Z"}}
                if code == 0 or spec["restartPolicy"] == "Never":
                    state["state"] = ended
                    pod["status"]["phase"] = "Failed" if code else "Succeeded"
                    return
                state["lastState"], state["state"] = ended, {"waiting": {"reason": "CrashLoopBackOff"}}
            time.sleep(1.0)
            state["restartCount"] += 1

    def run_container(self, pod: dict[str, Any], container: dict[str, Any], state: dict[str, Any]) -> int:
        image = self.images[container["image"]]
        variables = dict(self.environment)
        for entry in container.get("env", ()):
            variables[entry["name"]] = self.value(pod, entry, variables)
        command = [expanded(word, variables) for word in container["command"]]
        where = container.get("workingDir", "/").lstrip("/")
        with self.lock:
            if ("pods", pod["metadata"]["namespace"], pod["metadata"]["name"]) not in self.objects:
                return 1
            process = subprocess.Popen(
                command,
                cwd=image / where,
                env=variables,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self.processes[pod["metadata"]["uid"]] = process
            state["state"] = {"running": {"startedAt": now()}}
            pod["status"]["phase"] = "Running"
        with open(self.folder / f"log-{pod['metadata']['name']}", "ab", 0) as log:
            assert process.stdout is not None
            for line in process.stdout:
                log.write(now().encode() + b" " + line.rstrip(b"\n") + b"\n")
        code = process.wait()
        return code if code >= 0 else 128 - code

    def value(self, pod: dict[str, Any], entry: dict[str, Any], variables: dict[str, str]) -> str:
        source = entry.get("valueFrom")
        if source is None:
            return expanded(entry["value"], variables)
        if "secretKeyRef" in source:
            key = source["secretKeyRef"]
            return self.objects["secrets", pod["metadata"]["namespace"], key["name"]]["stringData"][key["key"]]
        assert source["fieldRef"]["fieldPath"] == f"metadata.annotations['{_INDEX}']"
        return pod["metadata"]["annotations"][_INDEX]

    def send_log(self, handler: BaseHTTPRequestHandler, space: str, name: str, query: dict[str, str]) -> None:
        pod = self.objects.get(("pods", space, name))
        path = self.folder / f"log-{name}"
        if pod is None or not path.exists():
            return _status(handler, 400, f'container "{query["container"]}" in pod "{name}" is waiting to start')
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        with open(path, "rb") as log:
            while True:
                state = pod["status"]["containerStatuses"][0]["state"]
                has_ended = "running" not in state or ("pods", space, name) not in self.objects  # Before the read.
                while line := log.readline():
                    if not line.endswith(b"\n"):  # Its end is being written.
                        log.seek(-len(line), os.SEEK_CUR)
                        break
                    if line[:19].decode() >= query.get("sinceTime", "")[:19]:
                        handler.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                if query.get("follow") != "true" or has_ended:
                    handler.wfile.write(b"0\r\n\r\n")
                    return None
                time.sleep(0.05)


def _selected(entry: dict[str, Any], query: dict[str, str]) -> bool:
    wanted = [pair.split("=") for pair in query.get("labelSelector", "").split(",") if pair]
    labels = entry["metadata"].get("labels", {})
    return all(labels.get(key) == value for key, value in wanted)


def _send(handler: BaseHTTPRequestHandler, value: dict[str, Any], code: int = 200) -> None:
    data = json.dumps(value).encode()
    handler.send_response(code)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def _status(handler: BaseHTTPRequestHandler, code: int, message: str) -> None:
    _send(handler, {"kind": "Status", "status": "Failure", "message": message, "code": code}, code)


def _kill(process: subprocess.Popen, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextlib.contextmanager
def kubernetes(folder: Path, images: dict[str, Path], environment: dict[str, str], *kinds: str) -> Iterator[Cluster]:
    """Runs a cluster until the end of the block."""
    cluster = Cluster(folder, images, environment, kinds)
    try:
        yield cluster
    finally:
        cluster.close()
