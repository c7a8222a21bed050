//! Every key of `[family]`, with what it means for people.

use slackline_scenario::keys::{Key, KeyTable};

/// The table of a family.
pub const FAMILY: KeyTable = KeyTable {
    heading: "[family]",
    says: "What hosts are like that are drawn at random.",
    keys: &[
        key(
            "cpus",
            "sizes of hosts: a list of numbers; each is drawn with each seed; must be said",
        ),
        key(
            "guests_per_cpu",
            "how many guests there are for each CPU, the least and the most; default [1.25, 3]",
        ),
        key("weights", "a list of weights, of which one is drawn for each guest; default [1]"),
        key(
            "sleepers",
            "how many of the guests sleep now and then, as \"50%\"; default none: they compute \
             for ever",
        ),
        key(
            "compute",
            "how long those compute at a time: a mean between the two is drawn for each; \
             default [\"5ms\", \"50ms\"]",
        ),
        key("sleep", "how long they sleep, likewise; default [\"5ms\", \"50ms\"]"),
        key(
            "varies",
            "how far each time may be from its mean either way, as \"50%\"; default not at all",
        ),
        key(
            "reserved",
            "a list of parts of a CPU, as \"25%\", 95% at most: one is drawn for each CPU, and \
             a domain is there that has it; default [\"0%\"]",
        ),
        key("period", "how often such a part is owed; default 20ms"),
        key(
            "jumps",
            "after how long on average a reserved part becomes another one; default never",
        ),
        key("jumps_to", "what it becomes: one of these parts; default [\"0%\"]"),
        key(
            "share",
            "by policy, the share of a guest, where {weight} stands for its weight: share.sedf \
             = { extra-weight = \"{weight}\" }",
        ),
        key(
            "reservation",
            "by policy, the share of who has a reserved part, where {slice} and {period}, or \
             {part}, stand for it",
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
    fn every_key_that_may_be_said_is_taught_and_no_other() {
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
