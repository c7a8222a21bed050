//! Tests that a VM's user cannot use Slackline to reach sockets of other users. The user starts a
//! process whose command line names a socket of another user as the monitor's socket. The tests
//! need root.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::thread;

use slackline_live::vcpus::{FindError, QmpError, find};

/// A process of another user than root. Its command line looks like that of a QEMU with a given
/// monitor socket.
struct Stranger(Child);

impl Stranger {
    fn start(socket: &Path) -> Self {
        Self::with(&["-qmp", &format!("unix:{},server=on,wait=off", socket.display())], None)
    }

    fn with(monitor: &[&str], folder: Option<&Path>) -> Self {
        let mut command = Command::new("sh");
        command.arg0("qemu-system-x86_64").args(["-c", "while :; do sleep 1; done"]);
        command.args(["-name", "guest=dep"]).args(monitor).uid(65_534).gid(65_534);
        if let Some(folder) = folder {
            command.current_dir(folder);
        }
        Self(command.spawn().expect("a process of nobody"))
    }

    fn pid(&self) -> i32 {
        self.0.id().try_into().expect("a process id")
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn monitor_socket_forbidden_to_the_vm_user_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: needs root");
    }
    let folder = tempfile::tempdir().expect("a folder for the socket");
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("own folder");
    let socket = folder.path().join("root-only");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let open_to = |mode| std::fs::set_permissions(&socket, Permissions::from_mode(mode));
    open_to(0o600).expect("the socket belongs to root");
    let stranger = Stranger::start(&socket);
    let refused = find(stranger.pid()).expect_err("the socket is root's");
    let FindError::Qmp { source: QmpError::Connect(error), .. } = &refused else {
        panic!("{refused:?}")
    };
    assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied);
    // Now every user may connect. The listening process is root's and not the VM user's, so it is
    // refused.
    open_to(0o666).expect("the socket belongs to root");
    let greeter = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        // Writing fails if the client has closed the connection already.
        let _ = writeln!(stream, "220 ROOT-ONLY-SECRET");
        let mut heard = Vec::new();
        std::io::Read::read_to_end(&mut stream, &mut heard).map(|_| heard)
    });
    let refused = find(stranger.pid()).expect_err("root's process listens");
    let FindError::Qmp { source, .. } = &refused else { panic!("{refused:?}") };
    assert!(matches!(source, QmpError::Stranger { uid: 0, .. }), "{source:?}");
    let heard = greeter.join().expect("the greeter does not panic").unwrap_or_default();
    assert_eq!(heard, b"", "no data is sent to root's process");
}

/// Slackline does not open the socket. The test tries several forms of naming it on a command line,
/// and several symbolic links to it.
#[test]
fn monitor_socket_forbidden_to_the_vm_user_is_never_opened() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: needs root");
    }
    let folder = tempfile::tempdir().expect("a folder for the socket");
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).expect("open to all");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let listener = UnixListener::bind(path("root-only")).expect("a socket");
    std::fs::set_permissions(path("root-only"), Permissions::from_mode(0o600)).expect("root's");
    listener.set_nonblocking(true).expect("a listener");
    std::os::unix::fs::symlink(path("root-only"), path("link")).expect("a link");
    std::os::unix::fs::symlink(folder.path(), path("folder")).expect("a link");
    let (own, this) = (std::process::id(), folder.path().display());
    let device = |path: &str| format!("socket,id=m,path={path},server=on,wait=off");
    let sockets = [
        path("root-only"),
        path("link"),
        path("folder/root-only"),
        "root-only".into(),
        "./folder/link".into(),
        format!("/proc/{own}/root{this}/root-only"),
        format!("/proc/{own}/cwd/../../../../../../../../{this}/root-only"),
        "/proc/self/cwd/root-only".into(),
    ];
    for socket in &sockets {
        let (unix, device) = (format!("unix:{socket},server=on,wait=off"), device(socket));
        let forms: [&[&str]; 4] = [
            &["-qmp", &unix],
            &["-chardev", &device, "-mon", "chardev=m,mode=control"],
            &["--chardev", &device, "--mon", "m,mode=control"],
            &["-chardev", &device, "-qmp", "chardev:m"],
        ];
        for form in forms {
            let stranger = Stranger::with(form, Some(folder.path()));
            let refused = find(stranger.pid()).expect_err("the socket is root's");
            let is_refused = matches!(
                refused,
                FindError::Qmp { source: QmpError::Connect(_), .. } | FindError::Unreadable { .. }
            );
            assert!(is_refused, "{form:?}: {refused:?}");
            assert!(listener.accept().is_err(), "{form:?}: no connection is made");
        }
    }
}

/// The path on the command line is a symbolic link that changes all the time. It leads in turn to
/// no socket and to root's socket. So it can change even between the check of the path and the
/// connection.
#[test]
fn root_socket_behind_changing_monitor_symlink_receives_no_data() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: needs root");
    }
    let folder = tempfile::tempdir().expect("a folder for the socket");
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).expect("open to all");
    let path = |name: &str| folder.path().join(name);
    let listener = UnixListener::bind(path("root")).expect("a socket");
    let open_to_all = Permissions::from_mode(0o666);
    std::fs::set_permissions(path("root"), open_to_all).expect("the socket belongs to root");
    listener.set_nonblocking(true).expect("a listener");
    let stranger = Stranger::start(&path("link"));
    let (links, is_over) = (folder.path().to_path_buf(), std::sync::atomic::AtomicBool::new(false));
    let mut connected = 0;
    thread::scope(|scope| {
        scope.spawn(|| {
            for at in 0_u32.. {
                if is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
                let to = links.join(if at % 2 == 0 { "root" } else { "nowhere" });
                let _ = std::os::unix::fs::symlink(to, links.join("new"));
                let _ = std::fs::rename(links.join("new"), links.join("link"));
            }
        });
        for _ in 0..200 {
            let refused = find(stranger.pid()).expect_err("no monitor");
            let FindError::Qmp { source, .. } = &refused else { panic!("{refused:?}") };
            let is_known =
                matches!(source, QmpError::Stranger { uid: 0, .. } | QmpError::Connect(_));
            assert!(is_known, "{source:?}");
            while let Ok((mut stream, _)) = listener.accept() {
                connected += 1;
                let mut heard = Vec::new();
                let _ = std::io::Read::read_to_end(&mut stream, &mut heard);
                assert_eq!(heard, b"", "no data is sent to root's process");
            }
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(connected > 0, "the link leads to root's socket at least once");
}

/// A set-user-id program of root runs as root. Its command line cannot be trusted, since any user
/// can start the program with any command line.
#[test]
fn monitor_socket_named_by_setuid_root_program_is_not_queried() {
    let python = std::fs::canonicalize("/usr/bin/python3");
    let (true, Ok(python)) = (rustix::process::geteuid().is_root(), python) else {
        return println!("skipped: needs root and python3");
    };
    let folder = tempfile::tempdir().expect("a folder for the socket");
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("own folder");
    let (socket, program) = (folder.path().join("root-only"), folder.path().join("program"));
    let listener = UnixListener::bind(&socket).expect("a socket");
    std::fs::set_permissions(&socket, Permissions::from_mode(0o600)).expect("root's socket");
    listener.set_nonblocking(true).expect("a listener");
    // Another process copies the file. If this process did, a child that another test starts could
    // inherit the open file, and the copy could not be run.
    let copied = Command::new("cp").args([&python, &program]).status().expect("cp");
    assert!(copied.success(), "a copy of python3");
    std::fs::set_permissions(&program, Permissions::from_mode(0o4755)).expect("own program");
    let mut command = Command::new(&program);
    let code = "import os, time; os.setuid(0); print('@', flush=True); time.sleep(60)";
    let monitor = format!("unix:{},server=on,wait=off", socket.display());
    command.arg0("qemu-system-x86_64").args(["-I", "-c", code, "-qmp", &monitor]);
    command.uid(65_534).gid(65_534).stdout(std::process::Stdio::piped());
    let mut stranger = Stranger(command.spawn().expect("a process of nobody"));
    let mut up = [0; 2];
    let out = stranger.0.stdout.as_mut().expect("a pipe");
    if std::io::Read::read_exact(out, &mut up).is_err() {
        return println!("skipped: the file system ignores set-user-id bits");
    }
    let refused = find(stranger.pid()).expect_err("root did not write the command line");
    assert!(matches!(refused, FindError::SeveralUsers { .. }), "{refused:?}");
    assert!(listener.accept().is_err(), "no connection is made");
}
