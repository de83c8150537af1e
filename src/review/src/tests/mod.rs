//! Tests of pending changes through their public interface, with a real store and a fake provider that counts calls.

mod bounds;
mod crashes;
mod decisions;
mod deputies;
mod dialogues;
mod edits;
mod escalation;
mod execution;
mod failing_store;
mod feed;
mod lifecycle;
mod plan_crashes;
mod plan_repeats;
mod plan_stops;
mod plan_turns;
mod plans;
mod reminders;
mod restored_backup;
mod retention;
mod review_terms;
mod soak;
mod undo;
mod verification;
mod votes;

use std::sync::Arc;

use super::{ChangeRequestError, change_repository::ChangeRepository, testing::TestBench};
use countersign_domain::changes::Change;
use countersign_protocol::ErrorKind;

impl TestBench {
    fn repository(&self) -> &ChangeRepository {
        &self.changes.core.repository
    }
}

/// Checks that a request was refused with an error of this kind, and returns the refusal.
#[track_caller]
fn expect_refusal(result: Result<Arc<Change>, ChangeRequestError>, kind: ErrorKind) -> ChangeRequestError {
    let refusal = result.expect_err("the request must be refused");
    assert_eq!(refusal.error.kind, kind, "{:?}", refusal.error);
    refusal
}
