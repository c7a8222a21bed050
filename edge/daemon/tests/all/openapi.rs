//! Test of the stored OpenAPI description, which must equal the description that the code
//! generates. So every change of the description is visible in review.

use std::collections::BTreeSet;

use slackline_daemon::front::{STORED, built};

#[test]
fn openapi_file_in_the_repository_matches_the_code() {
    let built = built();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json"), &built).unwrap();
    } else {
        assert!(
            STORED == built,
            "UPDATE=1 cargo test -p slackline-daemon --test all openapi writes it"
        );
    }
    // Paths below `/page` are used only by the web page, which is part of the daemon.
    let routes = include_str!("../../src/front/pages.rs").split(".route(\"").skip(1);
    let paths: BTreeSet<&str> = routes.filter_map(|rest| rest.split('"').next()).collect();
    assert!(paths.len() > 25, "{paths:?}");
    for path in paths {
        assert!(built.contains(&format!("\"{path}\": {{")), "{path} is not described");
    }
}
