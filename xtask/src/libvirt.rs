//! Tests with a VM of a real libvirt. The VM's vCPU threads are in cgroups that libvirt has made.
//!
//! On a kernel with `RT_GROUP_SCHED` these cgroups have no real-time budget. The task is run by
//! hand, because it needs root, and Debian's libvirt and QEMU. If no libvirt daemon answers, the
//! task starts one and ends it afterwards. Only in this case the service is tested too, with
//! another VM. A libvirt daemon that was running before has not loaded Slackline's hook.

mod service;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::guest::{self, Work};
use crate::step;

/// Name of the VM. It contains a dot, as names of users' VMs often do.
const NAME: &str = "slackline22.04";

/// Folder that the user account of the VM can read.
const FOLDER: &str = "/var/lib/libvirt/images/slackline-guest";

/// Time limit of every step. Libvirt alone needs 50 s to start a VM if the test machine is busy
/// with builds.
const PATIENCE: Duration = Duration::from_secs(180);

/// Path of the program under test.
const PROGRAM: &str = "target/debug/slackline";

/// Limits the two vCPUs of a VM to 20 % each, while the guest keeps one of them busy. In the first
/// run Slackline runs to the end of the scenario, and in the second run it is killed.
///
/// # Errors
/// If libvirt, QEMU or another program is missing, or a check fails.
pub fn run() -> Result<ExitCode> {
    let mut cargo = step::cargo();
    ensure!(
        cargo.args(["build", "-p", "slackline", "--locked"]).status()?.success(),
        "cannot build slackline"
    );
    let guest = guest::fetch(Path::new(".cache/guest"))?;
    fs::create_dir_all(FOLDER)?;
    let (kernel, initramfs) = (format!("{FOLDER}/vmlinuz"), format!("{FOLDER}/initramfs.cpio"));
    fs::copy(&guest.kernel, &kernel)?;
    fs::copy(&guest.initramfs, &initramfs)?;
    let hook = service::Hook::install()?;
    let daemons = Daemons::start()?;
    let xml = PathBuf::from(format!("{FOLDER}/domain.xml"));
    fs::write(&xml, domain(&kernel, &initramfs))?;
    virsh(&["create", &xml.to_string_lossy()])?;
    let machine = Machine::find(2)?;
    println!("{} has {} vCPU threads", machine.pid, machine.threads.len());
    for (group, budget) in machine.budgets()? {
        println!("{} has a real-time budget of {budget} us", group.display());
    }
    let before = machine.state()?;
    let told = machine.hold("12s")?.wait_with_output()?;
    print!("{}", String::from_utf8_lossy(&told.stdout));
    eprint!("{}", String::from_utf8_lossy(&told.stderr));
    ensure!(told.status.success(), "the run ended with {}", told.status);
    wait_until("all threads to be restored", || Ok(machine.state()? == before))?;
    println!("all threads were restored");
    let mut runner = machine.hold("60s")?;
    wait_until("the guest to be scheduled", || Ok(machine.state()? != before))?;
    sleep(Duration::from_secs(2));
    ensure!(runner.try_wait()?.is_none(), "the run ended by itself");
    runner.kill()?;
    runner.wait()?;
    wait_until("all threads to be restored", || Ok(machine.state()? == before))?;
    println!("the run was killed, and all threads were restored");
    drop(machine);
    if daemons.0.is_empty() {
        println!("skipped: the service test, because this libvirt has not loaded the hook");
    } else {
        service::run(&kernel, &initramfs)?;
    }
    drop(daemons);
    drop(hook);
    fs::remove_dir_all(FOLDER)?;
    Ok(ExitCode::SUCCESS)
}

fn domain(kernel: &str, initramfs: &str) -> String {
    let arguments = Work::Spin.kernel_arguments();
    format!(
        "<domain type='qemu'><name>{NAME}</name><memory unit='MiB'>128</memory><vcpu>2</vcpu>\n\
         <os><type arch='x86_64' machine='pc'>hvm</type><kernel>{kernel}</kernel>\
         <initrd>{initramfs}</initrd><cmdline>{arguments}</cmdline></os>\n\
         <features><acpi/></features><on_reboot>destroy</on_reboot>\
         <seclabel type='none'/></domain>\n"
    )
}

/// Daemons of libvirt that this task has started. They are ended when this value is dropped.
struct Daemons(Vec<Child>);

impl Daemons {
    fn start() -> Result<Daemons> {
        let mut daemons = Daemons(Vec::new());
        if virsh(&["list"]).is_ok() {
            return Ok(daemons);
        }
        for daemon in ["/usr/sbin/virtlogd", "/usr/sbin/libvirtd"] {
            let mut command = Command::new(daemon);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            daemons.0.push(command.spawn().with_context(|| {
                format!(
                    "cannot start {daemon}\nhint:  apt-get install --no-install-recommends \
                     libvirt-daemon-system libvirt-clients qemu-system-x86"
                )
            })?);
        }
        wait_until("libvirt to answer", || Ok(virsh(&["list"]).is_ok()))?;
        Ok(daemons)
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        for daemon in self.0.iter_mut().rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// A running VM of libvirt. It is destroyed when this value is dropped.
struct Machine {
    pid: i32,
    /// Thread ids of the VM's vCPUs.
    threads: Vec<i32>,
}

impl Machine {
    fn find(vcpus: usize) -> Result<Machine> {
        let mut machine = Machine { pid: 0, threads: Vec::new() };
        let file = format!("/run/libvirt/qemu/{NAME}.pid");
        wait_until("the guest's vCPU threads", || {
            let Ok(pid) = fs::read_to_string(&file) else { return Ok(false) };
            machine.pid = pid.trim().parse()?;
            machine.threads = machine.vcpus_now()?;
            Ok(machine.threads.len() == vcpus)
        })?;
        Ok(machine)
    }

    /// Returns the current thread ids of the VM's vCPUs. The oldest thread comes first.
    fn vcpus_now(&self) -> Result<Vec<i32>> {
        let mut threads = Vec::new();
        for task in fs::read_dir(format!("/proc/{}/task", self.pid))?.flatten() {
            // A thread that has just ended is ignored.
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            if name.starts_with("CPU ") {
                threads.push(task.file_name().to_string_lossy().parse()?);
            }
        }
        threads.sort_unstable();
        Ok(threads)
    }

    /// Starts `slackline` with a scenario of length `length` that schedules this VM.
    fn hold(&self, length: &str) -> Result<Child> {
        let share = "{ slice = \"2ms\", period = \"10ms\", exact = true }";
        let scenario = format!(
            "title = \"a guest of libvirt\"\nlength = \"{length}\"\nwarmup = \"2s\"\n\
             policy = {{ name = \"edf\" }}\n[host]\ncpus = 1\n[[domain]]\nname = \"{NAME}\"\n\
             vcpus = 2\nlive = {{ pid = {}, threads = \"vcpus\" }}\nshare.edf = {share}\n\
             [[claim]]\nthat = \"delivered of {NAME}.0\"\nis = \"at most 20.5%\"\n\
             [[claim]]\nthat = \"delivered of {NAME}.1\"\nis = \"at most 20.5%\"\n\
",
            self.pid
        );
        let file = format!("{FOLDER}/hold.toml");
        fs::write(&file, scenario)?;
        let mut command = Command::new(PROGRAM);
        command.args(["run", &file]).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command.spawn()?)
    }

    /// Returns all settings of the VM's threads that Slackline changes: class, priority, CPUs,
    /// cgroups and budgets.
    fn state(&self) -> Result<Vec<String>> {
        let mut state = Vec::new();
        for tid in &self.threads {
            let file =
                |name: &str| fs::read_to_string(format!("/proc/{}/task/{tid}/{name}", self.pid));
            let (stat, status) = (file("stat")?, file("status")?);
            let fields = stat.rsplit(')').next().unwrap_or_default().split(' ');
            // The two fields are the real-time priority and the scheduling class.
            let class: Vec<&str> = fields.skip(38).take(2).collect();
            let cpus = status.lines().find(|line| line.starts_with("Cpus_allowed:"));
            state.push(format!("{tid} {class:?} {cpus:?} {}", file("cgroup")?));
        }
        let budgets = self.budgets()?.into_iter();
        state.extend(budgets.map(|(group, budget)| format!("{} {budget}", group.display())));
        Ok(state)
    }

    /// Returns the real-time budgets of the threads' cgroups. Empty if the kernel has no such
    /// budgets.
    fn budgets(&self) -> Result<Vec<(PathBuf, u64)>> {
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let is_cpu = |options: &str| options.split(',').any(|option| option == "cpu");
        let mount = mounts.lines().find(|line| {
            line.contains(" - cgroup ") && line.rsplit(' ').next().is_some_and(is_cpu)
        });
        let Some(point) = mount.and_then(|line| line.split(' ').nth(4)) else {
            return Ok(Vec::new());
        };
        let mut budgets = Vec::new();
        for tid in &self.threads {
            let groups = fs::read_to_string(format!("/proc/{}/task/{tid}/cgroup", self.pid))?;
            let group = groups.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
            let group = group.into_iter().find(|(controllers, _)| is_cpu(controllers));
            let Some((_, group)) = group else { continue };
            let folder = PathBuf::from(format!("{point}{group}"));
            if let Ok(text) = fs::read_to_string(folder.join("cpu.rt_runtime_us")) {
                budgets.push((folder, text.trim().parse()?));
            }
        }
        Ok(budgets)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = virsh(&["destroy", NAME]);
    }
}

fn virsh(arguments: &[&str]) -> Result<()> {
    let mut command = Command::new("virsh");
    let output = command.args(["-q", "-c", "qemu:///system"]).args(arguments).output();
    let output = output.context("cannot run virsh: is libvirt-clients installed?")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "virsh {}: {}", arguments.join(" "), said.trim());
    Ok(())
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !is_so()? {
        if begun.elapsed() > PATIENCE {
            bail!("waited {} s in vain for {what}", PATIENCE.as_secs());
        }
        sleep(Duration::from_millis(50));
    }
    Ok(())
}
