//! Parameters of a load process, and the command that starts it.

use std::net::SocketAddr;
use std::process::Command;

use slackline_load::system::SystemClients;
use slackline_scenario::io::{Client, ClientKind, Direction};
use slackline_scenario::{Domain, Program, Scenario, System};
use slackline_units::{DomId, Time, VcpuId};

/// Order to start a load process: the parameters from which the command of the process is made.
#[derive(Debug)]
pub struct LoadOrder<'a> {
    /// Role of the process.
    pub part: LoadRole<'a>,
    /// Seed of all random draws of the run.
    pub seed: u64,
    /// Time on the monotonic clock at which the load begins.
    pub start: Time,
}

/// Role of a load process.
#[derive(Debug)]
pub enum LoadRole<'a> {
    /// A vCPU that runs a program of the scenario.
    Program {
        /// Steps of the program.
        program: &'a Program,
        /// vCPU in whose place the process runs. Its id selects the random draws of the program.
        vcpu: VcpuId,
        /// Addresses of the other nodes, if the program is a node of a parallel program. In that
        /// case the standard input of the load process is the socket of its node.
        others: &'a [SocketAddr],
    },
    /// A domain whose operating system has tasks that need devices.
    System {
        /// Tasks of the domain.
        system: &'a System,
        /// Domain of the tasks. Its id selects the random draws of the tasks.
        domain: DomId,
        /// Kinds of clients that connect to the domain.
        from: SystemClients,
        /// Port of the file server from which the tasks request data. `None` if the tasks request
        /// no data.
        files: Option<u16>,
    },
    /// A client that runs outside of the scheduled domains and sends requests to one of them.
    Client {
        /// Description of the client.
        client: &'a Client,
        /// Number of the client, which selects the client's random draws.
        number: usize,
        /// Port of the domain to which the client connects.
        port: u16,
        /// Time after the start of the run at which the client begins.
        begins: Time,
    },
    /// The file server, which runs outside of the scheduled domains and answers requests for data.
    Files,
}

/// Function that makes the command of a load process. A load process reports to the run by notes on
/// its standard output.
pub type LoadCommand<'a> = &'a dyn Fn(&LoadOrder<'_>) -> Command;

/// Returns the kinds of clients in the scenario that connect to a domain.
pub(crate) fn callers(scenario: &Scenario, domain: &Domain) -> SystemClients {
    let mut callers = SystemClients::default();
    for client in scenario.io.iter().flat_map(|io| &io.clients) {
        if scenario.domains[client.to].id != domain.id {
            continue;
        }
        match client.kind {
            ClientKind::Stream { way: Direction::In, .. } => callers.inward = true,
            ClientKind::Stream { way: Direction::Out, .. } => callers.outward = true,
            _ => callers.requests = true,
        }
    }
    callers
}
