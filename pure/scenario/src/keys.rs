//! Keys of all tables, with their meaning. The reader and the help pages use the same list, so that
//! no key lacks help. `[host]` and devices have pages of their own.

/// A key with its meaning for users: content, unit, default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Name of the key in TOML.
    pub name: &'static str,
    /// Meaning of the key, in a few words.
    pub says: &'static str,
}

/// A table of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyTable {
    /// Heading, such as `[[domain]]`, or the name of a kind of work.
    pub heading: &'static str,
    /// Purpose of the table, as a sentence.
    pub says: &'static str,
    /// Keys of the table.
    pub keys: &'static [Key],
}

const fn key(name: &'static str, says: &'static str) -> Key {
    Key { name, says }
}

/// Tables of a scenario, in the order in which users write them. `[host]` and devices have pages of
/// their own.
pub const TABLES: &[&KeyTable] =
    &[&SCENARIO, &DOMAIN, &LIVE, &RELAY, &VCPU, &TASK, &TELLS, &INTERFERENCE, &CHANGE, &CLAIM];

/// Kinds of work, each with its keys.
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
    says: "Keys before all tables, and the tables.",
    keys: &[
        key("title", "one line about the scenario; required"),
        key("length", "duration of a run, warm-up included; required"),
        key("warmup", "start of the run that is left out of the numbers; default 0s"),
        key("seed", "seed of all random draws, a whole number; default 1"),
        key("policy", "scheduler and its parameters: { name = \"edf\", ... }; required"),
        key("policies", "parameters of other policies, for `compare`: [policies.credit]"),
        key("host", "simulated host: `slackline help host`"),
        key("driver", "VM that drives devices for the others: `slackline help driver`"),
        key("nic", "network card: `slackline help driver`"),
        key("disk", "disk: `slackline help driver`"),
        key("domain", "[[domain]], one for each VM or group of processes; at least one"),
        key("client", "[[client]], one for each client on the network: `slackline help driver`"),
        key("interference", "[[interference]], one for each CPU that other programs take"),
        key("change", "[[change]], one for each change during the run"),
        key("claim", "[[claim]], one for each condition that must hold"),
    ],
};

pub(crate) const DOMAIN: KeyTable = KeyTable {
    heading: "[[domain]]",
    says: "A VM, or a group of processes.",
    keys: &[
        key("name", "letters, digits, `-`, `_` and inner dots, at most 64 bytes; required"),
        key("vcpus", "number of vCPUs; default 1"),
        key("work", "what each vCPU does: `slackline help work`; required without `live` or tasks"),
        key(
            "share",
            "share.POLICY = { ... }, its share under that policy: `slackline help POLICY`",
        ),
        key("cpus", "CPUs on which it may run, as in [0, 1]; default all"),
        key("vcpu", "[[domain.vcpu]], differences of one vCPU"),
        key("kernel", "costs of its operating system: `slackline help driver`"),
        key("task", "[[domain.task]], tasks under a scheduler of the guest"),
        key(
            "dispatch",
            "CPU time lost when one of its vCPUs runs after another vCPU or after idle; default \
             0s; simulated only",
        ),
        key(
            "cache",
            "CPU time to refill the cache of one of its vCPUs; default 0s; simulated only",
        ),
        key("live", "process that it is on a live host; default a process that does `work`"),
        key("joins", "when it joins, from the start of the run; default 0s"),
        key("leaves", "when it leaves; default never"),
        key("copies", "number of domains to make: NAME-0, NAME-1, ..."),
        key(
            "tells",
            "true if its guest reports its tasks (and the driver domain for which VM I/O is \
             pending), for policies that listen; { ... } to report a task that does not exist; \
             default false",
        ),
        key("starts_on", "CPU of its vCPUs when they join; default is the policy's choice"),
        key(
            "wakes",
            "when it wakes and its work begins, having joined blocked; default when it joins",
        ),
    ],
};

/// Live target of a domain.
pub const LIVE: KeyTable = KeyTable {
    heading: "live = { ... }",
    says: "Process to schedule on a live host.",
    keys: &[
        key("command", "program to start and its arguments: [\"qemu-system-x86_64\", ...]"),
        key("pid", "existing process, by its number"),
        key("cgroup", "all processes of a cgroup of version 2: \"/machine/web\", or its folder"),
        key("unit", "all processes of a systemd unit: \"web.service\""),
        key(
            "threads",
            "\"process\" (it and all its children, as one vCPU) or \"vcpus\" (each vCPU thread \
             of QEMU, Firecracker and others); default \"process\"",
        ),
        key(
            "agent",
            "Unix socket on which its guest reports its tasks, for a policy that listens (gaps): \
             `slackline help agent`; default none",
        ),
        key(
            "relay",
            "sockets between its guest and clients, to see what I/O is pending for it; default \
             none",
        ),
    ],
};

/// Connection between clients and a guest through the host.
pub const RELAY: KeyTable = KeyTable {
    heading: "relay = { ... }",
    says: "Forwards bytes between clients and a guest: `slackline help agent`.",
    keys: &[
        key("guest", "Unix socket of a port or network of the guest, made by QEMU"),
        key("outside", "Unix socket for clients, made by slackline; one client at a time"),
    ],
};

pub(crate) const VCPU: KeyTable = KeyTable {
    heading: "[[domain.vcpu]]",
    says: "Differences of one vCPU of a domain.",
    keys: &[
        key("number", "number of the vCPU, from 0; required"),
        key("work", "what it does, instead of the domain's; of a kind without devices"),
        key("share", "share.POLICY = { ... }, instead of the domain's"),
        key("cpus", "CPUs on which it may run, instead of the domain's"),
        key("starts_on", "CPU when it joins, instead of the domain's"),
        key("wakes", "when it wakes and its work begins, instead of the domain's"),
    ],
};

pub(crate) const TASK: KeyTable = KeyTable {
    heading: "[[domain.task]]",
    says: "A task of a guest that schedules its own tasks.",
    keys: &[
        key("name", "name of the task; default none"),
        key("priority", "0 to 255, higher runs first; default 100"),
        key("work", "what it does: `slackline help work`; required"),
    ],
};

pub(crate) const TELLS: KeyTable = KeyTable {
    heading: "tells = { ... }",
    says: "Reports a task that does not exist, beside the real ones; one of these keys.",
    keys: &[
        key("runnable", "its priority, 0 to 255: it is always runnable"),
        key("blocked", "its priority, 0 to 255: it is blocked, and I/O woke it lately"),
    ],
};

pub(crate) const CHANGE: KeyTable = KeyTable {
    heading: "[[change]]",
    says: "A change during the run.",
    keys: &[
        key("at", "when, from the start of the run; required"),
        key("domain", "the domain, or one of its vCPUs as `web.1`; required"),
        key("share", "new share.POLICY = { ... }, if it can be admitted"),
        key("cpus", "new CPUs on which it may run"),
        key("paused", "true stops it, false resumes it"),
    ],
};

pub(crate) const INTERFERENCE: KeyTable = KeyTable {
    heading: "[[interference]]",
    says: "Time that programs above all vCPUs take from a simulated CPU. It counts for no vCPU.",
    keys: &[
        key("cpu", "number of the CPU; required"),
        key("work", "CPU time of each job: [\"3ms\", \"2ms\"]"),
        key("ready", "when each job is ready, from the start of the run; jobs wait for each other"),
        key("file", "file of lines `ready_ns,work_ns` with that title, instead of the two"),
    ],
};

/// Keys of a claim.
pub const CLAIM: KeyTable = KeyTable {
    heading: "[[claim]]",
    says: "A condition that a run must meet. If one does not hold, the exit code is 1.",
    keys: &[
        key(
            "that",
            "METRIC of NAME, as in \"misses of web\" (`slackline help metrics`), or \"refused\": \
             admission must reject the domains; required",
        ),
        key("is", "test of the metric: `slackline help claims`; required except for \"refused\""),
        key("on", "where it is checked: \"sim\", \"live\" or \"both\"; default \"both\""),
    ],
};

/// Tests of a metric in a claim, with their meaning.
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

const KIND: Key = key("kind", "this word; required");
const EACH: Key = key("each", "CPU time for each request or block, may be drawn; required");

pub(crate) const PERIODIC: KeyTable = KeyTable {
    heading: "periodic",
    says: "Releases a piece of work in every period, even if the one before is not done.",
    keys: &[
        KIND,
        key("period", "time between releases; required"),
        key("work", "CPU time of each piece, may be drawn; required"),
        key("deadline", "time from a release until the piece must be done; default the period"),
        key("offset", "time from joining to the first release; default 0s"),
        key(
            "gap",
            "time between releases beyond the period, may be drawn: sporadic arrivals; default 0s",
        ),
        key("jitter", "delay of each release, may be drawn; later ones keep theirs; default 0s"),
    ],
};

pub(crate) const INTERACTIVE: KeyTable = KeyTable {
    heading: "interactive",
    says: "Computes and sleeps in turn, over and over.",
    keys: &[
        KIND,
        key("compute", "CPU time before each sleep, may be drawn; required"),
        key("sleep", "duration of each sleep, may be drawn; required"),
    ],
};

pub(crate) const BATCH: KeyTable = KeyTable {
    heading: "batch",
    says: "Uses an amount of CPU time, or all until an instant, then sleeps forever. Needs \
           `total` or `until`.",
    keys: &[
        KIND,
        key("total", "CPU time to use"),
        key("until", "time of the run at which it ends, however much it has used"),
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
            "file of lines `run_ns,block_ns`, as `slackline show TRACE --runs VCPU` writes them",
        ),
    ],
};

pub(crate) const JOBS: KeyTable = KeyTable {
    heading: "jobs",
    says: "Does a list of jobs once, then sleeps forever. Needs `work` with `ready` or `think`, or \
           `file`.",
    keys: &[
        KIND,
        key("work", "CPU time of each job: [\"3ms\", \"2ms\"]; the last may be \"forever\""),
        key("ready", "when each job is ready, from joining; a job waits for the one before"),
        key("think", "time to sleep before each job, from the end of the one before"),
        key(
            "file",
            "file of lines `ready_ns,work_ns` or `think_ns,work_ns` with that title, as \
             `slackline whatif --save-scenario` writes them",
        ),
    ],
};

pub(crate) const YIELD: KeyTable = KeyTable {
    heading: "yield",
    says: "Computes and yields, over and over.",
    keys: &[KIND, key("compute", "CPU time before each yield, may be drawn; required")],
};

pub(crate) const CLOCK: KeyTable = KeyTable {
    heading: "clock",
    says: "Computes in a burst at each multiple of a period of the host's clock. Multiples that \
           pass during a burst are skipped. Needs `compute` or `until`.",
    keys: &[
        KIND,
        key("period", "time between multiples; required"),
        key("compute", "CPU time of each burst, may be drawn"),
        key("until", "end of each burst, as a delay after a multiple, however much it has used"),
        key("offset", "delay of each burst after its multiple; default 0s"),
    ],
};

pub(crate) const BSP: KeyTable = KeyTable {
    heading: "bsp",
    says: "A node of a bulk-synchronous parallel program. It computes, exchanges messages with \
           all other nodes and waits for them, over and over. Each vCPU is a node. All domains \
           that name the program belong to it, with at least two nodes. Each round is a job. \
           Nodes that leave are no longer waited for.",
    keys: &[
        KIND,
        key("program", "name of the program; required"),
        key("compute", "CPU time of a round before the exchange, may be drawn; required"),
        key("exchange", "CPU time of the exchange, may be drawn; default none"),
        key("latency", "time from the last node's message to the next round; default 50us"),
    ],
};

pub(crate) const SPINLOCK: KeyTable = KeyTable {
    heading: "spinlock",
    says: "A thread of a parallel kernel. It computes, takes the spin lock of its guest, \
           computes with the lock and releases it, over and over. Each vCPU is a thread, and all \
           vCPUs of the domain share one lock, at least two. A vCPU spins until it gets the \
           lock. The lock is handed out in the order of requests (a ticket lock), even to a vCPU \
           that does not run just then. Each round is a job. Simulated only.",
    keys: &[
        KIND,
        key("compute", "CPU time of a round without the lock, may be drawn; required"),
        key("hold", "CPU time of a round with the lock, may be drawn; required"),
    ],
};

pub(crate) const WEB_SERVER: KeyTable = KeyTable {
    heading: "web-server",
    says: "Answers HTTP requests. Needs [driver].",
    keys: &[
        KIND,
        EACH,
        key("response", "data in each answer, as \"10KiB\"; required"),
        key("connections", "connections at once; default 400"),
        key("processes", "requests processed at once; default 1"),
        key("read", "data read from the disk for each request; default none"),
    ],
};

pub(crate) const ECHO: KeyTable = KeyTable {
    heading: "echo",
    says: "Answers pings, and requests with one byte. Needs [driver].",
    keys: &[
        KIND,
        EACH,
        key("after", "CPU time after an answer, before it waits again; default 0s"),
    ],
};

pub(crate) const DISK_READ: KeyTable = KeyTable {
    heading: "disk-read",
    says: "Reads from the disk block by block. Needs [driver].",
    keys: &[
        KIND,
        EACH,
        key("block", "size of a block, as \"128KiB\"; required"),
        key("readers", "reads at once; default 1"),
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
        key("jobs", "jobs at once; default 1"),
        EACH,
        key("read", "size of a read, as \"8KiB\"; required"),
        key("wait", "time until the server answers, may be drawn; default 0s"),
        key("total", "CPU time of all jobs together, then it ends; default never"),
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_work_has_help() {
        let taught: Vec<&str> = WORK.iter().map(|kind| kind.heading).collect();
        assert_eq!(taught, crate::kinds::KINDS);
    }

    #[test]
    fn every_test_of_a_claim_has_help() {
        for begins in crate::claim::PLAIN.map(|(begins, _)| begins).into_iter().chain(["within "]) {
            assert!(TESTS.iter().any(|test| test.name.starts_with(begins)), "{begins}");
        }
    }
}
