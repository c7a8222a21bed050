//! Tests of work of kind `jobs`.

use slackline_scenario::{Draw, Program, Scenario, Step};
use slackline_units::Span;

fn scenario(work: &str, file: &str) -> Scenario {
    let text = format!(
        "title = \"jobs\"\nlength = \"1s\"\npolicy = {{ name = \"round-robin\" }}\n\
         [[domain]]\nname = \"web\"\nvcpus = 2\nwork = {work}\n\
         [[domain.vcpu]]\nnumber = 1\nwork = {{ kind = \"spin\" }}\n"
    );
    let load = |path: &str| match path {
        "web.csv" => Ok(file.to_owned()),
        _ => Err("there is no such file".to_owned()),
    };
    Scenario::with_files(&text, &load).expect("the scenario is valid")
}

fn program(work: &str, file: &str) -> Program {
    let scenario = scenario(work, file);
    let domain = &scenario.domains[0];
    assert_eq!(domain.program_of(domain.vcpus[1]), &Program::spin(), "vCPU 1 has its own work");
    domain.program_of(domain.vcpus[0]).clone()
}

fn compute(ms: u64) -> Step {
    Step::Compute(Draw::Fixed(Span::from_ms(ms)))
}

fn sleep(ms: u64) -> Step {
    Step::Sleep(Draw::Fixed(Span::from_ms(ms)))
}

fn release(period: Span, offset: u64) -> Step {
    let (none, offset) = (Draw::Fixed(Span::ZERO), Span::from_ms(offset));
    Step::Release { period, deadline: None, offset, gap: none, jitter: none }
}

#[test]
fn recorded_think_time_of_job_becomes_sleep_before_that_job() {
    let work = "{ kind = \"jobs\", think = [\"0s\", \"4ms\", \"1ms\", \"2ms\"], \
                work = [\"3ms\", \"2ms\", \"0s\", \"forever\"] }";
    let steps = vec![compute(3), sleep(4), compute(2), sleep(3), Step::ComputeForever];
    assert_eq!(program(work, ""), Program::once(steps), "a job without work is sleep");
}

#[test]
fn repeated_jobs_sleep_after_the_last_and_before_the_first() {
    let work = "{ kind = \"jobs\", think = [\"1ms\", \"4ms\", \"5ms\"], \
                work = [\"3ms\", \"2ms\", \"0s\"], repeat = true }";
    let steps = vec![sleep(1), compute(3), sleep(4), compute(2), sleep(5)];
    assert_eq!(program(work, ""), Program::repeated(steps));
    let idle = "{ kind = \"jobs\", think = [\"1ms\"], work = [\"0s\"], repeat = true }";
    assert_eq!(program(idle, ""), Program::once(Vec::new()), "there is no job");
}

#[test]
fn recorded_jobs_ready_at_the_same_time_are_merged() {
    let work = "{ kind = \"jobs\", file = \"web.csv\" }";
    let file = "# recorded\nready_ns,work_ns\n1000000,3000000\n6000000,2000000\n\n\
                6000000,1000000\n9000000,forever\n";
    let ms = Span::from_ms;
    let steps = vec![
        release(Span::from_ns(1), 1),
        compute(3),
        release(ms(5), 6),
        compute(2),
        compute(1),
        release(ms(3), 9),
        Step::ComputeForever,
    ];
    assert_eq!(program(work, file), Program::once(steps));
}

#[test]
fn jobs_file_without_header_or_with_invalid_line_is_refused() {
    let refused = |file: &'static str| {
        let text = "title = \"jobs\"\nlength = \"1s\"\npolicy = { name = \"round-robin\" }\n\
                    [[domain]]\nname = \"web\"\nwork = { kind = \"jobs\", file = \"web.csv\" }\n";
        let error = Scenario::with_files(text, &|_| Ok(file.to_owned()));
        error.err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert!(refused("1,2\n").contains("line 1: the header must be `ready_ns,work_ns`"));
    assert!(refused("think_ns,work_ns\n1,-2\n").contains("line 2: cannot read `1,-2`: a job is"));
    assert!(refused("think_ns,work_ns\n1\n").contains("cannot read `1`: a job is"));
    assert_eq!(refused("think_ns,work_ns\n"), "", "a vCPU may have no job");
}
