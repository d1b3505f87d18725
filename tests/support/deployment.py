"""A SuperLink and SuperNodes of Flower as processes on loopback, with TLS and with keys of the nodes."""

import datetime
import ipaddress
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import zeno
from support.sockets import descendants

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent
HOST = "127.0.0.1"
CONNECTED = "SuperNode ID: "  # in the log of a SuperNode
PATIENCE = 300.0  # seconds until a process has to be ready; the machine may be busy


class Deployment:
    """The processes, by name, with their files in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._port = free_port()
        certificates(folder)
        (folder / "config.toml").write_text(
            '[superlink]\ndefault = "local"\n\n[superlink.local]\n'
            f'address = "{HOST}:{self._port}"\nroot-certificates = "{folder / "ca.pem"}"\n',
            encoding="utf-8",
        )

    def start_superlink(self) -> None:
        tls = ["--ssl-ca-certfile", "ca.pem", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
        safety = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        self._start("superlink", "flower-superlink", *tls, *safety, "--host", HOST, "--port", str(self._port))
        self.wait_for("superlink", "Uvicorn running on https")

    def register(self, name: str) -> str:
        """Makes the key of a node, and registers it at the SuperLink; returns the id of the node."""
        self.new_key(name)
        said = self.flwr("supernode", "register", f"{name}.pub", "local", "--format", "json")
        return str(json.loads(said[said.index("{") :])["node-id"])

    def new_key(self, name: str) -> None:
        """A key of a node, as `ssh-keygen -t ecdsa -b 384` makes it."""
        key = ec.generate_private_key(ec.SECP384R1())
        encoding, plain = serialization.Encoding.PEM, serialization.NoEncryption()
        private = key.private_bytes(encoding, serialization.PrivateFormat.OpenSSH, plain)
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        (self.folder / name).write_bytes(private)
        (self.folder / f"{name}.pub").write_bytes(public)

    def start_supernode(self, name: str, config: str) -> None:
        link = ["--superlink", f"{HOST}:{self._port}", "--root-certificates", "ca.pem"]
        own = ["--auth-supernode-private-key", name, "--host", HOST, "--port", str(free_port())]
        self._start(name, "flower-supernode", *link, *own, "--node-config", config)

    def start_again(self, name: str, config: str) -> None:
        """Starts a SuperNode that was killed until the SuperLink lets it in, which has to miss its heartbeat first."""
        before, end = self.log(name).count(CONNECTED), time.monotonic() + PATIENCE
        self.start_supernode(name, config)
        while self.log(name).count(CONNECTED) == before:
            assert time.monotonic() < end, self.log(name)
            if self.processes[name].poll() is not None:
                self.kill(name)
                self.start_supernode(name, config)
            time.sleep(2.0)

    def kill(self, name: str) -> None:
        """SIGKILL for the process, and for those that it started, as if its machine lost power."""
        _kill(descendants(self.processes[name].pid))
        self.processes[name].wait()

    def start_run(self, config: str) -> None:
        """`flwr run` of the example; its process ends with the run."""
        self._start(
            "run", "flwr", "run", str(ROOT / "examples" / "flower"), "local", "--stream", "--run-config", config
        )

    def wait_for_run(self, timeout: float) -> str:
        """Waits for the end of the run; returns its status, such as `finished:completed`."""
        self.processes["run"].wait(timeout)
        runs = json.loads(self.flwr("list", "local", "--format", "json"))["runs"]
        return str(runs[0]["status"])

    def flwr(self, *arguments: str) -> str:
        command = [str(BIN / "flwr"), *arguments]
        done = subprocess.run(
            command, cwd=self.folder, env=self._environment, capture_output=True, text=True, timeout=PATIENCE
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def wait_for(self, name: str, text: str, times: int = 1) -> None:
        """Waits until the log of a process has a text so many times."""
        end = time.monotonic() + PATIENCE
        while self.log(name).count(text) < times:
            assert time.monotonic() < end, f"{text!r} is not in the log of {name}:\n{self.log(name)}"
            assert self.processes[name].poll() is None, f"{name} has ended:\n{self.log(name)}"
            time.sleep(0.1)

    def pids(self) -> set[int]:
        """The processes that run, and those that they started."""
        return set().union(*(descendants(process.pid) for process in self.processes.values()))

    def stop(self) -> None:
        """SIGKILL for every process that was started, by its pid."""
        _kill(self.pids())
        for process in self.processes.values():
            process.wait()

    @property
    def _environment(self) -> dict[str, str]:
        own = {
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",  # Flower starts its own commands by name
            "PYTHONPATH": str(Path(zeno.__file__).parent.parent),
            "FLWR_HOME": str(self.folder),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "OMP_NUM_THREADS": "1",
        }
        return {**os.environ, **own}

    def _start(self, name: str, command: str, *arguments: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [BIN / command, *arguments],
                cwd=self.folder,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,  # so that its processes are found when it has ended
            )


@contextmanager
def deployment(folder: Path) -> Iterator[Deployment]:
    """A deployment without nodes; its processes are ended in any case."""
    made = Deployment(folder)
    try:
        made.start_superlink()
        yield made
    finally:
        made.stop()


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def certificates(folder: Path) -> None:
    """A certificate of the server for loopback, and the authority that signed it."""
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    addresses = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address(HOST))]
    ca, host = _name("authority of a test"), _name("localhost")
    is_ca = x509.BasicConstraints(ca=True, path_length=None)
    signed = _certificate(ca, ca, authority).add_extension(is_ca, critical=True).sign(authority, hashes.SHA256())
    names = x509.SubjectAlternativeName(addresses)
    own = _certificate(host, ca, server).add_extension(names, critical=False).sign(authority, hashes.SHA256())
    (folder / "ca.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(own.public_bytes(serialization.Encoding.PEM))
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "server.key").write_bytes(server.private_bytes(serialization.Encoding.PEM, form, plain))


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate(of: x509.Name, by: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
    made = x509.CertificateBuilder().subject_name(of).issuer_name(by).public_key(key.public_key())
    return made.serial_number(x509.random_serial_number()).not_valid_before(now - day).not_valid_after(now + day)
