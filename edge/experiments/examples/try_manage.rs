use slackline_experiments::manage::*;
use slackline_units::Span;
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let only = std::env::var("ONLY").is_ok();
    let _ = only;
    let mut total: Vec<(RuleKind, Score)> =
        RuleKind::ALL.iter().map(|r| (*r, Score::default())).collect();
    for path in &args[1..] {
        let series = match path.strip_prefix("seed:") {
            Some(n) => drawn_series(n.parse().unwrap()),
            None => Series::read(&std::fs::read_to_string(path).unwrap()).unwrap(),
        };
        let round = Span::from_secs(5);
        let sc = series
            .scenario(&SeriesRun {
                round,
                seed: 1,
                noise_ppm: 100_000,
                is_limited: false,
                policy: "edf",
            })
            .unwrap();
        let plan = ManagePlan {
            goals: GoalList::default().leaving(BATCH),
            round,
            window: 2,
            pace: Default::default(),
        };
        let t = std::time::Instant::now();
        let all = plan.compare(&sc).unwrap();
        println!("{path} {:.2?}", t.elapsed());
        for (rule, run) in &all {
            let s = score(run, round);
            println!(
                "  {:8} miss {:6} of {} = {:.3}%  over {:.1}%  changes {} rev {} settled {:?} declined {}",
                rule.name(),
                s.misses,
                s.jobs,
                s.misses as f64 * 100.0 / s.jobs as f64,
                s.over_ppm as f64 / 1e4,
                s.changes,
                s.reversals,
                s.settled,
                run.declined
            );
            if *rule == RuleKind::Manager && std::env::var("V").is_ok() {
                for (t, d) in &run.decisions {
                    println!("      {t} {d}");
                }
                for (i, r) in run.rounds.iter().enumerate() {
                    println!(
                        "      {i} shares {:?} needs {:?} miss {:?} used {:?}",
                        r.shares.iter().map(|s| s.ppm() / 1000).collect::<Vec<_>>(),
                        r.needs.iter().map(|s| s.ppm() / 1000).collect::<Vec<_>>(),
                        r.misses,
                        r.used.iter().map(|u| u.ns() / 5_000_000).collect::<Vec<_>>()
                    );
                }
            }
            let t = total.iter_mut().find(|(r, _)| r == rule).unwrap();
            t.1 = t.1.clone().and(&s);
        }
    }
    println!("TOTAL");
    for (rule, s) in &total {
        println!(
            "  {:8} miss {:6} of {} = {:.3}%  over {:.1}%  changes {} rev/100 {:.2} slowest {:?}",
            rule.name(),
            s.misses,
            s.jobs,
            s.misses as f64 * 100.0 / s.jobs as f64,
            s.over_ppm as f64 / 1e4,
            s.changes,
            s.reversals as f64 * 100.0 / s.vm_rounds as f64,
            s.settled
        );
    }
}
