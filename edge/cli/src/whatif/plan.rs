//! Edited reservations as a plan, a file for `slackline apply`.

use std::fmt::Write as _;

use slackline_units::Span;
use slackline_whatif::{Forecast, PlannedReservation, Row, SHARE_PPM, WAIT_PERCENT};

use super::{Answer, table};
use crate::problem::Problem;

/// Formats the reservations with their predictions as comments. VMs without a reservation are left
/// out.
pub(super) fn plan(
    answer: &Answer<'_>,
    forecast: &Forecast,
    revision: Option<u64>,
) -> Result<String, Problem> {
    let mut text = String::from("# Plan of `slackline whatif`, for `slackline apply FILE`.\n");
    let header = &answer.recording.header;
    let length = answer.recording.length();
    let _ = writeln!(text, "# Recorded: {}, {}, {length}.", plain(&header.title), header.machine);
    if let Some(revision) = revision {
        let _ = writeln!(text, "{} = {revision}", crate::service::REVISION);
    }
    let mut is_empty = true;
    for reserved in answer.model.reservations() {
        let Some(reserved) = reserved else { continue };
        is_empty = false;
        let of = |row: &&Row| row.name == reserved.name || is_vcpu_of(&row.name, &reserved.name);
        text.push('\n');
        for row in forecast.rows.iter().filter(of) {
            let _ = writeln!(text, "# {}: {}", row.name, table::in_brief(row));
        }
        text += &one(&reserved);
        for row in forecast.rows.iter().filter(of) {
            text += &predicted(&reserved.name, row, length);
        }
    }
    for row in forecast.rows.iter().filter(|row| row.then.is_empty()) {
        let _ = writeln!(
            text,
            "\n# {}: removed. Release this reservation, or apply with --prune.",
            row.name
        );
    }
    if is_empty {
        return Err(Problem::BadOption {
            message: "cannot write --save: no VM has one reservation for all of its vCPUs".into(),
            hint: Some("drop --save".into()),
        });
    }
    Ok(text)
}

/// Replaces those characters in a text that would end a comment in TOML.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Returns true if `name` is the name of one of the VM's vCPUs.
fn is_vcpu_of(name: &str, vm: &str) -> bool {
    let number = name.strip_prefix(vm).and_then(|rest| rest.strip_prefix('.'));
    number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()))
}

fn key(name: &str) -> String {
    if name.contains('.') { format!("\"{name}\"") } else { name.to_owned() }
}

/// Formats the prediction for one vCPU, which the service will compare with what happens. The
/// interval is widened on both sides by the tolerance of the gate, the check that a simulation
/// repeats the recording. The simulation is not known to be more exact than that.
fn predicted(vm: &str, row: &Row, length: Span) -> String {
    let Some((least, most)) = row.interval(|it| Some(it.share_ppm)) else { return String::new() };
    // The model names the only vCPU of an added VM after the VM. The service numbers all vCPUs.
    let vcpu = if row.name == vm { format!("{vm}.0") } else { row.name.clone() };
    let mut text = format!("\n[[{}.predicted]]\nvcpu = \"{vcpu}\"\n", key(vm));
    let (least, most) = (least.saturating_sub(SHARE_PPM), most.saturating_add(SHARE_PPM));
    let _ = writeln!(text, "length_ns = {}\nshare_ppm = [{least}, {most}]", length.ns());
    if let Some((least, most)) = row.interval(|it| it.misses) {
        let _ = writeln!(text, "missed = [{least}, {most}]");
    }
    if let Some((least, most)) = row.interval(|it| it.wait_p99) {
        let (least, most) =
            (least.ns() / 100 * (100 - WAIT_PERCENT), most.ns() / 100 * (100 + WAIT_PERCENT));
        let _ = writeln!(text, "wait_p99_ns = [{least}, {most}]");
    }
    text
}

fn one(reserved: &PlannedReservation) -> String {
    let PlannedReservation { name, vcpus, reservation, exact, is_shared, phase } = reserved;
    let key = key(name);
    let (slice, period) = (reservation.slice(), reservation.period());
    let mut text = format!("[{key}]\n");
    if *is_shared {
        let total = u128::from(slice.ns()) * *vcpus as u128 * 1_000_000;
        let ppm = total / u128::from(period.ns().max(1));
        let (whole, millionths) = (ppm / 1_000_000, ppm % 1_000_000);
        let _ = writeln!(text, "cpu = \"{whole}.{millionths:06}cpu\"");
    } else {
        let _ = writeln!(text, "slice = \"{slice}\"");
    }
    let _ = writeln!(text, "period = \"{period}\"");
    if *exact {
        text += "exact = true\n";
    }
    if let Some(phase) = phase {
        let _ = writeln!(text, "phase = \"{phase}\"");
    }
    let _ = writeln!(text, "vcpus = {vcpus}");
    text
}
