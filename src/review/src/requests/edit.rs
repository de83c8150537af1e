//! A reviewer corrects the arguments of a change: checked like a call's, previewed as its proposer, decided anew.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::value::RawValue;

use super::answer::{
    Decided, about, check_endpoint, check_reviewer, conflict, expire, finish, is_proposer, load, version_conflict,
};
use crate::{
    Changes, DecideError, EditChange,
    inner::Inner,
    recheck::{Obstacle, presentable},
};
use countersign_domain::{
    changes::{Change, ChangeState, Editing, Terms, arguments, machine::ChangeEvent, visible},
    policy::{Decision, Verdict},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_provider::ProviderDirectory;
use countersign_runtime::{crash::crash_point, lanes::aside};

pub(crate) async fn edit(changes: &Changes, edit: EditChange) -> Decided {
    check_endpoint(&changes.inner, &edit.reviewer, edit.comment.as_deref())?;
    let inner = Arc::clone(&changes.inner);
    changes.inner.aside(async move { edit_now(&inner, edit).await }).await
}

async fn edit_now(inner: &Inner, edit: EditChange) -> Decided {
    let EditChange { id, reviewer, arguments, version, comment } = edit;
    let comment = visible::comment(comment);
    let change = load(inner, &id).await?;
    if !matches!(change.state, ChangeState::Pending | ChangeState::Stale) {
        return Err(conflict(change));
    }
    let refuse = |error| Err(DecideError { error, current: Some(Arc::clone(&change)) });
    if change.terms.edit == Editing::Forbidden {
        let message = "The rule for this change lets nobody edit its arguments; reject it and say why";
        return refuse(about(ErrorKind::EditForbidden, message, &change));
    }
    if is_proposer(&reviewer, &change) {
        return refuse(about(ErrorKind::SelfApproval, "Whoever proposed a change cannot edit it either", &change));
    }
    check_reviewer(inner, &reviewer, &change)?;
    if change.version != version {
        return Err(version_conflict(change));
    }
    if inner.expired(&change) {
        return Err(expire(inner, change).await);
    }
    let arguments: Arc<RawValue> = arguments.into();
    let checked = {
        let (change, arguments) = (Arc::clone(&change), Arc::clone(&arguments));
        let (directory, max) = (Arc::clone(&inner.directory), inner.config.max_change_bytes);
        let bytes = change.arguments.get().len() + arguments.get().len();
        aside(bytes, move || check_arguments(&*directory, max, &change, &arguments)).await
    };
    if let Err(error) = checked.and_then(|checked| checked) {
        return refuse(error);
    }
    let terms = match terms(inner, &change, &arguments).await {
        Ok(terms) => terms,
        Err(error) => return refuse(error),
    };
    let (preview, served_by) = match inner.look(&change, &arguments).await {
        Ok((provider, preview)) => (presentable(preview), provider.served_by()),
        Err(Obstacle::Impossible(error) | Obstacle::Unavailable(error)) => return refuse(error),
    };
    let event = ChangeEvent::Edit {
        by: reviewer.name.clone(),
        owner: reviewer.owner.clone(),
        key_id: reviewer.key_id.clone(),
        comment,
        arguments,
        preview,
        served_by,
        terms,
    };
    crash_point("before_edit");
    let step = inner.step_for_endpoint(&change, event, reviewer.key_id.as_deref()).await;
    crash_point("after_edit");
    finish(inner, &change, step).await
}

/// What is asked of the arguments of every reviewed call, and that they are others than those that are there.
fn check_arguments(
    directory: &dyn ProviderDirectory,
    max: usize,
    change: &Change,
    edited: &RawValue,
) -> Result<(), McpError> {
    let size = edited.get().len();
    if size > max {
        return Err(McpError::new(ErrorKind::TooLarge, "The arguments are too large to be reviewed")
            .with("max", max)
            .with("size", size));
    }
    arguments::check(edited)
        .map_err(|e| McpError::new(ErrorKind::ValidationFailed, format!("The arguments cannot be reviewed: {e}")))?;
    if arguments::same(&change.arguments, edited) {
        return Err(McpError::new(
            ErrorKind::ValidationFailed,
            "These are the arguments that the change has already; approve it as it is",
        ));
    }
    directory.validate(&change.provider, &change.tool, edited)
}

/// The terms of the review of the edited call: what was asked when it was proposed, and what the policy asks of such a
/// call now, so that an edit leads around no rule.
async fn terms(inner: &Inner, change: &Arc<Change>, edited: &Arc<RawValue>) -> Result<Terms, McpError> {
    let (directory, asked, arguments) = (Arc::clone(&inner.directory), Arc::clone(change), Arc::clone(edited));
    // A condition may look at much.
    let judged = tokio::task::spawn_blocking(move || directory.judge(&asked, &arguments)).await;
    let judged = judged.map_err(|_| McpError::new(ErrorKind::Internal, "The policy could not be asked"))?;
    let Some(Decision { verdict, reason, terms: now, .. }) = judged else { return Ok(change.terms.clone()) };
    match verdict {
        Verdict::Allow => Ok(change.terms.clone()),
        Verdict::Deny => Err(McpError::new(
            ErrorKind::PolicyDenied,
            format!("The policy denies the call with these arguments: {reason}"),
        )),
        Verdict::Review => stricter(&change.terms, &now).ok_or_else(|| {
            McpError::new(
                ErrorKind::PolicyDenied,
                format!("With these arguments the call is for other reviewers ({reason}); reject it and say why"),
            )
            .with("reviewers", now.reviewers.as_slice())
        }),
    }
}

/// What both ask for. `None` where each asks for reviewers of its own: nobody can tell who is left.
fn stricter(before: &Terms, now: &Terms) -> Option<Terms> {
    let set = |terms: &Terms| terms.reviewers.iter().cloned().collect::<BTreeSet<_>>();
    let reviewers = match (before.reviewers.is_empty(), now.reviewers.is_empty()) {
        (_, true) => before.reviewers.clone(),
        (true, false) => now.reviewers.clone(),
        (false, false) if set(before) == set(now) => before.reviewers.clone(),
        (false, false) => return None,
    };
    Some(Terms {
        reviewers,
        quorum: before.quorum.max(now.quorum),
        require_comment: before.require_comment || now.require_comment,
        edit: before.edit.max(now.edit),
        undo_for: before.undo_for.max(now.undo_for),
        preview_required: before.preview_required || now.preview_required,
        ..before.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edited_arguments_are_reviewed_as_strictly_as_either_rule_asks() {
        let plain = Terms::default();
        let strict = Terms {
            reviewers: vec!["dba".into(), "admin".into()],
            quorum: 2,
            require_comment: true,
            edit: Editing::Forbidden,
            undo_for: 30,
            preview_required: true,
            ..Terms::default()
        };
        assert_eq!(stricter(&plain, &strict).unwrap(), strict);
        assert_eq!(stricter(&strict, &plain).unwrap(), strict);
        let turned = Terms { reviewers: vec!["admin".into(), "dba".into()], ..plain.clone() };
        assert_eq!(stricter(&strict, &turned).unwrap(), strict);
        let others = Terms { reviewers: vec!["legal".into()], ..plain };
        assert_eq!(stricter(&strict, &others), None);
    }
}
