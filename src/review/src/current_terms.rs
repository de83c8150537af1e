//! The verdict and the terms that policy sets now for a change that was proposed earlier.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::value::RawValue;

use crate::review_state::ReviewState;
use countersign_domain::{
    changes::{Change, ChangeState, SignInTerms, Terms},
    policy::{Decision, Verdict, terms::stricter_terms},
};
use countersign_protocol::{ErrorKind, McpError};
use countersign_runtime::background;

/// Returns the verdict of policy on a change with these arguments, which were edited or filled in, or are its own, and its review
/// terms: the terms of the proposal combined with those that policy sets now, so that new arguments cannot avoid a rule.
pub(super) async fn terms_for_arguments(
    state: &ReviewState,
    change: &Arc<Change>,
    arguments: &Arc<RawValue>,
) -> Result<(Verdict, Terms), McpError> {
    let (directory, proposed, arguments) = (Arc::clone(&state.directory), Arc::clone(change), Arc::clone(arguments));
    // Evaluating a condition may take long.
    let decision = background::spawn_blocking(move || directory.judge_change(&proposed, &arguments)).await;
    let decision = decision.map_err(|_| McpError::new(ErrorKind::Internal, "The policy could not be evaluated"))?;
    let Some(Decision { verdict, reason, terms: current_terms, .. }) = decision else {
        return Ok((Verdict::Allow, change.terms.clone()));
    };
    let terms = match verdict {
        Verdict::Deny => {
            let message = format!("The policy denies the call with these arguments: {reason}");
            return Err(McpError::new(ErrorKind::PolicyDenied, message));
        }
        // Policy asked for no review when the step was proposed, so the terms are those that policy sets now.
        _ if change.is_allowed_step() && change.state == ChangeState::Approved => {
            Terms { expire_after: change.terms.expire_after, ..Terms::clone(&current_terms) }
        }
        Verdict::Allow => change.terms.clone(),
        Verdict::Review => combine_terms(&change.terms, &current_terms).ok_or_else(|| {
            McpError::new(
                ErrorKind::PolicyDenied,
                format!(
                    "With these arguments, the call requires other reviewers or another sign-in ({reason}); reject the \
                     change and say why"
                ),
            )
            .with("reviewers", current_terms.reviewers.as_slice())
        })?,
    };
    Ok((verdict, terms))
}

/// Combines two sets of terms; of each term, the stricter value counts. Returns `None` if they name different reviewers, or
/// kinds of authentication that have nothing in common, because then nobody may decide.
fn combine_terms(before: &Terms, now: &Terms) -> Option<Terms> {
    let set = |terms: &Terms| terms.reviewers.iter().cloned().collect::<BTreeSet<_>>();
    let reviewers = match (before.reviewers.is_empty(), now.reviewers.is_empty()) {
        (_, true) => before.reviewers.clone(),
        (true, false) => now.reviewers.clone(),
        (false, false) if set(before) == set(now) => before.reviewers.clone(),
        (false, false) => return None,
    };
    if let (Some(SignInTerms { acr, .. }), Some(now)) = (&before.sign_in, &now.sign_in)
        && !acr.is_empty()
        && !now.acr.is_empty()
        && !acr.iter().any(|acr| now.acr.contains(acr))
    {
        return None;
    }
    // These were fixed by the proposal: the time of expiry, and the client's capabilities for questions.
    Some(Terms {
        reviewers,
        expire_after: before.expire_after,
        on_expiry: before.on_expiry,
        questions: before.questions,
        ..stricter_terms(before, now)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use countersign_domain::changes::Editing;

    #[test]
    fn edited_call_has_the_stricter_terms_of_both_rules() {
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
        assert_eq!(combine_terms(&plain, &strict).unwrap(), strict);
        assert_eq!(combine_terms(&strict, &plain).unwrap(), strict);
        let reordered = Terms { reviewers: vec!["admin".into(), "dba".into()], ..plain.clone() };
        assert_eq!(combine_terms(&strict, &reordered).unwrap(), strict);
        let others = Terms { reviewers: vec!["legal".into()], ..plain };
        assert_eq!(combine_terms(&strict, &others), None);
        let signing_in = |acr: &[&str]| {
            let acr = acr.iter().map(|acr| (*acr).to_owned()).collect();
            Terms { sign_in: Some(SignInTerms { max_age: None, acr }), ..Terms::default() }
        };
        assert_eq!(combine_terms(&signing_in(&["a", "b"]), &signing_in(&["b"])), Some(signing_in(&["b"])));
        assert_eq!(combine_terms(&signing_in(&[]), &signing_in(&["b"])), Some(signing_in(&["b"])));
        assert_eq!(combine_terms(&signing_in(&["a"]), &signing_in(&["b"])), None);
    }
}
