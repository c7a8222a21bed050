"""Checks the reports of a daemon for some seconds: `observe.py PROGRAM SECONDS`, as root.

Builds, tests, shell scripts, a QEMU guest (where QEMU is installed) and an adversary have
reservations with hard limits. Meanwhile they are pinned, stopped, frozen, moved, limited, and put
into other scheduling classes. The CPU times that the daemon reports are compared with the counts of
the kernel (`cpu.stat` of cgroups). Each comparison covers a window of some seconds, or all the time
since the last change of the reservation. A contradiction is reported with that change. This program
shares no code with Slackline.
"""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

PROGRAM, LENGTH = sys.argv[1], float(sys.argv[2])
SLICE, PERIOD = 0.008, 0.1
CPU = os.cpu_count() - 1
NOBODY = 65534
WINDOW = 5.0
# Time after a change until the daemon must have noticed and reported it, in seconds.
NOTICED = 3.0

FOREVER = "while :; do {}; done"
TARGETS = {
    "make": FOREVER.format("make -s -j3 -C make clean all"),
    "pytest": FOREVER.format(
        "python3 -m pytest -q -p no:cacheprovider test_it.py || python3 test_it.py"
    ),
    "cargo": FOREVER.format(
        "touch c/src/lib.rs; cargo build -q --offline --manifest-path c/Cargo.toml"
    ),
    "script": FOREVER.format(
        "/bin/true; i=0; while [ $i -lt 500 ]; do i=$((i + 1)); done; sleep 0.01"
    ),
    "busy": FOREVER.format(":"),
    "adversary": "exec setpriv --reuid 65534 --regid 65534 --clear-groups python3 adversary.py",
}

if shutil.which("qemu-system-x86_64"):
    # The boot sector of the guest jumps to itself for ever.
    TARGETS["qemu"] = (
        "exec qemu-system-x86_64 -name guest,debug-threads=on -accel tcg -m 32 -display none"
        " -drive file=guest,format=raw"
    )

ADVERSARY = """
import os, random, time
time.sleep(2)
while True:
    try:
        act = random.randrange(6)
        if act == 0: os.sched_setaffinity(0, {0})
        if act == 1: os.sched_setaffinity(0, range(os.cpu_count()))
        if act == 2: os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        if act == 3: os.nice(1)
        if act == 4:
            if os.fork() == 0:
                os.setsid()
                end = time.process_time() + 0.01
                while time.process_time() < end: pass
                os._exit(0)
            os.waitpid(-1, os.WNOHANG)
    except OSError: pass
    end = time.process_time() + 0.2
    while time.process_time() < end: pass
"""


def prepare():
    os.makedirs("make"), os.makedirs("c/src")
    with open("make/Makefile", "w") as file:
        file.write("all: $(addprefix o, 1 2 3 4 5 6 7 8)\no%:\n")
        file.write("\t@i=0; while [ $$i -lt 3000 ]; do i=$$((i + 1)); done; touch $@\n")
        file.write("clean:\n\t@rm -f o*\n")
    with open("test_it.py", "w") as file:
        file.write("def test_sum():\n    assert sum(i * i for i in range(200000)) > 0\ntest_sum()\n")
    with open("c/Cargo.toml", "w") as file:
        file.write('[package]\nname = "c"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n')
    with open("c/src/lib.rs", "w") as file:
        file.write("\n".join(f"pub fn f{n}(x: u64) -> u64 {{ x * {n} }}" for n in range(300)))
    with open("adversary.py", "w") as file:
        file.write(ADVERSARY)
    with open("guest", "wb") as file:
        file.write(b"\xeb\xfe".ljust(510, b"\0") + b"\x55\xaa")
    os.chmod("adversary.py", 0o644)


def ask(method, path, body=None):
    stream = socket.socket(socket.AF_UNIX)
    stream.connect("socket")
    stream.settimeout(20)
    body = json.dumps(body) if body else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    stream.sendall((head + body).encode())
    answer = b""
    while part := stream.recv(65536):
        answer += part
    return json.loads(answer.partition(b"\r\n\r\n")[2] or b"null")


def mount(kind, controller=""):
    for line in open("/proc/self/mountinfo"):
        fields, _, system = line.partition(" - ")
        if system.split()[0] == kind and controller in system.split()[-1].split(","):
            return fields.split()[4]
        if system.split()[0] == kind and not controller:
            return fields.split()[4]
    return None


UNIFIED, V1_CPUSET = mount("cgroup2"), mount("cgroup", "cpuset")


class Target:
    def __init__(self, name, script):
        self.name = name
        self.process = subprocess.Popen(
            ["sh", "-c", script], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.pid = self.process.pid
        body = {"slice": f"{int(SLICE * 1e6)}us", "period": f"{int(PERIOD * 1e3)}ms"}
        body |= {"exact": True, "for": f"pid:{self.pid}"}
        answer, end = {}, time.monotonic() + 30
        # The daemon refuses a guest whose vCPU threads have not started yet.
        while answer.get("name") != name:
            assert time.monotonic() < end, answer
            time.sleep(0.3)
            answer = ask("PUT", f"/v1/reservations/{name}", body)
        # Latest change of the reservation or of its processes, with the time of the change.
        self.last_change = ("reserve", time.monotonic())

    def note(self, change):
        """Records that a change has begun or was undone, or that the state has changed."""
        self.last_change = (change, time.monotonic())

    def group(self):
        """Returns the cgroup in which the daemon has put the target. None if there is none. The
        group of a process has the process id in its name, the group of a vCPU its thread id."""
        try:
            ids = os.listdir(f"/proc/{self.pid}/task")
        except OSError:
            return None
        for entry in os.listdir(UNIFIED):
            if entry.startswith("slackline-") and entry.split("-")[1] in ids:
                return os.path.join(UNIFIED, entry)
        return None

    def used(self):
        group = self.group()
        if not group:
            return None
        with open(group + "/cpu.stat") as file:
            return int(file.readline().split()[1]) / 1e6

    def tids(self):
        with open(self.group() + "/cgroup.threads") as file:
            return [int(line) for line in file]


def taskset(target):
    for tid in target.tids():
        try:
            os.sched_setaffinity(tid, {0})
        except OSError:
            pass


def chrt(target):
    for tid in target.tids():
        try:
            os.sched_setscheduler(tid, os.SCHED_BATCH, os.sched_param(0))
        except OSError:
            pass


class Stop:
    name, state, seconds = "stop", "contested", 8

    def do(self, target):
        os.kill(target.pid, signal.SIGSTOP)

    def undo(self, target):
        os.kill(target.pid, signal.SIGCONT)


class Freeze:
    """Freezes the cgroup that the daemon has made for the target. The daemon itself decides when it
    next freezes or thaws this cgroup."""

    name, state, seconds = "freeze", "active", 8

    def do(self, target):
        write(target.group() + "/cgroup.freeze", "1")

    def undo(self, target):
        write(target.group() + "/cgroup.freeze", "0")


class Own:
    """A change that the daemon attributes to the target itself, and undoes."""

    state, seconds = "active", 4

    def __init__(self, act):
        self.do, self.name = act, act.__name__

    def undo(self, _target):
        pass


class Pause:
    name, state, seconds = "pause", "paused", 6

    def do(self, target):
        ask("POST", f"/v1/reservations/{target.name}/pause")

    def undo(self, target):
        ask("POST", f"/v1/reservations/{target.name}/resume")


class Change:
    name, state, seconds = "change", "active", 6

    def do(self, target):
        ask("PATCH", f"/v1/reservations/{target.name}", {"slice": "4ms"})

    def undo(self, target):
        ask("PATCH", f"/v1/reservations/{target.name}", {"slice": f"{int(SLICE * 1e6)}us"})


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


class Sample:
    """CPU time of a target at one moment, as the kernel and as the daemon counted it."""

    def __init__(self, target, row, least, most):
        self.time = time.monotonic()
        # CPU time as the kernel counted it, before and after the request to the daemon.
        self.least, self.most = least, most
        self.used = row["total"]["used_ns"] / 1e9
        self.due = row["total"]["due_ns"] / 1e9
        self.missed = row["total"]["missed"]
        self.share = row["slice_ns"] / row["period_ns"]
        self.slice = row["slice_ns"] / 1e9
        self.state = row["state"]
        self.change = target.last_change


class Observer:
    def __init__(self, targets):
        self.targets = targets
        self.found = []
        self.checks = 0
        # First sample after the latest change, and first sample of the current window.
        self.first = {target.name: None for target in targets}
        self.windows = {target.name: None for target in targets}

    def say(self, target, text):
        change, at = target.last_change
        text += f", {time.monotonic() - at:.1f} s after `{change}`"
        self.found.append(f"{target.name}: {text}")
        print(f"CONTRADICTED {time.monotonic() - BEGAN:.1f} s {target.name}: {text}", flush=True)

    def look(self, target, is_free):
        """Compares the CPU time that the daemon reports with the kernel's count: over the current
        window, and since the latest change. If `is_free` is true, limits are not checked."""
        least = target.used()
        row = ask("GET", f"/v1/reservations/{target.name}")
        most = target.used()
        first, window = self.first[target.name], self.windows[target.name]
        if least is None or most is None or "total" not in row:
            self.first[target.name] = self.windows[target.name] = None
            return
        now = Sample(target, row, least, most)
        if first is None or first.change != now.change or first.share != now.share:
            self.first[target.name] = self.windows[target.name] = now
            return
        if first.state != now.state:
            target.note(f"{first.state} to {now.state}")
            self.first[target.name] = self.windows[target.name] = None
            return
        if now.time - window.time < WINDOW:
            return
        self.windows[target.name] = now
        self.checks += 1
        self.compare(target, window, now, is_free)
        if window is not first:
            self.compare(target, first, now, is_free)

    def compare(self, target, then, now, is_free):
        length = now.time - then.time
        # The daemon's count may be as old as its last reading of records, and the kernel's count
        # as old as its last tick.
        least, most = now.least - then.most, now.most - then.least
        told = now.used - then.used
        if not least - 0.12 <= told <= most + 0.12:
            counted = f"{least:.3f} to {most:.3f} counted in {length:.1f} s"
            self.say(target, f"used {told:.3f} s told, {counted}")
        if is_free or now.state != "active":
            return
        # Allowed excess: two slices, and an excess that is repaid within a second.
        limit = now.share * length
        if least > limit * 1.05 + 2 * now.slice + now.share:
            self.say(target, f"exact: {least:.3f} s counted, {limit:.3f} reserved in {length:.1f} s")
        due = now.due - then.due
        if now.missed == then.missed and most < due * 0.95 - 2 * now.slice - 0.02:
            self.say(target, f"{most:.3f} s counted, {due:.3f} due and no deadline missed")


def main():
    prepare()
    daemon = subprocess.Popen(
        [PROGRAM, "serve", "--cpus", str(CPU), "--state", "state", "--socket", "socket"],
        stdout=open("out", "w"),
        stderr=open("err", "w"),
    )
    while True:
        try:
            ask("GET", "/v1/host")
            break
        except OSError:
            time.sleep(0.1)
    targets = []
    try:
        for name, script in TARGETS.items():
            targets.append(Target(name, script))
        observe(Observer(targets))
    finally:
        for target in targets:
            for pid in target.tids() if target.group() else []:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            target.process.kill()
        daemon.terminate()
        daemon.wait(30)


def observe(observer):
    chance = random.Random(int(time.time()))
    actions = [Stop(), Own(taskset), Own(chrt), Freeze(), Pause(), Change()]
    done = {}
    current, target, since, next_action = None, None, 0, time.monotonic() + 8
    seen_state = settled = None
    while time.monotonic() - BEGAN < LENGTH:
        now = time.monotonic()
        if current is None and now > next_action:
            current, target = chance.choice(actions), chance.choice(observer.targets)
            if target.name == "adversary" and current.state != "paused":
                current = None
                next_action = now
                continue
            current.do(target)
            target.note(current.name)
            done[current.name] = done.get(current.name, 0) + 1
            since, seen_state, settled = now, None, None
        if current is not None:
            state = ask("GET", f"/v1/reservations/{target.name}").get("state")
            if settled is None and seen_state is None and state == current.state:
                seen_state = now - since
            if settled is None and now - since > current.seconds:
                if seen_state is None:
                    observer.say(target, f"{current.name}: {state} after {now - since:.1f} s")
                elif seen_state > NOTICED + 0.7:
                    observer.say(target, f"{current.name}: noticed after {seen_state:.1f} s")
                current.undo(target)
                target.note(f"undo {current.name}")
                settled = now
            if settled is not None and state in ("active", "partial") and now - settled > 0.5:
                current, next_action = None, now + chance.uniform(6, 12)
            elif settled is not None and now - settled > NOTICED + 2:
                observer.say(target, f"{current.name}: {state} {now - settled:.1f} s after its end")
                current, next_action = None, now + 6
        for each in observer.targets:
            is_changed = each is target and current is not None and current.name != "change"
            observer.look(each, is_changed or each.name == "adversary")
        time.sleep(0.5)
    print(
        f"{LENGTH:.0f} s, {observer.checks} windows of {WINDOW:.0f} s compared, {done} done: "
        f"{len(observer.found)} contradicted",
        flush=True,
    )
    sys.exit(1 if observer.found else 0)


BEGAN = time.monotonic()
if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="slackline-observe-") as folder:
        PROGRAM = os.path.abspath(PROGRAM)
        os.chdir(folder)
        os.chmod(folder, 0o755)
        main()
