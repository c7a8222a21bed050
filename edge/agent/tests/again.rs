//! Test of an agent that is killed, and of the agent that replaces it. The test process is the host
//! of both agents.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use slackline_units::frame::{FRAME, Frame};

/// A process that is killed when this value is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an agent that listens at `socket`, and connects to the agent as its host. Tasks named
/// `name` are urgent.
fn agent(socket: &Path, name: &str) -> (Process, UnixStream) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slackline-agent"));
    command.arg("--socket").arg(socket).args(["--urgent", &format!("name={name}")]);
    let agent = Process(command.stderr(Stdio::null()).spawn().expect("an agent"));
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match UnixStream::connect(socket) {
            Ok(host) => return (agent, host),
            Err(error) => assert!(Instant::now() < end, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns the frames that arrive within one second after the first frame.
fn hear(host: &mut UnixStream) -> Vec<Frame> {
    let mut frames = Vec::new();
    let mut end = None;
    while end.is_none_or(|end| Instant::now() < end) {
        let mut bytes = [0; FRAME];
        host.read_exact(&mut bytes).expect("a frame");
        frames.push(Frame::read(&bytes).expect("a frame"));
        end.get_or_insert_with(|| Instant::now() + Duration::from_secs(1));
    }
    frames
}

/// The host cannot tell the first agent and the restarted agent apart, as with a virtio-serial
/// port. So the sequence numbers of the second agent must be above those of the first agent. In the
/// first second after its first report, the second agent must send more than half as many reports
/// as the first agent.
#[test]
fn restarted_agent_uses_higher_frame_numbers_than_its_predecessor() {
    let place = std::env::temp_dir().join(format!("slackline-again-{}", std::process::id()));
    std::fs::create_dir_all(&place).expect("a folder");
    let (program, socket) = (place.join("again-urgent"), place.join("socket"));
    std::os::unix::fs::symlink("/bin/sleep", &program).expect("a link");
    let _urgent = Process(Command::new(&program).arg("60").spawn().expect("a task"));
    let (first, mut host) = agent(&socket, "again-urgent");
    let before = hear(&mut host);
    drop(first);
    let (_second, mut host) = agent(&socket, "again-urgent");
    let after = hear(&mut host);
    println!("{} and {} frames", before.len(), after.len());
    assert!(before.len() > 10 && after.len() > before.len() / 2);
    let (last, next) = (before[before.len() - 1].sequence, after[0].sequence);
    assert!(Frame::is_after(next, last), "{next} follows {last}");
    let _ = std::fs::remove_dir_all(&place);
}
