//! Property: the simulation of a recording without overhead, under its own policy, repeats the
//! recorded run exactly. Recordings in which a short block continues a long job are left out,
//! because the model contains no such block.

use std::collections::BTreeMap;

use proptest::prelude::*;
use slackline_sim::trace_header;
use slackline_trace::{Entry, Record};
use slackline_units::{Span, Time, VcpuId};
use slackline_whatif::Recording;

use crate::record::{entries, recording, repeated, scenario};

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

/// Returns true if a vCPU blocks for at most 50 us, and its job began at least 100 ms before.
fn has_continued_job(entries: &[Entry]) -> bool {
    // The last wake of each vCPU, and the last block after that wake.
    let mut last: BTreeMap<VcpuId, (Time, Option<Time>)> = BTreeMap::new();
    entries.iter().any(|entry| match *entry {
        Entry::Record(Record::Woke { at, vcpu }) => {
            let (ready, blocked) = last.insert(vcpu, (at, None)).unwrap_or((at, None));
            blocked.is_some_and(|blocked| {
                blocked - ready >= Span::from_ms(100) && at - blocked <= Span::from_us(50)
            })
        }
        Entry::Record(Record::Blocked { at, vcpu }) => {
            last.entry(vcpu).and_modify(|(_, blocked)| *blocked = Some(at));
            false
        }
        _ => false,
    })
}

fn same(recording: &Recording) -> Result<(), TestCaseError> {
    prop_assert_eq!(repeated(recording), [recording.whole.clone(), recording.whole.clone()]);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn whatif_model_reproduces_any_recording_without_overhead(text in text()) {
        let scenario = scenario(&text);
        let entries = entries(&scenario);
        prop_assume!(!has_continued_job(&entries));
        same(&recording(&trace_header(&scenario), &entries, scenario.length))?;
    }
}
