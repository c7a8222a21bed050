"""Gives mutated files to the program: `mutate.py PROGRAM COUNT [SEED]`, as root.

The current folder must be the root of the tree. Each of COUNT rounds changes one file at random: a
trace, a recording of another program, a scenario, the text that libvirt sends to the hook, or a
ledger. A command of the program then reads the file. It must end within five seconds with a
documented exit code, use at most 2 GiB of address space, and must not panic. If it rebuilds a
ledger, it must keep the damaged file. A file that fails is kept, and its path is printed.
"""

import os
import random
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter

EXIT_CODES = {0, 1, 2, 3, 4, 5}
SECONDS, BYTES = 5, 2 << 30
FIXTURES = ["edge/cli/tests/fixtures", "edge/import/tests/fixtures", "edge/workload/tests/fixtures"]
HOOK = """<domain type='kvm'><name>web</name><vcpu>2</vcpu><metadata>
<slackline:reservation xmlns:slackline='urn:slackline:1' slice='2ms' period='10ms' exact='yes'/>
</metadata></domain>"""
READ_TRACE = ["show", "show --table", "show --json", "show --list", "show --xenmon", "replay"]
READ_TRACE += ["show --list --json", "why a", "whatif --policy=credit", "diff ORIGINAL"]
IMPORTED = {
    "perf.data": "perf", "trace-cmd.txt": "trace-cmd", "tracefs.txt": "trace-cmd",
    "small-perf-script.txt": "trace-cmd", "azure.csv": "azure", "bitbrains.csv": "bitbrains",
    "planetlab.txt": "planetlab", "eva.txt": "eva", "rt-app.json": "rt-app", "simso.xml": "simso",
}


def mutated(data):
    """Returns the bytes after one to eight random changes."""
    data = bytearray(data)
    is_text = all(byte < 128 for byte in data)
    letters = b"\n\t \"'=.,:[]{}<>/-+_09aAzZ" if is_text else bytes(range(256))
    for _ in range(random.choice([1, 1, 2, 3, 8])):
        first = random.randrange(len(data) + 1)
        last = min(len(data), first + random.choice([1, 2, 8, 64, 1024]))
        part = data[first:last]
        change = random.randrange(8)
        if change == 0:
            data[first:last] = bytes(random.choices(letters, k=len(part)))
        elif change == 1:
            del data[first:last]
        elif change == 2:
            data[first:first] = part * random.choice([1, 2, 50])
        elif change == 3:
            del data[first:]
        elif change == 4 and part:
            data[first] ^= 1 << random.randrange(7 if is_text else 8)
        elif change == 5 and part:
            data[first] = random.choice([letters[0], letters[-1], 0x7F, random.choice(letters)])
        elif change == 6:
            numbers = list(re.finditer(rb"\d+", data))
            if numbers:
                number = random.choice(numbers)
                new = random.choice([b"0", b"-1", b"99999999999999999999", b"1e308", b"4294967296"])
                data[number.start() : number.end()] = new
        else:
            to = random.randrange(len(data) + 1)
            data[to:to] = part
    return bytes(data)


def sources(program, folder):
    """Returns the files that are changed, each with the commands that read it."""
    saved = f"{folder}/saved"
    words = ["sim", "scenarios/two-hogs.toml", "--length", "200ms", "--save", saved]
    subprocess.run([program, *words], check=True, stdout=subprocess.DEVNULL)
    found = [(saved, READ_TRACE)]
    for name in ("trace-version-4", "trace-version-5"):
        found.append((f"{FIXTURES[0]}/{name}", READ_TRACE))
    for name, kind in IMPORTED.items():
        place = next(f"{each}/{name}" for each in FIXTURES if os.path.exists(f"{each}/{name}"))
        out = "out.toml" if place.startswith(FIXTURES[2]) else "out"
        found.append((place, [f"import {kind} FILE {folder}/{out}"]))
    for name in ("mixed", "web-server", "balancers", "parallel", "two-hogs"):
        found.append((f"scenarios/{name}.toml", ["check", "sim --length=5s"]))
    hook = f"{folder}/hook"
    with open(hook, "w") as file:
        file.write(HOOK)
    found.append((hook, ["hook libvirt web start begin"]))
    return found


def run(program, words, stdin=None):
    """Runs a command. Returns its exit code, its standard error and the seconds that it took."""
    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
        os.nice(19)

    began = time.monotonic()
    try:
        done = subprocess.run(
            [program, *words], stdin=stdin or subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, preexec_fn=limit, timeout=SECONDS * 4, check=False,
        )
        return done.returncode, done.stderr.decode(errors="replace"), time.monotonic() - began
    except subprocess.TimeoutExpired:
        return "no end", "", time.monotonic() - began


def is_wrong(code, text, took):
    return code not in EXIT_CODES or took > SECONDS or "panicked" in text


def read_file(program, folder, source, command):
    """Changes a file and lets a command read it. Returns the result and the file."""
    path = f"{folder}/changed"
    with open(source, "rb") as file, open(path, "wb") as changed:
        changed.write(mutated(file.read()))
    words = command.split()
    if words[0] == "hook":
        with open(path, "rb") as text:
            return run(program, [*words, "--socket", f"{folder}/none"], text), path
    if "FILE" in words:
        words[words.index("FILE")] = path
    elif "ORIGINAL" in words:
        words = ["diff", source, path]
    else:
        words.append(path)
    return run(program, words), path


def make_ledger(program, folder):
    """Returns the path of the ledger that a daemon with fifty reservations wrote."""
    state, at = f"{folder}/state", ["--socket", f"{folder}/socket"]
    words = ["serve", "--cpus", str(os.cpu_count() - 1), "--state", state, *at]
    with open(f"{folder}/out", "w") as out:
        daemon = subprocess.Popen([program, *words], stdout=out, stderr=out)
    try:
        while not os.path.exists(at[1]):
            assert daemon.poll() is None, open(f"{folder}/out").read()
            time.sleep(0.05)
        for number in range(50):
            words = ["reserve", f"vm{number}", "--slice", "50us", "--period", "10ms", *at]
            words += ["--vcpus", "1", "--for", f"qemu:none-{number}"]
            subprocess.run([program, *words], check=True, stdout=subprocess.DEVNULL)
    finally:
        daemon.terminate()
        daemon.wait(30)
    return f"{state}/ledger.db"


def read_ledger(program, folder, ledger):
    """Changes a ledger, examines it and rebuilds it."""
    place = f"{folder}/ledger"
    shutil.rmtree(place, ignore_errors=True)
    os.mkdir(place, 0o700)
    path = f"{place}/ledger.db"
    with open(ledger, "rb") as file:
        damaged = mutated(file.read())
    with open(path, "wb") as changed:
        changed.write(damaged)
    os.chmod(path, 0o600)
    result = run(program, ["doctor", "--ledger", place])
    if is_wrong(*result):
        return result, path
    result = run(program, ["doctor", "--ledger", place, "--rebuild"])
    files = [f"{at}/{name}" for at, _, names in os.walk(place) for name in names]
    if damaged not in [open(each, "rb").read() for each in files]:
        return ("the damaged file is lost", result[1], result[2]), path
    return result, path


def main(program, count, seed, folder):
    random.seed(seed)
    print(f"seed {seed}", flush=True)
    ledger = make_ledger(program, folder)
    files = sources(program, folder)
    codes, slowest, wrong = Counter(), 0.0, 0
    for number in range(count):
        if number % 5 == 0:
            name, (result, path) = "ledger", read_ledger(program, folder, ledger)
        else:
            source, commands = random.choice(files)
            name = random.choice(commands)
            result, path = read_file(program, folder, source, name)
        codes[result[0]] += 1
        slowest = max(slowest, result[2])
        if is_wrong(*result):
            wrong += 1
            kept = tempfile.mkstemp(prefix="slackline-mutated-")[1]
            shutil.copy(path, kept)
            code, text, took = result
            print(f"{name}: {code} after {took:.1f} s, {kept}: {text[-400:]}", flush=True)
    by_code = ", ".join(f"{code}: {times}" for code, times in sorted(codes.items(), key=str))
    print(f"{count} files, {wrong} wrong; exit codes {by_code}; slowest {slowest:.2f} s")
    return wrong == 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="slackline-mutate-") as FOLDER:
        PROGRAM = os.path.abspath(sys.argv[1])
        SEED = int(sys.argv[3]) if len(sys.argv) > 3 else time.time_ns()
        sys.exit(0 if main(PROGRAM, int(sys.argv[2]), SEED, FOLDER) else 1)
