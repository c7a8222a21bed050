//! Runs a script under a policy several times and compares the runs.

use slackline_host::Host;
use slackline_policy::{Policy, Spec, Topology, Value, Values};

use crate::books::{Breach, Shared};
use crate::dice::Dice;
use crate::hardware::{Run, ScriptHardware};
use crate::script::{Manner, Script};
use crate::watch::{Treatment, Watched};

/// Constructor of the policy to test: a real policy, or one that is broken on purpose.
pub(crate) type Build<'a> = &'a dyn Fn(&Values, &Topology) -> Box<dyn Policy>;

/// Results of one run of a script, and its records.
struct Played {
    run: Run,
    books: Shared,
}

/// Runs a script under a policy, with and without each kind of extra stress. Returns the first
/// violation of the contract as an error.
pub(crate) fn check(spec: &Spec, build: Build<'_>, script: &Script) -> Result<(), Breach> {
    let first = play(spec, build, script, Treatment::default())?;
    let again = play(spec, build, script, Treatment::default())?;
    if again.run.told != first.run.told {
        return Err(Breach::NotTheSame);
    }
    let often = Treatment { again: 2, ..Treatment::default() };
    if play(spec, build, script, often)?.run.told != first.run.told {
        return Err(Breach::AskingChangedIt);
    }
    let withheld = first.books.open().declined.clone();
    if !withheld.is_empty() {
        let spared = play(spec, build, script, Treatment { again: 0, withheld })?;
        if spared.run.told != first.run.told {
            return Err(Breach::DeclinedChangedIt);
        }
    }
    if script.manner == Manner::Exact {
        let values = Dice(script.seed).values(spec.policy_fields);
        if (spec.keeps)(&values, &script.topology()) {
            first.run.history.check_slices()?;
        }
        if (spec.keeps)(&values, &script.topology()) || has_own_rules(spec, script) {
            first.run.history.check_advances()?;
        }
        // If vCPUs have no parameters, all are equal, and no vCPU gets two timeslices while another
        // waits. This does not hold under rules copied from a real scheduler, which may be unfair.
        // Nor does it hold for vCPUs that are confined to some of the CPUs.
        let is_equal = spec.share_fields.is_empty() && script.of_a_domain == 1;
        if is_equal && has_own_rules(spec, script) {
            let turn = first.books.open().longest;
            first.run.history.check_waits(turn, script.cpus)?;
        }
    }
    let forgotten = first.run.forgotten.map(Breach::Forgotten);
    forgotten.or(first.run.unasked).map_or(Ok(()), Err)
}

/// Returns true if the script draws the default for every policy parameter whose value is one of
/// several words.
pub(crate) fn has_own_rules(spec: &Spec, script: &Script) -> bool {
    let drawn = Dice(script.seed).values(spec.policy_fields);
    drawn.iter().all(|(field, value)| match value {
        Value::Choice(word) => field.default == Some(word),
        _ => true,
    })
}

fn play(
    spec: &Spec,
    build: Build<'_>,
    script: &Script,
    treatment: Treatment,
) -> Result<Played, Breach> {
    let values = Dice(script.seed).values(spec.policy_fields);
    let books = Shared::new(script.cpus);
    let looks_ahead = treatment.again > 0;
    let policy = build(&values, &script.topology());
    let watched = Watched { policy, books: books.clone(), treatment };
    let host = Host::with(Box::new(watched), spec.promise, script.cpus);
    let hardware = ScriptHardware::new(spec, host, script, books.clone(), looks_ahead);
    let run = hardware.play(&script.steps)?;
    Ok(Played { run, books })
}
