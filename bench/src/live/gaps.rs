//! Response times of a server in a busy guest that competes with four other busy guests. The policy
//! `credit` is compared with `gaps`, which receives hints from the guest. A real process plays the
//! guest. The client of the server runs on another CPU.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{LiveSetting, percent, us};
use crate::report::{Row, median};

/// Number of times that each policy is measured.
const ROUNDS: usize = 3;
const HOGS: usize = 4;
/// Requests per second, as in the study on which `gaps` is based (Kim et al. 2008).
const RATE: &str = "20";
const EACH: &str = "200us";
/// Time from the start of a run after which its measurement has certainly begun.
const BEGINS: Duration = Duration::from_millis(2_500);

/// Results of a run.
struct GapsResults {
    mean: f64,
    p99: f64,
    /// Largest deviation of a guest's CPU time from the equal share (a fifth of the total), in
    /// millionths of the equal share.
    apart: f64,
}

pub(super) fn rows(setting: &LiveSetting) -> Result<Vec<Row>> {
    let (mut credit, mut gaps) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        credit.push(serve(setting, "credit")?);
        gaps.push(serve(setting, "gaps")?);
    }
    let of = |runs: &[GapsResults], pick: fn(&GapsResults) -> f64| {
        median(&runs.iter().map(pick).collect::<Vec<f64>>())
    };
    let ratio = |pick: fn(&GapsResults) -> f64| of(&gaps, pick) / of(&credit, pick);
    let (mean, p99) = (ratio(|it| it.mean), ratio(|it| it.p99));
    let beside = |pick: fn(&GapsResults) -> f64| {
        let (gaps, credit) = (us(of(&gaps, pick)), us(of(&credit, pick)));
        format!("{gaps} under `gaps`, {credit} under `credit`: ratio {:.2}", ratio(pick))
    };
    let worst = credit.iter().chain(&gaps).map(|it| it.apart).fold(0.0, f64::max);
    let row = |what: &str, got: String, promised: &'static str, holds: bool| Row {
        what: format!("{what}, median of {ROUNDS}"),
        got,
        promised,
        holds: Some(holds),
    };
    let who =
        format!("server ({RATE} requests/s, {EACH} each) in a busy guest beside {HOGS} CPU hogs");
    Ok(vec![
        row(
            &format!("{who}: mean response time under `gaps` and `credit`"),
            beside(|it| it.mean),
            "0.65",
            mean <= 0.65,
        ),
        row(
            &format!("{who}: p99 of the response time under `gaps` and `credit`"),
            beside(|it| it.p99),
            "0.85",
            p99 <= 0.85,
        ),
        row(
            "largest error of a guest's share under `gaps` or `credit`",
            percent(worst),
            "2 %",
            worst <= 2e4,
        ),
    ])
}

fn serve(setting: &LiveSetting, policy: &str) -> Result<GapsResults> {
    let free = std::net::UdpSocket::bind("127.0.0.1:0")?.local_addr()?.port().to_string();
    let socket = setting.folder.join("web.sock");
    let program = &setting.slackline;
    let argv = [
        program.to_str().context("a program with a readable name")?,
        "load",
        "guest",
        "--each",
        EACH,
        "--port",
        &free,
        "--agent",
        socket.to_str().context("a folder with a readable name")?,
    ];
    let mut text = format!(
        "title = \"bench\"\nlength = \"{}s\"\nwarmup = \"1s\"\npolicy = {{ name = \"{policy}\" }}\n\
         [[domain]]\nname = \"web\"\nlive = {{ command = {argv:?}, threads = \"vcpus\", \
         agent = {socket:?} }}\n",
        setting.seconds + 4
    );
    for hog in 0..HOGS {
        text += &format!("[[domain]]\nname = \"hog{hog}\"\nwork = {{ kind = \"spin\" }}\n");
    }
    let seconds = format!("{}s", setting.seconds);
    let mut client = Command::new(program);
    client.args(["load", "ping", "--rate", RATE, "--json", "--to", &free, "--length", &seconds]);
    let client = std::thread::spawn(move || {
        std::thread::sleep(BEGINS);
        client.output()
    });
    let run = setting.live(&text)?;
    let output = client.join().map_err(|_| anyhow::anyhow!("the client panicked"))??;
    let answers: Value =
        serde_json::from_slice(&output.stdout).context("cannot read the results of the client")?;
    let number = |name: &str| answers[name].as_f64().context("the client printed no response time");
    ensure!(answers["answered"].as_u64() > Some(100), "too few answers: {answers}");
    let shares = run["vcpus"].as_array().context("vCPUs")?.iter();
    let shares: Vec<f64> = shares.filter_map(|it| it["delivered_ppm"].as_f64()).collect();
    let part = shares.iter().sum::<f64>() / shares.len() as f64;
    let apart = shares.iter().map(|share| (share / part - 1.0).abs() * 1e6).fold(0.0, f64::max);
    Ok(GapsResults { mean: number("response_mean_ns")?, p99: number("response_p99_ns")?, apart })
}
