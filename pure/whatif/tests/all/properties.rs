//! Property: the simulation of a recording without overhead, under its own policy, repeats the
//! recorded run exactly.

use proptest::prelude::*;
use slackline_whatif::{Model, Recording, gate};

use crate::record::recorded;

/// Policies, each with parameters of a vCPU, in which `{slice}` and `{period}` are placeholders.
const POLICIES: &[(&str, &str)] = &[
    ("edf", "slice = \"{slice}\", period = \"{period}\""),
    ("edf", "slice = \"{slice}\", period = \"{period}\", exact = true"),
    ("sedf", "slice = \"{slice}\", period = \"{period}\""),
    ("credit", "weight = 256"),
    ("round-robin", ""),
    ("bvt", ""),
];

fn vm(number: usize, policy: usize, (slice, period): (u64, u64), work: &str) -> String {
    let (name, share) = POLICIES[policy];
    let share = share.replace("{slice}", &format!("{slice}us"));
    let share = share.replace("{period}", &format!("{period}us"));
    format!("[[domain]]\nname = \"vm{number}\"\nshare.{name} = {{ {share} }}\nwork = {work}\n")
}

fn work() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("{ kind = \"spin\" }".to_owned()),
        (200_u64..9_000, 200_u64..20_000).prop_map(|(compute, sleep)| format!(
            "{{ kind = \"interactive\", compute = \"exponential {compute}us\", \
             sleep = \"exponential {sleep}us\" }}"
        )),
        (5_003_u64..40_000, 100_u64..4_000).prop_map(|(period, work)| format!(
            "{{ kind = \"periodic\", period = \"{period}us\", work = \"uniform 50us {work}us\" }}"
        )),
    ]
}

fn text() -> impl Strategy<Value = String> {
    let vm = (5_000_u64..30_000, 2_u64..20, work());
    let vms = prop::collection::vec(vm, 1..5);
    (0..POLICIES.len(), 1_usize..3, any::<u32>(), vms).prop_map(|(policy, cpus, seed, vms)| {
        let name = POLICIES[policy].0;
        let mut text = format!(
            "title = \"drawn\"\nlength = \"2s\"\nseed = {seed}\nhost.cpus = {cpus}\n\
             policy = {{ name = \"{name}\" }}\n"
        );
        for (number, (period, percent, work)) in vms.into_iter().enumerate() {
            text += &self::vm(number, policy, (period * percent / 100, period), &work);
        }
        text
    })
}

fn same(recording: &Recording) -> Result<(), TestCaseError> {
    let model = Model::new(recording).expect("a simulated trace has a model");
    let gate = gate(recording, &model).expect("its own reservations are admitted");
    for form in &gate.forms {
        prop_assert_eq!(&form.whole, &recording.whole, "{:?}", form.form);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn whatif_model_reproduces_any_recording_without_overhead(text in text()) {
        same(&recorded(&text))?;
    }
}
