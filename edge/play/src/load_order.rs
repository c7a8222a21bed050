//! Orders for load processes, and the command that starts one.

use std::net::SocketAddr;
use std::process::Command;

use slackline_load::system::SystemClients;
use slackline_scenario::io::{Client, ClientKind, Direction};
use slackline_scenario::{Domain, Program, Scenario, System};
use slackline_units::{DomId, Time, VcpuId};

/// Order for a load process.
#[derive(Debug)]
pub struct LoadOrder<'a> {
    /// Role of the process.
    pub part: LoadRole<'a>,
    /// Seed of the run.
    pub seed: u64,
    /// Time at which it begins, on the monotonic clock.
    pub start: Time,
}

/// Role of a load process.
#[derive(Debug)]
pub enum LoadRole<'a> {
    /// A vCPU with a program.
    Program {
        /// Steps of the program.
        program: &'a Program,
        /// vCPU whose random draws it makes.
        vcpu: VcpuId,
        /// Addresses of the other nodes, for a node of a parallel program. Its own socket is then
        /// its standard input.
        others: &'a [SocketAddr],
    },
    /// A domain with tasks that need devices.
    System {
        /// Tasks of the domain.
        system: &'a System,
        /// Domain whose random draws they make.
        domain: DomId,
        /// Clients that talk to it.
        from: SystemClients,
        /// Port of the server from which it requests files. `None` if it requests none.
        files: Option<u16>,
    },
    /// A client outside of the host.
    Client {
        /// Description of the client.
        client: &'a Client,
        /// Number of the client, which selects its random draws.
        number: usize,
        /// Port of the domain that it talks to.
        port: u16,
        /// Time at which it begins, in the time of the run.
        begins: Time,
    },
    /// The server outside from which tasks request files.
    Files,
}

/// Function that makes the command of a load process, which writes notes to its standard output.
pub type LoadCommand<'a> = &'a dyn Fn(&LoadOrder<'_>) -> Command;

/// Returns the kinds of clients that talk to a domain.
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
