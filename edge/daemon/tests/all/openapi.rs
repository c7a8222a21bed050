//! The stored description of the pages is the one that the code has: what changes is seen.

use slackline_daemon::front::{STORED, built};

#[test]
fn what_is_served_is_what_the_code_has() {
    let built = built();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json"), &built).unwrap();
    } else {
        assert!(
            STORED == built,
            "UPDATE=1 cargo test -p slackline-daemon --test all openapi writes it"
        );
    }
    for path in ["/v1/reservations/{name}/pause", "/v1/events", "/metrics", "/health"] {
        assert!(built.contains(&format!("\"{path}\": {{")), "{path} is not described");
    }
}
