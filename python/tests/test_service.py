"""Tests of the client: against a stand-in that records requests, and against a real daemon."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import socketserver
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

import slackline

ROOT = Path(__file__).parent.parent.parent
PROGRAM = Path(os.environ.get("SLACKLINE_PROGRAM", ROOT / "target/debug/slackline"))

EVENTS = b"""event: event\ndata: {"id": 1,\ndata: "name": "web"}\n
: keep-alive\n
event: reservations\ndata: []\n
id: 2\nevent: event\ndata: {"id": 2, "name": "db"}\n\n"""


class StandIn(socketserver.ThreadingUnixStreamServer):
    """HTTP server on a Unix socket that answers each path with a prepared answer."""

    daemon_threads = True

    def __init__(self, path: str) -> None:
        super().__init__(path, Handler)
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []


class Handler(BaseHTTPRequestHandler):
    server: StandIn

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = json.loads(self.rfile.read(length)) if length else None
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.requests.append((self.command, self.path, headers, body))
        status, answer = self.server.answers[f"{self.command} {self.path}"]
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_PUT = do_PATCH = do_POST = do_DELETE = _answer  # noqa: N815

    def address_string(self) -> str:
        return "test"

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def stand_in() -> Iterator[StandIn]:
    # The path of a Unix socket must be short.
    with tempfile.TemporaryDirectory() as folder:
        server = StandIn(f"{folder}/socket")
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()
        server.server_close()


def service(server: StandIn) -> slackline.Service:
    return slackline.Service(str(server.server_address))


def test_reserve_sends_parameters_with_an_idempotency_key(stand_in: StandIn) -> None:
    stand_in.answers["PUT /v1/reservations/web"] = (201, b'{"name": "web", "revision": 3}')
    answer = service(stand_in).reserve(
        "web", slice="3ms", period="10ms", exact=True, binding="qemu:web"
    )
    assert answer["revision"] == 3
    [(_, _, headers, body)] = stand_in.requests
    assert body == {"slice": "3ms", "period": "10ms", "exact": True, "for": "qemu:web"}
    assert len(headers["idempotency-key"]) == 32
    assert headers["content-type"] == "application/json"


def test_change_request_contains_the_expected_revision(stand_in: StandIn) -> None:
    stand_in.answers["PATCH /v1/reservations/web"] = (200, b'{"name": "web"}')
    service(stand_in).change("web", slice="4ms", if_revision=3)
    [(_, _, headers, body)] = stand_in.requests
    assert (headers["if-match"], body) == ('"3"', {"slice": "4ms"})


def test_refusal_is_an_exception_with_kind_status_and_hint(stand_in: StandIn) -> None:
    problem = {
        "type": "no-room", "title": "no capacity", "status": 409,
        "detail": "cpu1 has 2ms of 10ms left, 3ms are asked for", "hint": "reserve 2ms",
    }
    stand_in.answers["PUT /v1/reservations/web"] = (409, json.dumps(problem).encode())
    with pytest.raises(slackline.ServiceError, match="cpu1 has 2ms of 10ms left") as raised:
        service(stand_in).reserve("web", slice="3ms")
    error = raised.value
    assert (error.kind, error.status, error.hint) == ("no-room", 409, "reserve 2ms")
    stand_in.answers["GET /v1/incidents"] = (502, b"<html>")
    with pytest.raises(slackline.ServiceError, match="status 502 is not JSON"):
        service(stand_in).incidents()


def test_list_returns_the_reservations_of_all_pages(stand_in: StandIn) -> None:
    first = [{"name": f"vm{number:03}"} for number in range(500)]
    stand_in.answers["GET /v1/reservations"] = (200, json.dumps(first).encode())
    stand_in.answers["GET /v1/reservations?after=vm499"] = (200, b'[{"name": "web"}]')
    assert len(service(stand_in).list()) == 501


def test_watch_yields_each_event_once(stand_in: StandIn) -> None:
    stand_in.answers["GET /v1/events"] = (200, EVENTS)
    events = list(service(stand_in).watch(after=0))
    assert events == [{"id": 1, "name": "web"}, {"id": 2, "name": "db"}]
    [(_, _, headers, _)] = stand_in.requests
    assert headers["last-event-id"] == "0"


def test_watch_of_a_broken_connection_raises_a_service_error() -> None:
    start = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    event = b'event: event\ndata: {"id": 1}\n\n'

    class Broken(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            # The end of the second chunk is missing, as if the daemon was killed.
            self.wfile.write(start + b"%x\r\n%s\r\n" % (len(event), event) + b"40\r\nevent: ev")

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/socket"
        with socketserver.UnixStreamServer(path, Broken) as server:
            threading.Thread(target=server.handle_request, daemon=True).start()
            events = slackline.Service(path).watch()
            assert next(events) == {"id": 1}
            with pytest.raises(slackline.ServiceError, match="no daemon answers at .*/socket"):
                next(events)


def test_watch_warns_if_the_daemon_left_out_events(stand_in: StandIn) -> None:
    missed = b'event: missed\ndata: {"before": 7}\n\nevent: event\ndata: {"id": 7}\n\n'
    stand_in.answers["GET /v1/events"] = (200, missed)
    with pytest.warns(UserWarning, match="left out the events before event 7"):
        assert list(service(stand_in).watch(after=1)) == [{"id": 7}]


def certificate(folder: Path, name: str) -> tuple[str, str]:
    """Make a certificate that is valid for `localhost` and signs itself. Return it and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    paths = (str(folder / f"{name}.pem"), str(folder / f"{name}-key.pem"))
    words = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost".split()
    words += ["-addext", "subjectAltName=DNS:localhost", "-out", paths[0], "-keyout", paths[1]]
    subprocess.run(words, check=True, capture_output=True)
    return paths


@contextmanager
def tls_server(paths: tuple[str, str], client_ca: str | None = None) -> Iterator[str]:
    """Serve `[]` over TLS, and yield the address. With `client_ca` clients need a certificate."""

    class Empty(BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # noqa: N802
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"[]")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Quiet(HTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            pass

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*paths)
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(client_ca)
    server = Quiet(("localhost", 0), Empty)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"https://localhost:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_daemon_with_a_certificate_of_another_ca_is_refused(tmp_path: Path) -> None:
    daemon, other = certificate(tmp_path, "daemon"), certificate(tmp_path, "other")
    with tls_server(daemon) as host:
        assert slackline.Service(host=host, ca=daemon[0]).list() == []
        for ca in (other[0], None):
            with pytest.raises(slackline.ServiceError, match="certificate verify failed"):
                slackline.Service(host=host, ca=ca).list()


def test_client_authenticates_with_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, client = certificate(tmp_path, "daemon"), certificate(tmp_path, "client")
    with tls_server(daemon, client_ca=client[0]) as host:
        # A token in the environment does not replace an explicit certificate.
        monkeypatch.setenv("SLACKLINE_TOKEN", "/no/token")
        service = slackline.Service(
            host=host, ca=daemon[0], client_certificate=client[0], client_key=client[1]
        )
        assert service.list() == []
        monkeypatch.delenv("SLACKLINE_TOKEN")
        with pytest.raises(slackline.ServiceError):
            slackline.Service(host=host, ca=daemon[0]).list()
        with pytest.raises(ValueError, match="needs `client_key`"):
            slackline.Service(host=host, client_certificate=client[0])
        monkeypatch.setenv("SLACKLINE_CERTIFICATE", client[0])
        monkeypatch.setenv("SLACKLINE_KEY", client[1])
        assert slackline.Service(host=host, ca=daemon[0]).list() == []


def test_error_about_a_missing_daemon_names_its_socket() -> None:
    with pytest.raises(slackline.ServiceError, match="no daemon answers at /no/socket") as raised:
        slackline.Service("/no/socket").list()
    assert raised.value.hint and "slackline serve" in raised.value.hint


def test_address_of_a_remote_daemon_must_be_https(monkeypatch: pytest.MonkeyPatch) -> None:
    for host in ("http://vm17:7443", "vm17:7443", "https://vm17/path"):
        with pytest.raises(ValueError, match="is not an address such as"):
            slackline.Service(host=host)
    monkeypatch.setenv("SLACKLINE_HOST", "nonsense")
    with pytest.raises(ValueError, match="nonsense"):
        slackline.Service()
    # An explicit socket overrides the environment.
    slackline.Service("/run/slackline/slackline.sock")


@contextmanager
def live_turn() -> Iterator[None]:
    """Wait until no other live test runs. Tests in Rust lock the same file, in `turn.rs`."""
    with Path(tempfile.gettempdir(), "slackline-live-tests.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[tuple[slackline.Service, subprocess.Popen[bytes]]]:
    """Start a daemon and a busy process. Skip the test if this is not possible here."""
    if os.geteuid() != 0 or not PROGRAM.exists():
        pytest.skip("needs root and a built program")
    with live_turn():
        yield from daemon_and_busy_process(tmp_path)


def daemon_and_busy_process(
    tmp_path: Path,
) -> Iterator[tuple[slackline.Service, subprocess.Popen[bytes]]]:
    folder = Path(tempfile.mkdtemp())
    socket = folder / "socket"
    cpu = max(os.sched_getaffinity(0))
    log = (tmp_path / "log").open("wb")
    words = [str(PROGRAM), "serve", "--cpus", str(cpu)]
    words += ["--state", str(folder / "state"), "--socket", str(socket)]
    serve = subprocess.Popen(words, stdout=log, stderr=log)
    busy = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    try:
        deadline = time.monotonic() + 20
        service = slackline.Service(str(socket))
        while True:
            assert serve.poll() is None, (tmp_path / "log").read_text()
            try:
                service.list()
                break
            except slackline.ServiceError:
                assert time.monotonic() < deadline, (tmp_path / "log").read_text()
                time.sleep(0.05)
        yield service, busy
    finally:
        busy.kill()
        busy.wait()
        serve.terminate()
        serve.wait(20)
        shutil.rmtree(folder)


def test_client_reserves_changes_and_releases_at_a_real_daemon(
    daemon: tuple[slackline.Service, subprocess.Popen[bytes]],
) -> None:
    service, busy = daemon
    made = service.reserve("web", slice="1ms", period="10ms", binding=f"pid:{busy.pid}")
    assert made["name"] == "web"
    changed = service.change("web", slice="2ms", if_revision=made["revision"])
    with pytest.raises(slackline.ServiceError) as raised:
        service.change("web", slice="3ms", if_revision=made["revision"])
    assert raised.value.kind == "stale"
    assert changed["slice"] == "2ms"
    assert [row["name"] for row in service.list()] == ["web"]
    assert service.room("10ms") and service.find() is not None
    with pytest.raises(slackline.ServiceError, match="40ms every 50ms .* does not fit") as raised:
        service.reserve("more", slice="40ms", period="50ms", vcpus=2, binding="qemu:none")
    assert raised.value.kind == "no-room"
    service.undo()
    assert service.show("web")["slice"] == "1ms"
    service.release("web")
    assert service.list() == []
    assert [event["name"] for event in service.log("web")] == ["web"] * len(service.log("web"))
    assert len(service.log("web")) >= 3
