//! Independent simulations of a prediction. The caller decides if they run at the same time.

/// Function that runs two independent tasks, one after the other or at the same time. It returns
/// when both tasks have ended.
pub type RunBoth = fn(&mut (dyn FnMut() + Send), &mut (dyn FnMut() + Send));

/// Runs the second task after the first task.
pub(crate) fn in_sequence(first: &mut (dyn FnMut() + Send), second: &mut (dyn FnMut() + Send)) {
    first();
    second();
}

/// Returns the result of `task` for each input, in the order of the inputs.
pub(crate) fn results<A: Sync, T: Send>(
    run_both: RunBoth,
    inputs: &[A],
    task: &(impl Fn(&A) -> T + Sync),
) -> Vec<T> {
    if inputs.len() < 2 {
        return inputs.iter().map(task).collect();
    }
    let (left, right) = inputs.split_at(inputs.len() / 2);
    let (mut all, mut rest) = (Vec::new(), Vec::new());
    run_both(&mut || all = results(run_both, left, task), &mut || {
        rest = results(run_both, right, task);
    });
    all.append(&mut rest);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_reverse(first: &mut (dyn FnMut() + Send), second: &mut (dyn FnMut() + Send)) {
        in_sequence(second, first);
    }

    #[test]
    fn task_results_keep_input_order_in_any_execution_order() {
        for run_both in [in_sequence as RunBoth, in_reverse] {
            for count in 0..7 {
                let inputs: Vec<u32> = (0..count).collect();
                let squares: Vec<u32> = inputs.iter().map(|input| input * input).collect();
                assert_eq!(results(run_both, &inputs, &|input: &u32| input * input), squares);
            }
        }
    }
}
