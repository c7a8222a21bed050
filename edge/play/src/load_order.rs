//! Parameters of a load process, and the command that starts it.

use std::net::SocketAddr;
use std::process::Command;

use slackline_load::system::SystemClients;
use slackline_scenario::io::{Client, ClientKind, Direction};
use slackline_scenario::{Domain, Program, Scenario, System};
use slackline_units::{DomId, Time, VcpuId};

/// Parameters from which the command of a load process is made.
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
    /// A vCPU with a program.
    Program {
        /// Steps of the program.
        program: &'a Program,
        /// vCPU that the program stands for, which selects its random draws.
        vcpu: VcpuId,
        /// Addresses of the other nodes, if the program is a node of a parallel program. The load
        /// process then gets the socket of its node as its standard input.
        others: &'a [SocketAddr],
    },
    /// A domain with tasks that need devices.
    System {
        /// Tasks of the domain.
        system: &'a System,
        /// Domain of the tasks, which selects their random draws.
        domain: DomId,
        /// Kinds of clients that connect to the domain.
        from: SystemClients,
        /// Port of the file server from which the tasks request data. `None` if they request none.
        files: Option<u16>,
    },
    /// A client that runs outside of the scheduled domains.
    Client {
        /// Description of the client.
        client: &'a Client,
        /// Number of the client, which selects its random draws.
        number: usize,
        /// Port of the domain to which the client connects.
        port: u16,
        /// Time after the start of the run at which the client begins.
        begins: Time,
    },
    /// The file server that runs outside of the scheduled domains.
    Files,
}

/// Function that makes the command of a load process. The process writes notes to its standard
/// output.
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
