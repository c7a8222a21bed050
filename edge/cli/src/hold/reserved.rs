//! Refusals of `hold` because the daemon of this host already reserves CPU time for the target.

use std::path::Path;
use std::time::Duration;

use slackline_control::client::Client;
use slackline_control::{ANOTHER_VM, Machine, Reservation, SOCKET};
use slackline_live::session::SessionError;
use slackline_play::play::LiveError;

use crate::hold_args::HoldArgs;
use crate::problem::Problem;
use crate::service;

/// Longest time for which `hold` waits for an answer of the daemon.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// Folder of the cgroup hierarchy. The binding of a cgroup is its path below this folder.
const HIERARCHY: &str = "/sys/fs/cgroup";

/// Returns the refusal that names the reservation of the target, if the daemon of this host has
/// such a reservation. Otherwise returns `problem`, the refusal of `hold`.
pub(super) fn explained(problem: Problem, args: &HoldArgs) -> Problem {
    // Only these refusals can be about a target that another process schedules. They come before
    // `hold` has changed a thread.
    let is_about_target = matches!(
        problem,
        Problem::HostCannot { .. }
            | Problem::NotAdmitted { .. }
            | Problem::Live(LiveError::Session(SessionError::Claim(_)))
    );
    if is_about_target { reserved_refusal(args).unwrap_or(problem) } else { problem }
}

/// Returns the refusal that names the reservation of the target. `None` if no daemon answers, or if
/// the target has no reservation.
fn reserved_refusal(args: &HoldArgs) -> Option<Problem> {
    let (target, binding) = named_target(args)?;
    let mut client = Client::connect(Path::new(SOCKET)).ok()?.within(ANSWER_WITHIN);
    let all = service::all(&mut client).ok()?;
    let machines = client.find(None).map(|(machines, _)| machines).unwrap_or_default();
    let bound: Vec<(&str, &str)> = all.iter().map(|one| (&*one.name, &*one.binding)).collect();
    let name = reserved_name((&binding, args.pid), &bound, &machines)?;
    let Reservation { slice, period, .. } = all.iter().find(|one| one.name == name)?;
    Some(refusal(&target, &name, &format!("{} in every {}", slice.0, period.0)))
}

/// Returns the target in words, and the binding that a reservation of the target would have. `None`
/// if the target is a command that `hold` starts.
fn named_target(args: &HoldArgs) -> Option<(String, String)> {
    match (&args.pid, &args.unit, &args.cgroup) {
        (Some(pid), _, _) => Some((format!("process {pid}"), format!("pid:{pid}"))),
        (None, Some(unit), _) => Some((unit.clone(), format!("unit:{unit}"))),
        (None, None, Some(path)) => {
            let below = path.strip_prefix(HIERARCHY).unwrap_or(path);
            Some((format!("cgroup {path}"), format!("cgroup:{below}")))
        }
        (None, None, None) => None,
    }
}

/// Returns the name of the reservation that is bound to the target, or to a VM whose process is the
/// target. `None` if there is no such reservation, or if the caller may not see its name. `bound`
/// has the name and the binding of each reservation.
fn reserved_name(
    (binding, pid): (&str, Option<i32>),
    bound: &[(&str, &str)],
    machines: &[Machine],
) -> Option<String> {
    if let Some((name, _)) = bound.iter().find(|(_, of)| *of == binding) {
        return Some((*name).to_owned());
    }
    // A VM that is not a single process has the process id 0.
    let pid = pid.filter(|pid| *pid > 0)?;
    let mut of_target = machines.iter().filter(|machine| machine.pid == pid);
    of_target.find_map(|machine| machine.reserved.clone()).filter(|name| name != ANOTHER_VM)
}

fn refusal(target: &str, name: &str, amount: &str) -> Problem {
    Problem::HostCannot {
        message: format!(
            "cannot hold {target}: the daemon already reserves {amount} for it, as `{name}`"
        ),
        hint: Some(format!(
            "change the reservation with `slackline change {name}`, or end it with `slackline \
             release {name}` and repeat the command"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(pid: i32, reserved: Option<&str>) -> Machine {
        Machine {
            name: "guest".into(),
            kind: "qemu".into(),
            binding: "qemu:guest".into(),
            uid: 0,
            pid,
            cpu_ppm: None,
            vcpus: Vec::new(),
            reserved: reserved.map(str::to_owned),
            why: None,
        }
    }

    #[test]
    fn reservation_of_hold_target_is_found_by_binding_or_process() {
        let bound = [("a", "pid:7"), ("b", "unit:web.service"), ("c", "qemu:guest")];
        let hidden = machine(6, Some(ANOTHER_VM));
        let machines = [machine(0, Some("b")), machine(9, None), machine(8, Some("c")), hidden];
        let name = |binding, pid| reserved_name((binding, pid), &bound, &machines);
        assert_eq!(name("pid:7", Some(7)).as_deref(), Some("a"));
        assert_eq!(name("pid:8", Some(8)).as_deref(), Some("c"));
        assert_eq!(name("unit:web.service", None).as_deref(), Some("b"));
        assert_eq!(name("pid:9", Some(9)), None);
        assert_eq!(name("pid:6", Some(6)), None);
        assert_eq!(name("pid:0", Some(0)), None);
        assert_eq!(name("cgroup:/demo", None), None);
    }

    #[test]
    fn refusal_to_hold_reserved_target_suggests_change_and_release_commands() {
        let problem = refusal("process 8", "web", "3ms in every 10ms");
        let says = "cannot hold process 8: the daemon already reserves 3ms in every 10ms for it, \
                    as `web`";
        assert_eq!(problem.to_string(), says);
        let hint = problem.hint().expect("advice");
        for command in ["`slackline change web`", "`slackline release web`"] {
            assert!(hint.contains(command), "{hint}");
        }
    }
}
