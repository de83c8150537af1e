//! The terms of a change whose arguments were revised: edited by a reviewer, or filled in with results of earlier steps.

use std::{collections::BTreeSet, sync::Arc};

use serde_json::value::RawValue;

use super::review_core::ReviewCore;
use countersign_domain::{
    changes::{Change, ChangeState, SignInTerms, Terms},
    policy::{Decision, Verdict, terms::stricter_terms},
};
use countersign_protocol::{ErrorKind, McpError};

/// Returns the verdict of policy on a change with these arguments, whether edited, filled in or its own, and the terms of its
/// review. The terms of the proposal are combined with those that policy sets now, so that new arguments cannot avoid a rule.
pub(super) async fn revise_terms(
    core: &ReviewCore,
    change: &Arc<Change>,
    arguments: &Arc<RawValue>,
) -> Result<(Verdict, Terms), McpError> {
    let Some(Decision { verdict, reason, terms: current_terms, .. }) = core.judge(change, arguments).await? else {
        return Ok((Verdict::Allow, change.terms.clone()));
    };
    let terms = if change.is_allowed_step() && change.state == ChangeState::Approved {
        // Policy asked for no review when the step was proposed, so the terms are those that policy sets now.
        Terms { expire_after: change.terms.expire_after, ..Terms::clone(&current_terms) }
    } else if verdict == Verdict::Allow {
        change.terms.clone()
    } else {
        combine_terms(&change.terms, &current_terms).ok_or_else(|| {
            McpError::new(
                ErrorKind::PolicyDenied,
                format!(
                    "With these arguments, the call requires other reviewers or another sign-in ({reason}); reject the \
                     change and say why"
                ),
            )
            .with("reviewers", current_terms.reviewers.as_slice())
        })?
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
