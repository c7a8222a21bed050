//! Goals of VMs, as a file states them.

use std::collections::BTreeMap;

use serde::Deserialize;
use slackline_manager::Goals;
use slackline_units::CpuShare;
use thiserror::Error;

/// Default goal for misses: the largest allowed fraction of missed periods, in millionths.
const USUAL_MISSES_PPM: u32 = 1_000;

/// Default of the floor: the manager never reserves less than this share.
const USUAL_FLOOR: CpuShare = CpuShare::from_ppm(10_000);

/// Goals of all VMs.
#[derive(Clone, Debug, Default)]
pub struct GoalList {
    all: Entry,
    vms: BTreeMap<String, Entry>,
}

/// Goals and limits of one VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmGoals {
    /// Goals of the VM.
    pub goals: Goals,
    /// Floor: the manager never reserves less than this share.
    pub floor: CpuShare,
    /// Ceiling: the manager never reserves more than this share.
    pub ceiling: CpuShare,
    /// VMs with a higher priority are served first.
    pub priority: u8,
}

/// Reason why a text is not a valid goals file.
#[derive(Debug, Error)]
pub enum GoalsError {
    /// The text is not the expected TOML.
    #[error("cannot read goals: line {line}, column {column}: {message}")]
    Syntax {
        /// Line of the error, counted from 1.
        line: usize,
        /// Column of the error, counted from 1.
        column: usize,
        /// Description of the error.
        message: String,
    },
    /// A share is not a percentage or a number of CPUs.
    #[error("cannot read goals: `{key} = \"{written}\"` of {vm} {why}")]
    Share {
        /// Key of the share.
        key: &'static str,
        /// Value as the file states it.
        written: String,
        /// VM to which the goal belongs, or `all`.
        vm: String,
        /// Reason why the value is wrong.
        why: String,
    },
    /// The floor of a VM is above its ceiling.
    #[error("cannot use goals: the floor {floor} of {vm} is above its ceiling {ceiling}")]
    FloorAboveCeiling {
        /// VM to which the limits belong, or `all`.
        vm: String,
        /// Floor: the manager never reserves less than this share.
        floor: CpuShare,
        /// Ceiling: the manager never reserves more than this share.
        ceiling: CpuShare,
    },
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct GoalsFile {
    #[serde(default)]
    all: WrittenEntry,
    #[serde(default)]
    vm: BTreeMap<String, WrittenEntry>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenEntry {
    misses: Option<String>,
    least: Option<String>,
    r#use: Option<String>,
    floor: Option<String>,
    ceiling: Option<String>,
    priority: Option<u8>,
    leave: Option<bool>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    misses: Option<CpuShare>,
    least: Option<CpuShare>,
    used: Option<CpuShare>,
    floor: Option<CpuShare>,
    ceiling: Option<CpuShare>,
    priority: Option<u8>,
    leave: Option<bool>,
}

impl GoalList {
    /// Reads the text of a goals file.
    ///
    /// # Errors
    /// If the text is not TOML, has an unknown key, or has a value that is not a share. Also if a
    /// floor is above its ceiling.
    pub fn read(text: &str) -> Result<GoalList, GoalsError> {
        let file: GoalsFile = toml::from_str(text).map_err(|error| not_toml(text, &error))?;
        let vms = file.vm.iter().map(|(name, entry)| Ok((name.clone(), entry.read(name)?)));
        let vms = vms.collect::<Result<_, GoalsError>>()?;
        let list = GoalList { all: file.all.read("all")?, vms };
        list.check_limits("all", list.all)?;
        list.vms.iter().try_for_each(|(name, own)| list.check_limits(name, *own))?;
        Ok(list)
    }

    fn check_limits(&self, vm: &str, own: Entry) -> Result<(), GoalsError> {
        let (floor, ceiling) = self.limits(own);
        if floor <= ceiling {
            return Ok(());
        }
        Err(GoalsError::FloorAboveCeiling { vm: vm.into(), floor, ceiling })
    }

    /// Returns floor and ceiling of a VM. If no floor is stated, the floor is the default floor, or
    /// the ceiling if that is lower.
    fn limits(&self, own: Entry) -> (CpuShare, CpuShare) {
        let (floor, ceiling) = (own.floor.or(self.all.floor), own.ceiling.or(self.all.ceiling));
        let most = ceiling.unwrap_or(CpuShare::ONE);
        (floor.unwrap_or(USUAL_FLOOR.min(most)), most)
    }

    /// Excludes a VM from the changes of the manager.
    #[must_use]
    pub fn leaving(mut self, name: &str) -> GoalList {
        self.vms.entry(name.into()).or_default().leave = Some(true);
        self
    }

    /// Returns the names of the VMs for which the file has a table.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.vms.keys().map(String::as_str)
    }

    /// Returns the goals of a VM. `None` if the manager must not change the VM.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<VmGoals> {
        let (own, all) = (self.vms.get(name).copied().unwrap_or_default(), self.all);
        if own.leave.or(all.leave) == Some(true) {
            return None;
        }
        let used = own.used.or(all.used).map(CpuShare::ppm);
        let misses = own.misses.or(all.misses).map(CpuShare::ppm);
        let goals = Goals {
            misses_ppm: misses.or(used.is_none().then_some(USUAL_MISSES_PPM)),
            at_least: own.least.or(all.least),
            use_ppm: used,
        };
        let (floor, ceiling) = self.limits(own);
        Some(VmGoals {
            goals,
            floor,
            ceiling,
            priority: own.priority.or(all.priority).unwrap_or(0),
        })
    }
}

impl WrittenEntry {
    fn read(&self, vm: &str) -> Result<Entry, GoalsError> {
        let share = |key: &'static str, written: &Option<String>| {
            let Some(written) = written else { return Ok(None) };
            let share = written.parse::<CpuShare>().map_err(|why| why.to_string());
            let share = share.and_then(|share| limited(key, share));
            let of = |why| GoalsError::Share { key, written: written.clone(), vm: vm.into(), why };
            share.map(Some).map_err(of)
        };
        Ok(Entry {
            misses: share("misses", &self.misses)?,
            least: share("least", &self.least)?,
            used: share("use", &self.r#use)?,
            floor: share("floor", &self.floor)?,
            ceiling: share("ceiling", &self.ceiling)?,
            priority: self.priority,
            leave: self.leave,
        })
    }
}

fn not_toml(text: &str, error: &toml::de::Error) -> GoalsError {
    let before = &text[..error.span().map_or(0, |span| span.start)];
    let last = before.rsplit('\n').next().unwrap_or_default();
    let (line, column) = (before.matches('\n').count() + 1, last.chars().count() + 1);
    let message = error.message().lines().next().unwrap_or("not TOML").to_owned();
    GoalsError::Syntax { line, column, message }
}

/// Returns the share if the key allows it, or the reason why not. A reserved share cannot exceed
/// one CPU, because the manager changes only VMs with one vCPU.
fn limited(key: &str, share: CpuShare) -> Result<CpuShare, String> {
    if share == CpuShare::NONE && ["use", "floor", "ceiling"].contains(&key) {
        return Err("is not greater than zero".into());
    }
    match share > CpuShare::ONE && key != "use" {
        true if key == "misses" => Err("is more than all periods, 100%".into()),
        true => Err("is more than one CPU, the most that a VM with one vCPU can use".into()),
        false => Ok(share),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manager_goals_for_one_vm_override_goals_for_all_vms() {
        let text = "[all]\nmisses = \"1%\"\nfloor = \"3%\"\n\
                    [vm.web]\nuse = \"85%\"\nfloor = \"5%\"\n[vm.batch]\nleave = true\n";
        let goals = GoalList::read(text).expect("the text is valid");
        let web = goals.of("web").expect("it is managed");
        assert_eq!(web.goals.misses_ppm, Some(10_000));
        assert_eq!(web.goals.use_ppm, Some(850_000));
        assert_eq!((web.floor.ppm(), web.ceiling), (50_000, CpuShare::ONE));
        assert_eq!(goals.of("db").map(|db| db.floor.ppm()), Some(30_000));
        assert_eq!(goals.of("batch"), None);
    }

    #[test]
    fn manager_goal_without_unit_is_refused_naming_vm_and_key() {
        let error = GoalList::read("[vm.web]\nfloor = \"5\"\n").expect_err("it has no unit");
        let says = error.to_string();
        assert!(says.contains("floor") && says.contains("web") && says.contains("unit"), "{says}");
        assert!(GoalList::read("[vm.web]\nfloors = \"5%\"\n").is_err());
        assert!(GoalList::read("[all]\nuse = \"0%\"\n").is_err());
    }

    #[test]
    fn impossible_manager_goals_are_refused_with_the_given_values() {
        let refused = |text: &str| GoalList::read(text).expect_err(text).to_string();
        let says = refused("[vm.web]\nfloor = \"60%\"\nceiling = \"10%\"\n");
        assert!(says.contains("0.6cpu of web") && says.contains("0.1cpu"), "{says}");
        let says = refused("[all]\nceiling = \"30%\"\n[vm.db]\nfloor = \"0.4cpu\"\n");
        assert!(says.contains("0.4cpu of db") && says.contains("0.3cpu"), "{says}");
        for text in ["floor = \"0%\"", "ceiling = \"0%\"", "floor = \"101%\"", "least = \"2cpu\""] {
            assert!(refused(&format!("[vm.web]\n{text}\n")).contains("of web is"), "{text}");
        }
        assert!(refused("[all]\nmisses = \"101%\"\n").contains("100%"));
        let small = GoalList::read("[vm.web]\nceiling = \"0.5%\"\n").expect("a low ceiling");
        let web = small.of("web").expect("it is managed");
        assert_eq!((web.floor, web.ceiling.ppm()), (web.ceiling, 5_000));
    }
}
