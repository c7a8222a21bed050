//! Measures, in each period, how much later the last member of a gang starts its slice than the
//! first member.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use slackline_linux::sys::die_with_us;

use super::daemon::ServiceSetting;
use super::milliseconds;
use crate::report::{Row, quantile};

/// Maximum number of members. Each member has its own CPU.
const MEMBERS: usize = 4;

/// Period of a member. The slice is a fifth of the period, so that there is a visible pause before
/// each slice.
const PERIOD: Duration = Duration::from_millis(20);
const SLICE: Duration = Duration::from_millis(4);

/// Minimum pause between two slices. A shorter pause means that another program ran.
const PAUSE: Duration = Duration::from_millis(8);

/// Length of the measurement. It is a thousand periods.
const LENGTH: Duration = Duration::from_secs(20);

/// Computes forever. Prints the end of each pause of at least [`PAUSE`], in nanoseconds since 1970.
pub(crate) fn play_member() -> Result<()> {
    let mut out = std::io::stdout().lock();
    let mut before = Instant::now();
    loop {
        let now = Instant::now();
        if now - before >= PAUSE {
            writeln!(out, "{}", SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?;
        }
        before = now;
    }
}

/// Member processes. They are ended when this value is dropped.
struct Members(Vec<Child>);

impl Members {
    fn new(count: usize) -> Result<Members> {
        let mut members = Members(Vec::new());
        for _ in 0..count {
            let mut command = Command::new(std::env::current_exe()?);
            command.arg("member").stdin(Stdio::null()).stdout(Stdio::piped());
            die_with_us(&mut command);
            members.0.push(command.spawn()?);
        }
        Ok(members)
    }
}

impl Drop for Members {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Measures a gang with one member per CPU, at most [`MEMBERS`]. All members are on one daemon, so
/// they have one clock.
pub(super) fn rows(setting: &ServiceSetting) -> Result<Vec<Row>> {
    let count = setting.cpus.len().min(MEMBERS);
    let _daemon = setting.daemon(&setting.cpus, &[])?;
    let mut members = Members::new(count)?;
    let file = setting.path("gang.toml");
    let socket = setting.path("socket");
    let mut text = format!(
        "name = \"bench\"\nslice = \"{}ms\"\nperiod = \"{}ms\"\nexact = true\n",
        SLICE.as_millis(),
        PERIOD.as_millis()
    );
    for child in &members.0 {
        let (host, pid) = (socket.display(), child.id());
        text += &format!("[[member]]\nhost = \"{host}\"\nfor = \"pid:{pid}\"\nvcpus = 1\n");
    }
    fs::write(&file, text)?;
    let mut command = Command::new(setting.slackline());
    let begun = command.arg("gang").arg(&file).stdout(Stdio::null()).status()?;
    ensure!(begun.success(), "`slackline gang` failed: {begun}");
    let readers = members.0.iter_mut().map(|child| {
        let out = child.stdout.take().context("the output of a member is piped")?;
        Ok(std::thread::spawn(move || {
            let lines = BufReader::new(out).lines().map_while(Result::ok);
            lines.filter_map(|line| line.parse().ok()).collect::<Vec<u64>>()
        }))
    });
    let readers = readers.collect::<Result<Vec<_>>>()?;
    // The gang begins one second after it was started.
    sleep(Duration::from_secs(2));
    let from = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos())?;
    sleep(LENGTH);
    drop(members);
    let mut begins: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let period = u64::try_from(PERIOD.as_nanos())?;
    for reader in readers {
        let all = reader.join().ok().context("a reader panicked")?;
        for at in all.into_iter().filter(|at| *at > from) {
            begins.entry(at / period).or_default().push(at);
        }
    }
    Ok(vec![row(count, &begins)])
}

/// Returns the row for the time from the first to the last start of a slice in a period. Periods in
/// which a member did not start are left out.
fn row(count: usize, begins: &BTreeMap<u64, Vec<u64>>) -> Row {
    let whole = begins.values().filter(|all| all.len() == count);
    let apart = whole.filter_map(|all| Some(all.iter().max()? - all.iter().min()?));
    let apart: Vec<f64> = apart.map(|ns| ns as f64 / 1e6).collect();
    let what = format!(
        "gang of {count} members on one host, each alone on its CPU: time from the first to the \
         last member's start of a slice, in {} of {} periods",
        apart.len(),
        begins.len()
    );
    let holds = (count == MEMBERS).then(|| quantile(&apart, 99) <= 0.2);
    Row { what, got: milliseconds(&apart), promised: "p99 0.2 ms, with four members", holds }
}
