"""Client of the Slackline daemon. Its methods have the names of the commands."""

from __future__ import annotations

import http.client
import json
import os
import socket as sockets
import ssl
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote, urlencode, urlsplit

from ._errors import ServiceError

#: Unix socket at which the daemon listens.
SOCKET = "/run/slackline/slackline.sock"

#: Time in seconds for which the client waits for an answer. The daemon's own limit is 5 s. Its
#: limit for a prediction is 17 s, of which the simulation takes at most 10 s.
_ANSWER_WITHIN = 20.0

#: Number of reservations that the daemon lists at once.
_PAGE = 500

Json = dict[str, Any]

Rows = list[Json]


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: str, timeout: float | None) -> None:
        super().__init__("slackline", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Service:
    """A running daemon: `slackline serve` on this host, or on another host over TLS.

    Without arguments the client uses the environment variables SLACKLINE_HOST, SLACKLINE_CA,
    SLACKLINE_TOKEN, SLACKLINE_CERTIFICATE and SLACKLINE_KEY as the command line does. If
    SLACKLINE_HOST is not set, the client uses the Unix socket of this host. `host` is an address
    such as "https://vm17:7443". The daemon's certificate is always verified: with the certificates
    in the file `ca`, or with those of this host. `token` is a file with the token that `slackline
    access add` printed. `client_certificate` and its private key `client_key` replace a token.

    Parameters have the names of the JSON fields: `slice="2ms"`, `period="10ms"`, `cpu="1.5cpu"`,
    `exact=True`, `vcpus=2`, `until="2026-12-01T18:00"` in UTC. The binding of a VM is
    `binding="qemu:web"`, since `for` is a keyword of Python. Answers are dictionaries as `--json`
    prints them.

    >>> service = slackline.Service()
    >>> service.reserve("web", slice="3ms", period="10ms", binding="qemu:web")
    >>> service.list()[0]["used_percent"]

    Raises ServiceError if the daemon refuses a request or cannot be reached.
    """

    def __init__(
        self,
        socket: str | None = None,
        *,
        host: str | None = None,
        ca: str | None = None,
        token: str | None = None,
        client_certificate: str | None = None,
        client_key: str | None = None,
        timeout: float = _ANSWER_WITHIN,
    ) -> None:
        if socket is None:
            host = host or os.environ.get("SLACKLINE_HOST")
        elif host is not None:
            raise ValueError("give either `socket` or `host`")
        self._timeout = timeout
        self._socket = socket or SOCKET
        self._host: str | None = None
        self._headers: dict[str, str] = {}
        if host is None:
            return
        url = urlsplit(host)
        if url.scheme != "https" or not url.hostname or url.path not in ("", "/"):
            raise ValueError(f"`{host}` is not an address such as https://vm17:7443")
        self._host, self._port = url.hostname, url.port or 7443
        self._tls = ssl.create_default_context(cafile=ca or os.environ.get("SLACKLINE_CA"))
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_3
        if token is None and client_certificate is None:
            token = os.environ.get("SLACKLINE_TOKEN")
            client_certificate = os.environ.get("SLACKLINE_CERTIFICATE")
        if client_certificate is not None:
            key = client_key or os.environ.get("SLACKLINE_KEY")
            if token is not None:
                raise ValueError("give either `token` or `client_certificate`")
            if key is None:
                raise ValueError("`client_certificate` needs `client_key`, its private key")
            self._tls.load_cert_chain(client_certificate, key)
        if token is not None:
            with open(token, encoding="ascii") as file:
                self._headers["Authorization"] = f"Bearer {file.read().strip()}"

    def _connection(self, timeout: float | None) -> http.client.HTTPConnection:
        if self._host is None:
            return _UnixConnection(self._socket, timeout)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=timeout, context=self._tls
        )

    def _ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        if_revision: int | None = None,
    ) -> Any:
        headers = dict(self._headers)
        if method != "GET" and path.startswith(("/v1/reservations", "/v1/apply")):
            # With this key, a request that is sent twice takes effect once.
            headers["Idempotency-Key"] = uuid.uuid4().hex
        if if_revision is not None:
            headers["If-Match"] = f'"{if_revision}"'
        text = None
        if body is not None:
            text = json.dumps(body)
            headers["Content-Type"] = "application/json"
        connection = self._connection(self._timeout)
        try:
            connection.request(method, path, body=text, headers=headers)
            answer = connection.getresponse()
            return _read(answer.status, answer.read())
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()

    def _unreachable(self, error: Exception) -> ServiceError:
        place = self._socket if self._host is None else f"{self._host}:{self._port}"
        refusal = ServiceError(f"no daemon answers at {place}: {error}")
        refusal.hint = "start it with `sudo slackline serve`, or name its socket or host"
        return refusal

    def list(self) -> Rows:
        """Return all reservations with the CPU time that each received, ordered by name."""
        found: Rows = []
        while True:
            after = f"?{urlencode({'after': found[-1]['name']})}" if found else ""
            page: Rows = self._ask("GET", f"/v1/reservations{after}")
            found += page
            if len(page) < _PAGE:
                return found

    def show(self, name: str) -> Json:
        """Return one reservation."""
        return self._one("GET", name)

    def reserve(self, name: str, *, binding: str | None = None, **parameters: Any) -> Json:
        """Reserve CPU time for a VM under a name, and return the reservation."""
        if binding is not None:
            parameters["for"] = binding
        return self._one("PUT", name, parameters)

    def change(self, name: str, *, if_revision: int | None = None, **parameters: Any) -> Json:
        """Change parameters of a reservation. The other parameters stay as they are.

        With `if_revision` the change is refused if the reservation has changed since that revision.
        """
        if "binding" in parameters:
            parameters["for"] = parameters.pop("binding")
        return self._one("PATCH", name, parameters, if_revision=if_revision)

    def pause(self, name: str) -> Json:
        """Stop the vCPUs of a VM until `resume`. Its capacity stays reserved."""
        return self._one("POST", name, part="/pause")

    def resume(self, name: str) -> Json:
        """Resume a paused VM."""
        return self._one("POST", name, part="/resume")

    def release(self, name: str) -> Json:
        """End a reservation. Its VM returns to ordinary scheduling."""
        return self._one("DELETE", name)

    def apply(
        self,
        reservations: Mapping[str, Mapping[str, Any]],
        *,
        prune: bool = False,
        dry_run: bool = False,
    ) -> Rows:
        """Apply reservations by name, all of them or none, and return the changes.

        With `prune`, reservations that are not listed are released.
        """
        body = {"reservations": reservations, "prune": prune, "dry_run": dry_run}
        return _list(self._ask("POST", "/v1/apply", body))

    def undo(self) -> Rows:
        """Undo your last `apply` or `change`, and return the changes."""
        return _list(self._ask("POST", "/v1/undo"))

    def find(self, text: str | None = None) -> Rows:
        """Return the VMs on the host, or those whose name or binding contains a text."""
        query = f"?{urlencode({'text': text})}" if text else ""
        return _list(self._ask("GET", f"/v1/machines{query}"))

    def room(self, period: str = "10ms") -> Json:
        """Return the largest slice that each CPU can still admit with this period."""
        return _dict(self._ask("GET", f"/v1/room?{urlencode({'period': period})}"))

    def log(self, name: str | None = None, *, limit: int = 100) -> Rows:
        """Return the latest events of one or of all reservations, newest first."""
        query: dict[str, str | int] = {"limit": limit}
        if name is not None:
            query["name"] = name
        return _list(self._ask("GET", f"/v1/log?{urlencode(query)}"))

    def history(
        self, name: str, *, since: str | None = None, by: Literal["hour", "day"] | None = None
    ) -> Rows:
        """Return the CPU time that a reservation received, oldest first, by hour or day.

        `since` is a duration before now, such as "7d" (default: one day). `by` defaults to "hour".
        """
        given = {"since": since, "by": by}
        query = urlencode({key: value for key, value in given.items() if value is not None})
        return _list(self._ask("GET", f"/v1/history/{quote(name, safe='')}?{query}"))

    def why(self, name: str) -> Json:
        """Return what kept a VM from running in the last minute: each culprit with its time."""
        return _dict(self._ask("GET", f"/v1/why/{quote(name, safe='')}"))

    def incidents(self) -> Rows:
        """Return the recordings of missed deadlines that the daemon saved, newest first."""
        return _list(self._ask("GET", "/v1/incidents"))

    def incident(self, number: int) -> Json:
        """Return what kept the VM of an incident from running."""
        return _dict(self._ask("GET", f"/v1/incidents/{number}"))

    def predictions(self) -> Rows:
        """Return all predictions of applied plans, with the values measured afterwards."""
        return _list(self._ask("GET", "/v1/predictions"))

    def whatif(
        self,
        *,
        since: str = "10s",
        set: Mapping[str, Mapping[str, Any]] | None = None,
        remove: Sequence[str] | None = None,
        policy: str | None = None,
    ) -> Json:
        """Predict how the VMs would have run in the last seconds (`since`) with other parameters.

        >>> service.whatif(set={"web": {"slice": "3ms"}})
        """
        body: Json = {"since": since}
        if set:
            body["set"] = [{"name": name, **fields} for name, fields in set.items()]
        if remove:
            body["remove"] = [*remove]
        if policy is not None:
            body["policy"] = policy
        return _dict(self._ask("POST", "/v1/whatif", body))

    def watch(self, *, after: int | None = None) -> Iterator[Json]:
        """Yield each event once, when it happens. With `after`, begin after that event number.

        The iterator blocks until the next event. It ends when the daemon ends the stream. If the
        connection breaks, it raises ServiceError. If there are more than 5,000 old events, the
        daemon leaves out the oldest. The iterator then warns with the number of the first event
        that it yields.
        """
        connection = self._connection(None)
        headers = dict(self._headers, Accept="text/event-stream")
        if after is not None:
            headers["Last-Event-ID"] = str(after)
        try:
            connection.request("GET", "/v1/events", headers=headers)
            answer = connection.getresponse()
            if answer.status != 200:
                _read(answer.status, answer.read())
            kind, data = "", []
            for line in answer:
                text = line.decode().rstrip("\r\n")
                if text.startswith("event:"):
                    kind = text[6:].strip()
                elif text.startswith("data:"):
                    data.append(text[5:].removeprefix(" "))
                elif not text:
                    event = json.loads("\n".join(data)) if data else None
                    if event is not None and kind in ("", "event"):
                        yield _dict(event)
                    elif event is not None and kind == "missed":
                        _warn_of_missed(_dict(event))
                    kind, data = "", []
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()

    def _one(
        self,
        method: str,
        name: str,
        body: object = None,
        *,
        part: str = "",
        if_revision: int | None = None,
    ) -> Json:
        path = f"/v1/reservations/{quote(name, safe='')}{part}"
        return _dict(self._ask(method, path, body, if_revision=if_revision))


def _read(status: int, body: bytes) -> Any:
    """Return the JSON of an answer. Raise ServiceError if the daemon refused the request."""
    try:
        answer = json.loads(body)
    except ValueError as error:
        raise ServiceError(f"the daemon's answer with status {status} is not JSON") from error
    if status < 300:
        return answer
    problem = answer if isinstance(answer, dict) else {}
    detail = problem.get("detail") or problem.get("title") or f"status {status}"
    refusal = ServiceError(str(detail))
    refusal.status = status
    refusal.kind = problem.get("type")
    refusal.hint = problem.get("hint")
    raise refusal


def _warn_of_missed(missed: Json) -> None:
    import warnings

    warnings.warn(
        f"the daemon left out the events before event {missed.get('before')}: there are too many",
        stacklevel=3,
    )


def _dict(answer: Any) -> Json:
    if not isinstance(answer, dict):
        raise ServiceError("the daemon's answer is not an object")
    return answer


def _list(answer: Any) -> Rows:
    if not isinstance(answer, list):
        raise ServiceError("the daemon's answer is not a list")
    return answer
