//! Test with a thousand reservations in one daemon, within its request limits. Needs root.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use crate::common::live;
use crate::common::service::Daemon;

const MANY: usize = 1_000;

/// Time limit of a command in a debug build on a busy test machine.
const WITHIN: Duration = Duration::from_secs(20);

/// Returns a file of reservations with this slice, for VMs that do not exist.
fn file(slice_us: u32) -> String {
    let mut text = String::new();
    for number in 0..MANY {
        let _ = writeln!(
            text,
            "[vm-{number:03}]\nslice = \"{slice_us}us\"\nperiod = \"1s\"\nvcpus = 1\n\
             for = \"qemu:vm-{number:03}\"\nuntil = \"2126-12-01T18:00\"\n"
        );
    }
    text
}

#[test]
fn thousand_reservations_can_be_applied_listed_logged_and_changed() {
    let Some(live) = live::begin() else { return };
    let daemon = Daemon::start(&live);
    let run = |daemon: &Daemon<'_>, command: &str| {
        let begun = Instant::now();
        let out = daemon.run(command).ended_with(0).out;
        println!("{:>8} ms  {command}", begun.elapsed().as_millis());
        assert!(begun.elapsed() < WITHIN, "{command} took {:?}", begun.elapsed());
        out
    };
    live.place.write("many.toml", file(50).as_bytes());
    assert!(
        run(&daemon, "apply many.toml").ends_with("create 1000, change 0, release 0, keep 0\n")
    );
    assert_eq!(run(&daemon, "list --csv").lines().count(), 1 + MANY);
    assert_eq!(run(&daemon, "list --json").matches("\"state\":\"waiting\"").count(), MANY);
    assert_eq!(run(&daemon, "log --csv --last 1000").lines().count(), 1 + MANY);
    // More than the rate limit allows at once.
    assert_eq!(run(&daemon, "change vm-0?? --slice 60us").lines().count(), 100);
    assert_eq!(run(&daemon, "log --csv --since 1h").lines().count(), 1 + MANY + 100);
    // The list changes the reservations of the pattern back, and keeps the rest.
    assert!(
        run(&daemon, "apply many.toml").ends_with("create 0, change 100, release 0, keep 900\n")
    );
    // All reservations exist again after the daemon was killed.
    daemon.kill();
    let daemon = Daemon::start(&live);
    let list = run(&daemon, "list --toml");
    live.place.write("again.toml", list.as_bytes());
    let again = run(&daemon, "apply again.toml --prune");
    assert!(again.ends_with("create 0, change 0, release 0, keep 1000\n"), "{again}");
    live.place.write("none.toml", b"");
    let none = run(&daemon, "apply none.toml --prune");
    assert!(none.ends_with("create 0, change 0, release 1000, keep 0\n"), "{none}");
}
