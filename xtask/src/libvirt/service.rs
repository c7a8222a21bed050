//! Test of the service with a VM of a real libvirt. The metadata of the VM contain its reservation.
//! The test starts the VM, changes its reservation, kills the daemon and starts it again. Then it
//! adds and removes a vCPU, restarts the VM, lets other programs pin its threads, and releases the
//! reservation. After most steps, the test waits for the expected state of the reservation.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::{FOLDER, Machine, NAME, PROGRAM, domain, virsh, wait_until};
use crate::step;

/// Folder of libvirt's hooks. Libvirt reads it only when its daemon starts.
const HOOKS: &str = "/etc/libvirt/hooks/qemu.d";

/// Metadata of the VM with its reservation.
const METADATA: &str = "<metadata><slackline:reservation xmlns:slackline='urn:slackline:1' \
                        slice='2ms' period='10ms' exact='yes'/></metadata>";

/// The installed hook. It is removed when this value is dropped.
pub(super) struct Hook(String);

impl Hook {
    /// Installs the hook. Must be called before libvirt runs.
    pub(super) fn install() -> Result<Hook> {
        fs::create_dir_all(HOOKS)?;
        let hook = Hook(format!("{HOOKS}/slackline-xtask"));
        let mut print = slackline(&["hook", "libvirt", "--script"]);
        let script = step::output(print.args(["--socket", &socket()]))?;
        // The time limit is long enough for a test machine that is busy with builds.
        let script = script.replace(" --socket", " --within 20s --socket");
        fs::write(&hook.0, script)?;
        fs::set_permissions(&hook.0, fs::Permissions::from_mode(0o755))?;
        Ok(hook)
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A daemon. It is ended when this value is dropped.
struct Daemon(Child);

impl Daemon {
    fn start() -> Result<Daemon> {
        let mut serve = slackline(&["serve", "--state", &format!("{FOLDER}/state")]);
        let daemon = Daemon(serve.args(["--socket", &socket()]).spawn()?);
        wait_until("the daemon to answer", || Ok(ask(&["list"]).is_ok()))?;
        Ok(daemon)
    }

    /// Kills the daemon so that it cannot clean up.
    fn kill(mut self) -> Result<()> {
        self.0.kill()?;
        self.0.wait()?;
        Ok(())
    }

    fn end(mut self) -> Result<()> {
        step::run(Command::new("kill").arg(self.0.id().to_string()))?;
        let ended = self.0.wait()?;
        ensure!(ended.success(), "the daemon ended with {ended}");
        Ok(())
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn socket() -> String {
    format!("{FOLDER}/slackline.sock")
}

fn slackline(words: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(words).stdin(Stdio::null());
    command
}

/// Runs a `slackline` command and returns its output.
fn ask(words: &[&str]) -> Result<String> {
    step::output(slackline(words).args(["--socket", &socket()]))
}

/// Runs a `slackline` command, prints it with its output, and returns the output.
fn show(words: &[&str]) -> Result<String> {
    let said = ask(words)?;
    println!("$ slackline {}\n{said}", words.join(" "));
    Ok(said)
}

/// Returns true if the reservation is in the state `state`, and the daemon schedules `served` vCPUs
/// of the VM.
fn is(state: &str, served: u16) -> Result<bool> {
    let text = ask(&["list", NAME, "--json"])?;
    let all: serde_json::Value = serde_json::from_str(&text)?;
    let one = if all.is_array() { &all[0] } else { &all };
    Ok(one["state"] == state && one["served"] == served)
}

fn becomes(state: &str, served: u16) -> Result<()> {
    wait_until(&format!("{NAME} to be {state} with {served} vCPUs"), || is(state, served))?;
    show(&["list", NAME]).map(drop)
}

/// Runs all steps of the test. Libvirt must be running, and must call Slackline's hook when VMs
/// start.
pub(super) fn run(kernel: &str, initramfs: &str) -> Result<()> {
    let mut daemon = Daemon::start()?;
    let xml = format!("{FOLDER}/service.xml");
    let text = domain(kernel, initramfs)
        .replace("<vcpu>2</vcpu>", "<vcpu current='2'>3</vcpu>")
        .replace("</name>", &format!("</name>{METADATA}"));
    ensure!(
        text.contains("current='2'") && text.contains("urn:slackline:1"),
        "the domain XML has no metadata or vCPU counts"
    );
    fs::write(&xml, text)?;
    virsh(&["create", &xml])?;
    let machine = Machine::find(2)?;
    becomes("active", 2)?;
    let log = show(&["log", NAME])?;
    let place = |what: &str| log.find(what).with_context(|| format!("no `{what}` in the log"));
    ensure!(place("reserve")? < place("appeared")?, "the guest ran before it had a reservation");
    // Libvirt has moved the threads to their own cgroups in the meantime.
    wait_until("the guest to receive its reserved CPU time", || {
        let text = ask(&["list", NAME, "--json"])?;
        let all: serde_json::Value = serde_json::from_str(&text)?;
        let one = if all.is_array() { &all[0] } else { &all };
        let of = |key: &str| one["recent"][key].as_f64().unwrap_or(0.0);
        // One of the two vCPUs computes.
        Ok(of("used_ns") > 0.4 * of("promised_ns") && of("promised_ns") > 0.0)
    })?;
    show(&["change", NAME, "--slice", "1ms"])?;
    daemon.kill()?;
    println!("the daemon was killed");
    daemon = Daemon::start()?;
    becomes("active", 2)?;
    virsh(&["setvcpus", NAME, "3", "--live"])?;
    becomes("partial", 2)?;
    show(&["change", NAME, "--vcpus", "3"])?;
    becomes("active", 3)?;
    // The guest may or may not release the vCPU within five seconds, the time limit of libvirt.
    let _ = virsh(&["setvcpus", NAME, "2", "--live"]);
    match machine.vcpus_now()?.len() {
        2 => becomes("partial", 2)?,
        all => println!("the guest has kept all {all} vCPUs"),
    }
    drop(machine);
    becomes("waiting", 0)?;
    virsh(&["create", &xml])?;
    let machine = Machine::find(2)?;
    // The metadata apply again, and the changes made by hand are lost.
    becomes("active", 2)?;
    let thread = machine.threads[0].to_string();
    wait_until("the reservation to become contested", || {
        let mut command = Command::new("taskset");
        step::output(command.args(["-pc", "0-255", &thread]))?;
        is("contested", 0)
    })?;
    show(&["resume", NAME])?;
    becomes("active", 2)?;
    let pin = |cpus: &str| virsh(&["vcpupin", NAME, "0", cpus, "--live"]);
    pin("0")?;
    pin(&format!("0-{}", std::thread::available_parallelism()?.get() - 1))?;
    show(&["list", NAME])?;
    show(&["release", NAME])?;
    bad_metadata_keeps_nobody_from_starting(machine, Path::new(&xml))?;
    daemon.end()
}

fn bad_metadata_keeps_nobody_from_starting(machine: Machine, xml: &Path) -> Result<()> {
    drop(machine);
    let good = fs::read_to_string(xml)?;
    let (bad, required) = (good.replace("'2ms'", "'2'"), "slice='9.9ms' require='yes'");
    fs::write(xml, bad)?;
    virsh(&["create", &xml.to_string_lossy()])
        .context("cannot start a guest with invalid metadata")?;
    drop(Machine::find(2)?);
    fs::write(xml, good.replace("slice='2ms'", required))?;
    match virsh(&["create", &xml.to_string_lossy()]) {
        Ok(()) => {
            let _ = virsh(&["destroy", NAME]);
            bail!("the guest started without the reservation that it requires")
        }
        Err(error) => {
            println!("the guest did not start, as its reservation is not possible: {error:#}");
        }
    }
    Ok(())
}
