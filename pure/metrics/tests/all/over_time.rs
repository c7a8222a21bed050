//! Tests of CPU time in equal windows. The expected numbers were computed by hand, and times are in
//! microseconds.

use crate::script::{Script, us};

#[test]
fn run_interval_cpu_time_is_divided_over_windows_without_loss() {
    // The vCPU uses three quarters of the time from 500 to 2,500. So it uses 375, 750 and 375 in
    // the three windows.
    let script = Script::new(&["a", "b"]).used(0, 0, (500, 2_500, 1_500), (0, true));
    let lines = script.over_time(us(1_000), 3_400);
    assert_eq!(lines[0], ("a".to_owned(), vec![us(375), us(750), us(375)]));
    // A vCPU that never ran has zero in each window. An incomplete window at the end is left out.
    assert_eq!(lines[1], ("b".to_owned(), vec![us(0); 3]));
}
