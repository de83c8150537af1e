//! Edits of the arguments, by a reviewer or by the gateway.

use serde_json::value::RawValue;

use super::{IllegalTransition, RevisedCall, SYSTEM};
use crate::{
    changes::{Change, Edit, Editing, ReviewNote, digest::arguments_hash, person::Person},
    principal::Principal,
};

impl Change {
    /// Checks that the editor may replace the arguments by these.
    pub(super) fn check_edit(&self, editor: &Principal, arguments: &RawValue) -> Result<(), IllegalTransition> {
        if self.terms.edit == Editing::Forbidden {
            return Err(IllegalTransition::EditForbidden);
        }
        // A person who may not approve the change may not edit it into another one either.
        if self.proposer_could_be(Person::from_principal(editor)) {
            return Err(IllegalTransition::SelfApproval);
        }
        if self.arguments.get() == arguments.get() {
            return Err(IllegalTransition::UnchangedArguments);
        }
        Ok(())
    }

    /// Replaces the call, and what reviewers see of it. The edit is recorded as one by `editor`, or by the system if there is
    /// none.
    pub(super) fn revise_call(&mut self, call: RevisedCall, editor: Option<&Principal>, comment: Option<String>) {
        let RevisedCall { arguments, preview, served_by, terms } = call;
        self.terms = *terms;
        self.edits.push(Edit {
            by: editor.map_or(SYSTEM, |editor| editor.name.as_str()).to_owned(),
            display_name: editor.and_then(Principal::display_name).map(str::to_owned),
            owner: editor.and_then(|editor| editor.owner.clone()),
            key_id: editor.and_then(|editor| editor.key_id.clone()),
            other_names: editor.map(|editor| editor.other_names().to_vec()).unwrap_or_default(),
            comment,
            at: self.updated_at,
            from: arguments_hash(&self.arguments),
            to: arguments_hash(&arguments),
        });
        let before = std::mem::replace(&mut self.arguments, arguments);
        self.proposed_arguments.get_or_insert(before);
        self.set_preview(preview, served_by);
        // A diff between different arguments would not show whether the target changed.
        self.previous_diff = None;
    }

    /// Notes why a step that needed no review is shown to reviewers. `is_allowed` tells whether policy allows the call.
    pub(super) fn note_required_review(&mut self, is_allowed: bool) {
        if self.terms.quorum > 0 {
            return;
        }
        let reason = if is_allowed {
            "the policy allows this step of a plan, but its arguments now contain results of earlier steps"
        } else {
            "the policy allowed this step of a plan when it was proposed, but now asks for a review"
        };
        self.review = Some(ReviewNote { rule: None, reason: reason.into(), mark: None });
    }
}
