//! Transitions of plan steps that alter what reviewers see of the step.

use std::sync::Arc;

use serde_json::value::RawValue;

use super::SYSTEM;
use crate::changes::{Change, Edit, Preview, ReviewNote, ServerIdentity, Terms, digest::arguments_hash};

impl Change {
    /// Sets the arguments that the gateway has filled in, with their preview and the terms of the review, and whether policy allows
    /// the call. The edit is recorded like one of a reviewer, by the system.
    pub(super) fn fill(
        &mut self,
        comment: Option<String>,
        arguments: Arc<RawValue>,
        preview: Preview,
        served_by: ServerIdentity,
        terms: Terms,
        is_allowed: bool,
    ) {
        self.edits.push(Edit {
            other_names: Vec::new(),
            by: SYSTEM.to_owned(),
            display_name: None,
            owner: None,
            key_id: None,
            comment,
            at: self.updated_at,
            from: arguments_hash(&self.arguments),
            to: arguments_hash(&arguments),
        });
        let before = std::mem::replace(&mut self.arguments, arguments);
        self.proposed_arguments.get_or_insert(before);
        if self.terms.quorum == 0 {
            let reason = if is_allowed {
                "the policy allows this step of a plan, but its arguments now contain results of earlier steps"
            } else {
                "the policy allowed this step of a plan when it was proposed, but now asks for a review"
            };
            self.review = Some(ReviewNote { rule: None, reason: reason.into(), mark: None });
        }
        // Nobody has seen the call as it is now, so one person must also look at what the policy allows.
        self.terms = Terms { quorum: terms.quorum.max(1), ..terms };
        self.set_preview(preview, served_by);
        // A diff between different arguments would not show whether the target changed.
        self.previous_diff = None;
    }
}
