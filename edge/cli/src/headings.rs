//! Column headings of the tables of daemon commands, with their meanings.

/// Meanings of the columns, by table, for the help page.
pub(crate) const HEADINGS: &[(&str, &[(&str, &str)])] = &[
    (
        "list, watch",
        &[
            (NAME, "name of the reservation"),
            (STATE, "state of the reservation: `slackline help service` lists the states"),
            (SLICE, "CPU time of each vCPU per period; ! marks a hard limit"),
            (PERIOD, "length of a period; after @, the phase on the wall clock"),
            (ENFORCE, "mechanism; shown if in --columns, or if it is not always `dispatcher`"),
            (VCPUS, "number of vCPUs; 1/2 if two are reserved and only one is scheduled"),
            (PROMISED, "CPU reserved for all vCPUs together, in % of a CPU"),
            (OVER, "time span of `used`, `missed` and `efficiency`: 5 s, or less after a change"),
            (DELIVERED, "CPU time of all vCPUs in the time that `in last` states, in % of a CPU"),
            (MISSED, "deadlines missed in the time that `in last` states, in % of all deadlines"),
            (
                EFFICIENT,
                "CPU time used, in % of the CPU time reserved; time while the VM is blocked counts \
                 as reserved",
            ),
            (FOR, "VM of the reservation"),
            (UNTIL, "time at which the reservation ends by itself, in UTC; blank: never"),
            (REVISION, "event number of the reservation's last change, for --if-revision"),
            (COST, "cost since the reservation was made or, if later, since the daemon started"),
            (AN_HOUR, "cost of the reservation per hour"),
        ],
    ),
    (
        "find",
        &[
            (BINDING, "binding of the VM, for --for"),
            (KIND, "kind of VM"),
            (OWNER, "number of the user who owns the VM"),
            (PID, "process id of the VM; blank if the VM is not a single process"),
            (VCPUS, "number of vCPU threads; blank if the VM is scheduled as one vCPU"),
            (USES, "CPU that the VM uses now, in % of a CPU"),
            (RESERVED, "name of the VM's reservation"),
        ],
    ),
    (
        "room",
        &[
            (CPU, "number of a CPU that the daemon schedules"),
            (LARGEST, "largest slice that would be admitted now"),
            (SHARE, "largest slice, in % of the period"),
            (
                PROMISED,
                "capacity that is reserved, in % of the CPU; it includes dispatch overhead, which \
                 `list` does not count",
            ),
            (CAPACITY, "capacity that can be reserved in total, in % of the CPU"),
        ],
    ),
    (
        "log",
        &[
            (EVENT, "number of the event in the ledger"),
            (AT, "time of the event, in UTC"),
            (WHO, "user, remote client or service that caused the event"),
            (NAME, "name of the reservation"),
            (WHAT, "kind of event"),
            (AFTER, "parameters of the reservation after the event"),
        ],
    ),
    (
        "history",
        &[
            (FROM, "start of the hour or day, in UTC"),
            (EXISTED, "part of the hour or day in which the reservation existed"),
            (UNKNOWN, "time in which nothing was counted: no daemon ran, or host suspended"),
            (CONTESTED, "time in which the reservation was contested, so it was not enforced"),
            (RESERVED_TIME, "CPU time reserved for all vCPUs together, used or not"),
            (DUE, "CPU time reserved while the VM was present and not blocked"),
            (DELIVERED_TIME, "CPU time that the VM used, including slack"),
            (DELIVERED, "CPU time that the VM used, in % of the CPU time reserved"),
            (MISSED, "deadlines missed, in % of all deadlines"),
            (LATE, "sum of the tardiness of all missed deadlines"),
        ],
    ),
    (
        "apply",
        &[
            (NAME, "name of the reservation"),
            (ACTION, "create, change or release"),
            (BEFORE, "parameters and VM before the change"),
            (NOW, "parameters and VM after the change"),
        ],
    ),
    (
        "access",
        &[
            (WHO, "local user or remote client"),
            (KNOWN, "how the user or client is identified: socket, token or certificate"),
            (ROLE, "role, which replaces the role of the user's groups"),
            (MOST, "limit on the total CPU of the reservations, in % of a CPU; blank: none"),
            (MACHINES, "limit on the number of reservations; blank: none"),
            (USERS, "other users whose VMs the user or client may reserve for"),
            (UNTIL, "expiry of the role, in UTC; blank: never"),
        ],
    ),
];

pub(crate) const NAME: &str = "name";
pub(crate) const STATE: &str = "state";
pub(crate) const SLICE: &str = "slice";
pub(crate) const PERIOD: &str = "period";
pub(crate) const ENFORCE: &str = "enforce";
pub(crate) const VCPUS: &str = "vCPUs";
pub(crate) const PROMISED: &str = "promised %";
pub(crate) const OVER: &str = "in last";
pub(crate) const DELIVERED: &str = "used %";
pub(crate) const MISSED: &str = "missed %";
pub(crate) const EFFICIENT: &str = "efficiency %";
pub(crate) const FOR: &str = "for";
pub(crate) const REVISION: &str = "revision";
pub(crate) const BINDING: &str = "machine";
pub(crate) const KIND: &str = "kind";
pub(crate) const OWNER: &str = "owner";
pub(crate) const PID: &str = "process";
pub(crate) const USES: &str = "CPU %";
pub(crate) const RESERVED: &str = "reserved as";
pub(crate) const CPU: &str = "CPU";
pub(crate) const LARGEST: &str = "largest slice";
pub(crate) const SHARE: &str = "share %";
pub(crate) const CAPACITY: &str = "capacity %";
pub(crate) const EVENT: &str = "event";
pub(crate) const AT: &str = "at";
pub(crate) const WHO: &str = "who";
pub(crate) const WHAT: &str = "what";
pub(crate) const KNOWN: &str = "known by";
pub(crate) const COST: &str = "cost";
pub(crate) const AN_HOUR: &str = "an hour";
pub(crate) const ROLE: &str = "role";
pub(crate) const MOST: &str = "most %";
pub(crate) const MACHINES: &str = "machines";
pub(crate) const USERS: &str = "of users";
pub(crate) const UNTIL: &str = "until";
pub(crate) const AFTER: &str = "since then";
pub(crate) const ACTION: &str = "action";
pub(crate) const BEFORE: &str = "before";
pub(crate) const NOW: &str = "after";

pub(crate) const FROM: &str = "from";
pub(crate) const EXISTED: &str = "existed";
pub(crate) const UNKNOWN: &str = "unknown";
pub(crate) const CONTESTED: &str = "contested";
pub(crate) const RESERVED_TIME: &str = "reserved";
pub(crate) const DUE: &str = "due";
pub(crate) const DELIVERED_TIME: &str = "delivered";
pub(crate) const LATE: &str = "late";
