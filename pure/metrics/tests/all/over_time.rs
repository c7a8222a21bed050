//! CPU in equal windows, against numbers worked out by hand. Times are microseconds.

use crate::script::{Script, us};

#[test]
fn a_stretch_over_windows_is_split_in_proportion_and_nothing_is_lost() {
    // Three quarters of the time from 500 to 2,500: 375, 750 and 375 of three windows.
    let script = Script::new(&["a", "b"]).used(0, 0, (500, 2_500, 1_500), (0, true));
    let lines = script.over_time(us(1_000), 3_400);
    assert_eq!(lines[0], ("a".to_owned(), vec![us(375), us(750), us(375)]));
    // Who never ran is there with nothing, and what is left of a window is no window.
    assert_eq!(lines[1], ("b".to_owned(), vec![us(0); 3]));
}
