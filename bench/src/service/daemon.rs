//! The measured daemon, with its clients and the processes that it schedules.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use slackline_control::client::{Answered, Client, ClientError};
use slackline_control::{Kind, Length, ReservationParameters};
use slackline_linux::sys::{Tid, die_with_us, online_cpus, process_cpu_time};
use slackline_units::Span;

/// Time limit for the first answer of a daemon, for its end, and for a request that the rate limit
/// refuses.
const PATIENCE: Duration = Duration::from_secs(60);

/// Parameters of every measurement.
pub(super) struct ServiceSetting {
    slackline: PathBuf,
    /// Folder for the files of measurements. It is on the disk of the program, because commits of
    /// the ledger wait for that disk.
    folder: PathBuf,
    /// All CPUs that are online.
    pub(super) cpus: Vec<usize>,
    /// Number of changes that the part `changes` measures.
    pub(super) changes: usize,
}

impl ServiceSetting {
    pub(super) fn new(changes: usize) -> Result<ServiceSetting> {
        let here = std::env::current_exe()?;
        let beside = here.parent().context("a program has a folder")?;
        let slackline = beside.join("slackline");
        ensure!(slackline.exists(), "cannot find `slackline`: run `cargo build --release` first");
        let cpus: Vec<usize> = online_cpus()?.iter().map(slackline_units::CpuId::index).collect();
        ensure!(
            cpus.len() >= 2,
            "the bench needs two CPUs: one for the daemon's VMs, and one for other programs"
        );
        let folder = beside.join(format!("slackline-bench-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        Ok(ServiceSetting { slackline, folder, cpus, changes })
    }

    /// Returns the CPU that is managed in measurements with only one managed CPU.
    pub(super) fn last_cpu(&self) -> usize {
        self.cpus[self.cpus.len() - 1]
    }

    /// Returns the path of the measured program.
    pub(super) fn slackline(&self) -> &Path {
        &self.slackline
    }

    /// Returns the path of a file of a measurement. The file has the name `name`.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Starts a daemon that schedules `cpus` with an empty ledger and the additional options
    /// `also`. Waits until the daemon answers.
    pub(super) fn daemon(&self, cpus: &[usize], also: &[String]) -> Result<Daemon<'_>> {
        let state = self.path("state");
        if state.exists() {
            fs::remove_dir_all(&state)?;
        }
        let cpus: Vec<String> = cpus.iter().map(usize::to_string).collect();
        let path = |name: &str| self.path(name).display().to_string();
        let mut words = ["serve", "--cpus", &cpus.join(","), "--state", &path("state")]
            .map(str::to_owned)
            .to_vec();
        words.extend(["--socket".to_owned(), path("socket")]);
        words.extend_from_slice(also);
        let child = self.spawn(&words)?;
        let mut daemon = Daemon { setting: self, words, child };
        daemon.until_it_answers()?;
        Ok(daemon)
    }

    fn spawn(&self, words: &[String]) -> Result<Child> {
        let said = fs::File::create(self.path("said"))?;
        let mut command = Command::new(&self.slackline);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        Ok(command.spawn()?)
    }
}

impl Drop for ServiceSetting {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A daemon. It is ended when this value is dropped.
pub(super) struct Daemon<'a> {
    setting: &'a ServiceSetting,
    words: Vec<String>,
    child: Child,
}

/// Way in which a daemon is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Asked,
    Killed,
}

impl Daemon<'_> {
    /// Returns a client that is connected to the daemon over its Unix socket.
    pub(super) fn client(&self) -> Result<Client> {
        Ok(Client::connect(&self.setting.path("socket"))?)
    }

    fn until_it_answers(&mut self) -> Result<()> {
        let deadline = Instant::now() + PATIENCE;
        while self.client().and_then(|mut client| Ok(client.host()?)).is_err() {
            if let Some(status) = self.child.try_wait()? {
                let said = fs::read_to_string(self.setting.path("said")).unwrap_or_default();
                bail!("the daemon ended with {status}: {}", said.trim());
            }
            ensure!(Instant::now() < deadline, "the daemon does not answer");
            sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Ends the daemon and starts it again. Returns the time from the end of the old daemon to the
    /// first answer of the new daemon.
    pub(super) fn again(&mut self, how: End) -> Result<Duration> {
        let began = Instant::now();
        self.end(how)?;
        self.child = self.setting.spawn(&self.words)?;
        self.until_it_answers()?;
        Ok(began.elapsed())
    }

    fn end(&mut self, how: End) -> Result<()> {
        match how {
            End::Killed => self.child.kill()?,
            End::Asked => {
                let core = tid(self.child.id())?;
                slackline_linux::sys::signal_process(core, rustix::process::Signal::TERM)?;
            }
        }
        let ended = self.wait_for_end()?;
        ensure!(how == End::Killed || ended.success(), "the daemon ended with {ended}");
        Ok(())
    }

    fn wait_for_end(&mut self) -> Result<ExitStatus> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            ensure!(Instant::now() < deadline, "the daemon has not ended within {PATIENCE:?}");
            sleep(Duration::from_millis(1));
        }
    }

    /// Returns the process ids of the daemon's core, front and keeper. The core schedules VMs, the
    /// front parses requests, and the keeper restores threads if the core dies.
    pub(super) fn processes(&self) -> Result<[u32; 3]> {
        let core = self.child.id();
        let is_child = |process: &Path| {
            let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
            let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1));
            parent.is_some_and(|parent| parent == core.to_string())
        };
        let mut found = [core, 0, 0];
        for entry in fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if is_child(&entry.path()) {
                // A process that has just ended is none of the three.
                let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                match line.split(|&byte| byte == 0).nth(1) {
                    Some(b"serve-front") => found[1] = pid,
                    Some(b"keep") => found[2] = pid,
                    _ => {}
                }
            }
        }
        ensure!(
            found.iter().all(|&pid| pid > 0),
            "cannot find core, front and keeper of the daemon: {found:?}"
        );
        Ok(found)
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        // The keeper restores all processes when the daemon ends.
        let _ = self.end(End::Asked).or_else(|_| self.end(End::Killed));
    }
}

/// Returns the id of a process as a thread id.
pub(super) fn tid(pid: u32) -> Result<Tid> {
    Tid::new(i32::try_from(pid)?).context("a process has an id")
}

/// Sends a request and returns the answer. If the rate limit refuses the request, the request is
/// repeated for up to [`PATIENCE`].
pub(super) fn allowed<T>(mut ask: impl FnMut() -> Answered<T>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Ok((answer, _)) => return Ok(answer),
            Err(ClientError::Refused(problem))
                if problem.kind == Kind::TooMany && Instant::now() < deadline =>
            {
                sleep(Duration::from_millis(50));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns all samples of a Prometheus metric, with their labels.
pub(super) fn samples(client: &mut Client, name: &str) -> Result<Vec<(String, f64)>> {
    let page = allowed(|| client.page("/metrics").map(|text| (text.clone(), text)))?;
    let of = |line: &str| {
        let (labels, value) = line.strip_prefix(name)?.rsplit_once(' ')?;
        let is_it = labels.is_empty() || labels.starts_with('{');
        is_it.then(|| Some((labels.to_owned(), value.parse().ok()?)))?
    };
    Ok(page.0.lines().filter_map(of).collect())
}

/// Child processes. They are ended when this value is dropped.
pub(super) struct Processes(Vec<Child>);

impl Processes {
    /// Starts processes that always compute.
    pub(super) fn that_spin(count: usize) -> Result<Processes> {
        let own = std::env::current_exe()?;
        Processes::of(count, &own, &["busy", "1"])
    }

    /// Starts processes that always sleep.
    pub(super) fn that_sleep(count: usize) -> Result<Processes> {
        Processes::of(count, Path::new("sleep"), &["1000000"])
    }

    /// Starts `count` processes with the same program and arguments.
    pub(super) fn of(count: usize, program: &Path, words: &[&str]) -> Result<Processes> {
        let mut processes = Processes(Vec::new());
        for _ in 0..count {
            let mut command = Command::new(program);
            command.args(words).stdin(Stdio::null()).stdout(Stdio::null());
            die_with_us(&mut command);
            processes.0.push(command.spawn()?);
        }
        Ok(processes)
    }

    pub(super) fn pids(&self) -> impl Iterator<Item = u32> {
        self.0.iter().map(Child::id)
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the parameters of a reservation with a hard limit for a process: `slice` in every
/// `period`.
pub(super) fn wanted(pid: u32, slice: Span, period: Span) -> ReservationParameters {
    ReservationParameters {
        slice: Some(Length(slice)),
        period: Some(Length(period)),
        exact: true,
        binding: Some(format!("pid:{pid}")),
        ..ReservationParameters::default()
    }
}

/// Returns the resident memory of a process in KiB.
pub(super) fn resident(pid: u32) -> Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.context("the status of the process has no VmRSS")
}

/// Returns the number of open file descriptors of a process.
pub(super) fn descriptors(pid: u32) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// Returns the CPU time of a process.
pub(super) fn cpu_time(pid: u32) -> Result<Duration> {
    Ok(Duration::from_nanos(process_cpu_time(tid(pid)?)?.ns()))
}
