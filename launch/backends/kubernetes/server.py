"""`Server`: the API server, through the official client, which knows the user's kubeconfig and the variables inside a pod."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tfdist.extras import pip_install
from tfdist.launch.backends.interface import BackendError, NoAnswerError
from tfdist.messages import printable

CONNECT_SECONDS, ANSWER_SECONDS = 10.0, 60.0
"""How long the server may take. A log that is silent for as long is asked again."""

_PATHS = {
    "Job": ("/apis/batch/v1", "jobs"),
    "Service": ("/api/v1", "services"),
    "Secret": ("/api/v1", "secrets"),
    "Pod": ("/api/v1", "pods"),
    "Event": ("/api/v1", "events"),
    "TFJob": ("/apis/kubeflow.org/v1", "tfjobs"),
    "TrainJob": ("/apis/trainer.kubeflow.org/v1alpha1", "trainjobs"),
}
_BUSY = (408, 429, 500, 502, 503, 504)
"""What a server answers, or what is in front of it, while it cannot do its work."""

_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class NotFound(BackendError):
    """There is no such object."""


class Server:
    """One API server and namespace.

    Attributes:
        context: the context of the user's kubeconfig; empty inside a pod.
        namespace: the namespace.
    """

    def __init__(self, context: str | None, namespace: str | None) -> None:
        """Reads the configuration; connects to nothing yet.

        Args:
            context: a context of the kubeconfig; None for the current one, else that of the pod in which this process runs.
            namespace: a namespace; None for that of the context, else `default`.

        Raises:
            BackendError: if there is no configuration, or the package of the client is not installed.
        """
        try:
            import kubernetes
            from kubernetes.config import ConfigException
        except ImportError as error:
            raise BackendError(f"the package kubernetes is missing, {error}: {pip_install('kubernetes')}") from error
        configuration = kubernetes.client.Configuration()
        self.context = context or ""
        own_namespace: str | None = None
        try:
            contexts, current = kubernetes.config.list_kube_config_contexts()
            by_name = {each["name"]: each for each in contexts}
            if context is not None and context not in by_name:
                raise BackendError(f"the kubeconfig has no context {context!r}; it has {', '.join(by_name)}")
            chosen = by_name[context] if context is not None else current
            self.context = chosen["name"]
            own_namespace = chosen["context"].get("namespace")
            kubernetes.config.load_kube_config(context=self.context, client_configuration=configuration)
        except BackendError:
            raise
        except Exception as error:  # ConfigException, and for a file with other content whatever reading it raises.
            if context is not None:
                raise BackendError(f"the kubeconfig cannot be used: {_one_line(error)}") from error
            try:
                kubernetes.config.load_incluster_config(client_configuration=configuration)
                own_namespace = _POD_NAMESPACE.read_text(encoding="utf-8").strip()
            except (ConfigException, OSError):
                raise BackendError(
                    f"there is no cluster to use: {_one_line(error)}; kubectl needs a kubeconfig as well (KUBECONFIG)"
                ) from error
        self.namespace = namespace or own_namespace or "default"
        self._client = kubernetes.client.ApiClient(configuration)
        self._host = configuration.host
        self._api_error: type[Any] = kubernetes.client.ApiException

    def create(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        """Creates an object; returns it as the server stores it."""
        stored: dict[str, Any] = self._call("POST", self._path(entry["kind"]), body=entry)
        return stored

    def get(self, kind: str, name: str) -> dict[str, Any]:
        """Returns an object. Raises NotFound if there is none."""
        found: dict[str, Any] = self._call("GET", self._path(kind, name))
        return found

    def list(self, kind: str, **selectors: str) -> "list[dict[str, Any]]":
        """Returns the objects that selectors (`labelSelector`, `fieldSelector`) select."""
        found: list[dict[str, Any]] = self._call("GET", self._path(kind), query=selectors)["items"]
        return [{"kind": kind, **entry} for entry in found]  # The server leaves the kind of entries out.

    def set_owner(self, entry: Mapping[str, Any], reference: Mapping[str, Any]) -> None:
        """Makes an object go when another goes."""
        body = {"metadata": {"ownerReferences": [reference]}}
        self._call("PATCH", self._path(entry["kind"], entry["metadata"]["name"]), body=body)

    def delete(self, kind: str, name: str) -> None:
        """Deletes an object, and those that it owns; it stays, marked, until these are gone."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}
        self._call("DELETE", self._path(kind, name), body=body)

    def log(self, pod: str, container: str, *, follow: bool, since: str = "") -> Iterator[bytes]:
        """Yields the output of a pod's program in pieces; each line begins with its time and a blank."""
        query = {"container": container, "timestamps": "true"} | ({"follow": "true"} if follow else {})
        if since:
            query["sinceTime"] = since
        response = self._call("GET", f"{self._path('Pod', pod)}/log", query=query, is_stream=True)
        import urllib3

        try:
            yield from response.stream(1 << 16, decode_content=False) if not follow else iter(lambda: response.read1(), b"")
        except (urllib3.exceptions.HTTPError, OSError):
            return  # The connection was cut; who follows asks again.
        finally:
            response.close()

    def _path(self, kind: str, name: str = "") -> str:
        api, plural = _PATHS[kind]
        return f"{api}/namespaces/{quote(self.namespace, safe='')}/{plural}" + (f"/{quote(name, safe='')}" if name else "")

    def _call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        is_stream: bool = False,
    ) -> Any:
        import urllib3

        content = "application/merge-patch+json" if method == "PATCH" else "application/json"
        try:
            response = self._send(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": "application/json", "Content-Type": content},
                body=body,
                auth_settings=["BearerToken"],
            )
            return response if is_stream else json.loads(response.data)
        except self._api_error as error:
            raise _refusal(error) from error
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise NoAnswerError(f"the API server {self._host} of Kubernetes does not answer: {_one_line(error)}") from error

    def _send(self, method: str, path: str, **request: Any) -> Any:
        """Returns the response, of which the content is not read yet. Raises ApiException if it is an error."""
        client, seconds = self._client, (CONNECT_SECONDS, ANSWER_SECONDS)
        if not hasattr(client, "param_serialize"):  # Clients before version 37.
            options = {"_preload_content": False, "_return_http_data_only": True, "_request_timeout": seconds}
            return client.call_api(path, method, **request, **options)
        answer = client.call_api(*client.param_serialize(method, path, **request), _request_timeout=seconds)
        if not 200 <= answer.status < 300:
            answer.read()
            raise self._api_error(http_resp=answer)
        return answer.response


def _refusal(error: Any) -> BackendError:
    try:
        text = str(json.loads(error.body)["message"])
    except (ValueError, KeyError, TypeError):
        text = str(error.reason)
    is_busy = error.status in _BUSY
    found = NotFound if error.status == 404 else NoAnswerError if is_busy else BackendError
    return found(f"Kubernetes: {printable(' '.join(text.split()))}")


def _one_line(error: Exception) -> str:
    return printable(" ".join(str(error).split()))[:300]
