//! `slackline serve`: runs the daemon in the foreground.

use std::os::fd::AsFd;
use std::path::PathBuf;

use slackline_daemon::core::{
    FrontCommand, Listen, Reload, ServeError, ServeOptions, serve as run,
};
use slackline_daemon::notices::Messages;
use slackline_fence::KeeperCommand;
use slackline_linux::with_causes;
use slackline_units::CpuId;

use crate::args::Serve;
use crate::prices;
use crate::problem::Problem;
use crate::signals::daemon_signals;

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
    let program: PathBuf = "/proc/self/exe".into();
    let worker = FrontCommand { program: program.clone(), arguments: vec!["serve-worker".into()] };
    let options = ServeOptions {
        cpus: cpus.transpose()?,
        state: args.state.clone(),
        socket: args.socket.clone(),
        keeper: KeeperCommand::ourselves(["keep"]),
        front: FrontCommand { program, arguments },
        worker,
        listen,
        metrics: args.metrics,
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
