//! Jobs of a vCPU or of a named task, and answers to a client.

use slackline_units::{ClientId, TaskId, Time, VcpuId};

use crate::Distribution;
use crate::distribution::Tally;

/// Counts and response times of the jobs of a vCPU, a task or a client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Jobs {
    /// Number of jobs that were released in the measured window, and were finished or due in that
    /// window.
    pub(crate) count: u64,
    /// Number of jobs finished in the measured window, including jobs released before the window.
    pub(crate) done: u64,
    /// Number of jobs counted in `count` that have a deadline.
    pub(crate) due: u64,
    pub(crate) late: u64,
    pub(crate) lateness: Tally,
    pub(crate) response: Tally,
}

impl Jobs {
    /// Adds a job that was finished after the warm-up.
    pub(crate) fn finished(
        &mut self,
        warmup: Time,
        (released, deadline, done): (Time, Time, Time),
    ) {
        self.done += 1;
        if released < warmup {
            return;
        }
        self.count += 1;
        self.response.add(done.since(released));
        self.due += u64::from(deadline != Time::NEVER);
        if done > deadline {
            self.late += 1;
            self.lateness.add(done - deadline);
        }
    }

    /// Adds a job that will not be finished. The job was released after the warm-up, and its
    /// deadline has passed.
    pub(crate) fn unfinished(&mut self, deadline: Time, at: Time) {
        self.count += 1;
        self.due += 1;
        self.late += 1;
        self.lateness.add(at.since(deadline));
    }

    pub(crate) fn of_client(&self, client: ClientId, domain: String) -> ClientSummary {
        let (answered, response) = (self.done, self.response.distribution());
        ClientSummary { client, domain, answered, response }
    }

    pub(crate) fn summary(&self, (vcpu, task): (VcpuId, TaskId), domain: String) -> TaskSummary {
        TaskSummary {
            vcpu,
            task,
            domain,
            jobs: self.count,
            jobs_late: self.late,
            jobs_done: self.done,
            job_lateness: self.lateness.distribution(),
            response: self.response.distribution(),
        }
    }
}

/// Results of the jobs of a named task of a domain, including requests of clients that the task
/// serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskSummary {
    /// First vCPU of the domain.
    pub vcpu: VcpuId,
    /// Number of the task in its domain. If several tasks have the same name, this is the number of
    /// the first task of that name.
    pub task: TaskId,
    /// Name of the domain.
    pub domain: String,
    /// Number of jobs that were released in the measured window, and were finished or due in that
    /// window.
    pub jobs: u64,
    /// Number of jobs counted in `jobs` that were not finished by their deadline.
    pub jobs_late: u64,
    /// Number of jobs that the task finished in the measured window, including jobs released before
    /// the window.
    pub jobs_done: u64,
    /// Lateness of the jobs that missed their deadline. `None` if no job missed its deadline.
    pub job_lateness: Option<Distribution>,
    /// Response time: from the release of a job, or the arrival of a request, until the job or
    /// request is done. `None` if no job or request is done.
    pub response: Option<Distribution>,
}

/// Requests of a client on the network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientSummary {
    /// Client that sent the requests.
    pub client: ClientId,
    /// Name of the domain to which the client sends requests.
    pub domain: String,
    /// Number of requests answered in the measured window, including requests sent before the
    /// window.
    pub answered: u64,
    /// Response time: from a request to its answer. `None` if no request was answered.
    pub response: Option<Distribution>,
}

impl TaskSummary {
    /// Returns the name of the task for users: domain and number of the task.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.domain, self.task.number())
    }
}
