//! Table with the last plan of each principal, as JSON. A plan is a list or change of reservations
//! that the principal has applied, and that can be undone as a whole.

use rusqlite::types::FromSqlError;
use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};
use slackline_service::{Commit, Plan, PlanStage, PlanStep, Role, VmPrediction};
use slackline_units::Span;

use super::stored::{Natural, Past, StoredPrincipal, wrong};
use super::tables::PLANS;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredPlan {
    role: String,
    users: Vec<u32>,
    stage: StoredStage,
    steps: Vec<StoredStep>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum StoredStage {
    Watching {
        name: String,
        share_ppm: (u64, u64),
        missed: Option<u64>,
        length_ns: u64,
        watch_ns: u64,
    },
    Done,
    Undone(String),
    Stopped(String),
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredStep {
    before: Option<Past>,
    after: Option<Past>,
    is_done: bool,
}

impl StoredPlan {
    fn of(plan: &Plan) -> StoredPlan {
        let stage = match &plan.stage {
            PlanStage::Watching { prediction, watch } => StoredStage::Watching {
                name: prediction.name.to_string(),
                share_ppm: prediction.share_ppm,
                missed: prediction.missed,
                length_ns: prediction.length.ns(),
                watch_ns: watch.ns(),
            },
            PlanStage::Done => StoredStage::Done,
            PlanStage::Undone(why) => StoredStage::Undone(why.clone()),
            PlanStage::Stopped(why) => StoredStage::Stopped(why.clone()),
        };
        let steps = plan.steps.iter().map(|step| StoredStep {
            before: step.before.as_ref().map(Past::of),
            after: step.after.as_ref().map(Past::of),
            is_done: step.is_done,
        });
        let (role, users) = (plan.role.word().to_owned(), plan.users.clone());
        StoredPlan { role, users, stage, steps: steps.collect() }
    }

    fn plan(
        self,
        StoredPrincipal(principal): StoredPrincipal,
        since: u64,
    ) -> Result<Plan, FromSqlError> {
        let role = Role::ALL.into_iter().find(|role| role.word() == self.role);
        let role = role.ok_or_else(|| wrong(format!("`{}` is not a role", self.role)))?;
        let stage = match self.stage {
            StoredStage::Watching { name, share_ppm, missed, length_ns, watch_ns } => {
                let name = name.parse().map_err(|_| wrong(format!("`{name}` is not a name")))?;
                let length = Span::from_ns(length_ns);
                let prediction = VmPrediction { name, share_ppm, missed, length };
                PlanStage::Watching { prediction, watch: Span::from_ns(watch_ns) }
            }
            StoredStage::Done => PlanStage::Done,
            StoredStage::Undone(why) => PlanStage::Undone(why),
            StoredStage::Stopped(why) => PlanStage::Stopped(why),
        };
        let row = |past: Option<Past>| past.map(|past| past.row()).transpose();
        let step = |step: StoredStep| {
            let (before, after) = (row(step.before)?, row(step.after)?);
            Ok(PlanStep { before, after, is_done: step.is_done })
        };
        let steps = self.steps.into_iter().map(step).collect::<Result<_, FromSqlError>>()?;
        Ok(Plan { principal, role, users: self.users, since, steps, stage })
    }
}

/// Creates the table of plans, if it is missing.
pub(super) fn create(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(PLANS)
}

/// Returns all plans. A plan whose text cannot be parsed is left out. Its changes remain in force,
/// and cannot be undone.
///
/// # Errors
/// If the table is damaged.
pub(super) fn load(connection: &Connection) -> rusqlite::Result<Vec<Plan>> {
    let sql = "SELECT count(*) FROM sqlite_schema WHERE name = 'plan'";
    if connection.query_row(sql, [], |row| row.get::<_, u32>(0))? == 0 {
        return Ok(Vec::new());
    }
    let mut found = connection.prepare("SELECT principal, since, plan FROM plan")?;
    let read = |row: &rusqlite::Row<'_>| {
        let text: String = row.get(2).ok()?;
        let Natural(since) = row.get(1).ok()?;
        let plan: StoredPlan = serde_json::from_str(&text).ok()?;
        plan.plan(row.get(0).ok()?, since).ok()
    };
    let plans = found.query_map([], |row| Ok(read(row)))?;
    Ok(plans.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Writes the plans of a commit.
pub(super) fn write(change: &Connection, commit: &Commit) -> rusqlite::Result<()> {
    for (principal, plan) in &commit.plans {
        let Some(plan) = plan else {
            let mut gone = change.prepare_cached("DELETE FROM plan WHERE principal = ?1")?;
            gone.execute([StoredPrincipal(*principal)])?;
            continue;
        };
        let text = serde_json::to_string(&StoredPlan::of(plan));
        let text = text.map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
        let since = i64::try_from(plan.since).unwrap_or(i64::MAX);
        let mut put = change.prepare_cached("REPLACE INTO plan VALUES (?1, ?2, ?3)")?;
        put.execute(params![StoredPrincipal(*principal), since, text])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use slackline_service::gang::Gang;
    use slackline_service::{Identity, Name, Principal, Row, Terms};
    use slackline_units::{Reservation, WallTime};

    use super::*;

    fn row(slice_ms: u64) -> Row {
        let each = Reservation::new(Span::from_ms(slice_ms), Span::from_ms(10)).unwrap();
        let (name, binding) = ("web".parse().unwrap(), "qemu:web".parse().unwrap());
        let terms = Terms::new(each, true, 2).unwrap();
        let row = Row::new(name, (Principal::User(7), 7), terms, binding);
        Row { since: 3, revision: slice_ms, ..row }
    }

    #[test]
    fn ledger_returns_stored_plan_unchanged_in_every_stage() {
        let connection = Connection::open_in_memory().unwrap();
        assert_eq!(load(&connection).unwrap(), []);
        create(&connection).unwrap();
        let name = "web".parse().unwrap();
        let length = Span::from_secs(9);
        let prediction = VmPrediction { name, share_ppm: (1, 2), missed: Some(3), length };
        let steps = vec![
            PlanStep { before: Some(row(1)), after: Some(row(2)), is_done: true },
            PlanStep { before: None, after: Some(row(3)), is_done: false },
            PlanStep { before: Some(row(4)), after: None, is_done: false },
        ];
        for stage in [
            PlanStage::Watching { prediction, watch: Span::from_secs(10) },
            PlanStage::Done,
            PlanStage::Undone("web".into()),
            PlanStage::Stopped("web".into()),
        ] {
            let (principal, role, users) = (Principal::User(7), Role::Tenant, vec![8]);
            let plan = Plan { principal, role, users, since: 5, steps: steps.clone(), stage };
            let plans = vec![(principal, Some(plan.clone()))];
            let commit = Commit { plans, ..Commit::empty(5) };
            write(&connection, &commit).unwrap();
            assert_eq!(load(&connection).unwrap(), [plan]);
            let plans = vec![(principal, None)];
            connection.execute("UPDATE plan SET plan = '{'", []).unwrap();
            assert_eq!(load(&connection).unwrap(), [], "a damaged plan is left out");
            write(&connection, &Commit { plans, ..commit }).unwrap();
        }
        assert_eq!(load(&connection).unwrap(), []);
    }

    #[test]
    fn stored_plan_is_not_larger_than_its_estimate() {
        let each = Reservation::new(Span::from_secs(600_000), Terms::LONGEST).unwrap();
        let terms = Terms::new(each, false, 512).unwrap().spread_by_use(true);
        let terms = terms.with_phase(Some(Terms::LONGEST - Span::from_ns(1))).unwrap();
        let terms = terms.with_end(Some(WallTime::from_ns(u64::MAX)));
        let name: Name = "n".repeat(Name::LONGEST).parse().unwrap();
        let owner = Principal::Named("o".repeat(32).parse().unwrap());
        let binding = format!("cgroup:/{}", "\\".repeat(1_023)).parse().unwrap();
        let number = u64::MAX >> 1;
        let (pid, started, inode) = (u32::MAX, u64::MAX, u64::MAX);
        let row = Row {
            gang: Some(Gang { name: name.clone(), is_strict: false }),
            identity: Some(Identity::Process { pid, started, inode }),
            by_uuid: Some("uuid:0f9c27aa-0000-4000-8000-00000000beef".parse().unwrap()),
            since: number,
            revision: number,
            ..Row::new(name.clone(), (owner, u32::MAX), terms, binding)
        };
        let stored = serde_json::to_string(&Past::of(&row)).unwrap();
        assert!(stored.len() <= row.stored_bytes(), "{} bytes: {stored}", stored.len());
        assert!(stored.len() + 100 > row.stored_bytes());
        let share_ppm = (number, number);
        let (missed, length) = (Some(number), Span::from_ns(number));
        let prediction = VmPrediction { name, share_ppm, missed, length };
        for stage in [
            PlanStage::Watching { prediction, watch: Span::from_ns(number) },
            PlanStage::Undone("\u{1b}".repeat(1_000)),
        ] {
            let step =
                PlanStep { before: Some(row.clone()), after: Some(row.clone()), is_done: false };
            let steps = vec![step.clone(), PlanStep { before: None, ..step }];
            let (role, users) = (Role::Administrator, vec![u32::MAX; 50]);
            let plan = Plan { principal: owner, role, users, since: number, steps, stage };
            let stored = serde_json::to_string(&StoredPlan::of(&plan)).unwrap();
            assert!(stored.len() <= plan.stored_bytes(), "{} bytes: {stored}", stored.len());
        }
    }
}
