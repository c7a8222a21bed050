//! Every key that a table may have, with what it means: what reads a table and what teaches it are
//! one list, so that no key is untaught. `[host]` and what has to do with devices have pages.

/// A key, and what it means for people: what it holds, its unit, its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// As it is written.
    pub name: &'static str,
    /// What it means.
    pub says: &'static str,
}

/// A table of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyTable {
    /// As it is written: `[[domain]]`; a kind of work by its name.
    pub heading: &'static str,
    /// What it is there for.
    pub says: &'static str,
    /// Its keys.
    pub keys: &'static [Key],
}

const fn key(name: &'static str, says: &'static str) -> Key {
    Key { name, says }
}

/// The tables of a scenario, in the order in which one writes them. `[host]` and what has to do
/// with devices have pages of their own.
pub const TABLES: &[&KeyTable] =
    &[&SCENARIO, &DOMAIN, &LIVE, &RELAY, &VCPU, &TASK, &TELLS, &CHANGE, &CLAIM];

/// The kinds of work, each with its keys.
pub const WORK: &[&KeyTable] = &[
    &SPIN,
    &PERIODIC,
    &INTERACTIVE,
    &BATCH,
    &REPLAY,
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
    says: "What stands before all tables, and the tables there are.",
    keys: &[
        key("title", "a line about it; must be said"),
        key("length", "how long a run lasts, warm-up included: a length of time; must be said"),
        key("warmup", "how much of its beginning is left out of the numbers; default 0s"),
        key("seed", "what all draws start from: a whole number; default 1"),
        key("policy", "who decides: { name = \"edf\", ... } with parameters; must be said"),
        key("policies", "parameters of other policies to compare with: [policies.credit]"),
        key("host", "the simulated machine: `slackline help host`"),
        key("driver", "the domain that drives devices for the others: `slackline help driver`"),
        key("nic", "the network card: `slackline help driver`"),
        key("disk", "the disk: `slackline help driver`"),
        key(
            "domain",
            "[[domain]], once for each virtual machine or group of processes; one at least",
        ),
        key("client", "[[client]], once for each who is outside: `slackline help driver`"),
        key("change", "[[change]], once for each change during the run"),
        key("claim", "[[claim]], once for each thing that should come of a run"),
    ],
};

pub(crate) const DOMAIN: KeyTable = KeyTable {
    heading: "[[domain]]",
    says: "One virtual machine, or one group of processes.",
    keys: &[
        key("name", "letters, digits, `-`, `_` and dots, 64 at most; must be said"),
        key("vcpus", "how many virtual CPUs it has; default 1"),
        key("work", "what each vCPU does: `slackline help work`; needed unless `live` says who"),
        key(
            "share",
            "share.POLICY = { ... }, what it is promised under that policy: \
                      `slackline help POLICY`",
        ),
        key("cpus", "the CPUs on which it may run, as in [0, 1]; default all"),
        key("vcpu", "[[domain.vcpu]], what differs for one vCPU"),
        key("kernel", "what its operating system costs: `slackline help driver`"),
        key("task", "[[domain.task]], several pieces of work under a scheduler of its own"),
        key(
            "dispatch",
            "what it costs to switch to one of its vCPUs from another's; default 0s; \
                         simulated only",
        ),
        key(
            "cache",
            "what it costs one of its vCPUs to fill the cache with all it keeps there; \
                      default 0s; simulated only",
        ),
        key("live", "whom to schedule on this machine; default a process that does `work`"),
        key("joins", "when it comes, from the start of the run; default 0s"),
        key("leaves", "when it goes; default never"),
        key("copies", "makes so many domains, NAME-0, NAME-1 ..."),
        key(
            "tells",
            "whether its guest tells what its tasks do, for policies that listen (of [driver]: \
                      what waits for whom), or { ... } what it tells that is not so; default false",
        ),
        key(
            "starts_on",
            "the CPU on which its vCPUs are when they join; default as the policy says",
        ),
        key(
            "wakes",
            "when it wakes: it joins asleep, and its work begins then; default as it joins",
        ),
    ],
};

/// Whom a domain is on this machine.
pub const LIVE: KeyTable = KeyTable {
    heading: "live = { ... }",
    says: "Whom to schedule on this machine.",
    keys: &[
        key("command", "a program to start and its arguments, as in [\"qemu-system-x86_64\", ...]"),
        key("pid", "a process that is there already, by its number"),
        key("cgroup", "all that runs in a cgroup of version 2: \"/machine/web\", or its folder"),
        key("unit", "all that runs in a systemd unit: \"web.service\""),
        key(
            "threads",
            "\"process\" (all of it, and whatever it starts, as one) or \"vcpus\" (the vCPU \
             threads of QEMU, Firecracker and others, each by itself); default \"process\"",
        ),
        key(
            "agent",
            "the Unix socket on which its guest tells of its tasks, for a policy that listens \
             (gaps): `slackline help agent`; default it tells nothing",
        ),
        key(
            "relay",
            "the way between its guest and others, by which it is known what waits for it; by \
             default nobody knows",
        ),
    ],
};

/// What goes through the host on its way to a guest.
pub const RELAY: KeyTable = KeyTable {
    heading: "relay = { ... }",
    says: "Bytes that go through the host on their way to a guest, and back: `help agent`.",
    keys: &[
        key("guest", "the Unix socket at which QEMU has a port or a network of its guest"),
        key("outside", "the one at which others find it: it is made, one at a time may be there"),
    ],
};

pub(crate) const VCPU: KeyTable = KeyTable {
    heading: "[[domain.vcpu]]",
    says: "What differs for one vCPU of a domain.",
    keys: &[
        key("number", "which, counted from 0; must be said"),
        key("share", "share.POLICY = { ... }, in place of the domain's"),
        key("cpus", "the CPUs on which it may run, in place of the domain's"),
        key("starts_on", "the CPU on which it is when it joins, in place of the domain's"),
        key(
            "wakes",
            "when it wakes: it joins asleep, and its work begins then, in place of the domain's",
        ),
    ],
};

pub(crate) const TASK: KeyTable = KeyTable {
    heading: "[[domain.task]]",
    says: "One task of a guest that schedules several of its own.",
    keys: &[
        key("name", "what it is called; default nothing"),
        key("priority", "0 to 255, higher runs first; default 100"),
        key("work", "what it does: `slackline help work`; must be said"),
    ],
};

pub(crate) const TELLS: KeyTable = KeyTable {
    heading: "tells = { ... }",
    says: "What a guest tells of a task that is not there, beside what is so; one of these.",
    keys: &[
        key("runnable", "that it wants the CPU at all times: its priority, 0 to 255"),
        key("blocked", "that it waits for I/O, as it did lately: its priority, 0 to 255"),
    ],
};

pub(crate) const CHANGE: KeyTable = KeyTable {
    heading: "[[change]]",
    says: "What is different from some time on.",
    keys: &[
        key("at", "when, from the start of the run; must be said"),
        key("domain", "whose: a domain, or one of its vCPUs as `web.1`; must be said"),
        key("share", "share.POLICY = { ... } from then on, if it can be admitted"),
        key("cpus", "the CPUs on which it may run from then on"),
        key("paused", "true holds it, whatever work it has; false lets it go on"),
    ],
};

/// What a claim says.
pub const CLAIM: KeyTable = KeyTable {
    heading: "[[claim]]",
    says: "What should come of a run; one that does not hold exits with 1.",
    keys: &[
        key(
            "that",
            "METRIC of NAME, as in \"misses of web\": `slackline help metrics`; or \
                     \"refused\", that the domains must not be admitted; must be said",
        ),
        key("is", "what it must be: `slackline help claims`; must be said, but of \"refused\""),
        key(
            "on",
            "\"sim\", \"live\" or \"both\": the machines on which it is checked; default \
                   \"both\"",
        ),
    ],
};

/// What a claim may say of a metric: how it is written, and what that means.
pub const TESTS: &[Key] = &[
    key("below X", "less than X"),
    key("above X", "more than X"),
    key("at most X", "X or less"),
    key("at least X", "X or more"),
    key("within P% of X", "no further from X than P percent of X"),
    key("within N points of X", "no further from the percentage X than N percentage points"),
];

pub(crate) const SPIN: KeyTable =
    KeyTable { heading: "spin", says: "Uses all the CPU time there is.", keys: &[KIND] };

const KIND: Key = key("kind", "this word; must be said");
const EACH: Key = key("each", "CPU time for each request or block: may be drawn; must be said");

pub(crate) const PERIODIC: KeyTable = KeyTable {
    heading: "periodic",
    says: "A piece of work is released in every period, whether the one before is done or not.",
    keys: &[
        KIND,
        key("period", "from one release to the next: a length of time; must be said"),
        key("work", "CPU time of each piece: may be drawn; must be said"),
        key("deadline", "how long after its release a piece must be done; default the period"),
        key("offset", "from joining to the first release; default 0s"),
    ],
};

pub(crate) const INTERACTIVE: KeyTable = KeyTable {
    heading: "interactive",
    says: "Computes and sleeps in turn.",
    keys: &[
        KIND,
        key("compute", "CPU time of each turn: may be drawn; must be said"),
        key("sleep", "how long it sleeps then: may be drawn; must be said"),
    ],
};

pub(crate) const BATCH: KeyTable = KeyTable {
    heading: "batch",
    says: "Uses so much CPU time, and then sleeps for ever.",
    keys: &[KIND, key("total", "how much: a length of time; must be said")],
};

pub(crate) const REPLAY: KeyTable = KeyTable {
    heading: "replay",
    says: "Runs and sleeps as was recorded, over and over. Needs `list` or `file`.",
    keys: &[
        KIND,
        key("list", "lengths of time to run and to sleep in turn: [\"3ms\", \"7ms\"]"),
        key("file", "lines `run_ns,block_ns`, as `slackline show TRACE --runs VCPU` writes them"),
    ],
};

pub(crate) const YIELD: KeyTable = KeyTable {
    heading: "yield",
    says: "Computes, and gives the rest of its turn away, over and over.",
    keys: &[KIND, key("compute", "CPU time before each yield: may be drawn; must be said")],
};

pub(crate) const CLOCK: KeyTable = KeyTable {
    heading: "clock",
    says: "A burst at each multiple of a period of the host's clock; those that pass meanwhile are \
           left out.",
    keys: &[
        KIND,
        key("period", "from one multiple to the next: a length of time; must be said"),
        key("compute", "CPU time of each burst: may be drawn; must be said"),
        key("offset", "how long after each multiple a burst begins; default 0s"),
    ],
};

pub(crate) const BSP: KeyTable = KeyTable {
    heading: "bsp",
    says: "A node of a bulk-synchronous parallel program: it computes, exchanges messages with the \
           other nodes, and waits for all of them, over and over. Each vCPU is a node; those of \
           all domains that name the program are one program, two at least. Each round is a \
           job. Who leaves is no longer waited for.",
    keys: &[
        KIND,
        key("program", "which program it is a node of: a name; must be said"),
        key("compute", "CPU time of a round before the exchange: may be drawn; must be said"),
        key("exchange", "CPU time that the exchange takes: may be drawn; default none"),
        key("latency", "from the last node's message to going on: a length of time; default 50us"),
    ],
};

pub(crate) const SPINLOCK: KeyTable = KeyTable {
    heading: "spinlock",
    says: "A thread of a parallel kernel: it computes, takes the spin lock of its guest, computes \
           while it holds it, and gives it back, over and over. Each vCPU is such a thread, and \
           all of the domain share one lock: two at least. Who finds it taken uses CPU time for \
           nothing until it is its turn; turns come in the order of asking (a ticket lock), also \
           to a vCPU that does not run just then. Each round is a job. Simulated only.",
    keys: &[
        KIND,
        key("compute", "CPU time of a round without the lock: may be drawn; must be said"),
        key("hold", "CPU time with it: may be drawn; must be said"),
    ],
};

pub(crate) const WEB_SERVER: KeyTable = KeyTable {
    heading: "web-server",
    says: "Answers requests of HTTP. Needs [driver].",
    keys: &[
        KIND,
        EACH,
        key("response", "data in each answer, as \"10KiB\"; must be said"),
        key("connections", "how many can wait; default 400"),
        key("processes", "how many requests are worked on at once; default 1"),
        key("read", "data read from the disk for each; default none"),
    ],
};

pub(crate) const ECHO: KeyTable = KeyTable {
    heading: "echo",
    says: "Answers pings, and requests with one byte. Needs [driver].",
    keys: &[
        KIND,
        EACH,
        key("after", "CPU time from an answer to waiting for what comes next; default 0s"),
    ],
};

pub(crate) const DISK_READ: KeyTable = KeyTable {
    heading: "disk-read",
    says: "Reads from the disk, a block after the other. Needs [driver].",
    keys: &[
        KIND,
        EACH,
        key("block", "how much at a time, as \"128KiB\"; must be said"),
        key("readers", "how many read at once; default 1"),
    ],
};

pub(crate) const SEND: KeyTable = KeyTable {
    heading: "send",
    says: "Sends a stream to the client outside that takes it. Needs [driver].",
    keys: &[KIND, EACH, key("block", "how much at a time, as \"8KiB\"; must be said")],
};

pub(crate) const SINK: KeyTable =
    KeyTable { heading: "sink", says: "Takes what streams bring. Needs [driver].", keys: &[KIND] };

pub(crate) const COMPILE: KeyTable = KeyTable {
    heading: "compile",
    says: "Computes in bursts between reads from a file server on the network. Needs [driver].",
    keys: &[
        KIND,
        key("jobs", "how many jobs at once; default 1"),
        EACH,
        key("read", "how much to read at a time, as \"8KiB\"; must be said"),
        key("wait", "how long the server takes to answer: may be drawn; default no time"),
        key("total", "after how much CPU time all is compiled; default never"),
    ],
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_work_is_taught() {
        let taught: Vec<&str> = WORK.iter().map(|kind| kind.heading).collect();
        assert_eq!(taught, crate::kinds::KINDS);
    }

    #[test]
    fn every_test_of_a_claim_is_taught() {
        for begins in crate::claim::PLAIN.map(|(begins, _)| begins).into_iter().chain(["within "]) {
            assert!(TESTS.iter().any(|test| test.name.starts_with(begins)), "{begins}");
        }
    }
}
