//! Errors of subjects. A subject is several busy threads or processes that share one reservation.
//! The share of a subject should be as exact as the share of a single thread.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::{LiveSetting, ROUNDS, lateness, promise, rounds, spread, sum, worst_round};
use crate::report::Row;

/// Subjects, each with two numbers: busy threads per process, and busy processes that a first,
/// sleeping process starts. If the second number is `None`, there is only the first process, and it
/// is busy.
const SUBJECTS: [(usize, Option<usize>); 7] =
    [(1, None), (2, None), (4, None), (8, None), (1, Some(1)), (1, Some(2)), (1, Some(8))];

/// Maximum length of each measurement in seconds. The maximum is short because there are many
/// measurements.
const MOST: u64 = 8;

/// Runs a process of a subject, which computes in `threads` threads and starts `processes`
/// processes.
pub(crate) fn play(threads: usize, processes: usize) -> Result<()> {
    let own = std::env::current_exe()?;
    let mut children = Vec::new();
    for _ in 0..processes {
        let mut child = Command::new(&own);
        child.args(["busy", &threads.to_string()]).stdout(Stdio::null());
        slackline_linux::sys::die_with_us(&mut child);
        children.push(child.spawn()?);
    }
    for mut child in children {
        child.wait()?;
    }
    for _ in 1..threads {
        std::thread::spawn(spin);
    }
    spin()
}

fn spin() -> Result<()> {
    loop {
        std::hint::spin_loop();
    }
}

/// Measures the error of each subject with a hard limit of 30 %.
pub(super) fn rows(setting: &LiveSetting) -> Result<Vec<Row>> {
    let own = std::env::current_exe()?;
    let own = own.to_str().context("this program has an ordinary name")?;
    let promise = promise((3000, 10_000))?;
    let mut rows = Vec::new();
    for (threads, processes) in SUBJECTS {
        let many = processes.unwrap_or(0);
        let scenario = format!(
            "title = \"bench\"\nlength = \"{}s\"\nwarmup = \"1s\"\npolicy = {{ name = \"edf\" }}\n\
             [[domain]]\nname = \"subject\"\n\
             live = {{ command = [{own:?}, \"busy\", \"{threads}\", \
             \"--processes\", \"{many}\"] }}\n\
             share.edf = {{ slice = \"3ms\", period = \"10ms\", exact = true }}\n",
            setting.seconds.min(MOST) + 1
        );
        let runs = rounds(setting, &scenario, &[promise])?;
        let (misses, most) = spread(&runs, |run| sum(run, "misses"));
        let (got, most_got) = spread(&runs, |run| sum(run, "delivered_ppm"));
        let worst = worst_round(&runs);
        let what = match processes {
            None => format!("a process of {threads} busy threads"),
            Some(many) => format!("a tree of {many} busy processes and one sleeping process"),
        };
        rows.push(Row {
            what: format!(
                "30 % of a CPU every 10 ms for {what}, beside a CPU hog: \
                 missed deadlines, median (worst) of {ROUNDS} runs"
            ),
            got: format!(
                "{misses} (worst: {most} of {} deadlines); delivered, median (most): {:.2} % \
                 ({:.2} %); {}",
                sum(worst, "deadlines"),
                got / 1e4,
                most_got / 1e4,
                lateness(worst)
            ),
            promised: "none",
            holds: Some(most == 0.0),
        });
    }
    Ok(rows)
}
