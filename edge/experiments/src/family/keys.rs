//! Keys of the table `[family]`, with their texts on the help page.

use slackline_scenario::keys::{Key, KeyTable};

/// Keys of the table of a family.
pub const FAMILY: KeyTable = KeyTable {
    heading: "[family]",
    says: "random hosts",
    keys: &[
        key(
            "cpus",
            "list of host sizes in CPUs; for each seed a host of each size is drawn; required",
        ),
        key(
            "guests_per_cpu",
            "minimum and maximum number of guests per CPU; a number between them is drawn for \
             each host; default [1.25, 3]",
        ),
        key("weights", "list of weights, one of which is drawn for each guest; default [1]"),
        key(
            "sleepers",
            "percentage of guests that compute and sleep alternately, e.g. \"50%\"; other guests \
             never block; default \"0%\"",
        ),
        key(
            "compute",
            "minimum and maximum of a sleeper's mean CPU time between sleeps; the mean is drawn \
             for each sleeper; default [\"5ms\", \"50ms\"]",
        ),
        key(
            "sleep",
            "minimum and maximum of a sleeper's mean duration of a sleep; the mean is drawn for \
             each sleeper; default [\"5ms\", \"50ms\"]",
        ),
        key(
            "varies",
            "largest deviation of each run or sleep of a sleeper from its mean, e.g. \"50%\"; \
             default \"0%\"",
        ),
        key(
            "reserved",
            "list of parts of a CPU, e.g. \"25%\", up to 95%; one is drawn for each CPU and is \
             reserved there for an additional domain; default [\"0%\"]",
        ),
        key("period", "period of the reservations that `reserved` makes; default 20ms"),
        key("jumps", "mean time until a reserved part of a CPU changes; default never"),
        key(
            "jumps_to",
            "list of parts of a CPU, e.g. \"25%\"; one is drawn as the new reserved part at each \
             change; default [\"0%\"]",
        ),
        key(
            "share",
            "share of a guest, by policy; {weight} stands for the guest's weight: share.sedf \
             = { extra-weight = \"{weight}\" }",
        ),
        key(
            "reservation",
            "share of a domain with a reservation, by policy; {slice} and {period} stand for its \
             slice and period, or {part} for its part of a CPU",
        ),
    ],
};

const fn key(name: &'static str, says: &'static str) -> Key {
    Key { name, says }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::family::Family;

    #[test]
    fn help_page_of_scenario_families_lists_exactly_the_accepted_keys() {
        let refused = toml::from_str::<Family>("cpus = [1]\nnothing-like-it = 1").unwrap_err();
        let text = refused.message().to_owned();
        let (_, may_be) = text.split_once("expected one of ").unwrap();
        let mut may_be: Vec<&str> = may_be.split(", ").map(|name| name.trim_matches('`')).collect();
        let mut taught: Vec<&str> = FAMILY.keys.iter().map(|key| key.name).collect();
        may_be.sort_unstable();
        taught.sort_unstable();
        assert_eq!(taught, may_be);
    }
}
