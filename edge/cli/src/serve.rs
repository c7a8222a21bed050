//! `slackline serve`: runs the daemon in the foreground.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use slackline_control::RequestedMechanism;
use slackline_daemon::core::{
    FrontCommand, Listen, Reload, ServeError, ServeOptions, serve as run,
};
use slackline_daemon::notices::Messages;
use slackline_fence::KeeperCommand;
use slackline_linux::with_causes;
use slackline_units::{CpuId, Span};

use crate::amounts::{CpuList, cpu_list};
use crate::parse::span;
use crate::prices;
use crate::problem::Problem;
use crate::service::args::mechanism;
use crate::signals::{daemon_signals, stay_running};
use crate::tls::Tls;

/// Options of the daemon.
#[derive(Debug, Args)]
#[command(after_help = crate::notes::notes("serve"))]
pub(crate) struct Serve {
    /// CPUs to schedule [default: all but the first]. If all CPUs are named, 5 % of one CPU is
    /// reserved for answering requests.
    #[arg(long, value_name = "N-N,N", value_parser = cpu_list)]
    pub(crate) cpus: Option<CpuList>,
    /// Folder of the ledger, which stores reservations and events.
    #[arg(long, value_name = "FOLDER", default_value = slackline_daemon::ledger::FOLDER)]
    pub(crate) state: PathBuf,
    /// Unix socket to listen on, unless systemd passes one.
    #[arg(long, value_name = "PATH", default_value = slackline_control::SOCKET)]
    pub(crate) socket: PathBuf,
    /// Prices of CPU time as TOML; `list` then shows costs.
    #[arg(long, value_name = "FILE")]
    pub(crate) prices: Option<PathBuf>,
    /// Mechanism for hard limits if the request names no mechanism: auto, dispatcher or deadline.
    #[arg(long, value_name = "NAME", default_value = "dispatcher", value_parser = mechanism)]
    pub(crate) enforce: RequestedMechanism,
    /// Action if the daemon is killed: restore all threads, or keep the threads of `deadline`.
    #[arg(long, value_enum, value_name = "WHAT", default_value_t = OnDeath::Restore)]
    pub(crate) on_death: OnDeath,
    /// With --on-death keep: time after which the keeper restores the kept threads.
    #[arg(long, value_name = "TIME", default_value = "10min", value_parser = span)]
    pub(crate) keep_for: Span,
    /// Do not record the last minute, and save no recordings of missed deadlines.
    #[arg(long)]
    pub(crate) no_recorder: bool,
    /// Also accept requests from other hosts, over TLS 1.3; see `slackline access`.
    #[arg(long, value_name = "ADDRESS:PORT", requires = "certificate")]
    pub(crate) listen: Option<SocketAddr>,
    #[command(flatten)]
    pub(crate) tls: Tls,
    /// Also serve /metrics without TLS, to all users of this host, e.g. `127.0.0.1:9391`.
    #[arg(long, value_name = "LOOPBACK:PORT")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Serve the web page to browsers of this host, at this address [without a value:
    /// 127.0.0.1:9392].
    #[arg(long, value_name = "LOOPBACK:PORT", num_args = 0..=1)]
    #[arg(default_missing_value = "127.0.0.1:9392")]
    pub(crate) page: Option<SocketAddr>,
}

/// Action of the keeper on threads of `deadline` after the daemon has died.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnDeath {
    /// The keeper restores all threads immediately
    Restore,
    /// The kernel enforces the reservations for the time of --keep-for
    Keep,
}

/// Returns the command that starts the keeper, which restores threads if the daemon dies.
fn keeper(args: &Serve) -> KeeperCommand {
    let keep_for = std::time::Duration::from_nanos(args.keep_for.ns());
    let keep_for = (args.on_death == OnDeath::Keep).then_some(keep_for);
    KeeperCommand { keep_for, ..KeeperCommand::ourselves(["keep"]) }
}

pub(crate) fn serve(args: &Serve) -> Result<(), Problem> {
    let cpus = args.cpus.as_deref().map(|cpus| {
        let too_large = |cpu: &&usize| **cpu >= CpuId::LIMIT;
        if let Some(cpu) = cpus.iter().find(too_large) {
            let most = CpuId::LIMIT - 1;
            let message = format!("cannot schedule CPU {cpu}: the highest possible is {most}");
            return Err(Problem::BadOption { message, hint: None });
        }
        Ok(cpus.iter().copied().map(CpuId::new).collect())
    });
    let [(stop, _raised), (signal, _also_raised)] = daemon_signals()?;
    stay_running()?;
    let listen = args.listen.zip(args.tls.files()).map(|(address, tls)| Listen { address, tls });
    let mut arguments = vec!["serve-front".into()];
    if let Some(Listen { tls, .. }) = &listen {
        arguments.extend(["--certificate".into(), tls.certificate.clone().into_os_string()]);
        arguments.extend(["--key".into(), tls.key.clone().into_os_string()]);
        if let Some(client_ca) = &tls.client_ca {
            arguments.extend(["--client-ca".into(), client_ca.clone().into_os_string()]);
        }
    }
    if args.metrics.is_some() {
        arguments.push("--metrics".into());
    }
    if args.page.is_some() {
        arguments.push("--page".into());
    }
    let program: PathBuf = "/proc/self/exe".into();
    let worker = FrontCommand { program: program.clone(), arguments: vec!["serve-worker".into()] };
    let options = ServeOptions {
        cpus: cpus.transpose()?,
        state: args.state.clone(),
        socket: args.socket.clone(),
        keeper: keeper(args),
        front: FrontCommand { program, arguments },
        worker,
        listen,
        metrics: args.metrics,
        page: args.page,
        enforce: args.enforce,
        is_recorded: !args.no_recorder,
        prices: args.prices.as_deref().map(prices::read).transpose()?,
    };
    let file = args.prices.clone();
    let prices = move || {
        file.as_deref().map(prices::read).transpose().map_err(|problem| problem.to_string())
    };
    let reload = Reload { signal, prices: Box::new(prices) };
    let messages = Messages::open();
    run(&options, stop.as_fd(), reload, &mut |line| messages.send(line))
        .map_err(|error| of_serve(&error))
}

fn of_serve(error: &ServeError) -> Problem {
    let (message, hint) = (with_causes(error), error.hint());
    if error.is_bug() {
        Problem::Bug { message, kept: None }
    } else if error.is_about_the_input() {
        Problem::BadOption { message, hint }
    } else {
        Problem::HostCannot { message, hint }
    }
}
