//! Tables of a run's summary: which values are shown, in which columns, and how they are rounded.

use slackline_metrics::{
    ClientSummary, CpuSummary, Distribution, ErrorDistribution, OverheadTimes, SharedCpu, Summary,
    TaskSummary, VcpuSummary,
};
use slackline_trace::OverheadKind;
use slackline_units::Span;

use crate::layout::{Cell, Column, Group, Sheet};
use crate::numbers::{Unit, count, fine_percent, megabits, part_percent, percent, signed_percent};
use crate::paint::Paint;

/// Reason for a dash in place of a reservation. The reason is printed in a footnote of the table.
const NO_PROMISE: &str = "nothing was reserved";
const SLEPT: &str = "blocked, so less CPU time than reserved is no error: see its deadlines";
const TOO_SHORT: &str = "no whole period or second of its reservation was measured";
const NO_DEADLINE: &str = "blocked before each of its deadlines";
const NO_WAKE: &str = "never woke after it joined";
const ONE: &str = "a single value has no quantiles";

/// Explanation of the plus after a reservation.
const LOWER_BOUND: &str = " +  work-conserving: only too little CPU time is an error\n";

/// Shared heading of the columns with the errors of whole seconds.
const SECONDS: &str = "error in 1 s, %";

/// Shared heading of the columns with dispatch overhead by kind.
const OVERHEAD: &str = "overhead, %";

/// Maximum width of a table that compares runs, in columns of text. The table is wider if a single
/// group of its columns is wider.
const SIDE_BY_SIDE_WIDTH: usize = 110;

/// Returns a run as tables of at most `width` columns of text, if that is possible.
#[must_use]
pub fn summary(run: &Summary, width: usize, paint: Paint) -> String {
    let names = Column::new("vCPU", &run.vcpus, |vcpu| Cell::Text(vcpu.name.clone()));
    let groups = vec![
        shares(&run.vcpus),
        running(run),
        overheads(&run.vcpus, |vcpu| (vcpu.overhead, vcpu.present)),
        deadlines(&run.vcpus),
        boosts(&run.vcpus),
        wakes(run),
        jobs(&run.vcpus, |vcpu| (vcpu.jobs, vcpu.jobs_late), |vcpu| vcpu.job_lateness),
        responses(&run.vcpus, |vcpu| vcpu.response),
        vec![Column::new("Mbit/s", &run.vcpus, data_rate)],
    ];
    let mut text = title_line(run);
    text.push('\n');
    text += &Sheet { names, groups }.render(width, paint);
    text += &legend(run);
    text.push('\n');
    text += &tasks(&run.tasks, width, paint);
    text += &clients(&run.clients, width, paint);
    let names = Column::new("CPU", &run.cpus, |cpu| Cell::Text(cpu.cpu.to_string()));
    let kinds = overheads(&run.cpus, |cpu| (cpu.overheads, run.length));
    text += &Sheet { names, groups: vec![cpu_columns(run), kinds] }.render(width, paint);
    text += &machine_lines(run);
    text
}

/// Returns the line that describes the run above the tables.
fn title_line(run: &Summary) -> String {
    let Summary { title, machine, policy, seed, length, .. } = run;
    format!("{title}: {policy}, {machine}, seed {seed}, {length} measured\n")
}

/// Returns columns with the number of run intervals, migrations and waiting of each vCPU.
fn running(run: &Summary) -> Group {
    let counts = |value: u64| match run.knows.stretches {
        true => Cell::Text(count(value)),
        false => Cell::Blank,
    };
    let seconds =
        |span: Option<Span>| span.map_or(Cell::Blank, |span| Cell::Text(Unit::SECONDS.write(span)));
    // A column of zeros is left out.
    let moves = run.vcpus.iter().any(|vcpu| vcpu.migrations > 0);
    let migrations = |vcpu: &VcpuSummary| {
        if moves { counts(vcpu.migrations) } else { Cell::Blank }
    };
    vec![
        Column::new("switches", &run.vcpus, |vcpu| counts(vcpu.switches)),
        Column::new("migrations", &run.vcpus, migrations),
        Column::new("waiting s", &run.vcpus, |vcpu| seconds(vcpu.waiting)),
    ]
}

/// Returns columns with the boosts of each vCPU. Empty if no vCPU was boosted.
fn boosts(rows: &[VcpuSummary]) -> Group {
    if rows.iter().all(|vcpu| vcpu.boosts == 0) {
        return Vec::new();
    }
    vec![
        Column::new("boosts", rows, |vcpu| Cell::Text(count(vcpu.boosts))),
        Column::new("false boosts", rows, |vcpu| Cell::Text(count(vcpu.false_boosts))),
        Column::new("boosted s", rows, |vcpu| Cell::Text(Unit::SECONDS.write(vcpu.boosted))),
    ]
}

/// Returns explanations of the signs in the tables, and of values that are missing because the host
/// could not observe them.
fn legend(run: &Summary) -> String {
    let mut text = String::new();
    if has_lower_bounds(run) {
        text += LOWER_BOUND;
    }
    if !run.knows.sleep {
        text += " Not shown, since this host does not see when vCPUs block: deadlines, misses, \
                 wake to run, waiting.\n";
    } else if !run.knows.stretches {
        text += " Not shown, since this host reads CPU time only from time to time: deadlines, \
                 misses, wake to run.\n";
    }
    text
}

/// Returns true if any reservation is work-conserving, so that its slice is only a minimum.
fn has_lower_bounds(run: &Summary) -> bool {
    run.vcpus.iter().any(|vcpu| vcpu.promised.is_some() && !vcpu.exact)
}

/// Returns columns with the use of each CPU.
fn cpu_columns(run: &Summary) -> Group {
    let part = |span: Span| Cell::Text(part_percent(span, run.length));
    let longest = run.cpus.iter().filter_map(|cpu| cpu.overhead).max().unwrap_or_default();
    let unit = Unit::of(longest);
    // Simulated overhead may be zero, and a column of zeros is left out.
    let is_free = longest.is_zero() && run.knows.overhead;
    let program = |cpu: &CpuSummary| match cpu.program.filter(|_| !is_free) {
        Some(program) => part(program),
        None => Cell::Blank,
    };
    let overhead = |cpu: &CpuSummary| match cpu.overhead.filter(|_| !is_free) {
        Some(span) => Cell::Text(unit.write(span)),
        None => Cell::Blank,
    };
    let counts = |value: u64| match run.knows.stretches {
        true => Cell::Text(count(value)),
        false => Cell::Blank,
    };
    // On a live host, other programs may have used the remaining time.
    let rest = if run.machine == "live" { "not ours %" } else { "idle %" };
    let shared = |cpu: &CpuSummary, part: fn(&SharedCpu) -> u64| {
        cpu.shared.as_ref().map_or(Cell::Blank, |of| Cell::Text(percent(part(of))))
    };
    // A column of zeros is left out.
    let is_stolen = run.cpus.iter().filter_map(|cpu| cpu.shared).any(|of| of.stolen_ppm > 0);
    let stolen = |cpu: &CpuSummary| match is_stolen {
        true => shared(cpu, |of| of.stolen_ppm),
        false => Cell::Blank,
    };
    vec![
        Column::new("busy %", &run.cpus, |cpu| part(cpu.busy)),
        Column::new("owed %", &run.cpus, |cpu| part(cpu.due)),
        Column::new("unclaimed %", &run.cpus, |cpu| part(cpu.spare)),
        Column::new(rest, &run.cpus, |cpu| part(cpu.idle)),
        Column::new("programs %", &run.cpus, program),
        Column::new("others %", &run.cpus, |cpu| shared(cpu, |of| of.others_ppm)),
        Column::new("stolen %", &run.cpus, stolen),
        Column::new("unused %", &run.cpus, |cpu| shared(cpu, |of| of.unused_ppm)),
        Column::new("switches", &run.cpus, |cpu| counts(cpu.switches)),
        Column::new(format!("overhead {}", unit.name), &run.cpus, overhead),
    ]
}

/// Returns a column for each kind of overhead that occurs in any row, in percent of the row's time.
fn overheads<T>(rows: &[T], of: impl Fn(&T) -> (Option<OverheadTimes>, Span)) -> Group {
    let column = |kind: OverheadKind| {
        let has = |row: &T| of(row).0.is_some_and(|times| !times.of(kind).is_zero());
        let is_there = rows.iter().any(has);
        let name = match kind {
            OverheadKind::Switch => "switch",
            OverheadKind::Migration => "migration",
            OverheadKind::Refill => "refill",
            OverheadKind::Tick => "tick",
            OverheadKind::Interrupt => "interrupt",
            OverheadKind::Balancing => "balancing",
        };
        let column = Column::new(name, rows, |row| match of(row) {
            (Some(times), length) if is_there => Cell::Text(part_percent(times.of(kind), length)),
            _ => Cell::Blank,
        });
        column.under(OVERHEAD)
    };
    OverheadKind::ALL.into_iter().map(column).collect()
}

/// Returns lines with values for the whole host.
fn machine_lines(run: &Summary) -> String {
    let mut text = String::new();
    let spread = |of: &Distribution| {
        let unit = Unit::of(of.worst);
        let (worst, n) = (unit.write(of.worst), count(of.count));
        match (of.p50, of.p99) {
            (Some(p50), Some(p99)) => {
                let [p50, p99] = [p50, p99].map(|span| unit.write(span));
                format!("p50 {p50}, p99 {p99}, worst {worst} {}, n {n}", unit.name)
            }
            _ => format!("{worst} {}, n {n}", unit.name),
        }
    };
    if let Some(lateness) = &run.timer_lateness {
        text += &format!(" timers expired late by {}\n", spread(lateness));
    }
    if let Some(delay) = &run.changes {
        text += &format!(" changes took effect after {}\n", spread(delay));
    }
    if run.declined > 0 {
        text += &format!(" changes that could not be admitted: {}\n", count(run.declined));
    }
    if run.refused > 0 {
        text += &format!(" scheduling decisions that the host refused: {}\n", count(run.refused));
    }
    text
}

/// Returns several runs side by side. The table has the reservation, and for each run the CPU time
/// delivered, deadline misses, wake-up latency and the number of wakes. For jobs without deadlines,
/// the table has the number of jobs and their response times. The table has at most `width` columns
/// if that is possible, or 110 if `width` is `None`.
#[must_use]
pub fn side_by_side(runs: &[(&str, &Summary)], width: Option<usize>) -> String {
    let mut rows: Vec<&str> = Vec::new();
    for vcpu in runs.iter().flat_map(|(_, run)| &run.vcpus) {
        if !rows.contains(&vcpu.name.as_str()) {
            rows.push(&vcpu.name);
        }
    }
    let wakes = runs.iter().flat_map(|(_, run)| &run.vcpus).filter_map(|vcpu| vcpu.wake_to_run);
    let unit = Unit::of(wakes.filter_map(|wake| wake.p99).max().unwrap_or_default());
    let wake_heading = format!("wake to run p99, {}", unit.name);
    let answers = runs.iter().flat_map(|(_, run)| &run.vcpus).filter_map(answered);
    let answer_unit =
        Unit::of(answers.filter_map(|response| response.p50).max().unwrap_or_default());
    let answer_heading = format!("response p50, {}", answer_unit.name);
    let mut wakes = group(&wake_heading, runs, &rows, |vcpu| {
        vcpu.wake_to_run.map_or(Cell::Blank, |wake| quantile(wake.p99, unit))
    });
    wakes.extend(group("n of wakes", runs, &rows, |vcpu| {
        vcpu.wake_to_run.map_or(Cell::Blank, |wake| Cell::Text(count(wake.count)))
    }));
    let is_slowed = runs.iter().any(|(_, run)| any_slowed(&run.vcpus));
    let has_spun = runs.iter().any(|(_, run)| any_spun(&run.vcpus));
    let groups = vec![
        promises(runs, &rows),
        group("delivered %", runs, &rows, |vcpu| Cell::Text(percent(vcpu.delivered_ppm))),
        group("work %", runs, &rows, |vcpu| if is_slowed { work(vcpu) } else { Cell::Blank }),
        group("spun %", runs, &rows, |vcpu| if has_spun { spun(vcpu) } else { Cell::Blank }),
        group("Mbit/s", runs, &rows, data_rate),
        group("misses", runs, &rows, |vcpu| match (vcpu.promised, vcpu.misses) {
            (Some(_), Some(number)) => misses(number),
            _ => Cell::Blank,
        }),
        wakes,
        group("jobs done", runs, &rows, |vcpu| match answered(vcpu) {
            Some(_) => Cell::Text(count(vcpu.jobs_done)),
            None => Cell::Blank,
        }),
        group(&answer_heading, runs, &rows, |vcpu| {
            answered(vcpu).map_or(Cell::Blank, |response| quantile(response.p50, answer_unit))
        }),
    ];
    let names = Column::new("vCPU", &rows, |name| Cell::Text((*name).to_string()));
    let mut text =
        Sheet { names, groups }.render(width.unwrap_or(SIDE_BY_SIDE_WIDTH), Paint::Plain);
    if runs.iter().any(|(_, run)| has_lower_bounds(run)) {
        text += LOWER_BOUND;
    }
    text
}

/// Returns the response times of a vCPU whose jobs have no deadlines. If its jobs have deadlines,
/// returns `None`, because deadline misses are shown instead.
fn answered(vcpu: &VcpuSummary) -> Option<Distribution> {
    vcpu.response.filter(|_| vcpu.jobs_due == 0)
}

/// Returns a column for each run.
fn group(
    over: &str,
    runs: &[(&str, &Summary)],
    rows: &[&str],
    cell: impl Fn(&VcpuSummary) -> Cell,
) -> Group {
    let column = |(name, run): &(&str, &Summary)| {
        let column = Column::new(*name, rows, |row| {
            let vcpu = run.vcpus.iter().find(|vcpu| vcpu.name == **row);
            vcpu.map_or(Cell::Blank, &cell)
        });
        column.under(over).keeping_dashes()
    };
    runs.iter().map(column).collect()
}

/// Returns columns with the reservations: a single column if all runs have the same reservations,
/// otherwise a column for each run.
fn promises(runs: &[(&str, &Summary)], rows: &[&str]) -> Group {
    let of = |row: &str, run: &Summary| {
        let vcpu = run.vcpus.iter().find(|vcpu| vcpu.name == row);
        vcpu.and_then(promised)
    };
    let all = |row: &&str| {
        let mut promised: Vec<String> = runs.iter().filter_map(|(_, run)| of(row, run)).collect();
        promised.dedup();
        promised
    };
    if rows.iter().all(|row| all(row).len() < 2) {
        let cell = |row: &&str| all(row).pop().map_or(Cell::Blank, Cell::Text);
        return vec![Column::new("promised", rows, cell)];
    }
    group("promised", runs, rows, |vcpu| promised(vcpu).map_or(Cell::Blank, Cell::Text))
}

/// Formats a reservation, such as `2ms/10ms = 20.00 %`. A plus marks a work-conserving reservation.
/// `None` if the vCPU has no reservation.
fn promised(vcpu: &VcpuSummary) -> Option<String> {
    let promise = vcpu.promised?;
    let sign = if vcpu.exact { "  " } else { " +" };
    let last = u64::from(promise.share().ppm());
    let average = vcpu.promised_share_ppm.unwrap_or(last);
    // Both shares are rounded to millionths, so the average of an unchanged share may differ by 1.
    if average.abs_diff(last) <= 1 {
        return Some(format!("{promise} = {} %{sign}", percent(last)));
    }
    Some(format!("{promise}, on average {} %{sign}", percent(average)))
}

fn shares(rows: &[VcpuSummary]) -> Group {
    let promise = |vcpu: &VcpuSummary| Cell::or_dash(promised(vcpu), NO_PROMISE);
    let why = |vcpu: &VcpuSummary| match vcpu.asleep {
        Some(asleep) if !asleep.is_zero() => SLEPT,
        _ => TOO_SHORT,
    };
    let error = |vcpu: &VcpuSummary, text: Option<String>| match vcpu.promised {
        None => Cell::Blank,
        Some(_) => Cell::or_dash(text, why(vcpu)),
    };
    let second = |vcpu: &VcpuSummary, pick: fn(&ErrorDistribution) -> Option<u64>| match vcpu
        .second_error
        .as_ref()
        .map(pick)
    {
        Some(None) => Cell::Dash(ONE),
        ppm => error(vcpu, ppm.flatten().map(fine_percent)),
    };
    let seconds = |vcpu: &VcpuSummary| {
        vcpu.second_error.map_or(Cell::Blank, |error| Cell::Text(count(error.seconds)))
    };
    let (is_slowed, has_spun) = (any_slowed(rows), any_spun(rows));
    vec![
        Column::new("promised", rows, promise),
        Column::new("delivered %", rows, |vcpu| Cell::Text(percent(vcpu.delivered_ppm))),
        Column::new("work %", rows, |vcpu| if is_slowed { work(vcpu) } else { Cell::Blank }),
        Column::new("spun %", rows, |vcpu| if has_spun { spun(vcpu) } else { Cell::Blank }),
        Column::new("error %", rows, |vcpu| error(vcpu, vcpu.error_ppm.map(signed_percent))),
        Column::new("p99", rows, |vcpu| second(vcpu, |error| error.p99_ppm))
            .under(SECONDS)
            .keeping_dashes(),
        Column::new("worst", rows, |vcpu| second(vcpu, |error| Some(error.worst_ppm)))
            .under(SECONDS),
        Column::new("n", rows, seconds).under(SECONDS),
    ]
}

fn deadlines(rows: &[VcpuSummary]) -> Group {
    let judged = |vcpu: &VcpuSummary| vcpu.deadlines.filter(|_| vcpu.promised.is_some());
    let number = |vcpu: &VcpuSummary| match judged(vcpu) {
        None => Cell::Blank,
        Some(0) => Cell::Dash(NO_DEADLINE),
        Some(number) => Cell::Text(count(number)),
    };
    let missed = |vcpu: &VcpuSummary| match (judged(vcpu), vcpu.misses) {
        (Some(1..), Some(number)) => misses(number),
        _ => Cell::Blank,
    };
    let mut group =
        vec![Column::new("deadlines", rows, number), Column::new("missed", rows, missed)];
    let mut late = spread("late by", rows, |vcpu| vcpu.miss_time, |_| Cell::Blank);
    let of_slice = Column::new("% of slice", rows, |vcpu| {
        let worst = vcpu.miss_time_of_slice.map(|part| percent(part.worst_ppm));
        worst.map_or(Cell::Blank, Cell::Text)
    });
    late.push(of_slice.under(&late[0].over));
    group.extend(late);
    group
}

fn wakes(run: &Summary) -> Group {
    let knows = run.knows.sleep && run.knows.stretches;
    let none = |_: &VcpuSummary| if knows { Cell::Dash(NO_WAKE) } else { Cell::Blank };
    counted_spread("wake to run", &run.vcpus, |vcpu| vcpu.wake_to_run, none)
}

/// Returns two columns: for each row, the number of jobs and the number of late jobs.
fn jobs<T>(
    rows: &[T],
    of: impl Fn(&T) -> (u64, u64),
    lateness: impl Fn(&T) -> Option<Distribution>,
) -> Group {
    let number = |row: &T| match of(row).0 {
        0 => Cell::Blank,
        jobs => Cell::Text(count(jobs)),
    };
    let late = |row: &T| match of(row) {
        (0, _) => Cell::Blank,
        (_, late) => misses(late),
    };
    if rows.iter().all(|row| of(row).0 == 0) {
        return Vec::new();
    }
    let mut group = vec![Column::new("jobs", rows, number), Column::new("late", rows, late)];
    group.extend(spread("late by", rows, lateness, |_| Cell::Blank));
    group
}

fn responses<T>(rows: &[T], of: impl Fn(&T) -> Option<Distribution>) -> Group {
    counted_spread("response", rows, of, |_| Cell::Blank)
}

/// Returns a table of named tasks. Empty if there are none.
fn tasks(rows: &[TaskSummary], width: usize, paint: Paint) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let names = Column::new("task", rows, |task| Cell::Text(task.name()));
    let groups = vec![
        jobs(rows, |task| (task.jobs, task.jobs_late), |task| task.job_lateness),
        responses(rows, |task| task.response),
    ];
    format!("{}\n", Sheet { names, groups }.render(width, paint))
}

/// Returns a table of clients. Empty if there are fewer than two, because the values of a single
/// client equal the values of its domain.
fn clients(rows: &[ClientSummary], width: usize, paint: Paint) -> String {
    if rows.len() < 2 {
        return String::new();
    }
    let names = Column::new("client", rows, |client| Cell::Text(client.client.to_string()));
    let to = Column::new("of", rows, |client| Cell::Text(client.domain.clone()));
    let answered = Column::new("answered", rows, |client| Cell::Text(count(client.answered)));
    let groups = vec![vec![to, answered], responses(rows, |client| client.response)];
    format!("{}\n", Sheet { names, groups }.render(width, paint))
}

/// Returns true if, for any vCPU, the work done differs from the CPU time used, because work was
/// slowed down.
fn any_slowed(rows: &[VcpuSummary]) -> bool {
    rows.iter().any(|vcpu| vcpu.work().is_some_and(|work| work != vcpu.delivered))
}

/// Returns the cell with the work done. The cell is blank if the host cannot measure the work.
fn work(vcpu: &VcpuSummary) -> Cell {
    vcpu.work_ppm().map_or(Cell::Blank, |ppm| Cell::Text(percent(ppm)))
}

/// Returns true if any vCPU waited for a spin lock.
fn any_spun(rows: &[VcpuSummary]) -> bool {
    rows.iter().any(|vcpu| vcpu.spun.is_some_and(|spun| !spun.is_zero()))
}

/// Returns the cell with the part of CPU time spent on spin locks. The cell is blank if the host
/// cannot measure the part.
fn spun(vcpu: &VcpuSummary) -> Cell {
    vcpu.spun_ppm().map_or(Cell::Blank, |ppm| Cell::Text(percent(ppm)))
}

/// Returns the cell with the data rate while the vCPU was present.
fn data_rate(vcpu: &VcpuSummary) -> Cell {
    match vcpu.moved {
        0 => Cell::Blank,
        bytes => Cell::Text(megabits(bytes, vcpu.present)),
    }
}

/// Returns the cell with a number of deadline misses, which is green for zero and red otherwise.
fn misses(number: u64) -> Cell {
    let text = count(number);
    if number == 0 { Cell::Met(text) } else { Cell::Missed(text) }
}

/// Returns the cell with a quantile, or a dash if the quantile is unknown.
fn quantile(span: Option<Span>, unit: Unit) -> Cell {
    Cell::or_dash(span.map(|span| unit.write(span)), ONE)
}

/// Returns the columns of a distribution, with its number of samples.
fn counted_spread<T>(
    heading: &str,
    rows: &[T],
    of: impl Fn(&T) -> Option<Distribution>,
    none: impl Fn(&T) -> Cell,
) -> Group {
    let mut group = spread(heading, rows, &of, none);
    let number = |row: &T| of(row).map_or(Cell::Blank, |of| Cell::Text(count(of.count)));
    group.push(Column::new("n", rows, number).under(&group[0].over));
    group
}

/// Returns three columns for a distribution, all with the same unit. The number of samples is left
/// out.
fn spread<T>(
    heading: &str,
    rows: &[T],
    of: impl Fn(&T) -> Option<Distribution>,
    none: impl Fn(&T) -> Cell,
) -> Group {
    let longest = rows.iter().filter_map(&of).map(|of| of.worst).max();
    let unit = Unit::of(longest.unwrap_or_default());
    let over = format!("{heading}, {}", unit.name);
    let column = |what: &str, pick: fn(&Distribution) -> Option<Span>| {
        let column = Column::new(what, rows, |row| {
            of(row).map_or_else(|| none(row), |of| quantile(pick(&of), unit))
        });
        column.under(&over).keeping_dashes()
    };
    vec![
        column("p50", |of| of.p50),
        column("p99", |of| of.p99),
        column("worst", |of| Some(of.worst)),
    ]
}
