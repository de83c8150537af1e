//! Checks the requests of endpoints, and converts their outcomes into answers.

use std::sync::Arc;

use crate::{
    ChangeRequestError, MAX_COMMENT_BYTES,
    actor::{TransitionError, TransitionResult},
    review_core::ReviewCore,
    store_error,
    upkeep::expiry,
};
use countersign_domain::{
    changes::{
        AbsentPerson, Change, ChangeState,
        machine::{ChangeEvent, IllegalTransition},
        person::Person,
    },
    principal::Principal,
};
use countersign_protocol::{ErrorKind, McpError};

/// The change after a request, or the refusal.
pub(crate) type RequestResult = Result<Arc<Change>, ChangeRequestError>;

/// Rejects a request while the gateway shuts down, by a principal who may not decide, or with too long a comment.
pub(crate) fn check_request(
    core: &ReviewCore,
    reviewer: &Principal,
    comment: Option<&str>,
) -> Result<(), ChangeRequestError> {
    core.repository.shutdown.check_open()?;
    if !reviewer.role.may_decide() {
        return Err(McpError::new(ErrorKind::Forbidden, "Only a reviewer may decide on changes").into());
    }
    if comment.is_some_and(|c| c.len() > MAX_COMMENT_BYTES) {
        return Err(McpError::new(
            ErrorKind::InvalidParams,
            format!("A comment has at most {MAX_COMMENT_BYTES} bytes"),
        )
        .into());
    }
    Ok(())
}

/// Returns `true` if the reviewer is the proposer, by name, owner, key or claim. It is checked here before a provider is asked;
/// [`machine::apply`](countersign_domain::changes::machine::apply) decides at the vote or the edit.
pub(crate) fn is_proposer(reviewer: &Principal, change: &Change) -> bool {
    change.proposer_could_be(Person::from_principal(reviewer))
}

/// Rejects a decision without a comment if the rule requires one. An invisible comment counts as none.
pub(crate) fn check_comment(change: &Arc<Change>, comment: Option<&str>) -> Result<(), ChangeRequestError> {
    if !change.terms.require_comment || comment.is_some() {
        return Ok(());
    }
    let message = "The rule for this change requires a comment that can be read with each decision";
    Err(refusal_error(ErrorKind::CommentRequired, message, change))
}

/// The right by which a reviewer decides on a change.
pub(crate) enum ReviewerRight {
    /// The terms admit the reviewer.
    Own,
    /// The reviewer is the deputy of an absent person.
    Deputy(Box<AbsentPerson>),
}

/// Returns the right of the reviewer to decide on the change at this time, or `None` if there is none. Absences are read from the
/// store, because one may have ended at another node.
pub(crate) fn find_reviewer_right(
    core: &ReviewCore,
    reviewer: &Principal,
    change: &Change,
) -> Result<Option<ReviewerRight>, McpError> {
    let now = core.repository.config.now();
    let required = change.terms.reviewers_at(change.created_at, now);
    let reviewers = &core.repository.config.reviewers;
    if reviewers.may_decide(&required, reviewer) {
        return Ok(Some(ReviewerRight::Own));
    }
    let mut absent: Vec<AbsentPerson> = reviewers
        .deputyships(reviewer, now)?
        .into_iter()
        .filter(|deputyship| deputyship.groups.iter().any(|group| required.contains(&group.as_str())))
        .map(|deputyship| deputyship.absence.person)
        .filter(|person| !change.proposer_could_be(Person::from_absent(person)))
        .collect();
    // A deputy of several people approves in place of one whose vote is still open.
    absent.sort_by_key(|person| !change.may_be_approved_by_deputy_of(person));
    Ok(absent.into_iter().next().map(|person| ReviewerRight::Deputy(Box::new(person))))
}

/// Rejects a reviewer whom the rule does not admit at this time.
pub(crate) fn check_reviewer(
    core: &ReviewCore,
    reviewer: &Principal,
    change: &Arc<Change>,
) -> Result<ReviewerRight, ChangeRequestError> {
    if let Some(right) = find_reviewer_right(core, reviewer, change)? {
        return Ok(right);
    }
    let now = core.repository.config.now();
    let reviewers = change.terms.reviewers_at(change.created_at, now);
    let refusal = refusal_error(ErrorKind::Forbidden, "The rule for this change asks for other reviewers", change)
        .with("reviewers", reviewers);
    Err(match change.terms.escalates_at(change.created_at).filter(|at| *at > now) {
        Some(at) => refusal.with("escalatesAt", at.to_string()),
        None => refusal,
    })
}

/// Rejects a reviewer who did not sign in as recently or as strongly as the rule requires.
pub(crate) fn check_sign_in(
    core: &ReviewCore,
    reviewer: &Principal,
    change: &Arc<Change>,
) -> Result<(), ChangeRequestError> {
    let Some(required) = &change.terms.sign_in else { return Ok(()) };
    if required.admits(reviewer, core.repository.config.now()) {
        return Ok(());
    }
    let remedy = if reviewer.claims.is_some() {
        "sign in again"
    } else {
        "sign in to the dashboard with the identity provider, because a key or a local sign-in does not suffice"
    };
    let message = format!("The rule for this change requires {required}; {remedy}");
    let details = serde_json::to_value(required).unwrap_or_default();
    let refusal = refusal_error(ErrorKind::SignInRequired, message, change).with("details", details);
    let has_token = reviewer.claims.is_some() && reviewer.key_id.is_none();
    Err(if has_token { refusal.with("tokenError", "insufficient_user_authentication") } else { refusal })
}

/// Checks that the change waits for a decision and has the version that was shown. Expires a change whose time is over.
pub(crate) async fn check_decidable(
    core: &ReviewCore,
    change: &Arc<Change>,
    version: u64,
) -> Result<(), ChangeRequestError> {
    if !change.state.awaits_decision() {
        return Err(wrong_state_error(change));
    }
    if change.version != version {
        return Err(version_conflict_error(change));
    }
    if expiry::is_expired(&core.repository, change).await.map_err(store_error)? {
        let expired = apply_event(core, change, expiry::expire_event(change)).await?;
        return Err(refusal_error(ErrorKind::ChangeExpired, "The change has expired", &expired));
    }
    Ok(())
}

/// Returns the change with this id.
///
/// # Errors
/// `CHANGE_NOT_FOUND`, and the errors of the store.
pub(crate) async fn load(core: &ReviewCore, id: &str) -> Result<Arc<Change>, ChangeRequestError> {
    core.repository.find(id).await?.ok_or_else(|| not_found_error().into())
}

/// Applies an event to exactly this version of the change for an endpoint.
pub(crate) async fn apply_event(core: &ReviewCore, change: &Arc<Change>, event: ChangeEvent) -> RequestResult {
    let transition = core.repository.transitions.apply_event_for_endpoint(change, event).await;
    to_request_result(core, change, transition).await
}

/// Converts the outcome of a transition into the result of the request. A conflict carries the current state.
pub(crate) async fn to_request_result(
    core: &ReviewCore,
    change: &Arc<Change>,
    transition: TransitionResult,
) -> RequestResult {
    match transition {
        Ok(change) => Ok(change),
        Err(TransitionError::Conflict) => Err(wrong_state_error(&load(core, &change.id).await?)),
        Err(TransitionError::Illegal(IllegalTransition::Version { .. })) => Err(version_conflict_error(change)),
        Err(TransitionError::Illegal(IllegalTransition::State { .. })) => Err(wrong_state_error(change)),
        Err(TransitionError::Illegal(illegal)) => {
            Err(refusal_error(error_kind(illegal), capitalize(&illegal.to_string()), change))
        }
        Err(TransitionError::Fenced) => {
            let message = "The gateway that ran the change may still send the call; try again later";
            Err(refusal_error(ErrorKind::ChangeNotPending, message, change))
        }
        Err(TransitionError::Busy) => {
            let message = "A step of its plan runs, so its approval cannot be undone now; reject the plan to stop it";
            Err(refusal_error(ErrorKind::ChangeNotPending, message, change))
        }
        Err(error) => Err(into_client_error(error).into()),
    }
}

/// Returns the error of a transition that does not depend on the state of the change.
pub(crate) fn into_client_error(error: TransitionError) -> McpError {
    match error {
        TransitionError::Refused(error) => error,
        TransitionError::Store(error) => store_error(error),
        TransitionError::Illegal(_)
        | TransitionError::Conflict
        | TransitionError::Duplicate
        | TransitionError::Busy
        | TransitionError::Fenced => McpError::new(ErrorKind::Internal, "The change could not be stored"),
    }
}

const fn error_kind(illegal: IllegalTransition) -> ErrorKind {
    match illegal {
        IllegalTransition::SelfApproval | IllegalTransition::EditedByApprover => ErrorKind::SelfApproval,
        IllegalTransition::AlreadyVoted => ErrorKind::AlreadyVoted,
        IllegalTransition::EditForbidden => ErrorKind::EditForbidden,
        IllegalTransition::UnchangedArguments => ErrorKind::ValidationFailed,
        IllegalTransition::NotProposer | IllegalTransition::NotAnApprover => ErrorKind::Forbidden,
        IllegalTransition::Version { .. } => ErrorKind::VersionConflict,
        IllegalTransition::GracePeriodOver
        | IllegalTransition::NothingToVoid
        | IllegalTransition::NoOpenQuestion
        | IllegalTransition::NotReadBack
        | IllegalTransition::NotInPlan
        | IllegalTransition::State { .. } => ErrorKind::ChangeNotPending,
    }
}

fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// Returns the error for a change whose state does not allow the request.
pub(crate) fn wrong_state_error(current: &Arc<Change>) -> ChangeRequestError {
    let stale_reason =
        || current.fault.as_ref().map_or_else(|| "The change is stale".to_owned(), |f| f.message.clone());
    match current.state {
        ChangeState::Pending => version_conflict_error(current),
        ChangeState::Expired => refusal_error(ErrorKind::ChangeExpired, "The change has expired", current),
        ChangeState::Stale => refusal_error(ErrorKind::ChangeStale, stale_reason(), current),
        ChangeState::OutcomeUnknown => {
            let message = "The outcome of the change is unknown, so it can only be settled";
            refusal_error(ErrorKind::ChangeNotPending, message, current)
        }
        state => {
            let message =
                format!("The change is {}, so it can no longer be decided on", state.as_str().replace('_', " "));
            refusal_error(ErrorKind::ChangeNotPending, message, current)
        }
    }
}

pub(crate) fn version_conflict_error(current: &Arc<Change>) -> ChangeRequestError {
    let message = "The change is no longer as it was shown; look at its current version and decide again";
    refusal_error(ErrorKind::VersionConflict, message, current)
}

/// Returns an error that carries the current change.
pub(crate) fn refusal_error(
    kind: ErrorKind,
    message: impl Into<std::borrow::Cow<'static, str>>,
    change: &Arc<Change>,
) -> ChangeRequestError {
    let error = McpError::new(kind, message)
        .with("changeId", change.id.as_str())
        .with("state", change.state.as_str())
        .with("version", change.version);
    ChangeRequestError { error, current: Some(Arc::clone(change)) }
}

pub(crate) fn not_found_error() -> McpError {
    McpError::new(ErrorKind::ChangeNotFound, "Change not found")
}
