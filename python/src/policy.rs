//! Policies that are written in Python, as policies of the simulated host.
//!
//! The host calls the adapter like any other policy, and checks it by the same contract. The
//! adapter passes only integers to Python: times in nanoseconds, vCPUs by slot, and sets of CPUs as
//! bit masks.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use slackline_policy::{
    Account, AdmitError, Entitlement, Moment, Pick, Policy, Spec, TimesliceEnd, Topology, Value,
    Values,
};
use slackline_units::{CpuId, CpuSet, ReservationError, Span, Time, VcpuId};

use crate::error::NotAdmitted;
use crate::scenario::Scenario;

/// Maximum number of CPUs, which is the number of bits of a mask.
const MOST_CPUS: usize = 64;

thread_local! {
    /// Run whose policy this thread builds at present. `None` if it builds no policy.
    static CURRENT: RefCell<Option<PythonRun>> = const { RefCell::new(None) };
}

/// Specifications of policies written in Python. The key is the name of the built-in policy whose
/// parameters the Python policies use. A specification exists until the program ends. So all
/// policies with the same parameters share one specification.
static SPECS: Mutex<BTreeMap<&str, &Spec>> = Mutex::new(BTreeMap::new());

/// A run with a policy that is written in Python.
#[derive(Clone)]
pub(crate) struct PythonRun {
    pub(crate) name: String,
    class: Arc<Py<PyType>>,
    /// First exception that the policy raised. `None` if it raised none.
    raised: Arc<Mutex<Option<PyErr>>>,
}

impl PythonRun {
    /// Calls `simulate`. During the call this thread builds the policy of this run.
    pub(crate) fn with<T>(&self, simulate: impl FnOnce() -> T) -> T {
        let before = CURRENT.replace(Some(self.clone()));
        let result = simulate();
        CURRENT.set(before);
        result
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub(crate) fn take_error(&self) -> Option<PyErr> {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn fail(&self, error: PyErr) {
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
}

/// Returns a scenario whose policy is a Python class. The attribute `parameters` of the class names
/// the built-in policy whose parameters the scenario has.
pub(crate) fn python_policy(
    py: Python<'_>,
    scenario: &Scenario,
    class: &Bound<'_, PyType>,
) -> PyResult<(slackline_scenario::Scenario, PythonRun)> {
    let base: String = class.getattr("parameters")?.extract().map_err(|_| {
        PyTypeError::new_err("`parameters` of the policy must name a built-in policy")
    })?;
    let mut scenario = scenario.under(py, &base)?;
    if scenario.host.cpus > MOST_CPUS {
        let cpus = scenario.host.cpus;
        let message = format!("a policy in Python schedules at most {MOST_CPUS} CPUs, not {cpus}");
        return Err(PyValueError::new_err(message));
    }
    scenario.policy.spec = spec(scenario.policy.spec);
    let name = class.name()?.extract()?;
    let class = Arc::new(class.clone().unbind());
    Ok((scenario, PythonRun { name, class, raised: Arc::default() }))
}

/// Returns a specification that has the parameters of a built-in policy, but builds the Python
/// policy of the current run.
fn spec(base: &'static Spec) -> &'static Spec {
    let mut specs = SPECS.lock().unwrap_or_else(PoisonError::into_inner);
    specs.entry(base.name).or_insert_with(|| {
        Box::leak(Box::new(Spec {
            name: base.name,
            summary: base.summary,
            page: base.page,
            policy_fields: base.policy_fields,
            share_fields: base.share_fields,
            conflict: base.conflict,
            promise: base.promise,
            keeps: |_, _| false,
            limit: None,
            together: None,
            payer: None,
            build,
        }))
    })
}

fn build(values: &Values, topology: &Topology) -> Box<dyn Policy> {
    let run = CURRENT.with_borrow(Clone::clone).expect("only a run with a Python policy builds it");
    let methods = Python::attach(|py| Methods::new(py, &run, values, topology.cpus()));
    let methods = methods.map_err(|error| run.fail(error)).ok();
    Box::new(PythonPolicy { run, methods, ids: Vec::new() })
}

/// Bound methods of a policy object. A field is `None` if the class does not define the method.
struct Methods {
    admit: Option<Py<PyAny>>,
    leave: Option<Py<PyAny>>,
    wake: Option<Py<PyAny>>,
    start: Option<Py<PyAny>>,
    charge: Option<Py<PyAny>>,
    timeslice_end: Option<Py<PyAny>>,
    block: Option<Py<PyAny>>,
    pick: Py<PyAny>,
    next_timer: Option<Py<PyAny>>,
    timer: Option<Py<PyAny>>,
}

impl Methods {
    fn new(py: Python<'_>, run: &PythonRun, values: &Values, cpus: usize) -> PyResult<Methods> {
        let object = run.class.bind(py).call0()?;
        let base = py.import("slackline")?.getattr("Policy")?;
        object.call_method1("setup", (cpus, parameters(py, values)?))?;
        // A method of the base class does nothing, so it is not called.
        let method = |name: &str| -> PyResult<Option<Py<PyAny>>> {
            let is_inherited = run.class.bind(py).getattr(name)?.is(&base.getattr(name)?);
            if is_inherited { Ok(None) } else { Ok(Some(object.getattr(name)?.unbind())) }
        };
        Ok(Methods {
            admit: method("admit")?,
            leave: method("on_leave")?,
            wake: method("on_wake")?,
            start: method("on_start")?,
            charge: method("charge")?,
            timeslice_end: method("on_timeslice_end")?,
            block: method("on_block")?,
            pick: object.getattr("pick")?.unbind(),
            next_timer: method("next_timer")?,
            timer: method("on_timer")?,
        })
    }
}

/// Returns parameters as a dictionary: times in nanoseconds, shares in parts per million.
fn parameters<'py>(py: Python<'py>, values: &Values) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    for (field, value) in values.iter() {
        match value {
            Value::Span(span) | Value::MaybeSpan(Some(span)) => all.set_item(field.name, span.ns()),
            Value::Share(share) | Value::Cap(Some(share)) => all.set_item(field.name, share.ppm()),
            Value::Weight(weight) => all.set_item(field.name, weight.get()),
            Value::Whole(number) => all.set_item(field.name, number),
            Value::Flag(flag) => all.set_item(field.name, flag),
            Value::Choice(word) => all.set_item(field.name, word),
            Value::MaybeSpan(None) | Value::Cap(None) => all.set_item(field.name, py.None()),
        }?;
    }
    Ok(all)
}

/// Adapter from the trait `Policy` to a Python object. After an exception, no method of the object
/// is called any more, and every CPU stays idle until the run ends.
struct PythonPolicy {
    run: PythonRun,
    methods: Option<Methods>,
    /// Admitted vCPUs, by slot. `None` if no vCPU is admitted in the slot.
    ids: Vec<Option<VcpuId>>,
}

fn ns(at: &Moment) -> u64 {
    at.now().since(Time::START).ns()
}

/// Reads the CPUs to reschedule: a bit mask, or None.
fn mask(answer: &Bound<'_, PyAny>) -> PyResult<CpuSet> {
    if answer.is_none() {
        return Ok(CpuSet::NONE);
    }
    let mask: u64 = answer.extract()?;
    let mut set = CpuSet::NONE;
    (0..MOST_CPUS).filter(|bit| mask >> bit & 1 == 1).for_each(|bit| set.insert(CpuId::new(bit)));
    Ok(set)
}

impl PythonPolicy {
    /// Calls a method and reads its answer. Returns `otherwise` if the method is not defined, or
    /// the policy has failed.
    fn call<A, T>(
        &self,
        method: impl FnOnce(&Methods) -> Option<&Py<PyAny>>,
        arguments: impl FnOnce() -> A,
        read: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>,
        otherwise: T,
    ) -> T
    where
        A: for<'py> pyo3::call::PyCallArgs<'py>,
    {
        let Some(method) = self.methods.as_ref().and_then(method) else { return otherwise };
        if self.run.has_failed() {
            return otherwise;
        }
        let answer = Python::attach(|py| read(&method.bind(py).call1(arguments())?));
        answer.unwrap_or_else(|error| {
            self.run.fail(error);
            otherwise
        })
    }

    fn vcpu(&self, slot: usize) -> PyResult<VcpuId> {
        let known = self.ids.get(slot).copied().flatten();
        known.ok_or_else(|| PyValueError::new_err(format!("there is no vCPU {slot}")))
    }

    /// Reads the answer of the method `pick`. None leaves the CPU idle. An integer is the slot of
    /// the vCPU to run. A tuple has the slot, the limit of the timeslice in nanoseconds (or None),
    /// and optionally a bool. The bool is true if the time is reserved, and false if it is slack.
    fn read_pick(&self, answer: &Bound<'_, PyAny>) -> PyResult<Pick> {
        if answer.is_none() {
            return Ok(Pick::Idle);
        }
        let (slot, limit, is_reserved) = match answer.extract::<usize>() {
            Ok(slot) => (slot, None, true),
            Err(_) => match answer.extract::<(usize, Option<u64>)>() {
                Ok((slot, limit)) => (slot, limit, true),
                Err(_) => answer.extract::<(usize, Option<u64>, bool)>()?,
            },
        };
        let entitlement = if is_reserved { Entitlement::Due } else { Entitlement::Spare };
        let limit = limit.map(Span::from_ns);
        Ok(Pick::Run { vcpu: self.vcpu(slot)?, limit, entitlement })
    }
}

impl Policy for PythonPolicy {
    fn admit(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<(), AdmitError> {
        let slot = vcpu.slot();
        if self.ids.len() <= slot {
            self.ids.resize(slot + 1, None);
        }
        self.ids[slot] = Some(vcpu);
        let share = Python::attach(|py| parameters(py, share).map(Bound::unbind));
        let share = match share {
            Ok(share) => share,
            Err(error) => {
                self.run.fail(error);
                return Ok(());
            }
        };
        let now = ns(at);
        self.call(|it| it.admit.as_ref(), || (now, slot, share), |_| Ok(()), ());
        let is_refused =
            |error: &PyErr| Python::attach(|py| error.is_instance_of::<NotAdmitted>(py));
        let raised = self.run.raised.lock().unwrap_or_else(PoisonError::into_inner);
        match &*raised {
            Some(error) if is_refused(error) => {
                Err(AdmitError::Reservation(ReservationError::NoSlice))
            }
            _ => Ok(()),
        }
    }

    fn adjust(&mut self, at: &Moment, vcpu: VcpuId, share: &Values) -> Result<CpuSet, AdmitError> {
        self.admit(at, vcpu, share)?;
        Ok(CpuSet::first_n(at.cpus()))
    }

    fn on_leave(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let arguments = || (ns(at), vcpu.slot());
        self.call(|it| it.leave.as_ref(), arguments, mask, CpuSet::NONE)
    }

    fn on_wake(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let arguments = || (ns(at), vcpu.slot());
        self.call(|it| it.wake.as_ref(), arguments, mask, CpuSet::NONE)
    }

    fn on_start(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let cpu = at.cpu_of(vcpu).map(CpuId::index);
        let arguments = || (ns(at), vcpu.slot(), cpu);
        self.call(|it| it.start.as_ref(), arguments, mask, CpuSet::NONE)
    }

    fn charge(&mut self, at: &Moment, vcpu: VcpuId, ran: Span) -> CpuSet {
        let arguments = || (ns(at), vcpu.slot(), ran.ns());
        self.call(|it| it.charge.as_ref(), arguments, mask, CpuSet::NONE)
    }

    fn on_timeslice_end(&mut self, at: &Moment, vcpu: VcpuId, _: TimesliceEnd) -> CpuSet {
        let arguments = || (ns(at), vcpu.slot());
        self.call(|it| it.timeslice_end.as_ref(), arguments, mask, CpuSet::NONE)
    }

    fn on_block(&mut self, at: &Moment, vcpu: VcpuId) -> CpuSet {
        let arguments = || (ns(at), vcpu.slot());
        self.call(|it| it.block.as_ref(), arguments, mask, CpuSet::NONE)
    }

    fn pick(&self, at: &Moment, cpu: CpuId) -> Pick {
        let eligible: Vec<usize> = at.eligible(cpu).map(VcpuId::slot).collect();
        let current = at.occupant(cpu).filter(|&vcpu| at.is_eligible(vcpu, cpu));
        let arguments = || (ns(at), cpu.index(), current.map(VcpuId::slot), eligible);
        self.call(|it| Some(&it.pick), arguments, |answer| self.read_pick(answer), Pick::Idle)
    }

    fn next_timer(&self, cpu: CpuId) -> Option<Time> {
        let read = |answer: &Bound<'_, PyAny>| answer.extract::<Option<u64>>();
        let at = self.call(|it| it.next_timer.as_ref(), || (cpu.index(),), read, None);
        at.map(|at| Time::START + Span::from_ns(at))
    }

    fn on_timer(&mut self, at: &Moment, cpu: CpuId) -> CpuSet {
        let arguments = || (ns(at), cpu.index());
        self.call(|it| it.timer.as_ref(), arguments, mask, CpuSet::NONE)
    }

    fn account(&self, _: VcpuId) -> Account {
        Account::new()
    }
}
