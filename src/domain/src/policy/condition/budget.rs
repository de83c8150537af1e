//! The budget of an evaluation, and the functions that charge it for loops and costly operands.

use std::{cell::Cell, time::Duration};

use cel::{
    ExecutionError, IdedExpr,
    common::{
        ast::{CallExpr, Expr},
        types::{CelList, CelMap, CelString},
        value::Val,
    },
};
use rustix::time::{ClockId, clock_gettime};

use super::{Answer, Arguments, one_argument};

/// The maximum number of steps of one evaluation. One element of a loop or comparison costs one step, and so do 256 bytes of text.
pub(super) const MAX_STEPS: u64 = 50_000;
/// The longest processor time of one evaluation, so that nothing fails because the machine is busy. It is checked whenever the
/// budget is charged.
const MAX_PROCESSOR_TIME: Duration = Duration::from_millis(100);
/// The steps for a regular expression, which is compiled on each use.
const REGEX_STEPS: u64 = 250;

/// The function that charges for a value and returns it. No expression can contain the names of these three functions.
pub(super) const CHARGE: &str = "@pay";
pub(super) const CHARGE_ELEMENTS: &str = "@pay_elements";
pub(super) const CHARGE_REGEX: &str = "@pay_regex";

#[derive(Clone, Copy, Default)]
struct Budget {
    steps: u64,
    /// Compared with the processor time of this thread.
    deadline: Option<Duration>,
}

thread_local! {
    /// The budget of the evaluation on this thread. Evaluations never wait, so there is at most one.
    static BUDGET: Cell<Budget> = const { Cell::new(Budget { steps: 0, deadline: None }) };
}

/// Runs an evaluation with this budget. Returns `None` if the budget was exhausted, even if a loop swallowed that error.
pub(super) fn run_within_budget<T>(steps: u64, evaluation: impl FnOnce() -> T) -> Option<T> {
    BUDGET.set(Budget { steps, deadline: Some(read_processor_time() + MAX_PROCESSOR_TIME) });
    let outcome = evaluation();
    (BUDGET.replace(Budget::default()).steps > 0).then_some(outcome)
}

/// Returns the time for which the processor has run this thread.
fn read_processor_time() -> Duration {
    clock_gettime(ClockId::ThreadCPUTime).try_into().unwrap_or_default()
}

/// Wraps the operand in a call of a charging function.
pub(super) fn charge(operand: &mut IdedExpr, charge_fn: &str) {
    let inner = std::mem::take(operand);
    operand.id = inner.id;
    operand.expr = Expr::Call(CallExpr { func_name: charge_fn.to_owned(), target: None, args: vec![inner] });
}

/// Charges for this number of steps.
pub(super) fn spend(steps: u64) -> Result<(), ExecutionError> {
    let mut budget = BUDGET.get();
    let is_late = budget.deadline.is_none_or(|deadline| read_processor_time() >= deadline);
    budget.steps = if is_late { 0 } else { budget.steps.saturating_sub(steps) };
    BUDGET.set(budget);
    if budget.steps > 0 { Ok(()) } else { Err(ExecutionError::InternalError("budget".to_owned())) }
}

pub(super) fn charge_value<'b, 'v>(args: Arguments<'b, 'v>) -> Answer<'b, 'v> {
    let value = one_argument(args)?;
    spend(cost_of(&*value, MAX_STEPS))?;
    Ok(value)
}

pub(super) fn charge_elements<'b, 'v>(args: Arguments<'b, 'v>) -> Answer<'b, 'v> {
    let value = one_argument(args)?;
    let elements = value
        .downcast_ref::<CelList>()
        .map(|list| list.inner().len())
        .or_else(|| value.downcast_ref::<CelMap>().map(|map| map.inner().len()));
    spend(1 + elements.unwrap_or(0) as u64)?;
    Ok(value)
}

pub(super) fn charge_regex<'b, 'v>(args: Arguments<'b, 'v>) -> Answer<'b, 'v> {
    let value = one_argument(args)?;
    spend(REGEX_STEPS + cost_of(&*value, MAX_STEPS))?;
    Ok(value)
}

/// Charges for parsing or building a text, which costs more than comparing it: one step for 64 bytes.
pub(super) fn spend_for_text(bytes: usize) -> Result<(), ExecutionError> {
    spend(1 + bytes as u64 / 64)
}

/// Returns the cost of visiting a whole value. Stops counting beyond `max`.
fn cost_of(value: &dyn Val, max: u64) -> u64 {
    let mut total = 1;
    if let Some(text) = value.downcast_ref::<CelString<'_>>() {
        total += text.inner().len() as u64 / 256;
    } else if let Some(list) = value.downcast_ref::<CelList<'_>>() {
        for element in list.inner() {
            if total > max {
                break;
            }
            total += cost_of(element.as_ref(), max - total);
        }
    } else if let Some(map) = value.downcast_ref::<CelMap<'_>>() {
        for element in map.inner().values() {
            if total > max {
                break;
            }
            total += 1 + cost_of(element.as_ref(), max.saturating_sub(total));
        }
    }
    total
}
