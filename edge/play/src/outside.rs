//! Clients and the file server, which run outside of the domains in a live run. Clients connect to
//! domains over the loopback interface, and tasks request data from the file server. Clients and
//! server are ordinary processes. If the host has CPUs that the run does not schedule, clients and
//! server run on those CPUs.

use std::process::{Child, Stdio};

use slackline_load::client::port_for;
use slackline_load::{Note, Ports};
use slackline_scenario::io::{Client, ClientKind, DeviceStep};
use slackline_scenario::{Scenario, Step};
use slackline_trace::Record;
use slackline_units::{ClientId, CpuId, CpuSet, Time, VcpuId};

use crate::load_order::{LoadCommand, LoadOrder, LoadRole};
use crate::processes::ProcessError;
use crate::teller::{self, JobPipe};
use slackline_linux::sys::{
    Tid, die_with_us, get_affinity, monotonic, online_cpus, own_tid, set_affinity,
};

/// All clients of a run, and its file server.
#[derive(Debug, Default)]
pub(crate) struct ExternalProcesses {
    files: Option<ExternalProcess>,
    clients: Vec<ExternalProcess>,
    /// CPUs on which the clients and the server may run. If `None`, they may run on all CPUs.
    cpus: Option<CpuSet>,
}

#[derive(Debug)]
struct ExternalProcess {
    child: Child,
    teller: JobPipe,
    name: String,
    /// First vCPU of the domain to which the client connects. Records of the client name this vCPU.
    vcpu: VcpuId,
    /// Time after the start of the run at which the client starts. `None` after the client has
    /// started.
    starts: Option<Time>,
    answered: u64,
    lost: u64,
    has_ended: bool,
}

/// Counts of one client that has lost requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRequests {
    /// Kind of the client and name of its domain, such as `httperf of web`.
    pub name: String,
    /// Number of the client's requests that were answered.
    pub answered: u64,
    /// Number of requests on which the client gave up without an answer.
    pub lost: u64,
}

impl ExternalProcesses {
    /// Creates an empty set. Processes that are added to the set will not run on the CPUs in
    /// `scheduled`, if the host has other CPUs.
    pub(crate) fn new(scheduled: &[CpuId]) -> ExternalProcesses {
        let ours = get_affinity(own_tid()).and_then(|ours| Ok(ours.and(&online_cpus()?)));
        let mut cpus = ours.unwrap_or_default();
        scheduled.iter().for_each(|&cpu| cpus.remove(cpu));
        let cpus = (!cpus.is_empty()).then_some(cpus);
        ExternalProcesses { files: None, clients: Vec::new(), cpus }
    }

    /// Starts a file server if any task of the scenario requests data. Returns the server's port.
    /// If no task requests data, starts nothing and returns `None`.
    pub(crate) fn start_files(
        &mut self,
        scenario: &Scenario,
        load: LoadCommand<'_>,
    ) -> Result<Option<u16>, ProcessError> {
        let steps = scenario.domains.iter().filter(|domain| domain.live.is_none());
        let steps = steps.filter_map(|domain| domain.system.as_ref());
        let tasks = steps.flat_map(|system| &system.tasks);
        let mut steps = tasks.flat_map(|task| &task.program.steps);
        if !steps.any(|step| matches!(step, Step::Device(DeviceStep::Ask { .. }))) {
            return Ok(None);
        }
        let order = LoadOrder { part: LoadRole::Files, seed: scenario.seed, start: Time::START };
        let vcpu = scenario.domains[0].vcpus[0];
        let mut files = self.start(&order, load, "the file server".into(), vcpu)?;
        let ports = files.teller.ready().ok_or_else(|| files.not_ready())?;
        self.files = Some(files);
        Ok(Some(ports.requests))
    }

    /// Starts all clients of the scenario. `ports` has the ports of the domains to which the
    /// clients connect.
    pub(crate) fn start_clients(
        &mut self,
        scenario: &Scenario,
        ports: &[Ports],
        origin: Time,
        load: LoadCommand<'_>,
    ) -> Result<(), ProcessError> {
        let clients = scenario.io.as_ref().map_or(&[][..], |io| &io.clients);
        for (number, client) in clients.iter().enumerate() {
            let domain = &scenario.domains[client.to];
            let begins = client.from.max(domain.joins);
            let start = origin + (begins - Time::START);
            let port = port_for(&client.kind, ports[client.to]);
            let part = LoadRole::Client { client, number, port, begins };
            let order = LoadOrder { part, seed: scenario.seed, start };
            let name = format!("{} of {}", kind(client), domain.name);
            let mut client = self.start(&order, load, name, domain.vcpus[0])?;
            client.starts = Some(begins);
            self.clients.push(client);
        }
        Ok(())
    }

    fn start(
        &self,
        order: &LoadOrder<'_>,
        load: LoadCommand<'_>,
        name: String,
        vcpu: VcpuId,
    ) -> Result<ExternalProcess, ProcessError> {
        let mut command = load(order);
        let program = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        die_with_us(&mut command);
        let cannot = |source| ProcessError::NotStarted { program, source };
        let mut child = command.spawn().map_err(cannot)?;
        let tid = i32::try_from(child.id()).ok().and_then(Tid::new);
        if let (Some(cpus), Some(tid)) = (&self.cpus, tid) {
            // If the kernel refuses the affinity, the process may use CPU time of scheduled CPUs.
            let _ = set_affinity(tid, cpus);
        }
        let teller = JobPipe::new(child.stdout.take().expect("the standard output is a pipe"));
        let (starts, answered, lost, has_ended) = (None, 0, 0, false);
        Ok(ExternalProcess { child, teller, name, vcpu, starts, answered, lost, has_ended })
    }

    /// Appends the records that the clients have reported.
    pub(crate) fn take_records(&mut self, origin: Time, into: &mut Vec<Record>) {
        let now = Time::START + monotonic().since(origin);
        for (number, client) in (0_u16..).zip(&mut self.clients) {
            let id = ClientId::new(number);
            if let Some(at) = client.starts.take_if(|at| *at <= now) {
                into.push(Record::ClientStarted { at, client: id, vcpu: client.vcpu });
            }
            for note in client.teller.take() {
                client.answered += u64::from(matches!(note, Note::Job(_)));
                client.lost += u64::from(matches!(note, Note::Lost { .. }));
                into.extend(teller::record(note, (client.vcpu, Some(id)), origin));
            }
        }
    }

    /// Returns the clients and servers that have failed since the last call. Each item has the name
    /// of the process, and its exit code or signal in words.
    pub(crate) fn ended(&mut self) -> Vec<(String, String)> {
        let mut ended = Vec::new();
        for one in self.files.iter_mut().chain(&mut self.clients) {
            if one.has_ended {
                continue;
            }
            if let Ok(Some(status)) = one.child.try_wait() {
                one.has_ended = true;
                if !status.success() {
                    ended.push((one.name.clone(), status.to_string()));
                }
            }
        }
        ended
    }

    /// Returns the counts of all clients that lost requests.
    pub(crate) fn losses(&self) -> Vec<LostRequests> {
        let lost = self.clients.iter().filter(|client| client.lost > 0);
        let losses = lost.map(|client| LostRequests {
            name: client.name.clone(),
            answered: client.answered,
            lost: client.lost,
        });
        losses.collect()
    }
}

impl ExternalProcess {
    fn not_ready(&mut self) -> ProcessError {
        let how = match self.child.try_wait() {
            Ok(Some(status)) => status.to_string(),
            _ => "not ready in time".into(),
        };
        ProcessError::EndedAtOnce { program: self.name.clone(), how, is_success: false }
    }
}

impl Drop for ExternalProcess {
    /// Kills the process. The scheduling of the process was not changed, so nothing has to be
    /// restored.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn kind(client: &Client) -> &'static str {
    match client.kind {
        ClientKind::Open { .. } => "httperf",
        ClientKind::Closed { .. } => "ab",
        ClientKind::Ping { .. } | ClientKind::Pings { .. } => "ping",
        ClientKind::Stream { .. } => "ttcp",
    }
}
