//! Answers of the daemon, formatted as tables.

use std::collections::BTreeMap;

use slackline_control::convert::is_unseen;
use slackline_control::{
    Access, AppliedChange, Cost, Delivery, Event, Host, Machine, Overload, Reservation, Room,
};
use slackline_terminal::{Cell, Plain, part_percent, percent};
use slackline_units::Span;

use super::view::Table;
use crate::date::date;
use crate::headings::*;

/// Text in place of an amount that is not known.
const NOTHING_YET: &str = "not known yet";
/// Text in place of the percentage of missed deadlines if no deadline passed.
const NO_DEADLINES: &str = "no deadline passed in the time that `in last` states";
/// Text in place of the percentage of missed deadlines if the kernel enforces the reservation.
const NOT_COUNTED: &str = "deadline misses are counted only if the dispatcher enforces";

/// Returns a table of reservations. The columns that few hosts need are in the table if a
/// reservation needs them, or if `has_all` is true.
pub(super) fn reservations(all: &[Reservation], has_all: bool) -> Table {
    let recent = |cell: fn(&Delivery) -> Cell| {
        move |one: &Reservation| one.recent.as_ref().map_or(Cell::Dash(NOTHING_YET), cell)
    };
    let groups = vec![
        vec![column(STATE, all, |one| text(one.state.word()))],
        vec![
            column(SLICE, all, |one| {
                text(format!("{}{}", one.slice.0, if one.exact { "!" } else { "" }))
            }),
            column(PERIOD, all, |one| match one.phase {
                Some(phase) => text(format!("{} @{}", one.period.0, phase.0)),
                None => text(one.period.0.to_string()),
            }),
            column(VCPUS, all, |one| match (one.served, one.vcpus) {
                (served, promised) if served == promised => text(promised.to_string()),
                (served, promised) => text(format!("{served}/{promised}")),
            }),
        ],
        vec![
            column(PROMISED, all, |one| text(percent(promised_ppm(one)))),
            column(
                OVER,
                all,
                recent(|it| text(format!("{}s", it.over_ns.div_ceil(1_000_000_000)))),
            ),
            column(DELIVERED, all, recent(|it| part(it.used_ns, it.over_ns))),
            column(MISSED, all, |one| match one.enforce.is_dispatcher() {
                true => recent(missed)(one),
                false => Cell::Dash(NOT_COUNTED),
            }),
            column(EFFICIENT, all, recent(|it| part(it.used_ns, it.promised_ns))),
        ],
        vec![
            column(FOR, all, |one| text(&one.binding)),
            column(UNTIL, all, |one| one.until_ns.map_or(Cell::Blank, |until| text(moment(until)))),
            column(REVISION, all, |one| text(one.revision.to_string())),
        ],
    ];
    let mut groups = groups;
    if has_all || all.iter().any(|one| !one.enforce.is_dispatcher() || one.chosen.is_some()) {
        groups[1].push(column(ENFORCE, all, |one| match one.chosen {
            Some(_) => text(format!("auto: {}", one.enforce.word())),
            None => text(one.enforce.word()),
        }));
    }
    if has_all || all.iter().any(|one| one.cost.is_some()) {
        let cost = |cell: fn(&Cost) -> String| {
            move |one: &Reservation| one.cost.as_ref().map_or(Cell::Blank, |cost| text(cell(cost)))
        };
        groups.push(vec![
            column(COST, all, cost(|cost| format!("{} {}", cost.total, cost.currency))),
            column(AN_HOUR, all, cost(|cost| format!("{} {}", cost.hour, cost.currency))),
        ]);
    }
    Table { names: column(NAME, all, |one| text(&one.name)), groups }
}

/// Returns one sentence for each reservation whose state has a reason, and one for each reason for
/// which `auto` chose a mechanism.
pub(super) fn reasons(all: &[Reservation]) -> String {
    let reason = |one: &Reservation| {
        let why = one.why.as_ref()?;
        Some(format!("{} is {}: {why}\n", one.name, one.state.word()))
    };
    all.iter().filter_map(reason).collect::<String>() + &choices(all)
}

/// Returns a sentence for each reason for which `auto` chose a mechanism. A sentence names at most
/// three of the reservations that have this reason.
fn choices(all: &[Reservation]) -> String {
    let mut names: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for one in all {
        if let Some(why) = &one.chosen {
            names.entry((one.enforce.word(), why)).or_default().push(&one.name);
        }
    }
    let line = |((by, why), names): ((&str, &str), Vec<&str>)| {
        let shown = names.iter().take(3).copied().collect::<Vec<&str>>().join(", ");
        match names.len().saturating_sub(3) {
            0 => format!("auto chose {by} for {shown}: {why}\n"),
            more => format!("auto chose {by} for {shown} and {more} more: {why}\n"),
        }
    };
    names.into_iter().map(line).collect()
}

/// Returns one line for each CPU that cannot deliver its reservations.
pub(super) fn overloads(host: &Host) -> String {
    let line = |cpu: &slackline_control::Cpu| {
        let Overload { reserved_ppm, overhead_ppm, limit_ppm } = cpu.overload?;
        let [reserved, overhead, limit] =
            [reserved_ppm, overhead_ppm, limit_ppm].map(|ppm| percent(ppm.into()));
        Some(format!(
            "CPU {} cannot deliver its reservations: {reserved} % is reserved, dispatch overhead \
             took {overhead} % in 10 s, and real-time threads can have at most {limit} %\n",
            cpu.cpu
        ))
    };
    host.cpus.iter().filter_map(line).collect()
}

/// Describes a reservation in one line.
pub(super) fn one(one: &Reservation) -> String {
    let each =
        if one.vcpus == 1 { String::new() } else { format!(" for each of {} vCPUs", one.vcpus) };
    let by_use = if one.by_use { ", plus CPU time that other vCPUs leave unused" } else { "" };
    let exact = if one.exact { ", and no more" } else { "" };
    let phase = one.phase.map(|phase| format!(", in phase {}", phase.0)).unwrap_or_default();
    let why = one.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
    let until = one.until_ns.map(|ns| format!(", until {} UTC", moment(ns))).unwrap_or_default();
    let by = match (&one.chosen, one.enforce.is_dispatcher()) {
        (Some(why), _) => format!(", by {} (auto: {why})", one.enforce.word()),
        (None, true) => String::new(),
        (None, false) => format!(", by {}", one.enforce.word()),
    };
    format!(
        "{name}: {slice} in every {period}{each}{by_use}{exact}{phase}, {percent} % of a CPU, for \
         {vm}{until}{by}; {state}, revision {revision}{why}\n",
        name = one.name,
        slice = one.slice.0,
        period = one.period.0,
        percent = percent(promised_ppm(one)),
        vm = one.binding,
        state = one.state.word(),
        revision = one.revision,
    )
}

pub(super) fn machines(all: &[Machine]) -> String {
    let groups = vec![
        vec![column(KIND, all, |one| text(&one.kind))],
        vec![
            column(OWNER, all, |one| text(one.uid.to_string())),
            column(PID, all, |one| match one.pid {
                0 => Cell::Blank,
                pid => text(pid.to_string()),
            }),
        ],
        vec![column(VCPUS, all, |one| match one.vcpus.len() {
            0 => Cell::Blank,
            some => text(some.to_string()),
        })],
        vec![column(USES, all, |one| {
            one.cpu_ppm.map_or(Cell::Blank, |ppm| text(percent(ppm.into())))
        })],
        vec![column(RESERVED, all, |one| one.reserved.as_ref().map_or(Cell::Blank, text))],
    ];
    let table = render(column(BINDING, all, |one| text(&one.binding)), groups);
    let why = |one: &Machine| Some(format!("{}: {}\n", one.binding, one.why.as_ref()?));
    table + &all.iter().filter_map(why).collect::<String>()
}

pub(super) fn room(period: Span, room: &Room, host: &Host) -> String {
    let all = &room.cpus;
    let of = |ppm: fn(&slackline_control::Cpu) -> u32| {
        move |one: &slackline_control::RoomOn| {
            let cpu = host.cpus.iter().find(|cpu| cpu.cpu == one.cpu);
            cpu.map_or(Cell::Dash(NOTHING_YET), |cpu| text(percent(ppm(cpu).into())))
        }
    };
    let groups = vec![
        vec![
            column(LARGEST, all, |one| text(one.slice.0.to_string())),
            column(SHARE, all, |one| part(one.slice_ns, room.period_ns)),
        ],
        vec![column(PROMISED, all, of(|cpu| cpu.promised_ppm))],
        vec![column(CAPACITY, all, of(|cpu| cpu.capacity_ppm))],
    ];
    let table = render(column(CPU, all, |one| text(one.cpu.to_string())), groups);
    format!(
        "With a period of {period}:\n{table}`{PROMISED}` includes dispatch overhead, which \
         `slackline list` does not count.\n"
    )
}

/// Returns a table of events in the order of their numbers. If `has_all` is true, the table also
/// has a line for each event number that was not used.
pub(super) fn events(all: &[Event], has_all: bool) -> Table {
    let mut rows: Vec<Row> = Vec::new();
    for event in all {
        let before = rows.last().map(Row::number);
        let skipped = before.filter(|_| has_all).map_or(0..0, |before| before + 1..event.seq);
        rows.extend(skipped.map(Row::Unused));
        rows.push(Row::Event(event));
    }
    let cell = |shown: fn(&Event) -> Cell| {
        move |row: &Row| match row {
            Row::Event(event) => shown(event),
            Row::Unused(_) => Cell::Blank,
        }
    };
    let groups = vec![
        vec![column(AT, &rows, cell(|one| text(moment(one.at_ns))))],
        vec![column(WHO, &rows, cell(|one| text(&one.principal)))],
        vec![column(
            NAME,
            &rows,
            cell(|one| match one.name.as_str() {
                "" => Cell::Blank,
                name => text(name),
            }),
        )],
        vec![column(WHAT, &rows, |row| match row {
            Row::Event(event) => text(&event.outcome),
            Row::Unused(_) => text(UNUSED),
        })],
        // The binding is left out: `list` shows it.
        vec![column(
            AFTER,
            &rows,
            cell(|one| {
                let terms = one.after.as_ref().and_then(|after| after.split(", ").next());
                terms.map_or(Cell::Blank, text)
            }),
        )],
    ];
    Table { names: column(EVENT, &rows, |row| text(row.number().to_string())), groups }
}

/// A line in the table of events.
enum Row<'a> {
    Event(&'a Event),
    /// Event number that was used up without an event.
    Unused(u64),
}

impl Row<'_> {
    fn number(&self) -> u64 {
        match self {
            Row::Event(event) => event.seq,
            Row::Unused(number) => *number,
        }
    }
}

/// Text for an event number without an event.
const UNUSED: &str = "no change (a repeated request, or a gang that did not begin)";

/// Returns a table of the changes that `apply` makes.
pub(super) fn changes(all: &[&AppliedChange]) -> String {
    let side = |side: &Option<String>| side.as_ref().map_or(Cell::Blank, text);
    let groups = vec![
        vec![column(ACTION, all, |one| text(&one.action))],
        vec![column(BEFORE, all, |one| side(&one.before))],
        vec![column(NOW, all, |one| side(&one.after))],
    ];
    render(column(NAME, all, |one| text(&one.name)), groups)
}

pub(super) fn access(all: &[Access]) -> String {
    let groups = vec![
        vec![column(KNOWN, all, |one| text(&one.by))],
        vec![column(ROLE, all, |one| text(one.role.word()))],
        vec![
            column(MOST, all, |one| {
                one.cpu_ppm.map_or(Cell::Blank, |ppm| text(percent(ppm.into())))
            }),
            column(MACHINES, all, |one| {
                one.machines.map_or(Cell::Blank, |most| text(most.to_string()))
            }),
        ],
        vec![column(USERS, all, |one| {
            let users: Vec<String> = one.users.iter().map(ToString::to_string).collect();
            text(users.join(","))
        })],
        vec![column(UNTIL, all, |one| {
            one.expires_ns.map_or(Cell::Blank, |until| text(moment(until)))
        })],
    ];
    render(column(WHO, all, |one| text(&one.principal)), groups)
}

/// Returns the text that reports the removal of a grant. For a local user the text adds that the
/// role of their groups remains.
pub(super) fn revoked(one: &Access) -> String {
    let removed = format!("the grant of {} is removed\n", one.principal);
    if one.by != "socket" {
        return removed;
    }
    let limit = if one.cpu_ppm.is_some() || one.machines.is_some() {
        ", now without the limits of the grant"
    } else {
        ""
    };
    format!("{removed}the user still has the role of their groups{limit}\n")
}

fn render(names: Plain, groups: Vec<Vec<Plain>>) -> String {
    Table { names, groups }.text()
}

pub(super) fn column<T>(heading: &'static str, rows: &[T], cell: impl FnMut(&T) -> Cell) -> Plain {
    Plain { heading, cells: rows.iter().map(cell).collect(), is_chosen: false }
}

/// Returns a table cell for a text that another user may have chosen. Control characters and
/// invisible characters are removed.
pub(super) fn text(text: impl AsRef<str>) -> Cell {
    let is_plain = |letter: char| !letter.is_control() && !is_unseen(letter);
    Cell::Text(text.as_ref().chars().filter(|&letter| is_plain(letter)).collect())
}

/// Returns a table cell with `part` in percent of `of`, or with a dash if `of` is zero.
pub(super) fn part(part: u64, of: u64) -> Cell {
    match of {
        0 => Cell::Dash(NOTHING_YET),
        of => text(part_percent(Span::from_ns(part), Span::from_ns(of))),
    }
}

fn missed(delivered: &Delivery) -> Cell {
    let Delivery { deadlines, missed, .. } = *delivered;
    if deadlines == 0 {
        return Cell::Dash(NO_DEADLINES);
    }
    let shown = part_percent(Span::from_ns(missed), Span::from_ns(deadlines));
    if missed == 0 { Cell::Met(shown) } else { Cell::Missed(shown) }
}

/// Returns the total reservation of all vCPUs, in millionths of a CPU.
fn promised_ppm(one: &Reservation) -> u64 {
    let ns = u128::from(one.slice_ns) * u128::from(one.vcpus) * 1_000_000;
    let ppm = (ns + u128::from(one.period_ns) / 2).checked_div(u128::from(one.period_ns));
    u64::try_from(ppm.unwrap_or(0)).unwrap_or(u64::MAX)
}

/// Formats a time in UTC, such as `2007-09-30 12:00:59`.
pub(super) fn moment(ns: u64) -> String {
    let seconds = ns / 1_000_000_000;
    let (day, rest) = (seconds / 86_400, seconds % 86_400);
    format!("{} {:02}:{:02}:{:02}", date(day), rest / 3600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_from_daemon_is_shown_without_escape_and_direction_characters() {
        let name = "\u{1b}[2Jweb\u{202e}gnp\u{200b}";
        assert_eq!(text(name), Cell::Text("[2Jwebgnp".into()));
        assert_eq!(crate::terminal::printable(name, &[]).matches('\u{fffd}').count(), 3);
    }

    fn cpu(cpu: u32, overload: Option<Overload>) -> slackline_control::Cpu {
        slackline_control::Cpu {
            cpu,
            promised_ppm: 900_000,
            capacity_ppm: 900_000,
            reserved_ppm: 890_000,
            overhead_ppm: Some(61_000),
            overload,
        }
    }

    fn host(cpus: Vec<slackline_control::Cpu>) -> Host {
        Host {
            revision: 0,
            name: "a".into(),
            version: "1".into(),
            policy: "edf".into(),
            cpus,
            reserve_ppm: 100_000,
            reservations: 0,
            waiting: 0,
            clock: slackline_control::Clock { id: "a".into(), shows_ns: 0, error_ns: None },
        }
    }

    #[test]
    fn room_command_says_that_its_percentage_includes_dispatch_overhead() {
        let (period, slice) = (Span::from_ms(10), Span::ZERO);
        let on = slackline_control::RoomOn {
            cpu: 0,
            slice: slackline_control::Length(slice),
            slice_ns: slice.ns(),
        };
        let period_ns = period.ns();
        let room_of = Room { period: slackline_control::Length(period), period_ns, cpus: vec![on] };
        let text = room(period, &room_of, &host(vec![cpu(0, None)]));
        let says =
            "`promised %` includes dispatch overhead, which `slackline list` does not count.";
        assert!(text.contains("90.00") && text.trim_end().ends_with(says), "{text}");
    }

    #[test]
    fn list_command_reports_an_overloaded_cpu_below_its_table() {
        assert_eq!(overloads(&host(vec![cpu(0, None), cpu(1, None)])), "");
        let (reserved_ppm, overhead_ppm, limit_ppm) = (890_000, 61_000, 950_000);
        let overload = Some(Overload { reserved_ppm, overhead_ppm, limit_ppm });
        assert_eq!(
            overloads(&host(vec![cpu(0, None), cpu(1, overload)])),
            "CPU 1 cannot deliver its reservations: 89.00 % is reserved, dispatch overhead took \
             6.10 % in 10 s, and real-time threads can have at most 95.00 %\n"
        );
    }

    #[test]
    fn time_since_1970_is_shown_as_utc_date_and_time() {
        assert_eq!(moment(0), "1970-01-01 00:00:00");
        assert_eq!(moment(1_191_153_659_999_999_999), "2007-09-30 12:00:59");
    }

    #[test]
    fn control_characters_are_removed_from_table_cells() {
        assert_eq!(text("a\x1b[2Jb\u{9b}c"), Cell::Text("a[2Jbc".into()));
    }
}
