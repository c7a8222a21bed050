//! The guest agent as a program of its own: one file that needs no libraries.

use std::process::ExitCode;

use slackline_agent::{ChannelPlace, MOST_RULES, Options, PORT, RULES, run};

const USAGE: &str = "\
usage: slackline-agent [--port NAME | --socket PATH] [--urgent RULE]...
  --port NAME     virtio-serial port to report on [default: slackline.gaps.0]
  --socket PATH   listen on this Unix socket, and report on it instead of a port
  --urgent RULE   urgent tasks, most urgent first, up to 4: name=NAME, cgroup=/PATH, real-time,
                  nice=N [default: real-time, nice=-1]
";

fn main() -> ExitCode {
    let options = match options(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprint!("error: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let mut says = |note: &str| eprintln!("note: {note}");
    match run(&options, &mut says) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(3)
        }
    }
}

fn options(mut words: impl Iterator<Item = String>) -> Result<Options, String> {
    let (mut to, mut rules) = (ChannelPlace::Port(PORT.into()), Vec::new());
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{word} needs a value"));
        match word.as_str() {
            "--port" => to = ChannelPlace::Port(value()?),
            "--socket" => to = ChannelPlace::Socket(value()?.into()),
            "--urgent" => rules.push(value()?.parse().map_err(|error| format!("{error}"))?),
            _ => return Err(format!("`{word}` is not an option")),
        }
    }
    match rules.len() {
        0 => rules.extend(RULES),
        count if count > MOST_RULES => {
            return Err(format!(
                "cannot use {count} --urgent rules: at most {MOST_RULES} are allowed"
            ));
        }
        _ => {}
    }
    Ok(Options { to, rules })
}

#[cfg(test)]
mod tests {
    use slackline_agent::Rule;

    use super::*;

    #[test]
    fn agent_options_are_parsed_or_refused_with_the_reason() {
        let read = |text: &str| options(text.split_whitespace().map(str::to_owned));
        let port = ChannelPlace::Port("slackline.gaps.0".into());
        assert_eq!(read(""), Ok(Options { to: port, rules: RULES.to_vec() }));
        let rules = vec![Rule::Name("nginx".into()), Rule::Nice(-5)];
        let to = ChannelPlace::Socket("/run/x".into());
        let words = "--socket /run/x --urgent name=nginx --urgent nice=-5";
        assert_eq!(read(words), Ok(Options { to, rules }));
        for (words, wrong) in [
            ("--urgent", "--urgent needs a value"),
            ("--verbose", "`--verbose` is not an option"),
            ("--urgent x", "`x` is not a rule for urgent tasks"),
        ] {
            let error = read(words).expect_err(words);
            assert!(error.starts_with(wrong), "{error}");
        }
        let many = "--urgent nice=-1 ".repeat(5);
        assert_eq!(read(&many), Err("cannot use 5 --urgent rules: at most 4 are allowed".into()));
    }
}
