//! Command `slackline whatif`, which predicts from a recorded trace what other parameters would
//! change.

mod caller;
mod json;
mod periods;
mod plan;
mod remote;
mod report;
mod shown;
mod table;
mod worker;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use slackline_control::Kind;
use slackline_control::client::ClientError;
use slackline_sim::RunError;
use slackline_trace::Reader;
use slackline_units::Time;
use slackline_whatif::{
    Backlog, Cause, Edit, Forecast, ForecastError, Form, Gate, LeftOutVm, Model, ModelError,
    Recorder, Recording, Row, Tolerance, forecast, gate,
};

use crate::edits::{Whatif, bad_edit};
use crate::names::Names;
use crate::pending::Pending;
use crate::places::Places;
use crate::problem::Problem;
use crate::service::HostReservations;
use crate::{service, show, terminal};
use plan::PlanSource;
use shown::{ShownChange, ShownForecast, ShownGate};

pub(crate) use worker::worker;

/// Name, in messages, of a recording that a daemon made of the last seconds.
const NAME_OF_LAST: &str = "the last seconds";

pub(crate) fn whatif(args: &Whatif) -> Result<(), Problem> {
    let edits = args.edits()?;
    let mut places =
        Places::of(&[("--report", args.report.as_deref()), ("--save", args.save.as_deref())])?;
    let scenarios = args.save_scenario.as_deref().map(forms_of).unwrap_or_default();
    for (_, file) in &scenarios {
        places.write("--save-scenario", file)?;
    }
    let Some(source) = RecordingSource::of(args)? else {
        return remote::predict(args, &edits);
    };
    places.read("the trace", source.file())?;
    let predicted = predict(args, &edits, (&source, &scenarios));
    match source {
        RecordingSource::File(_) => predicted,
        RecordingSource::Daemon(..) => predicted.map_err(of_last_seconds),
    }
}

/// Predicts from a recording that this process reads. Writes the prediction to the files that the
/// options name, and prints it. `scenarios` are the files of `--save-scenario`.
fn predict(
    args: &Whatif,
    edits: &[Edit],
    (source, scenarios): (&RecordingSource, &[(Form, PathBuf)]),
) -> Result<(), Problem> {
    let (recording, name) = (record(source.file())?, source.name());
    let name = Path::new(&name);
    let mut model = Model::new(&recording).map_err(|error| no_model(&error))?;
    let gate = gate(&recording, &model).map_err(|error| problem(name, error))?;
    let policy = model.policy();
    let in_parts = source.host().map(|host| plan::in_parts(edits, host));
    let in_parts = in_parts.as_deref().unwrap_or(edits);
    model.edit(in_parts).map_err(|error| bad_edit(&error, source.host().is_none()))?;
    let planned = PlanSource { edits, host: source.host() };
    if args.save.is_some() {
        planned.check(&model)?;
    }
    for (form, file) in scenarios {
        save_scenario(&model, &recording, *form, file)?;
    }
    let (policy, left_out) = (policy.as_str(), model.left_out());
    let (recording, gate, model) = (&recording, &gate, &model);
    let answer = Answer { recording, gate, model, policy, left_out: &left_out };
    if !gate.passes() || edits.is_empty() {
        match args.json {
            true => terminal::print(&json::text(&json::gate(&answer)))?,
            false => terminal::say(&table::gate(&ShownGate::of(&answer)))?,
        }
        return gate_refusal(&source.name(), gate);
    }
    let forecast = forecast(recording, gate, model).map_err(|error| refused(name, error))?;
    if let Some(file) = &args.save {
        save(file, &planned.plan(&answer, &forecast)?)?;
    }
    let shown = ShownForecast::of(&answer, &forecast);
    if let Some(file) = &args.report {
        save(file, &report::page(&shown))?;
    }
    if args.json {
        return terminal::print(&json::text(&json::forecast(&answer, &forecast)));
    }
    let record = service::record_of_predictions(&args.socket);
    terminal::say(&(table::forecast(&shown) + &record.unwrap_or_default()))
}

/// Source of the recording from which `whatif` predicts.
enum RecordingSource {
    File(PathBuf),
    /// Copy of the daemon's recording, and the reservations of its host. The copy is removed after
    /// use.
    Daemon(PathBuf, HostReservations),
}

impl RecordingSource {
    /// Returns the file of the recording. `None` if the caller's role may not make the daemon save
    /// its recording.
    fn of(args: &Whatif) -> Result<Option<RecordingSource>, Problem> {
        if let Some(file) = &args.file {
            return Ok(Some(RecordingSource::File(file.clone())));
        }
        let host = service::host_reservations(&args.socket)?;
        match service::save_recording(&args.socket, args.since.unwrap_or_default()) {
            Err(Problem::Service(ClientError::Refused(refused)))
                if refused.kind == Kind::NotAllowed =>
            {
                Ok(None)
            }
            saved => Ok(Some(RecordingSource::Daemon(saved?.file.into(), host))),
        }
    }

    fn file(&self) -> &Path {
        let (RecordingSource::File(file) | RecordingSource::Daemon(file, _)) = self;
        file
    }

    /// Returns the reservations of the recorded host. `None` if the recording is a file.
    fn host(&self) -> Option<&HostReservations> {
        match self {
            RecordingSource::File(_) => None,
            RecordingSource::Daemon(_, host) => Some(host),
        }
    }

    fn name(&self) -> String {
        match self {
            RecordingSource::File(file) => file.display().to_string(),
            RecordingSource::Daemon(..) => NAME_OF_LAST.into(),
        }
    }
}

impl Drop for RecordingSource {
    fn drop(&mut self) {
        if let RecordingSource::Daemon(file, _) = self {
            // If this process may not remove the file, the daemon removes it at its next start.
            let _ = fs::remove_file(file);
        }
    }
}

/// Data from which the output is made, except the prediction itself.
pub(crate) struct Answer<'a> {
    pub(crate) recording: &'a Recording,
    pub(crate) gate: &'a Gate,
    /// Model of the host after all edits.
    pub(crate) model: &'a Model,
    /// Policy of the recording.
    pub(crate) policy: &'a str,
    /// VMs for which there is no prediction. Has only VMs that the reader may see.
    pub(crate) left_out: &'a [LeftOutVm],
}

/// Reads the recording of a trace file.
fn record(file: &Path) -> Result<Recording, Problem> {
    let (trace, names) = show::open(file)?;
    RecordingReader { file, names: &names }.read(trace)
}

/// Reader of the recording in a trace whose index (vCPUs, start and end) is known.
struct RecordingReader<'a> {
    file: &'a Path,
    names: &'a Names,
}

impl RecordingReader<'_> {
    fn read(&self, mut trace: Reader) -> Result<Recording, Problem> {
        let (file, names) = (self.file, self.names);
        let end = names.ended.unwrap_or(Time::START);
        let mut recorder = Recorder::of_trace(trace.header(), names.began, end);
        let passed = trace.pass_to(&mut recorder);
        passed.map_err(|error| Problem::BadTrace { file: file.into(), error })?;
        recorder.finish().map_err(|error| Problem::StrayRecord { file: file.into(), error })
    }
}

fn no_model(error: &ModelError) -> Problem {
    let hint = match error {
        ModelError::AllLeftOut(vms) => vms.first().map(|vm| vm.why.hint(&vm.name)),
        _ => None,
    };
    Problem::NoForecast { message: error.to_string(), hint }
}

/// Refuses a prediction from a recording that does not pass the gate: the check that a simulation
/// of the unchanged recording agrees with the recording. If a VM changed during the recording, the
/// refusal names the last change.
fn gate_refusal(source: &str, gate: &Gate) -> Result<(), Problem> {
    let Some(cause) = &gate.cause else { return Ok(()) };
    let change = gate.change.as_ref().map(ShownChange::of);
    Err(no_prediction(source, &cause.to_string(), change.as_ref()))
}

/// Returns the error for a recording that does not pass the gate.
fn no_prediction(source: &str, cause: &str, change: Option<&ShownChange>) -> Problem {
    let why = match change {
        None => cause.to_owned(),
        Some(change) if cause == Cause::Unexplained.to_string() => change.says.clone(),
        Some(change) => format!("{cause}, or because {}", change.says),
    };
    let hint = match change {
        None => "record again on a host without other load, or for longer".to_owned(),
        Some(change) if source == NAME_OF_LAST => format!(
            "ask again in {}: a recording of the same length then does not contain the change",
            change.gone_after
        ),
        Some(_) => "record again at a time at which no VM changes".to_owned(),
    };
    Problem::NoForecast {
        message: format!(
            "cannot predict from {source}: the simulation does not repeat the recording, probably \
             because {why}"
        ),
        hint: Some(hint),
    }
}

/// Gives the refusal of a prediction from the daemon's recording a hint, if it has none. Without a
/// hint of its own, the refusal would get a hint about traces of scenarios.
fn of_last_seconds(problem: Problem) -> Problem {
    match problem {
        Problem::NoForecast { message, hint: None } => {
            let hint = "try again in a minute, when the recording covers other seconds";
            Problem::NoForecast { message, hint: Some(hint.into()) }
        }
        other => other,
    }
}

/// Returns the error for a model that cannot be simulated after the edits.
fn refused(file: &Path, error: ForecastError) -> Problem {
    match error {
        ForecastError::Share { ref name, policy, error: ref why } => Problem::BadOption {
            message: error.to_string(),
            hint: match why {
                slackline_policy::FieldError::Missing(field) => {
                    Some(format!("add --set {name}.{}=VALUE", field.name))
                }
                _ => Some(format!("see `slackline help {policy}`")),
            },
        },
        ForecastError::Run(RunError::Declined(declined)) => Problem::NotAdmitted {
            message: format!("admission would refuse the changed reservations: {declined}"),
            hint: declined.error.hint(),
        },
        ForecastError::NoCapacity { .. } => Problem::NotAdmitted {
            message: format!("admission would refuse the changed reservations: {error}"),
            hint: Some("set shorter slices".into()),
        },
        error => problem(file, error),
    }
}

fn problem(file: &Path, error: ForecastError) -> Problem {
    match error {
        ForecastError::Run(RunError::Broken(broken)) => {
            Problem::Bug { message: broken.to_string(), kept: None }
        }
        ForecastError::Stray(error) => Problem::of_stray(error),
        error => Problem::NoForecast {
            message: format!("cannot simulate {}: {error}", file.display()),
            hint: None,
        },
    }
}

/// Returns the path of the scenario file for each form of the prediction, open and closed.
fn forms_of(file: &Path) -> Vec<(Form, PathBuf)> {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let extension = file.extension().map(|it| format!(".{}", it.to_string_lossy()));
    let closed = format!("{stem}-closed{}", extension.unwrap_or_default());
    vec![(Form::Open, file.into()), (Form::Closed, file.with_file_name(closed))]
}

/// Writes the scenario of a prediction, and the files with its jobs.
fn save_scenario(
    model: &Model,
    recording: &Recording,
    form: Form,
    file: &Path,
) -> Result<(), Problem> {
    let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let written = model.written(&recording.demand, form, &stem);
    let written = written.map_err(|error| problem(file, error))?;
    for (name, text) in &written.files {
        save(&file.with_file_name(name), text)?;
    }
    save(file, &written.text)
}

fn save(file: &Path, text: &str) -> Result<(), Problem> {
    let (pending, mut out) = Pending::new(file)?;
    pending.keep(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// Returns the name of a form of a predicted scenario: open or closed.
pub(crate) fn form_name(form: Form) -> &'static str {
    match form {
        Form::Open => "open",
        Form::Closed => "closed",
    }
}

/// Describes what a prediction cannot show for a VM that had too little CPU time in the recording.
fn backlog(Backlog { vm, late_jobs }: &Backlog) -> String {
    match late_jobs {
        None => format!(
            "how much CPU time {vm} needs: it never or hardly blocked in the recording, and the \
             prediction assumes that it computes forever"
        ),
        Some((late, all)) => format!(
            "how fast {vm} responds without a backlog: {late} of its {all} recorded jobs took \
             longer than a period, and requests that queued up meanwhile are predicted as one job"
        ),
    }
}

/// Returns statements about what a prediction from this recording does not cover, one line each.
pub(crate) fn limits(answer: &Answer<'_>, forecast: &Forecast) -> Vec<String> {
    let mut lines = vec![
        "how many more requests clients send if answers come sooner: the predicted range covers \
         this only if clients behave as in the open or the closed form"
            .to_owned(),
        "how caches, memory and devices respond to another schedule".to_owned(),
    ];
    lines.extend(answer.model.backlogs(answer.recording, forecast).iter().map(backlog));
    let forms: Vec<&str> = answer.gate.passing().map(|form| form_name(form.form)).collect();
    if let [only] = forms[..] {
        lines.push(format!(
            "the range between the open and the closed form: the simulation repeats the recording \
             only in the {only} form"
        ));
    }
    if !answer.model.tolerance().judges_waits() {
        lines.push(
            "how long vCPUs wait: under Linux's own scheduling only shares are checked against \
             the recording, and longer waits are not listed as losses"
                .into(),
        );
    }
    let uses_slack = |row: &Row| row.tolerance(answer.model) == Tolerance::Slack;
    if forecast.rows.iter().any(uses_slack) {
        lines.push(
            "how exactly the kernel divides slack: the share of a vCPU that uses slack is checked \
             against the recording only to 1 percentage point"
                .into(),
        );
    }
    if answer.model.assumes_phases(&answer.recording.demand) {
        lines.push(
            "when the periods of changed reservations begin: in the simulation they begin as in \
             the recording, on the host when it makes the change"
                .into(),
        );
    }
    if answer.model.reservations().flatten().any(|reserved| reserved.has_changed) {
        lines.push(
            "how VMs would run with their last parameters only: during the recording, parameters \
             changed or a VM came, and the prediction covers the time before and after the change"
                .into(),
        );
    }
    lines.extend(answer.left_out.iter().map(|LeftOutVm { name, why }| {
        format!("how {name} runs, for which there is no prediction: {why}")
    }));
    let beyond = &answer.recording.demand.beyond;
    let counted = [
        (beyond.hints, "hints of guests about their tasks"),
        (beyond.services, "requests to devices behind a driver domain"),
        (beyond.spins, "waits for spin locks"),
        (beyond.elsewhere, "intervals in which another program controlled a vCPU"),
    ];
    for (count, what) in counted.into_iter().filter(|(count, _)| *count > 0) {
        lines.push(format!(
            "how {what} would change under another schedule: the recording has {count} of them, \
             and the prediction does not cover them"
        ));
    }
    for (at, name, why) in &forecast.declined {
        lines.push(format!(
            "what happens after {at}: admission refuses a change of `{name}`: {why}"
        ));
    }
    lines
}
