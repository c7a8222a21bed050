//! Entry point of `cargo xtask`, which selects a task of the library.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use slackline_xtask::{
    browser, ci, contract, dist, fit, fuzz, guest, libvirt, metadata, mutants, no_std, observe,
    python, quick, scenarios, service, soak, tests, tidy,
};

const USAGE: &str = "\
usage: cargo xtask COMMAND

  ci       everything that CI runs: fmt, tidy, no-std, clippy, docs, build, scenarios, browser,
           tests
  quick    fmt, tidy, and the tests of the crates that were changed, but for live ones
  tidy     the rules of the house that no compiler knows
  words    [FOLDER]
           list doc comments, test names and type names that break a rule of STYLE.md
  words --lower
           lower the counts in xtask/words.txt to what is left
  no-std   build what must do without an operating system without one
  test     the tests alone, as ci runs them
  scenarios [--release]
           the scenarios alone, as ci runs them, or by the program as it is released
  python   the wheel of the Python module and its tests, as ci runs them
  browser  the page in a real browser, as ci runs it; as root
  page-picture
           make the picture of the page in README
  mutants  [CRATE ..] [--shard K/N] [--file PATTERN ..] [--stages N]
           change one thing at a time and see whether a test notices, by hand
  contract [--scripts N] [--seed N]
           play other scripts than the tests do under every policy, 20,000, by hand
  soak     [--minutes N]
           a live session that is asked without end while we are killed in turn, 5 minutes; as root
  soak-service [--minutes N] [--kills N]
           a daemon whose machines come and go: N kills one after the other, then a fault a minute;
           10 minutes, by hand; as root
  service  [--seeds N] [--from M]
           the simulation of the service with N seeds from M on, 10000 from 0, by hand
  fuzz     [--minutes N] [http|body|link|proc|qmp|hook]
           make up what strangers write, 5 minutes of each, niced
  fit      [--sets N]
           both witnesses of `fit` for N random task sets, 1000, by hand
  observe  [--minutes N]
           compare what a daemon reports with what the kernel counts while builds, scripts and an
           adversary are held and changed by hand, 20 minutes; as root
  dist     make what is released in target/package: a tarball and a Debian package
  guest    fetch the guest that live tests boot, and say where it is
  libvirt  hold a guest of a real libvirt, and have the service keep one, by hand; as root";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match command(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn command(arguments: &[String]) -> Result<ExitCode> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    // Cargo sets this variable to the folder of this crate. All paths below are relative to the
    // root.
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map(std::path::PathBuf::from);
    if let Some(root) = here.as_deref().and_then(Path::parent) {
        std::env::set_current_dir(root)?;
    }
    match words.as_slice() {
        ["ci"] => ci::all(),
        ["quick"] => said(&quick::run(&metadata::read()?)?),
        ["tidy"] => Ok(exit(tidy::tidy(&metadata::read()?)?)),
        ["words", "--lower"] => Ok(exit(tidy::lower_words()?)),
        ["words"] => tidy::list_words("").map(|()| ExitCode::SUCCESS),
        ["words", folder] => tidy::list_words(folder).map(|()| ExitCode::SUCCESS),
        ["no-std"] => said(&no_std::prove(&metadata::read()?)?),
        ["test"] => Ok(exit(tests::run()?.failed == 0)),
        ["scenarios"] => said(&ci::scenarios(&metadata::read()?)?),
        ["scenarios", "--release"] => said(&scenarios::run_released(&metadata::read()?)?),
        ["python"] => said(&python::run()?),
        ["browser"] => said(&browser::run(&tests::build()?.program)?),
        ["page-picture"] => said(&browser::picture(&tests::build()?.program)?),
        ["mutants", rest @ ..] => mutants::run(&mutants::MutantSelection::read(rest)?),
        ["contract", rest @ ..] => contract::run(&contract::Scripts::read(rest)?),
        ["soak"] => soak::session("5"),
        ["soak", "--minutes", minutes] => soak::session(minutes),
        ["soak-service", options @ ..] => soak::service(options),
        ["service"] => service::run("10000", "0"),
        ["service", "--seeds", seeds] => service::run(seeds, "0"),
        ["service", "--seeds", seeds, "--from", from] => service::run(seeds, from),
        ["fit"] => fit::run("1000"),
        ["fit", "--sets", sets] => fit::run(sets),
        ["observe"] => observe::run("20"),
        ["observe", "--minutes", minutes] => observe::run(minutes),
        ["fuzz"] => fuzz::run("5", None),
        ["fuzz", "--minutes", minutes] => fuzz::run(minutes, None),
        ["fuzz", "--minutes", minutes, target] => fuzz::run(minutes, Some(target)),
        ["fuzz", target] => fuzz::run("5", Some(target)),
        ["dist"] => said(&dist::run(&metadata::read()?)?),
        ["guest"] => {
            let guest = guest::fetch(Path::new(".cache/guest"))?;
            println!("kernel    {}", guest.kernel.display());
            println!("initramfs {}", guest.initramfs.display());
            Ok(ExitCode::SUCCESS)
        }
        ["libvirt"] => libvirt::run(),
        [] | ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(ExitCode::SUCCESS)
        }
        [other, ..] => bail!("there is no command `{other}`, or its arguments are wrong\n{USAGE}"),
    }
}

fn said(words: &str) -> Result<ExitCode> {
    println!("{words}");
    Ok(ExitCode::SUCCESS)
}

fn exit(good: bool) -> ExitCode {
    if good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
