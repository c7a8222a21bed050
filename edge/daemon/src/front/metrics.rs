//! Metrics of the daemon, in the formats that Prometheus reads.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeLabelSet, MetricEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use slackline_control::{BOUNDS, Histogram, Numbers, State};
use slackline_units::Span;

/// Media type of OpenMetrics.
const TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Media type of the older text format, which every reader supports.
const OLDER_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Counts and durations of the requests that the front process has answered.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestMetrics {
    answers: BTreeMap<(String, u16), u64>,
    took: Histogram,
}

impl RequestMetrics {
    /// Counts an answered request with its route, HTTP status and duration.
    pub(super) fn count(&mut self, route: &str, status: u16, took: Duration) {
        *self.answers.entry((route.to_owned(), status)).or_default() += 1;
        self.took.observe(Span::from_ns(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)));
    }
}

/// Returns a response with all metrics, in the format that the client accepts.
pub(super) fn page(
    numbers: Numbers,
    served: &Mutex<RequestMetrics>,
    asked: &HeaderMap,
) -> Result<Response, fmt::Error> {
    let served = served.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let text = text(numbers, served)?;
    let mut accepted = asked.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let is_new = accepted.any(|value| value.contains("application/openmetrics-text"));
    let (text, called) = if is_new { (text, TYPE) } else { (older(&text), OLDER_TYPE) };
    let mut response = text.into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(called));
    Ok(response)
}

/// Converts metrics from OpenMetrics to the older text format. In the older format, a metric has
/// the same name as its samples.
fn older(text: &str) -> String {
    let mut older = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ');
        } else if let Some(of) = line.strip_prefix("# TYPE ") {
            let (name, kind) = of.split_once(' ').unwrap_or((of, "untyped"));
            let (end, kind) = match kind {
                "counter" => ("_total", kind),
                "info" => ("_info", "gauge"),
                kind => ("", kind),
            };
            if let Some((_, help)) = help.take() {
                older += &format!("# HELP {name}{end} {help}\n");
            }
            older += &format!("# TYPE {name}{end} {kind}\n");
        } else if line != "# EOF" {
            older += line;
            older.push('\n');
        }
    }
    older
}

fn text(numbers: Numbers, served: RequestMetrics) -> Result<String, fmt::Error> {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(All { numbers, served }));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct All {
    numbers: Numbers,
    served: RequestMetrics,
}

impl Collector for All {
    fn encode(&self, mut out: DescriptorEncoder<'_>) -> fmt::Result {
        let out = &mut out;
        self.reservations(out)?;
        self.vcpus(out)?;
        self.cpus(out)?;
        self.service(out)?;
        self.served(out)?;
        self.process(out)
    }
}

/// Labels and value of a sample.
type Sample<L, V> = (L, V);

impl All {
    fn reservations(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = &self.numbers.reservations;
        let of = |pick: fn(&slackline_control::ReservationNumbers) -> u64| {
            all.iter().map(move |it| ([("reservation", it.name.as_str())], seconds(pick(it))))
        };
        gauges(
            out,
            "slackline_reservation_slice_seconds",
            "CPU time of each vCPU per period",
            of(|it| it.slice_ns),
        )?;
        gauges(
            out,
            "slackline_reservation_period_seconds",
            "Period of the reservation",
            of(|it| it.period_ns),
        )?;
        let states = all.iter().flat_map(|it| {
            State::ALL.map(|(state, _)| {
                let labels = [("reservation", it.name.as_str()), ("state", state.word())];
                (labels, f64::from(u8::from(state == it.state)))
            })
        });
        gauges(
            out,
            "slackline_reservation_state",
            "1 for the current state of the reservation, 0 for other states",
            states,
        )?;
        let costs: Vec<([Label<'_>; 2], &slackline_control::Cost)> = all
            .iter()
            .filter_map(|it| {
                let cost = it.cost.as_ref()?;
                let labels = [("reservation", &*it.name), ("currency", &*cost.currency)];
                Some((labels, cost))
            })
            .collect();
        gauges(
            out,
            "slackline_reservation_cost_per_hour",
            "Cost per hour of the reservation with its present parameters",
            costs.iter().map(|(labels, cost)| (*labels, price(cost.hour_millionths))),
        )?;
        counters(
            out,
            "slackline_reservation_cost",
            "Cost since the reservation was made or, if later, since the daemon started",
            costs.iter().map(|(labels, cost)| (*labels, price(cost.total_millionths))),
        )
    }

    fn vcpus(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let each: Vec<(Labels, &slackline_control::VcpuNumbers)> = self
            .numbers
            .reservations
            .iter()
            .flat_map(|it| it.vcpus.iter().map(|vcpu| (Labels::of(&it.name, vcpu.vcpu), vcpu)))
            .collect();
        let of = |pick: fn(&slackline_control::VcpuNumbers) -> f64| {
            each.iter().map(move |(labels, vcpu)| (labels.pairs(), pick(vcpu)))
        };
        counters(
            out,
            "slackline_vcpu_cpu_seconds",
            "CPU time that the vCPU used",
            of(|it| seconds(it.cpu_ns)),
        )?;
        counters(
            out,
            "slackline_vcpu_promised_seconds",
            "Sum of the slices of all periods, whether the vCPU was runnable or blocked",
            of(|it| seconds(it.promised_ns)),
        )?;
        counters(
            out,
            "slackline_vcpu_due_seconds",
            "CPU time that the vCPU was entitled to",
            of(|it| seconds(it.due_ns)),
        )?;
        counters(
            out,
            "slackline_vcpu_late_seconds",
            "Tardiness: time from each missed deadline until the entitlement was complete",
            of(|it| seconds(it.late_ns)),
        )?;
        counters(
            out,
            "slackline_vcpu_wait_seconds",
            "Time for which the vCPU was runnable but did not run",
            of(|it| seconds(it.waited_ns)),
        )?;
        counters(
            out,
            "slackline_vcpu_lapsed_seconds",
            "Time for which no daemon ran before this daemon started",
            of(|it| seconds(it.lapsed_ns)),
        )?;
        let count = |pick: fn(&slackline_control::VcpuNumbers) -> u64| {
            each.iter().map(move |(labels, vcpu)| (labels.pairs(), pick(vcpu)))
        };
        counters(
            out,
            "slackline_vcpu_deadlines",
            "Periods at whose end the vCPU was entitled to CPU time",
            count(|it| it.deadlines),
        )?;
        counters(
            out,
            "slackline_vcpu_missed_deadlines",
            "Periods in which the vCPU received less than its entitlement",
            count(|it| it.missed),
        )
    }

    fn cpus(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let each: Vec<(String, &slackline_control::CpuNumbers)> =
            self.numbers.cpus.iter().map(|it| (it.cpu.to_string(), it)).collect();
        let of = |pick: fn(&slackline_control::CpuNumbers) -> f64| {
            each.iter().map(move |(cpu, it)| ([("cpu", cpu.as_str())], pick(it)))
        };
        gauges(
            out,
            "slackline_cpu_promised_ratio",
            "Part of the CPU that is reserved, with dispatch overhead",
            of(|it| millionths(it.promised_ppm)),
        )?;
        gauges(
            out,
            "slackline_cpu_capacity_ratio",
            "Part of the CPU that can be reserved in total",
            of(|it| millionths(it.capacity_ppm)),
        )?;
        gauges(
            out,
            "slackline_cpu_reserved_ratio",
            "Part of the CPU that is reserved, without dispatch overhead",
            of(|it| millionths(it.reserved_ppm)),
        )?;
        let overheads = each
            .iter()
            .filter_map(|(cpu, it)| Some(([("cpu", cpu.as_str())], millionths(it.overhead_ppm?))));
        gauges(
            out,
            "slackline_cpu_overhead_ratio",
            "Part of the CPU that dispatching took in the last 10 s",
            overheads,
        )?;
        gauges(
            out,
            "slackline_cpu_overloaded",
            "1 if reservations and overhead exceed the kernel's real-time limit, else 0",
            of(|it| f64::from(u8::from(it.is_overloaded))),
        )?;
        counters(
            out,
            "slackline_cpu_stolen_seconds",
            "Time that the hypervisor of this host stole from the CPU",
            of(|it| seconds(it.stolen_ns)),
        )?;
        counters(
            out,
            "slackline_dispatcher_cpu_seconds",
            "CPU time of the dispatcher thread of the CPU",
            of(|it| seconds(it.dispatcher_ns)),
        )
    }

    fn service(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Numbers { timer_late, change_effect, commit, .. } = &self.numbers;
        for (name, help, of) in [
            (
                "slackline_timer_late_seconds",
                "Time by which timers of dispatchers expired late",
                timer_late,
            ),
            (
                "slackline_change_effect_seconds",
                "Time from the arrival of a change until it is in force",
                change_effect,
            ),
            ("slackline_commit_seconds", "Duration of ledger commits", commit),
        ] {
            histograms(out, name, help, [(NO_LABELS, of)].into_iter())?;
        }
        let Numbers { meddled, restarts, keeper_restarts, .. } = self.numbers;
        let Numbers { front_restarts, ledger_errors, incidents, .. } = self.numbers;
        for (name, help, value) in [
            ("slackline_meddled", "Threads changed by other programs", meddled),
            ("slackline_restarts", "Restarts of the daemon since the host booted", restarts),
            (
                "slackline_keeper_restarts",
                "Keeper processes that died and were replaced",
                keeper_restarts,
            ),
            (
                "slackline_front_restarts",
                "Front processes that ended and were replaced",
                front_restarts,
            ),
            ("slackline_ledger_errors", "Ledger commits that failed", ledger_errors),
            ("slackline_incidents", "Saved recordings of missed deadlines", incidents),
        ] {
            counters(out, name, help, [(NO_LABELS, value)].into_iter())?;
        }
        let sight = out.encode_descriptor(
            "slackline_sight",
            "How context switches are observed: perf or polling",
            None,
            MetricType::Info,
        );
        sight?.encode_info(&[("kind", self.numbers.sight.as_str())])?;
        let build = out.encode_descriptor(
            "slackline_build",
            "Version of the daemon",
            None,
            MetricType::Info,
        );
        build?.encode_info(&[("version", env!("CARGO_PKG_VERSION"))])
    }

    fn served(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let answers: Vec<(&str, String, u64)> = self
            .served
            .answers
            .iter()
            .map(|((route, code), count)| (route.as_str(), code.to_string(), *count))
            .collect();
        counters(
            out,
            "slackline_requests",
            "Requests answered since the daemon's front process started",
            answers
                .iter()
                .map(|(route, code, count)| ([("route", *route), ("code", code)], *count)),
        )?;
        histograms(
            out,
            "slackline_request_seconds",
            "Time from the head of a request to the head of its answer",
            [(NO_LABELS, &self.served.took)].into_iter(),
        )
    }

    fn process(&self, out: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let core = self.numbers.process;
        let one = |value| [(NO_LABELS, value)].into_iter();
        counters(
            out,
            "process_cpu_seconds",
            "CPU time of the daemon's core process",
            one(seconds(core.cpu_ns)),
        )?;
        #[expect(clippy::cast_precision_loss, reason = "numbers far below 2^53")]
        let [memory, fds] = [core.resident_bytes, core.open_fds].map(|number| number as f64);
        gauges(
            out,
            "process_resident_memory_bytes",
            "Resident memory of the daemon's core process",
            one(memory),
        )?;
        gauges(
            out,
            "process_open_fds",
            "Open file descriptors of the daemon's core process",
            one(fds),
        )?;
        let started = one(seconds(core.started_ns));
        gauges(
            out,
            "process_start_time_seconds",
            "Start time of the daemon's core process, since 1970",
            started,
        )
    }
}

/// Empty list of labels, for a metric with a single sample.
const NO_LABELS: [Label<'static>; 0] = [];

/// Name and value of one label of a sample.
type Label<'a> = (&'a str, &'a str);

/// Labels of the metrics of a vCPU.
struct Labels<'a> {
    reservation: &'a str,
    vcpu: String,
}

impl<'a> Labels<'a> {
    fn of(reservation: &'a str, vcpu: u16) -> Labels<'a> {
        Labels { reservation, vcpu: vcpu.to_string() }
    }

    fn pairs(&self) -> [(&str, &str); 2] {
        [("reservation", self.reservation), ("vcpu", &self.vcpu)]
    }
}

/// Writes the samples of one metric. A metric without samples is left out.
fn samples<'l, L: AsRef<[Label<'l>]> + EncodeLabelSet, V>(
    out: &mut DescriptorEncoder<'_>,
    (name, help, kind): (&str, &str, MetricType),
    samples: impl Iterator<Item = Sample<L, V>>,
    write: impl Fn(MetricEncoder<'_>, V) -> fmt::Result,
) -> fmt::Result {
    let mut samples = samples.peekable();
    if samples.peek().is_none() {
        return Ok(());
    }
    let mut metric = out.encode_descriptor(name, help, None, kind)?;
    for (labels, value) in samples {
        match labels.as_ref() {
            [] => return write(metric, value),
            _ => write(metric.encode_family(&labels)?, value)?,
        }
    }
    Ok(())
}

fn gauges<'l, L: AsRef<[Label<'l>]> + EncodeLabelSet>(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    of: impl Iterator<Item = Sample<L, f64>>,
) -> fmt::Result {
    samples(out, (name, help, MetricType::Gauge), of, |mut metric, value| {
        metric.encode_gauge(&value)
    })
}

/// Writes the samples of a counter. The format adds `_total` to the name.
fn counters<'l, L: AsRef<[Label<'l>]> + EncodeLabelSet, V: EncodeCounterValue>(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    of: impl Iterator<Item = Sample<L, V>>,
) -> fmt::Result {
    samples(out, (name, help, MetricType::Counter), of, |mut metric, value| {
        metric.encode_counter::<NoLabelSet, V, f64>(&value, None)
    })
}

fn histograms<'a, 'l, L: AsRef<[Label<'l>]> + EncodeLabelSet>(
    out: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    of: impl Iterator<Item = Sample<L, &'a Histogram>>,
) -> fmt::Result {
    samples(out, (name, help, MetricType::Histogram), of, |mut metric, of| {
        let bounds = BOUNDS.iter().map(|bound| seconds(bound.ns())).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(of.counts).collect();
        metric.encode_histogram::<NoLabelSet>(seconds(of.sum_ns), of.count(), &buckets, None)
    })
}

/// Converts nanoseconds to seconds for the metrics. All other parts of the daemon represent times
/// as integers.
#[expect(clippy::cast_precision_loss, reason = "Prometheus has only floats")]
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus has only floats")]
fn price(millionths: u64) -> f64 {
    millionths as f64 / 1e6
}

fn millionths(ppm: u32) -> f64 {
    f64::from(ppm) / 1e6
}

#[cfg(test)]
mod tests {
    use slackline_control::{CpuNumbers, ReservationNumbers, VcpuNumbers};

    use super::*;

    fn numbers(reservations: usize) -> Numbers {
        let mut timer_late = Histogram::default();
        timer_late.observe(Span::from_us(50));
        timer_late.observe(Span::from_secs(2));
        let vcpu = |vcpu| VcpuNumbers { vcpu, cpu_ns: 1_500_000_000, ..VcpuNumbers::default() };
        let of = |nth: usize| ReservationNumbers {
            cost: None,
            name: format!("web-{nth}"),
            slice_ns: 2_000_000,
            period_ns: 10_000_000,
            state: State::Active,
            vcpus: vec![vcpu(0), vcpu(1)],
        };
        let cpu = CpuNumbers {
            cpu: 3,
            promised_ppm: 400_000,
            capacity_ppm: 900_000,
            reserved_ppm: 370_000,
            overhead_ppm: Some(12_500),
            is_overloaded: true,
            ..CpuNumbers::default()
        };
        Numbers {
            reservations: (0..reservations).map(of).collect(),
            cpus: vec![cpu],
            timer_late,
            meddled: 7,
            sight: "perf".into(),
            ..Numbers::default()
        }
    }

    #[test]
    fn names_of_prometheus_metrics_contain_their_units() {
        let mut served = RequestMetrics::default();
        served.count("/v1/host", 200, Duration::from_millis(1));
        let text = text(numbers(1), served).unwrap();
        for line in [
            "slackline_reservation_slice_seconds{reservation=\"web-0\"} 0.002",
            "slackline_reservation_state{reservation=\"web-0\",state=\"active\"} 1.0",
            "slackline_reservation_state{reservation=\"web-0\",state=\"paused\"} 0.0",
            "slackline_vcpu_cpu_seconds_total{reservation=\"web-0\",vcpu=\"1\"} 1.5",
            "slackline_timer_late_seconds_bucket{le=\"0.0001\"} 1",
            "slackline_timer_late_seconds_bucket{le=\"+Inf\"} 2",
            "slackline_timer_late_seconds_count 2",
            "slackline_cpu_promised_ratio{cpu=\"3\"} 0.4",
            "slackline_cpu_reserved_ratio{cpu=\"3\"} 0.37",
            "slackline_cpu_overhead_ratio{cpu=\"3\"} 0.0125",
            "slackline_cpu_overloaded{cpu=\"3\"} 1.0",
            "slackline_meddled_total 7",
            "slackline_sight_info{kind=\"perf\"} 1",
            "slackline_requests_total{route=\"/v1/host\",code=\"200\"} 1",
            "slackline_request_seconds_bucket{le=\"0.001\"} 1",
            "process_resident_memory_bytes 0.0",
        ] {
            assert!(text.lines().any(|it| it == line), "`{line}` is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn cpu_overhead_that_is_not_measured_has_no_metric_sample() {
        let mut numbers = numbers(1);
        numbers.cpus[0].overhead_ppm = None;
        let page = text(numbers, RequestMetrics::default()).unwrap();
        assert!(!page.contains("slackline_cpu_overhead_ratio"), "{page}");
    }

    #[test]
    fn metrics_in_older_prometheus_format_have_the_samples_of_openmetrics() {
        let new = text(numbers(1), RequestMetrics::default()).unwrap();
        let old = older(&new);
        let samples = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        };
        assert_eq!(samples(&old), samples(&new));
        for line in [
            "# TYPE slackline_vcpu_cpu_seconds_total counter",
            "# TYPE slackline_sight_info gauge",
            "# HELP slackline_meddled_total Threads changed by other programs",
        ] {
            assert!(old.lines().any(|it| it == line), "`{line}` is not in\n{old}");
        }
        assert!(!old.contains("EOF"));
    }

    /// Runs Prometheus's `promtool` on a text with metrics or rules. If `promtool` is not
    /// installed, prints a note and returns `None`.
    fn promtool(arguments: &[&str], input: &str) -> Option<()> {
        use std::io::Write;
        use std::process::{Command, Stdio};
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/monitoring");
        let mut command = Command::new("promtool");
        command.args(arguments).current_dir(folder).stdin(Stdio::piped());
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let Ok(mut child) = child else {
            println!("skipped: needs promtool from Debian's package prometheus");
            return None;
        };
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(output.status.success(), "promtool {arguments:?}: {said}");
        Some(())
    }

    /// Converts the queries of the dashboard to Prometheus rules, which `promtool` can check.
    fn rules_of_dashboard() -> String {
        let dashboard = include_str!("../../monitoring/slackline-dashboard.json");
        let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
        let panels = dashboard["panels"].as_array().unwrap().iter();
        let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
        let mut rules = "groups:
- name: dashboard
  rules:
"
        .to_owned();
        for (nth, target) in targets.enumerate() {
            let asked = target["expr"].as_str().unwrap().replace("$__rate_interval", "5m");
            let asked = asked.replace("$instance", ".*").replace("$reservation", ".*");
            rules += &format!(
                "  - record: panel:{nth}
    expr: {}
",
                serde_json::json!(asked)
            );
        }
        rules
    }

    #[test]
    fn promtool_accepts_the_metrics_page_and_the_alert_rules() {
        let mut served = RequestMetrics::default();
        served.count("/v1/host", 200, Duration::from_millis(1));
        let page = older(&text(numbers(2), served).unwrap());
        if promtool(&["check", "metrics"], &page).is_some() {
            promtool(&["check", "rules", "slackline-alerts.yml"], "");
            promtool(&["test", "rules", "slackline-alerts-test.yml"], "");
            let folder = tempfile::tempdir().unwrap();
            let rules = folder.path().join("dashboard.yml");
            std::fs::write(&rules, rules_of_dashboard()).unwrap();
            promtool(&["check", "rules", rules.to_str().unwrap()], "");
        }
    }

    #[test]
    fn dashboard_and_alert_rules_use_only_exported_metrics() {
        let mut served = RequestMetrics::default();
        served.count("/v1/host", 200, Duration::from_millis(1));
        let page = text(numbers(1), served).unwrap();
        let is_part = |letter: char| letter.is_ascii_lowercase() || letter == '_';
        let there: Vec<&str> = page
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(|line| line.split(['{', ' ']).next())
            .collect();
        for file in [
            include_str!("../../monitoring/slackline-alerts.yml"),
            include_str!("../../monitoring/slackline-dashboard.json"),
        ] {
            let mut found = 0;
            for (at, _) in file.match_indices("slackline_") {
                let name = &file[at..];
                let name = &name[..name.find(|letter| !is_part(letter)).unwrap_or(name.len())];
                assert!(there.contains(&name), "the daemon does not export `{name}`");
                found += 1;
            }
            assert!(found >= 10, "{found}");
        }
        let dashboard = include_str!("../../monitoring/slackline-dashboard.json");
        let dashboard: serde_json::Value = serde_json::from_str(dashboard).unwrap();
        assert!(dashboard["panels"].as_array().unwrap().len() >= 8);
    }

    #[test]
    fn metrics_page_of_500_reservations_is_at_most_2_mib() {
        let text = text(numbers(500), RequestMetrics::default()).unwrap();
        assert!(text.len() <= 2 * 1024 * 1024, "{} bytes", text.len());
    }
}
