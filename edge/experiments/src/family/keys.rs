//! Every key of `[family]` with its text for the help page.

use slackline_scenario::keys::{Key, KeyTable};

/// Keys of the table of a family.
pub const FAMILY: KeyTable = KeyTable {
    heading: "[family]",
    says: "random hosts",
    keys: &[
        key("cpus", "list of host sizes in CPUs; each is drawn with each seed; required"),
        key(
            "guests_per_cpu",
            "guests per CPU: minimum and maximum of the number drawn for a host; default \
             [1.25, 3]",
        ),
        key("weights", "list of weights, one of which is drawn for each guest; default [1]"),
        key(
            "sleepers",
            "part of the guests that compute and sleep alternately, e.g. \"50%\"; the others \
             never block; default \"0%\"",
        ),
        key(
            "compute",
            "minimum and maximum of the mean CPU time of a burst, which is drawn for each \
             sleeper; default [\"5ms\", \"50ms\"]",
        ),
        key("sleep", "the same for the time slept; default [\"5ms\", \"50ms\"]"),
        key(
            "varies",
            "how far each of these times can be from its mean, e.g. \"50%\"; default \"0%\"",
        ),
        key(
            "reserved",
            "list of parts of a CPU, e.g. \"25%\", up to 95%; one is drawn for each CPU and is \
             reserved for a domain there; default [\"0%\"]",
        ),
        key("period", "period of these reservations; default 20ms"),
        key("jumps", "mean time until a reserved part changes; default never"),
        key("jumps_to", "list of parts, one of which is drawn for each change; default [\"0%\"]"),
        key(
            "share",
            "share of a guest by policy; {weight} is its weight: share.sedf \
             = { extra-weight = \"{weight}\" }",
        ),
        key(
            "reservation",
            "share of a domain with a reserved part by policy; {slice} and {period}, or {part}, \
             stand for the part",
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
    fn family_help_page_has_exactly_the_accepted_keys() {
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
