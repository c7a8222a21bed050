//! Keys of all tables of a scenario, with their help texts. The reader and the help pages use this
//! list, so every key has a help text. `[host]` and devices have help pages of their own.

/// A key with its help text for users: content, unit and default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Name of the key in TOML.
    pub name: &'static str,
    /// Help text of the key, in a few words.
    pub says: &'static str,
}

/// A table of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyTable {
    /// Heading of the table, such as `[[domain]]`, or the name of a kind of work.
    pub heading: &'static str,
    /// Purpose of the table, as a sentence.
    pub says: &'static str,
    /// Keys of the table.
    pub keys: &'static [Key],
}

const fn key(name: &'static str, says: &'static str) -> Key {
    Key { name, says }
}

/// Tables of a scenario, in the order in which users write them. `[host]` and devices are not
/// included.
pub const TABLES: &[&KeyTable] =
    &[&SCENARIO, &DOMAIN, &LIVE, &RELAY, &VCPU, &TASK, &TELLS, &INTERFERENCE, &CHANGE, &CLAIM];

/// Kinds of work, each as a table with its keys.
pub const WORK: &[&KeyTable] = &[
    &SPIN,
    &PERIODIC,
    &INTERACTIVE,
    &BATCH,
    &REPLAY,
    &JOBS,
    &YIELD,
    &CLOCK,
    &BSP,
    &SPINLOCK,
    &WEB_SERVER,
    &ECHO,
    &DISK_READ,
    &SEND,
    &SINK,
    &COMPILE,
];

pub(crate) const SCENARIO: KeyTable = KeyTable {
    heading: "the file",
    says: "Keys of the file, which stand before all tables, and names of the tables.",
    keys: &[
        key("title", "one line about the scenario; required"),
        key("length", "duration of a run, warm-up included; required"),
        key("warmup", "time at the start of the run that metrics leave out; default 0s"),
        key("seed", "seed of all random numbers, a whole number; default 1"),
        key("policy", "scheduler and its parameters: { name = \"edf\", ... }; required"),
        key("policies", "parameters of other policies, for `compare`: [policies.credit]"),
        key("host", "simulated host: `slackline help host`"),
        key("driver", "VM that drives devices for the other VMs: `slackline help driver`"),
        key("nic", "network card: `slackline help driver`"),
        key("disk", "disk: `slackline help driver`"),
        key("domain", "[[domain]], one for each VM or group of processes; at least one"),
        key("client", "[[client]], one for each client on the network: `slackline help driver`"),
        key("interference", "[[interference]], one for each simulated CPU that other programs use"),
        key("change", "[[change]], one for each change during the run"),
        key("claim", "[[claim]], one for each condition that must hold"),
    ],
};

pub(crate) const DOMAIN: KeyTable = KeyTable {
    heading: "[[domain]]",
    says: "A VM, or a group of processes.",
    keys: &[
        key(
            "name",
            "name of the domain: letters, digits, `-`, `_`, and dots inside the name; at most 64 \
             bytes; required",
        ),
        key("vcpus", "number of vCPUs; default 1"),
        key(
            "work",
            "what each vCPU does: `slackline help work`; required without `live` or `task`",
        ),
        key(
            "share",
            "share.POLICY = { ... }, share of the domain under that policy: `slackline help \
             POLICY`",
        ),
        key("cpus", "CPUs on which the domain may run, as in [0, 1]; default all"),
        key("vcpu", "[[domain.vcpu]], keys of one vCPU that override the domain's"),
        key("kernel", "costs of the guest's operating system: `slackline help driver`"),
        key("task", "[[domain.task]], tasks under a scheduler of the guest"),
        key(
            "dispatch",
            "CPU time that a vCPU loses when it runs after another vCPU or after idle time; \
             default 0s; simulated only",
        ),
        key("cache", "CPU time that a vCPU needs to refill its cache; default 0s; simulated only"),
        key(
            "stop_lateness",
            "random time from the end of a vCPU's timeslice until the vCPU stops; default \
             `timer_lateness` of the host; simulated only",
        ),
        key(
            "wake_pass",
            "random CPU time that the scheduler needs when a vCPU of the domain wakes; default \
             `wake_pass` of the host; simulated only",
        ),
        key("live", "process of the domain in a live run; default a process that does `work`"),
        key("joins", "when the domain joins, from the start of the run; default 0s"),
        key("leaves", "when the domain leaves, from the start of the run; default never"),
        key("copies", "number of equal domains to make: NAME-0, NAME-1, ..."),
        key(
            "tells",
            "true if the guest reports its tasks to a policy such as `gaps`. On the driver domain: \
             true if that domain reports for which VM I/O is pending. With { ... } the guest also \
             reports a task that does not exist. Default false",
        ),
        key("starts_on", "CPU of the domain's vCPUs when they join; default the policy's choice"),
        key(
            "wakes",
            "time at which the domain wakes and begins its work. Until then the domain is blocked. \
             Default the time at which the domain joins",
        ),
    ],
};

/// Keys of the live target of a domain.
pub const LIVE: KeyTable = KeyTable {
    heading: "live = { ... }",
    says: "Process that runs as the domain in a live run.",
    keys: &[
        key("command", "program to start and its arguments: [\"qemu-system-x86_64\", ...]"),
        key("pid", "process id of an existing process"),
        key("cgroup", "all processes of a cgroup of version 2: \"/machine/web\", or its folder"),
        key("unit", "all processes of a systemd unit: \"web.service\""),
        key(
            "threads",
            "\"process\" (the process and all its children, as one vCPU) or \"vcpus\" (each vCPU \
             thread of QEMU, Firecracker and others); default \"process\"",
        ),
        key(
            "agent",
            "Unix socket on which the guest reports its tasks to a policy such as `gaps`: \
             `slackline help agent`; default none",
        ),
        key(
            "relay",
            "sockets between the guest and its clients, to see when I/O is pending for the guest; \
             default none",
        ),
    ],
};

/// Keys of the connection between clients and a guest through the host.
pub const RELAY: KeyTable = KeyTable {
    heading: "relay = { ... }",
    says: "Forwards bytes between clients and a guest: `slackline help agent`.",
    keys: &[
        key("guest", "Unix socket of a port or network of the guest, created by QEMU"),
        key("outside", "Unix socket for clients, created by slackline; one client at a time"),
    ],
};

pub(crate) const VCPU: KeyTable = KeyTable {
    heading: "[[domain.vcpu]]",
    says: "Keys of one vCPU that override the keys of its domain.",
    keys: &[
        key("number", "number of the vCPU, from 0; required"),
        key("work", "work of the vCPU, instead of the domain's; of a kind without devices"),
        key("share", "share.POLICY = { ... }, share of the vCPU, instead of the domain's"),
        key("cpus", "CPUs on which the vCPU may run, instead of the domain's"),
        key("starts_on", "CPU of the vCPU when it joins, instead of the domain's"),
        key("wakes", "when the vCPU wakes and begins its work, instead of the domain's"),
    ],
};

pub(crate) const TASK: KeyTable = KeyTable {
    heading: "[[domain.task]]",
    says: "A task of a guest that schedules its own tasks.",
    keys: &[
        key("name", "name of the task; default none"),
        key("priority", "priority of the task, 0 to 255, higher runs first; default 100"),
        key("work", "work of the task: `slackline help work`; required"),
    ],
};

pub(crate) const TELLS: KeyTable = KeyTable {
    heading: "tells = { ... }",
    says: "Makes the guest also report a task that does not exist. Use one of the two keys.",
    keys: &[
        key("runnable", "priority, 0 to 255, of a task that the guest reports as always runnable"),
        key(
            "blocked",
            "priority, 0 to 255, of a task that the guest reports as blocked and recently woken by \
             I/O",
        ),
    ],
};

pub(crate) const CHANGE: KeyTable = KeyTable {
    heading: "[[change]]",
    says: "A change during the run.",
    keys: &[
        key("at", "time of the change, from the start of the run; required"),
        key("domain", "name of the domain that changes, or one vCPU as `web.1`; required"),
        key("share", "new share.POLICY = { ... }, if it can be admitted"),
        key("cpus", "new CPUs on which the domain may run"),
        key("paused", "true pauses the domain, false resumes it"),
    ],
};

pub(crate) const INTERFERENCE: KeyTable = KeyTable {
    heading: "[[interference]]",
    says: "Programs with precedence over all vCPUs of a simulated CPU. Their CPU time counts for \
           no vCPU.",
    keys: &[
        key("cpu", "number of the CPU; required"),
        key("work", "CPU time of each job of the programs: [\"3ms\", \"2ms\"]"),
        key(
            "ready",
            "when each job is ready, from the start of the run; a job waits for the previous job",
        ),
        key(
            "file",
            "file of lines `ready_ns,work_ns` below a title line, instead of `work` and `ready`",
        ),
    ],
};

/// Keys of a claim.
pub const CLAIM: KeyTable = KeyTable {
    heading: "[[claim]]",
    says: "A condition that a run must meet. If a claim does not hold, the exit code is 1.",
    keys: &[
        key(
            "that",
            "METRIC of NAME, as in \"misses of web\" (`slackline help metrics`), or \"refused\": \
             admission must reject the domains; required",
        ),
        key(
            "is",
            "test of the metric: `slackline help claims`; required unless `that` is \"refused\"",
        ),
        key("on", "runs that are tested: \"sim\", \"live\" or \"both\"; default \"both\""),
    ],
};

/// Tests that a claim can make of a metric, with their meaning.
pub const TESTS: &[Key] = &[
    key("below X", "less than X"),
    key("above X", "more than X"),
    key("at most X", "X or less"),
    key("at least X", "X or more"),
    key("within P% of X", "differs from X by at most P percent of X"),
    key("within N points of X", "differs from the percentage X by at most N percentage points"),
];

pub(crate) const SPIN: KeyTable =
    KeyTable { heading: "spin", says: "Computes forever.", keys: &[KIND] };

const KIND: Key = key("kind", "name of this kind of work; required");
const EACH: Key = key("each", "CPU time for each request, read or block, can be random; required");

pub(crate) const PERIODIC: KeyTable = KeyTable {
    heading: "periodic",
    says: "Releases a piece of work in every period, even if the previous piece is not done.",
    keys: &[
        KIND,
        key("period", "time between releases; required"),
        key("work", "CPU time of each piece of work, can be random; required"),
        key("deadline", "time from a release until the work must be done; default the period"),
        key("offset", "time from joining to the first release; default 0s"),
        key(
            "gap",
            "time between releases in addition to the period, can be random, for sporadic \
             arrivals; default 0s",
        ),
        key(
            "jitter",
            "delay of each release, can be random. A delay does not shift later releases. Default \
             0s",
        ),
    ],
};

pub(crate) const INTERACTIVE: KeyTable = KeyTable {
    heading: "interactive",
    says: "Computes and sleeps in turn, over and over.",
    keys: &[
        KIND,
        key("compute", "CPU time before each sleep, can be random; required"),
        key("sleep", "duration of each sleep, can be random; required"),
    ],
};

pub(crate) const BATCH: KeyTable = KeyTable {
    heading: "batch",
    says: "Computes for an amount of CPU time or until a time of the run, then sleeps forever. \
           Needs `total` or `until`.",
    keys: &[
        KIND,
        key("total", "CPU time after which computing ends"),
        key("until", "time of the run at which computing ends, however much CPU time was used"),
    ],
};

pub(crate) const REPLAY: KeyTable = KeyTable {
    heading: "replay",
    says: "Runs and sleeps as recorded, over and over. Needs `list` or `file`.",
    keys: &[
        KIND,
        key("list", "durations to run and to sleep in turn: [\"3ms\", \"7ms\"]"),
        key(
            "file",
            "file of lines `run_ns,block_ns` of any size, as `slackline show TRACE --runs VCPU` \
             writes it",
        ),
    ],
};

pub(crate) const JOBS: KeyTable = KeyTable {
    heading: "jobs",
    says: "Does a list of jobs once, then sleeps forever, or repeats the list. Needs either \
           `file`, or `work` together with `ready` or `think`.",
    keys: &[
        KIND,
        key("work", "CPU time of each job: [\"3ms\", \"2ms\"]; the last may be \"forever\""),
        key("ready", "when each job is ready, from joining; a job waits for the previous job"),
        key("think", "time to sleep before each job, from the end of the previous job"),
        key(
            "file",
            "file of lines `ready_ns,work_ns` or `think_ns,work_ns`, below a title line, as \
             `slackline whatif --save-scenario` writes the file",
        ),
        key("repeat", "true to do the list over and over; needs `think` times. Default false"),
    ],
};

pub(crate) const YIELD: KeyTable = KeyTable {
    heading: "yield",
    says: "Computes and yields, over and over.",
    keys: &[KIND, key("compute", "CPU time before each yield, can be random; required")],
};

pub(crate) const CLOCK: KeyTable = KeyTable {
    heading: "clock",
    says: "Computes in a burst at each multiple of a period of the host's clock. Multiples that \
           pass during a burst are skipped. Needs `compute` or `until`.",
    keys: &[
        KIND,
        key("period", "time between two multiples on the host's clock; required"),
        key("compute", "CPU time of each burst, can be random"),
        key(
            "until",
            "time from the multiple of the period to the end of the burst, however much CPU time \
             was used",
        ),
        key("offset", "time from the multiple of the period to the start of the burst; default 0s"),
    ],
};

pub(crate) const BSP: KeyTable = KeyTable {
    heading: "bsp",
    says: "A node of a bulk-synchronous parallel program. A node computes, exchanges messages with \
           all other nodes and waits for them, over and over. Each vCPU is a node. All domains \
           that name the program belong to it. A program has at least two nodes. Each round is a \
           job. The nodes do not wait for a node that has left.",
    keys: &[
        KIND,
        key("program", "name of the program; required"),
        key("compute", "CPU time of a round before the exchange, can be random; required"),
        key("exchange", "CPU time of the exchange, can be random; default none"),
        key("latency", "time from the last node's message to the next round; default 50us"),
    ],
};

pub(crate) const SPINLOCK: KeyTable = KeyTable {
    heading: "spinlock",
    says: "A thread of a parallel kernel. It computes, takes the spin lock of its guest, \
           computes with the lock and releases it, over and over. Each vCPU is a thread, and all \
           vCPUs of the domain share one lock. The domain needs at least two vCPUs. A vCPU spins \
           until it gets the lock. The lock is handed out in the order of requests (a ticket \
           lock), even to a vCPU that does not run at that time. Each round is a job. Simulated \
           only.",
    keys: &[
        KIND,
        key("compute", "CPU time of a round without the lock, can be random; required"),
        key("hold", "CPU time of a round with the lock, can be random; required"),
    ],
};

pub(crate) const WEB_SERVER: KeyTable = KeyTable {
    heading: "web-server",
    says: "Answers HTTP requests. Needs [driver].",
    keys: &[
        KIND,
        EACH,
        key("response", "data in each answer, as \"10KiB\"; required"),
        key("connections", "maximum number of open connections; default 400"),
        key("processes", "maximum number of requests processed concurrently; default 1"),
        key("read", "data read from the disk for each request; default none"),
    ],
};

pub(crate) const ECHO: KeyTable = KeyTable {
    heading: "echo",
    says: "Answers pings, and answers each request with one byte. Needs [driver].",
    keys: &[
        KIND,
        EACH,
        key("after", "CPU time between an answer and the wait for the next request; default 0s"),
    ],
};

pub(crate) const DISK_READ: KeyTable = KeyTable {
    heading: "disk-read",
    says: "Reads from the disk block by block. Needs [driver].",
    keys: &[
        KIND,
        EACH,
        key("block", "size of a block, as \"128KiB\"; required"),
        key("readers", "number of concurrent reads; default 1"),
    ],
};

pub(crate) const SEND: KeyTable = KeyTable {
    heading: "send",
    says: "Sends a stream to the client that receives it. Needs [driver].",
    keys: &[KIND, EACH, key("block", "size of a block, as \"8KiB\"; required")],
};

pub(crate) const SINK: KeyTable =
    KeyTable { heading: "sink", says: "Receives streams. Needs [driver].", keys: &[KIND] };

pub(crate) const COMPILE: KeyTable = KeyTable {
    heading: "compile",
    says: "Computes between reads from a file server on the network. Needs [driver].",
    keys: &[
        KIND,
        key("jobs", "number of concurrent jobs; default 1"),
        EACH,
        key("read", "size of a read, as \"8KiB\"; required"),
        key("wait", "time until the server answers, can be random; default 0s"),
        key("total", "CPU time of all jobs together, after which the work ends; default no end"),
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_kind_has_a_help_entry() {
        let taught: Vec<&str> = WORK.iter().map(|kind| kind.heading).collect();
        assert_eq!(taught, crate::kinds::KINDS);
    }

    #[test]
    fn every_comparison_allowed_in_scenario_claims_has_a_help_entry() {
        for begins in crate::claim::PLAIN.map(|(begins, _)| begins).into_iter().chain(["within "]) {
            assert!(TESTS.iter().any(|test| test.name.starts_with(begins)), "{begins}");
        }
    }
}
