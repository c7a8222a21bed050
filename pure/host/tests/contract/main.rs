//! The contract between host and policies: random legal scripts against every policy there is, and
//! against policies that are broken on purpose, each of which must be caught.

mod books;
mod canaries;
mod dice;
mod hardware;
mod history;
mod script;
mod suite;
mod watch;

use std::sync::LazyLock;

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::RngSeed;
use proptest::test_runner::TestRunner;
use slackline_policy::{ALL, Field, Given, Policy, Spec, Topology, Values};

use books::Breach;
use canaries::{Canary, Wrong, wrapped};
use script::Manner;

/// What is drawn does not change from run to run, unless that is asked for.
fn usual_scripts() -> ProptestConfig {
    let usual = ProptestConfig::default();
    match usual.rng_seed {
        RngSeed::Random => ProptestConfig { rng_seed: RngSeed::Fixed(1), ..usual },
        RngSeed::Fixed(_) => usual,
    }
}

proptest! {
    // The same scripts each time; by hand others: `cargo xtask contract --seed 7`.
    #![proptest_config(ProptestConfig { cases: 400, ..usual_scripts() })]

    #[test]
    fn every_policy_keeps_the_contract(script in script::script(script::any_manner())) {
        for spec in ALL {
            let kept = suite::check(spec, &spec.build, &script);
            prop_assert_eq!(kept, Ok(()), "{}", spec.name);
        }
        for spec in [own_sedf(), slices()] {
            let kept = suite::check(&spec, &said(&spec, &[]), &script);
            prop_assert_eq!(kept, Ok(()), "{} by its own rules", spec.name);
        }
    }
}

/// The fields of a share under `sedf`, where everybody has a slice that is set: few who draw theirs
/// from all that there is have one.
fn with_slices() -> &'static [Field] {
    static FIELDS: LazyLock<Vec<Field>> = LazyLock::new(|| {
        let fields = slackline_policy::find("sedf").expect("it is on the list").share_fields;
        let field = |&Field { name, kind, default, help }: &Field| match name {
            "slice" | "period" => Field { name, kind, default: None, help },
            "weight" => Field::whole(name, "0", (0, 0), help),
            _ => Field { name, kind, default, help },
        };
        fields.iter().map(field).collect()
    });
    &FIELDS
}

/// `sedf` by its own rules: few scripts draw all of them. All slices are kept, whatever is drawn.
fn own_sedf() -> Spec {
    Spec { keeps: |_, _| true, ..*slackline_policy::find("sedf").expect("it is on the list") }
}

/// The same where everybody has a slice that is set.
fn slices() -> Spec {
    Spec { share_fields: with_slices(), ..own_sedf() }
}

/// A policy of which only this is said, whatever is drawn for it.
fn said(
    spec: &Spec,
    words: &'static [(&'static str, &'static str)],
) -> impl Fn(&Values, &Topology) -> Box<dyn Policy> + use<> {
    let (fields, build) = (spec.policy_fields, spec.build);
    move |_, topology| {
        let given = words.iter().map(|(name, word)| (*name, Given::Text(word)));
        let values = Values::read(fields, given);
        build(&values.expect("values of these fields"), topology)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..usual_scripts() })]

    /// Where somebody is split over several CPUs whenever that is possible: few scripts draw that.
    #[test]
    fn who_is_split_keeps_the_contract(script in script::script(script::any_manner())) {
        let [edf, sedf] =
            ["edf", "sedf"].map(|name| slackline_policy::find(name).expect("it is on the list"));
        for spec in [edf, sedf, &slices()] {
            let build = said(spec, &[("place", "split")]);
            prop_assert_eq!(suite::check(spec, &build, &script), Ok(()), "{}", spec.name);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..usual_scripts() })]

    /// Where vCPUs are of one domain, and some of them may have what the others leave.
    #[test]
    fn siblings_keep_the_contract(
        script in script::script(script::any_manner()),
        of_a_domain in 2..=5_usize,
    ) {
        let script = script::Script { of_a_domain, ..script };
        for spec in ALL {
            let kept = suite::check(spec, &spec.build, &script);
            prop_assert_eq!(kept, Ok(()), "{}", spec.name);
        }
    }
}

/// What catches a canary first, under scripts that are the same every time.
fn caught(wrong: Wrong, manner: Manner) -> Option<Breach> {
    const SCRIPTS: usize = 2_000;
    let spec = wrapped(wrong);
    let mut runner = TestRunner::deterministic();
    let scripts = script::script(Just(manner));
    (0..SCRIPTS).find_map(|_| {
        let script = scripts.new_tree(&mut runner).expect("nothing is filtered out").current();
        // By other rules the policy under it may not promise what the canary breaks.
        if !suite::has_own_rules(spec, &script) {
            return None;
        }
        let build = |values: &_, topology: &_| {
            let policy = (spec.build)(values, topology);
            Box::new(Canary::new(policy, wrong)) as Box<dyn Policy>
        };
        suite::check(spec, &build, &script).err()
    })
}

/// That the right check caught it, by the first word of what it says.
#[track_caller]
fn assert_caught(wrong: Wrong, by: &str) {
    // Only hardware that refuses shows who runs the refused; and where timers are late there is
    // no bound on a wait but that it ends.
    let manner = match wrong {
        Wrong::PicksRefused | Wrong::ForgetsOne | Wrong::ForgetsOneForAWhile => Manner::Rough,
        _ => Manner::Exact,
    };
    let caught = caught(wrong, manner).map(|breach| format!("{breach:?}"));
    let found = caught.as_deref().map(|breach| breach.split('(').next().expect("a first word"));
    assert_eq!(found, Some(by), "{wrong:?}: {caught:?}");
}

#[test]
fn who_cannot_run_is_not_picked() {
    assert_caught(Wrong::PicksSleepers, "Sleeper");
    assert_caught(Wrong::PicksFromElsewhere, "Elsewhere");
    assert_caught(Wrong::PicksRefused, "Refused");
    assert_caught(Wrong::PicksThoseWhoLeft, "Stranger");
}

#[test]
fn answers_make_sense() {
    assert_caught(Wrong::RingsInThePast, "AlarmPassed");
    assert_caught(Wrong::HandsOutNothing, "Stuck");
    assert_caught(Wrong::NamesNoCpu, "NoSuchCpu");
}

#[test]
fn nobody_is_left_out() {
    assert_caught(Wrong::ForgetsOne, "Forgotten");
    assert_caught(Wrong::ForgetsOneForAWhile, "Forgotten");
    assert_caught(Wrong::DropsTheNext, "Waited");
}

#[test]
fn shares_are_what_was_promised() {
    assert_caught(Wrong::ChargesTwice, "ShortSlice");
    assert_caught(Wrong::GivesTooMuch, "OverSlice");
}

#[test]
fn the_same_calls_give_the_same_answers() {
    assert_caught(Wrong::AnswersOtherwise, "ChangedItsMind");
    assert_caught(Wrong::WearsOut, "AskingChangedIt");
    assert_caught(Wrong::IsNotRepeatable, "NotTheSame");
}

#[test]
fn what_is_declined_changes_nothing() {
    assert_caught(Wrong::TakesWhatItDeclines, "DeclinedChangedIt");
}
