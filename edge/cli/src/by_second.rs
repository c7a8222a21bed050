//! CSV with one row for each domain and each CPU in each second of the measured time.

use std::fmt::Write as _;

use slackline_experiments::Numbers;
use slackline_metrics::{CpuSecond, Field, FieldValue};
use slackline_units::{CpuId, Span};

use crate::quoted::quoted;

const SECOND: Span = Span::from_secs(1);

/// A column of the CSV.
struct Column {
    name: &'static str,
    /// XenMon's name of the value for a domain. `None` if only CPUs have this value.
    of_domain: Option<&'static str>,
    says: &'static str,
}

const fn both(name: &'static str, of_domain: &'static str, says: &'static str) -> Column {
    Column { name, of_domain: Some(of_domain), says }
}

const fn of_cpu(name: &'static str, says: &'static str) -> Column {
    Column { name, of_domain: None, says }
}

const COLUMNS: [Column; 9] = [
    both(
        "share_ppm",
        "gotten_ppm",
        "CPU time that the domain received, or that the run's vCPUs received on \
         this CPU, in millionths of a CPU",
    ),
    both("used_ns", "gotten_ns", "the same CPU time as `share_ppm`, in nanoseconds"),
    both(
        "waited_ns",
        "waited_ns",
        "of a domain: time for which its vCPUs were runnable but not running, counted in \
         the second in which the wait ended",
    ),
    both("slept_ns", "blocked_ns", "of a domain: time for which its vCPUs were blocked"),
    both("turns", "executions", "of a domain: number of times its vCPUs were put on a CPU"),
    of_cpu("cpu", "CPU that the row describes. Empty if the row describes a domain"),
    of_cpu(
        "others_ppm",
        "of a CPU, live only: part of the second in which other programs, the kernel and \
         interrupts used the CPU, in millionths. The value is exact to one tick of the kernel",
    ),
    of_cpu(
        "stolen_ppm",
        "of a CPU, live only, if the host is a VM: part of the second that the hypervisor gave to \
         other VMs, in millionths",
    ),
    of_cpu(
        "unused_ppm",
        "of a CPU, live only: part of the second in which the CPU was idle, in millionths",
    ),
];

/// Returns the names of the columns with their meanings.
pub(crate) fn columns() -> impl Iterator<Item = (&'static str, &'static str)> + Clone {
    let first = [
        ("second", "number of the second; 0 is the first whole second after the warm-up"),
        ("domain", "domain that the row describes; empty if the row describes a CPU"),
    ];
    first.into_iter().chain(COLUMNS.iter().map(|column| (column.name, column.says)))
}

/// Returns the lines of the CSV, one for each row. Values that the host could not measure are left
/// out.
pub(crate) fn lines(numbers: &Numbers) -> String {
    let mut text = columns().map(|(name, _)| name).collect::<Vec<_>>().join(",") + "\n";
    if let Some(metrics) = &numbers.xenmon {
        for domain in &metrics.domains {
            for (second, point) in metrics.seconds(domain).enumerate() {
                let fields = metrics.point_fields(&point, SECOND);
                let cell = |column: &Column| number(&fields, column.of_domain);
                line(&mut text, (second, &quoted(&domain.name)), COLUMNS.iter().map(cell));
            }
        }
    }
    for (cpu, seconds) in numbers.cpu_seconds.iter().flatten().enumerate() {
        let name = CpuId::new(cpu).to_string();
        for (second, of) in seconds.iter().enumerate() {
            let cells = COLUMNS.iter().map(|column| of_a_cpu(&name, of, column.name));
            line(&mut text, (second, ""), cells);
        }
    }
    text
}

fn line(
    text: &mut String,
    (second, domain): (usize, &str),
    cells: impl Iterator<Item = Option<String>>,
) {
    let _ = write!(text, "{second},{domain}");
    for cell in cells {
        let _ = write!(text, ",{}", cell.unwrap_or_default());
    }
    text.push('\n');
}

/// Returns the cell for the XenMon value named `wanted`. `None` if the domain has no such number,
/// or if `wanted` is `None`.
fn number(fields: &[Field], wanted: Option<&str>) -> Option<String> {
    match fields.iter().find(|(name, _)| Some(*name) == wanted)?.1 {
        FieldValue::Count(count) => Some(count.to_string()),
        _ => None,
    }
}

/// Returns the cell of a CPU in a column. `None` if CPUs have no value in the column, or if the
/// value was not measured.
fn of_a_cpu(name: &str, second: &CpuSecond, column: &str) -> Option<String> {
    let busy = second.busy.ns();
    Some(match column {
        "cpu" => name.to_owned(),
        "share_ppm" => (busy / (SECOND.ns() / 1_000_000)).to_string(),
        "used_ns" => busy.to_string(),
        "others_ppm" => second.shared?.others_ppm.to_string(),
        "stolen_ppm" => second.shared?.stolen_ppm.to_string(),
        "unused_ppm" => second.shared?.unused_ppm.to_string(),
        _ => return None,
    })
}
