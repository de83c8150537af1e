//! The answers to steps that endpoints ask for, and the checks that whoever asks has to pass.

use std::sync::{Arc, atomic::Ordering};

use crate::{DecideError, MAX_COMMENT, commit::StepError, inner::Inner, store_error, upkeep::expiry};
use countersign_domain::{
    changes::{Change, ChangeState, machine::IllegalTransition, people::Person},
    principal::Principal,
};
use countersign_protocol::{ErrorKind, McpError};

pub(crate) type Decided = Result<Arc<Change>, DecideError>;

pub(crate) fn check_endpoint(inner: &Inner, reviewer: &Principal, comment: Option<&str>) -> Result<(), DecideError> {
    if inner.closing.load(Ordering::Acquire) {
        return Err(shutting_down().into());
    }
    if !reviewer.role.may_decide() {
        return Err(McpError::new(ErrorKind::Forbidden, "Only a reviewer may decide on changes").into());
    }
    if comment.is_some_and(|c| c.len() > MAX_COMMENT) {
        return Err(
            McpError::new(ErrorKind::InvalidParams, format!("A comment has at most {MAX_COMMENT} bytes")).into()
        );
    }
    Ok(())
}

/// Whether this is whoever proposed it, by the name, the owner or the key.
pub(crate) fn is_proposer(reviewer: &Principal, change: &Change) -> bool {
    change.is_proposed_by(Person::of(reviewer))
}

/// Refuses what comes without a comment where the rule asks for one with each decision. What nobody can see is none.
pub(crate) fn check_comment(change: &Arc<Change>, comment: Option<&str>) -> Result<(), DecideError> {
    if !change.terms.require_comment || comment.is_some() {
        return Ok(());
    }
    let message = "The rule for this change requires a comment that can be read with each decision";
    let error = about(ErrorKind::CommentRequired, message, change);
    Err(DecideError { error, current: Some(Arc::clone(change)) })
}

/// Refuses whom the rule does not ask.
pub(crate) fn check_reviewer(inner: &Inner, reviewer: &Principal, change: &Arc<Change>) -> Result<(), DecideError> {
    if inner.config.people.may_decide(&change.terms, reviewer) {
        return Ok(());
    }
    let error = about(ErrorKind::Forbidden, "The rule for this change asks for other reviewers", change)
        .with("reviewers", change.terms.reviewers.as_slice());
    Err(DecideError { error, current: Some(Arc::clone(change)) })
}

pub(crate) async fn load(inner: &Inner, id: &str) -> Result<Arc<Change>, DecideError> {
    if id.len() > 64 {
        return Err(not_found().into());
    }
    inner.store.get(id).await.map_err(|e| store_error(&e))?.ok_or_else(|| not_found().into())
}

/// The answer to a step, with the state as it is now where somebody else was quicker.
pub(crate) async fn finish(inner: &Inner, change: &Arc<Change>, step: Result<Arc<Change>, StepError>) -> Decided {
    match step {
        Ok(change) => Ok(change),
        Err(StepError::Conflict) => {
            let current = load(inner, &change.id).await?;
            Err(conflict(current))
        }
        Err(StepError::Illegal(IllegalTransition::SelfApproval)) => Err(self_approval(change)),
        Err(StepError::Illegal(IllegalTransition::Version { .. })) => Err(version_conflict(Arc::clone(change))),
        Err(StepError::Illegal(IllegalTransition::State { .. })) => Err(conflict(Arc::clone(change))),
        Err(StepError::Illegal(other)) => {
            let error = about(kind(other), capital(&other.to_string()), change);
            Err(DecideError { error, current: Some(Arc::clone(change)) })
        }
        Err(StepError::Refused(error)) => Err(error.into()),
        Err(StepError::Store(error)) => Err(store_error(&error).into()),
        Err(StepError::Fenced) => {
            let message = "The gateway that ran it may still be about to make the call; try again in a while";
            Err(DecideError {
                error: about(ErrorKind::ChangeNotPending, message, change),
                current: Some(Arc::clone(change)),
            })
        }
        Err(StepError::Duplicate | StepError::Busy) => {
            Err(McpError::new(ErrorKind::Internal, "The change could not be stored").into())
        }
    }
}

const fn kind(illegal: IllegalTransition) -> ErrorKind {
    match illegal {
        IllegalTransition::SelfApproval | IllegalTransition::OwnEdit => ErrorKind::SelfApproval,
        IllegalTransition::VotedAlready => ErrorKind::AlreadyVoted,
        IllegalTransition::EditForbidden => ErrorKind::EditForbidden,
        IllegalTransition::SameArguments => ErrorKind::ValidationFailed,
        IllegalTransition::NotTheProposer | IllegalTransition::NotAnApprover => ErrorKind::Forbidden,
        IllegalTransition::Version { .. } => ErrorKind::VersionConflict,
        IllegalTransition::GraceOver
        | IllegalTransition::NothingToVoid
        | IllegalTransition::NotToBeAsked
        | IllegalTransition::State { .. } => ErrorKind::ChangeNotPending,
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// The error for a change that is not in the state that was needed.
pub(crate) fn conflict(current: Arc<Change>) -> DecideError {
    let (kind, message) = match current.state {
        ChangeState::Pending => return version_conflict(current),
        ChangeState::Expired => (ErrorKind::ChangeExpired, "The change has expired".to_owned()),
        ChangeState::Stale => (
            ErrorKind::ChangeStale,
            current.fault.as_ref().map_or_else(|| "The change is stale".to_owned(), |f| f.message.clone()),
        ),
        state => (
            ErrorKind::ChangeNotPending,
            format!("The change is not waiting for this: it is {}", state.as_str().replace('_', " ")),
        ),
    };
    DecideError { error: about(kind, message, &current), current: Some(current) }
}

pub(crate) fn version_conflict(current: Arc<Change>) -> DecideError {
    let error = about(
        ErrorKind::VersionConflict,
        "The change is no longer as it was shown; look at it as it is now, and decide anew",
        &current,
    );
    DecideError { error, current: Some(current) }
}

pub(crate) fn self_approval(change: &Arc<Change>) -> DecideError {
    let error = about(ErrorKind::SelfApproval, "Whoever proposed a change cannot approve it", change);
    DecideError { error, current: Some(Arc::clone(change)) }
}

/// Ends a change whose time is over, for whoever came to it too late.
pub(crate) async fn expire(inner: &Inner, change: Arc<Change>) -> DecideError {
    let step = inner.step_for_endpoint(&change, expiry::event(&change), None).await;
    match finish(inner, &change, step).await {
        Ok(expired) => {
            let error = about(ErrorKind::ChangeExpired, "The change has expired", &expired);
            DecideError { error, current: Some(expired) }
        }
        Err(error) => error,
    }
}

pub(crate) fn about(kind: ErrorKind, message: impl Into<std::borrow::Cow<'static, str>>, change: &Change) -> McpError {
    McpError::new(kind, message)
        .with("changeId", change.id.as_str())
        .with("state", change.state.as_str())
        .with("version", change.version)
}

pub(crate) fn not_found() -> McpError {
    McpError::new(ErrorKind::ChangeNotFound, "Change not found")
}

pub(crate) fn shutting_down() -> McpError {
    McpError::new(ErrorKind::ShuttingDown, "The gateway is shutting down")
}
