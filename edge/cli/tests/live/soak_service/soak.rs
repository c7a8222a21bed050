//! The daemon and its clients in the soak test, and the conditions that must always hold.

use std::collections::BTreeMap;
use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use slackline_linux::sys::online_cpus;
use slackline_units::{CpuId, CpuSet, Span};

use super::faults::{Disk, Fault};
use super::growth::{Growth, Needs};
use super::machine::{Machine, Shape};
use super::model::{Row, Slot};
use crate::common::live::{Live, TAG, let_pass, nap, wait_until};
use crate::common::service::{ask, ask_text};

/// Folder at which the disk for the ledger is mounted. [`STATE`] is the ledger's folder in it.
pub const DISK: &str = "disk";
pub const STATE: &str = "disk/state";

/// Size of the disk. It has space for a ledger of several days with its backups.
const DISK_SIZE: &str = "64m";

/// Environment variable with the CPU to schedule. By default it is the last CPU.
const CPU: &str = "SLACKLINE_SOAK_CPU";

/// Period of all reservations. All slices together are less than a quarter of a CPU.
const PERIOD: Span = Span::from_ms(20);

/// Slice of the VMs whose reservations the test never changes.
const STEADY: Span = Span::from_us(400);

/// Number of VMs whose reservations the test never changes.
const STEADIES: usize = 2;

/// Number of vCPU threads of each VM whose reservation the test changes. Zero for a plain process.
const OTHERS: [u16; 8] = [1, 2, 0, 1, 2, 0, 1, 1];

/// Interval of samples of resources and delivered CPU time.
const SAMPLE: Duration = Duration::from_secs(30);

/// Maximum age of the numbers in `list`. They can be 200 ms old if another client has just asked.
/// The remaining time allows for late enforcement on a busy host.
const OLD: Duration = Duration::from_millis(250);

/// Maximum time until a change is visible in the kernel's state, on a busy host.
pub const SHOWS: Duration = Duration::from_secs(30);

/// A generator of pseudo-random numbers. The sequence depends only on the seed.
pub struct Dice(u64);

impl Dice {
    pub fn below(&mut self, count: u64) -> u64 {
        // This is Knuth's linear congruential generator, whose high bits are the good ones.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % count
    }

    pub fn pick(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).expect("the number is below `count`")
    }
}

/// State of a VM at the start of a comparison. The reservation of this VM never changes.
#[derive(Clone, Copy)]
struct Baseline {
    used: Used,
    /// CPU time of the VM as the daemon counts it, in nanoseconds.
    listed: u64,
    /// Total lateness of all timers plus stolen time so far, in seconds.
    late: f64,
    at: Instant,
}

/// CPU time of a VM whose reservation never changes, as the kernel counted it before and after a
/// request for `list`. On a busy host that request may take seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Used {
    before: Span,
    after: Span,
}

pub struct Soak<'a> {
    pub live: &'a Live,
    pub dice: Dice,
    pub slots: Vec<Slot>,
    pub met: BTreeMap<Fault, u64>,
    pub is_disk_full: bool,
    /// True if the test may kill the daemon's core process in addition to the current fault.
    pub may_die: bool,
    cpu: CpuId,
    core: Child,
    core_began: Instant,
    baselines: Vec<Option<Baseline>>,
    growths: BTreeMap<&'static str, Growth>,
    next_sample: Instant,
    began: Instant,
    findings: Vec<String>,
    asked: u64,
    unanswered: u64,
    /// Longest times from a death of the daemon's core process until all threads were restored, and
    /// until the daemon answered again.
    slowest: (Duration, Duration),
    _disk: Disk,
}

impl<'a> Soak<'a> {
    /// Starts the daemon and its VMs.
    pub fn begin(live: &'a Live) -> Option<Soak<'a>> {
        let disk = Disk::mount(&live.place.path(DISK), DISK_SIZE)?;
        let wanted = std::env::var(CPU).ok().and_then(|text| text.parse().ok()).map(CpuId::new);
        let online = online_cpus().expect("CPUs");
        let cpu = wanted.or_else(|| online.iter().last()).expect("a CPU");
        let steady = (0..STEADIES).map(|it| Slot::new(it, Shape { vcpus: 1, spins: true }));
        let others = OTHERS.iter().enumerate();
        let others =
            others.map(|(it, &vcpus)| Slot::new(it + STEADIES, Shape { vcpus, spins: false }));
        let now = Instant::now();
        let mut soak = Soak {
            live,
            dice: Dice(u64::from(std::process::id())),
            slots: steady.chain(others).collect(),
            met: BTreeMap::new(),
            is_disk_full: false,
            may_die: true,
            cpu,
            core: start(live, cpu),
            core_began: now,
            baselines: vec![None; STEADIES],
            growths: BTreeMap::new(),
            next_sample: now,
            began: now,
            findings: Vec::new(),
            asked: 0,
            unanswered: 0,
            slowest: (Duration::ZERO, Duration::ZERO),
            _disk: disk,
        };
        soak.until_it_answers();
        for number in 0..STEADIES {
            soak.start_machine(number);
            soak.reserve(number, Row { slice: STEADY, exact: true, paused: false });
        }
        soak.all_is_well();
        Some(soak)
    }

    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    fn say(&self, what: &str) {
        println!("{:9.1} s  {what}", self.elapsed().as_secs_f64());
    }

    /// Records that a condition was violated. The test continues, to find other violations.
    pub fn find(&mut self, what: String) {
        self.say(&format!("FINDING: {what}"));
        self.findings.push(what);
    }

    pub fn ask(&mut self, method: &str, path: &str, body: Option<&Value>) -> Option<(u16, Value)> {
        let socket = self.live.place.path("socket");
        self.asked += 1;
        loop {
            match ask(&socket, method, path, body) {
                Some((429, _)) => let_pass(Duration::from_millis(200)),
                // On a slow machine the core may answer too late and still carry out the request.
                None | Some((504, _)) => {
                    self.unanswered += 1;
                    return None;
                }
                answer => return answer,
            }
        }
    }

    fn until_it_answers(&mut self) {
        wait_until("the daemon to answer", || {
            let status = self.core.try_wait().expect("the process is a child of the test");
            let said = || String::from_utf8_lossy(&self.live.place.read("err")).into_owned();
            assert!(status.is_none(), "the daemon ended by itself: {status:?}: {}", said());
            ask(&self.live.place.path("socket"), "GET", "/v1/host", None).is_some()
        });
    }

    /// Sends random requests for a length of time.
    pub fn go_on(&mut self, length: Duration) {
        let until = Instant::now() + length;
        while Instant::now() < until {
            self.act();
            let_pass(Duration::from_millis(20 + self.dice.below(60)));
        }
    }

    /// Sends random requests at a slow rate for a length of time, and causes a fault every minute.
    pub fn live_for(&mut self, length: Duration, faults: &[Fault]) {
        self.may_die = faults.contains(&Fault::CoreDies);
        let until = Instant::now() + length;
        let mut next = Instant::now() + Duration::from_secs(30);
        self.say(&format!("a life of {} s with {faults:?}", length.as_secs()));
        while Instant::now() < until {
            self.act();
            let_pass(Duration::from_millis(100 + self.dice.below(200)));
            if Instant::now() >= self.next_sample {
                self.sample();
            }
            if Instant::now() >= next {
                next += Duration::from_secs(60);
                let fault = faults[self.dice.pick(faults.len())];
                self.meet(fault);
                self.say(&format!("{fault:?}, and all is well"));
            }
        }
        self.meet(Fault::CoreDies);
    }

    /// Kills processes `kills` times in direct succession.
    pub fn kill_often(&mut self, kills: u64) {
        for number in 0..kills {
            let which = usize::try_from(number).expect("a small number") % Fault::KILLS.len();
            self.meet(Fault::KILLS[which]);
            if number % 50 == 49 {
                self.say(&format!("{} kills", number + 1));
            }
        }
    }

    /// Returns the VMs whose reservations the test may change and whose state is certain.
    pub fn changeable(&self) -> impl Iterator<Item = usize> {
        let slots = self.slots.iter().enumerate().skip(STEADIES);
        slots.filter(|(_, slot)| slot.is_known()).map(|(number, _)| number)
    }

    pub fn has_machine(&self, number: usize) -> bool {
        self.slots[number].machine.is_some()
    }

    /// Sends a random request, or starts or ends a VM.
    pub fn act(&mut self) {
        let known: Vec<usize> = self.changeable().collect();
        if known.is_empty() {
            return;
        }
        let number = known[self.dice.pick(known.len())];
        let dice = self.dice.below(100);
        match (self.has_machine(number), self.slots[number].row()) {
            (false, _) if dice < 50 => self.start_machine(number),
            (true, _) if dice < 8 => self.slots[number].end_machine(),
            (_, None) => {
                // A plain process can be reserved for only while it runs.
                if self.has_machine(number) || self.slots[number].shape.vcpus > 0 {
                    let row = self.some_row();
                    self.reserve(number, row);
                }
            }
            (_, Some(row)) if dice < 50 => {
                let changed = Row { paused: row.paused, ..self.some_row() };
                let body = json!({
                    "slice": changed.slice.to_string(), "exact": changed.exact
                });
                self.change(number, ("PATCH", ""), Some(&body), Some(changed));
            }
            (_, Some(row)) if dice < 75 => {
                let how = if row.paused { "/resume" } else { "/pause" };
                let row = Row { paused: !row.paused, ..row };
                self.change(number, ("POST", how), None, Some(row));
            }
            (_, Some(_)) if dice < 90 => self.change(number, ("DELETE", ""), None, None),
            _ => self.read(),
        }
    }

    fn some_row(&mut self) -> Row {
        let slice = Span::from_us(200 + self.dice.below(160));
        Row { slice, exact: self.dice.below(2) == 0, paused: false }
    }

    fn start_machine(&mut self, number: usize) {
        let slot = &mut self.slots[number];
        slot.machine = Some(Machine::start(&slot.called, slot.shape));
    }

    /// Makes a reservation, sometimes under a new name. The old name is kept while changes under it
    /// are perhaps not on the disk yet, since a death of the daemon could undo these changes.
    fn reserve(&mut self, number: usize, row: Row) {
        let is_other = number >= STEADIES && self.dice.below(3) == 0;
        let slot = &mut self.slots[number];
        let is_other = is_other && slot.was.is_empty();
        if is_other {
            slot.names += 1;
            slot.name = format!("r{number}.{}", slot.names);
        }
        let body = json!({
            "slice": row.slice.to_string(), "period": PERIOD.to_string(), "exact": row.exact,
            "vcpus": slot.shape.vcpus.max(1), "for": slot.binding(),
        });
        self.change(number, ("PUT", ""), Some(&body), Some(row));
    }

    /// Requests a change of a reservation, and notes the change if the daemon acknowledges it.
    fn change(
        &mut self,
        number: usize,
        (method, how): (&str, &str),
        body: Option<&Value>,
        after: Option<Row>,
    ) {
        let path = format!("/v1/reservations/{}{how}", self.slots[number].name);
        let answer = self.ask(method, &path, body);
        let slot = &mut self.slots[number];
        match answer {
            Some((200 | 201, body)) => slot.is_now(after, body["warning"].is_null()),
            // Only `list` can tell whether the change is in force.
            None | Some((503 | 507, _)) => slot.may_be_now(after),
            Some((409, _)) if method == "PUT" && slot.may_be_unnoticed() => {}
            Some((status, body)) => {
                self.find(format!("{method} {path} was answered {status} {body}"));
                self.slots[number].may_be_now(after);
            }
        }
    }

    fn read(&mut self) {
        let paths = ["/v1/room?period=20ms", "/v1/machines", "/v1/log", "/metrics", "/v1/host"];
        let path = paths[self.dice.pick(paths.len())];
        if let Some((status, body)) = self.ask("GET", path, None)
            && status != 200
        {
            self.find(format!("GET {path} was answered {status} {body}"));
        }
    }

    /// Returns the entries of `list` by name. `None` if the daemon does not answer.
    fn list(&mut self) -> Option<BTreeMap<String, Value>> {
        let (status, body) = self.ask("GET", "/v1/reservations", None)?;
        let rows = body.as_array().filter(|_| status == 200)?;
        Some(
            rows.iter()
                .map(|row| (row["name"].as_str().unwrap_or("?").into(), row.clone()))
                .collect(),
        )
    }

    /// Checks that `list` shows all acknowledged changes, and that the kernel's state agrees with
    /// `list`.
    pub fn all_is_well(&mut self) {
        let deadline = Instant::now() + SHOWS;
        loop {
            let wrong = self.list().map_or_else(|| vec!["no answer".into()], |it| self.wrong(&it));
            if wrong.is_empty() {
                break;
            }
            if Instant::now() > deadline {
                wrong.into_iter().for_each(|it| self.find(it));
                self.believe();
                break;
            }
            nap();
        }
        self.threads_are_as_they_should();
        for word in ["serve", "serve-front", "keep"] {
            let count = |live: &Live| live.processes_of(word).len();
            let deadline = Instant::now() + SHOWS;
            while count(self.live) != 1 && Instant::now() < deadline {
                nap();
            }
            if count(self.live) != 1 {
                self.find(format!("{} processes of {word}", count(self.live)));
            }
        }
    }

    /// Returns descriptions of the entries of `list` that contradict the model.
    fn wrong(&mut self, listed: &BTreeMap<String, Value>) -> Vec<String> {
        let mut wrong = Vec::new();
        for slot in &mut self.slots {
            let row = listed.get(&slot.name);
            let fits = |may_be: &Option<Row>| match (may_be, row) {
                (None, None) => true,
                (Some(may_be), Some(row)) => may_be.fits(row),
                _ => false,
            };
            let may_be: Vec<Option<Row>> = slot.may_be.iter().copied().filter(fits).collect();
            let Some(&is) = may_be.last() else {
                let (name, may_be) = (&slot.name, &slot.may_be);
                wrong.push(format!("{name} is {row:?}, and could be {may_be:?}"));
                continue;
            };
            let state = match (&slot.machine, is) {
                (_, None) => None,
                (None, Some(_)) => Some("waiting"),
                (Some(_), Some(row)) if row.paused => Some("paused"),
                (Some(_), Some(_)) => Some("active"),
            };
            if row.and_then(|row| row["state"].as_str()) != state {
                wrong.push(format!("{} is to be {state:?}, and is {row:?}", slot.name));
                continue;
            }
            slot.may_be = may_be;
            slot.may_be.dedup();
            // A reservation without VM does not show whether it is paused, so its VM is started.
            if !slot.is_known() && slot.machine.is_none() {
                slot.machine = Some(Machine::start(&slot.called, slot.shape));
                wrong.push(format!("{} is {:?}", slot.name, slot.may_be));
            }
        }
        let ours: Vec<&String> = self.slots.iter().map(|slot| &slot.name).collect();
        let strange = listed.keys().filter(|name| !ours.contains(name));
        wrong.extend(strange.map(|name| {
            format!("`list` shows {name}, which was never reserved: {}", listed[name])
        }));
        wrong
    }

    /// Sets the model to the state that `list` shows, after a condition was violated.
    fn believe(&mut self) {
        let listed = self.list().unwrap_or_default();
        for slot in &mut self.slots {
            slot.may_be = vec![listed.get(&slot.name).map(|row| Row {
                slice: Span::from_ns(row["slice_ns"].as_u64().unwrap_or(0)),
                exact: row["exact"] == true,
                paused: row["state"] == "paused",
            })];
        }
    }

    /// Checks that the daemon schedules the VMs with reservations, that paused VMs do not run, and
    /// that all other VMs are restored.
    pub fn threads_are_as_they_should(&mut self) {
        let deadline = Instant::now() + SHOWS;
        loop {
            let wrong: Vec<String> =
                (0..self.slots.len()).filter_map(|number| self.wrong_with(number)).collect();
            if wrong.is_empty() {
                return;
            }
            if Instant::now() > deadline {
                wrong.into_iter().for_each(|it| self.find(it));
                return;
            }
            nap();
        }
    }

    fn wrong_with(&self, number: usize) -> Option<String> {
        let slot = &self.slots[number];
        let (machine, true) = (slot.machine.as_ref()?, slot.is_known()) else { return None };
        let before = machine.used();
        match slot.row() {
            None => {
                let differs = machine.differs();
                (!differs.is_empty())
                    .then(|| format!("{} is not restored: {differs:?}", slot.called))
            }
            // A thread that was never picked is not pinned yet. It only must not run.
            Some(row) if row.paused => {
                let_pass(Duration::from_millis(60));
                let ran = machine.used() - before;
                (ran > Span::ZERO).then(|| format!("{} is paused, and ran {ran}", slot.called))
            }
            Some(_) if !machine.is_on(CpuSet::one(self.cpu)) => {
                Some(format!("{} is not scheduled: {:?}", slot.called, machine.differs()))
            }
            Some(_) => None,
        }
    }

    /// Handles the death of the daemon's core process at time `at`: waits until all threads are
    /// restored, and starts the daemon again. `with_keeper` is true if the keeper, which restores
    /// threads, died too. Then `doctor` must restore the threads.
    pub fn core_died(&mut self, at: Instant, with_keeper: bool) {
        self.core.wait().expect("the process is a child of the test");
        self.note_growth();
        if with_keeper {
            let freed = self.live.run(&["doctor", "--free"]);
            if freed.code != Some(0) {
                self.find(format!("doctor --free: {:?} {} {}", freed.code, freed.out, freed.err));
            }
        }
        let held = |soak: &Soak<'_>| -> Vec<String> {
            let machines = soak.slots.iter().filter_map(|slot| slot.machine.as_ref());
            machines.flat_map(Machine::differs).collect()
        };
        let deadline = Instant::now() + SHOWS;
        while !held(self).is_empty() && Instant::now() < deadline {
            nap();
        }
        for left in held(self) {
            self.find(format!("a dead daemon left threads changed: {left}"));
        }
        let free = at.elapsed();
        self.core = start(self.live, self.cpu);
        self.core_began = Instant::now();
        self.baselines.fill(None);
        self.until_it_answers();
        let slowest = self.slowest;
        self.slowest = (slowest.0.max(free), slowest.1.max(at.elapsed()));
        self.slots.iter_mut().for_each(Slot::forgot);
    }

    /// Samples the resources of the daemon's processes and the delivered CPU time.
    fn sample(&mut self) {
        self.next_sample = Instant::now() + SAMPLE;
        let mut line = String::new();
        for word in ["serve", "serve-front", "keep"] {
            let Some(pid) = self.live.processes_of(word).first().copied() else { continue };
            let Some(needs) = Needs::of(pid) else { continue };
            line += &format!("{word}: {needs}; ");
            if self.growths.get(word).is_none_or(|growth| growth.pid != pid) {
                self.growths.insert(word, Growth::new(pid));
            }
            if let Some(growth) = self.growths.get_mut(word) {
                growth.note(self.core_began.elapsed(), needs);
            }
        }
        let before = self.used();
        let_pass(OLD);
        let listed = self.list().unwrap_or_default();
        let after = self.used();
        let late = self.late();
        for number in 0..STEADIES {
            let used = Used { before: before[number], after: after[number] };
            line += &self.delivered(number, &listed, (used, late));
        }
        self.say(&format!("{line}{} requests, {} unanswered", self.asked, self.unanswered));
    }

    /// Returns the CPU time of the VMs whose reservations never change, as the kernel counts it.
    fn used(&self) -> [Span; STEADIES] {
        let used = |number: usize| self.slots[number].machine.as_ref().map(Machine::used);
        std::array::from_fn(|number| used(number).unwrap_or(Span::ZERO))
    }

    /// Returns the sum of the lateness of all timers and of stolen time, in seconds.
    fn late(&self) -> f64 {
        let page = ask_text(&self.live.place.path("socket"), "GET", "/metrics", None);
        let page = page.map(|(_, text)| text).unwrap_or_default();
        let sums = ["slackline_timer_late_seconds_sum", "slackline_cpu_stolen_seconds_total"];
        let lines = page.lines().filter(|line| sums.iter().any(|sum| line.starts_with(sum)));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    /// Checks that a VM whose reservation never changes received its reserved CPU time.
    fn delivered(
        &mut self,
        number: usize,
        listed: &BTreeMap<String, Value>,
        (used, late): (Used, f64),
    ) -> String {
        let slot = &self.slots[number];
        if slot.machine.is_none() {
            return String::new();
        }
        let Some(row) = listed.get(&slot.name).filter(|row| row["state"] == "active") else {
            return String::new();
        };
        let (listed, at) = (row["total"]["used_ns"].as_u64().unwrap_or(0), Instant::now());
        let Some(base) = self.baselines[number] else {
            self.baselines[number] = Some(Baseline { used, listed, late, at });
            return String::new();
        };
        let listed = listed - base.listed;
        let least = used.before.left_after(base.used.after).ns();
        let most = (used.after - base.used.before).ns();
        // A run interval that is just ending is counted once it is reported.
        let slop = Span::from_ms(30).ns();
        if listed + slop < least || listed > most + slop {
            let what = format!("used {least} to {most} ns, and is said to have used {listed}");
            self.find(format!("steady {number} {what}"));
        }
        let used = least;
        let span = u64::try_from((at - base.at).as_nanos()).expect("less than 584 years");
        let promised = span / (PERIOD.ns() / STEADY.ns());
        // The tolerance is a slice at each end, and late enforcement, which is forgiven. For such a
        // small slice, that is much on a busy host.
        let late = Duration::from_secs_f64((late - base.late).max(0.0));
        let late = u64::try_from(late.as_nanos()).expect("less than 584 years");
        if used > promised + late + 3 * STEADY.ns() {
            let most = format!("{promised} that it is promised, {late} timers were late");
            self.find(format!("steady {number} used {used} ns of {most}"));
        }
        let (missed, of) = (&row["recent"]["missed"], &row["recent"]["deadlines"]);
        let ppm = u128::from(used) * 1_000_000 / u128::from(promised.max(1));
        let late = late / 1_000_000;
        format!("steady {number}: {ppm} ppm, {late} ms late, {missed} of {of} missed; ")
    }

    /// Records the processes whose use of resources has grown.
    fn note_growth(&mut self) {
        for (word, growth) in std::mem::take(&mut self.growths) {
            for grew in growth.grew() {
                self.find(format!("{word} grew: {grew}"));
            }
        }
    }

    /// Ends the daemon with a signal, and asserts that no process and no changed thread remains.
    pub fn end(mut self) {
        self.note_growth();
        crate::common::live::kill(
            i32::try_from(self.core.id()).expect("a process id"),
            rustix::process::Signal::TERM,
        );
        wait_until("the daemon to end", || {
            self.core.try_wait().expect("the process is a child of the test").is_some()
        });
        let code = self.core.wait().expect("the process is a child of the test").code();
        if code != Some(0) {
            self.find(format!("the daemon ended with {code:?}"));
        }
        for slot in &mut self.slots {
            slot.may_be = vec![None];
        }
        self.threads_are_as_they_should();
        self.say(&format!(
            "{:?}; {} requests, {} unanswered; slowest: restored after {:?}, answers after {:?}",
            self.met, self.asked, self.unanswered, self.slowest.0, self.slowest.1
        ));
        assert!(self.findings.is_empty(), "{:#?}", self.findings);
        self.live.nothing_is_left();
    }
}

impl Drop for Soak<'_> {
    fn drop(&mut self) {
        let _ = self.core.kill();
        let _ = self.core.wait();
    }
}

/// Starts the daemon with the options of its systemd unit. Also used after the daemon has died.
fn start(live: &Live, cpu: CpuId) -> Child {
    let cpu = cpu.index().to_string();
    let arguments = ["serve", "--cpus", &cpu, "--state", STATE, "--socket", "socket"];
    let mut command: Command = live.command(&arguments);
    let said = File::options().create(true).append(true).open(live.place.path("err"));
    command.env(TAG, &live.tag).stdout(Stdio::null()).stderr(said.expect("a file"));
    command.spawn().expect("the program can be started")
}
