//! Permission for a live test to run. Only one live test at a time has this permission. Live tests
//! of the crate `slackline` use this file too.

use std::env;
use std::fs::File;

/// Permission to schedule the CPUs of this host. The permission ends when this value is dropped,
/// even if the test panics.
pub struct Turn {
    /// Lock on a file in the folder for temporary files, which all test programs share.
    _lock: File,
}

impl Turn {
    /// Waits until no other live test runs, and takes the permission.
    pub fn wait() -> Turn {
        let path = env::temp_dir().join("slackline-live-tests.lock");
        let lock = File::create(path).expect("the lock file can be created");
        lock.lock().expect("the lock can be taken");
        Turn { _lock: lock }
    }
}
